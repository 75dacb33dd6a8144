"""What a chat of MassGen yields, chunk by chunk, as the spans of a trace.

A chunk's `type` is text in most of MassGen's backends and a member of an enumeration in one. Text comes in pieces: what
is said or thought in one go is one span. A tool that MassGen runs tells its call, its arguments and its result in
status chunks, as text in fixed words; a call that somebody else is to run, such as a vote, comes without a result.
"""

import json
import re
import time
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from rl_pipeline.collection.harmless import harmless
from rl_pipeline.collection.massgen.collector import TraceCollector
from rl_pipeline.collection.massgen.config import RLConfig
from rl_pipeline.collection.massgen.spans import PromptSpan, TraceStatus
from rl_pipeline.collection.outbox.counts import Counting
from rl_pipeline.rewards.massgen import RewardComputer

_TOLD_OF_A_TOOL = re.compile(r"(?:Arguments|Results) for Calling ([^\s:]+): (.*)", re.DOTALL)
_CALLING = re.compile(r"Calling ([^\s.]+)")
_THOUGHTS = ("reasoning", "reasoning_summary")
_THOUGHTS_DONE = ("reasoning_done", "reasoning_summary_done")
_TOOL_STATUS = ("mcp_status", "custom_tool_status")
_ANSWERING_TOOL = "new_answer"


def kind_of(chunk: Any) -> str:
    """A chunk's type, as text."""
    kind = getattr(chunk, "type", "")
    return str(getattr(kind, "value", kind))


def task_of(messages: Any) -> str:
    """What the user asked last."""
    for message in reversed(messages if isinstance(messages, list) else []):
        if isinstance(message, Mapping) and message.get("role") == "user":
            return _text(message.get("content"))
    return _text(messages) if isinstance(messages, str) else ""


def shown_by(messages: Any) -> Any:
    """What an agent was shown: the text of a single message, else all of them."""
    if isinstance(messages, list) and len(messages) == 1 and isinstance(messages[0], Mapping):
        return messages[0].get("content", "")
    return messages


@dataclass
class _Call:
    name: str
    began: float
    arguments: dict[str, Any] = field(default_factory=dict)
    result: Any = None


class ChatRecording:
    """One chat of one agent. Nothing that is called here raises."""

    def __init__(
        self, collector: TraceCollector, rewards: RewardComputer, config: RLConfig, trace_id: str, messages: Any
    ) -> None:
        self.trace = collector.get_active_trace(trace_id)
        self._trace_id = trace_id
        self._collector = collector
        self._rewards = rewards
        self._config = config
        self._shown = shown_by(messages)
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._calls: dict[str, _Call] = {}
        self._answer = ""
        self._has_prompt = False
        self._handed_over = False
        self._done = False
        self._error: str | None = None
        self._usage: dict[str, int] = {}

    @property
    def counting(self) -> Counting:
        """Where faults are counted."""
        return self._collector.counting

    @harmless
    def see(self, chunk: Any) -> None:
        """A chunk has come."""
        kind = kind_of(chunk)
        if kind == "content":
            self._end_thoughts()
            self._text.append(_text(chunk.content))
        elif kind in _THOUGHTS:
            told = (getattr(chunk, name, None) for name in ("reasoning_delta", "reasoning_summary_delta", "content"))
            self._thoughts.append(next((_text(text) for text in told if text), ""))
        elif kind in _THOUGHTS_DONE:
            told = (getattr(chunk, name, None) for name in ("reasoning_text", "reasoning_summary_text"))
            whole = next((_text(text) for text in told if text), "")
            self._thoughts = [whole] if whole else self._thoughts
            self._end_thoughts()
        elif kind == "tool_calls":
            for number, call in enumerate(getattr(chunk, "tool_calls", None) or []):
                self._hand_over(call, number)
        elif kind in _TOOL_STATUS:
            self._see_tool(chunk)
        elif kind == "error":
            self._error = _text(getattr(chunk, "error", None) or getattr(chunk, "content", None)) or "error"
        self._done = self._done or kind == "done"
        self._count(getattr(chunk, "usage", None))

    def finish(self, error: BaseException | None, usage: Mapping[str, int]) -> "Future[None] | None":
        """The chat has ended, by itself or by `error`; `usage` counts where no chunk has told the tokens."""
        self._close(usage)
        if self.trace is not None and (told := self._told(error)):
            self.trace.metadata["error"] = told
        return self._collector.finish(self._trace_id, self._status(error))

    @harmless
    def _close(self, usage: Mapping[str, int]) -> None:
        self._end_thoughts()
        self._end_text()
        for key in list(self._calls):
            self._end_call(key, is_known=False)
        if self._config.enable_answer_quality_rewards and self._answer.strip():
            worth = self._rewards.compute_answer_quality_reward(self._answer)
            self._collector.emit_reward_span(self._trace_id, worth, "answer_quality", "structure and depth")
        prompts = [span for span in self.trace.spans if isinstance(span, PromptSpan)] if self.trace else []
        if prompts:
            counted = self._usage or usage
            prompts[0].input_tokens, prompts[0].output_tokens = counted.get("input"), counted.get("output")

    def _status(self, error: BaseException | None) -> TraceStatus:
        """A consumer that goes once the agent has acted has what it wanted; one that goes before gave the agent up."""
        if self._error is not None or isinstance(error, Exception):
            return "failed"
        left_early = error is not None and not (isinstance(error, GeneratorExit) and (self._done or self._handed_over))
        return "abandoned" if left_early else "completed"

    def _told(self, error: BaseException | None) -> str | None:
        return type(error).__name__ if isinstance(error, Exception) else self._error

    def _end_thoughts(self) -> None:
        thought, self._thoughts = "".join(self._thoughts), []
        if thought.strip():
            self._end_text()
            self._collector.emit_reasoning_span(self._trace_id, thought)

    def _end_text(self, *, is_before_a_call: bool = False) -> None:
        """What was said so far is a span: the first is the answer to the prompt."""
        said, self._text = "".join(self._text), []
        self._answer = said if said.strip() else self._answer
        if not self._has_prompt and (said or is_before_a_call):
            self._has_prompt = True
            model = str(self.trace.metadata.get("model") or "") if self.trace else ""
            self._collector.emit_prompt_span(self._trace_id, self._shown, said, model)
        elif said:
            self._collector.emit_content_span(self._trace_id, said)

    def _hand_over(self, call: Any, number: int) -> None:
        """A call that whoever reads the chat is to run."""
        told: Mapping[str, Any] = call if isinstance(call, Mapping) else {}
        nested = told.get("function")
        function: Mapping[str, Any] = nested if isinstance(nested, Mapping) else told
        key = str(told.get("id") or told.get("call_id") or f"handed over {number} {len(self._calls)}")
        opened = self._open_call(key, str(function.get("name") or "unknown"))
        opened.arguments = _arguments(function.get("arguments"))
        self._handed_over = True
        answer = opened.arguments.get("content") if opened.name == _ANSWERING_TOOL else None
        self._answer = answer if isinstance(answer, str) else ""  # a vote is no answer, whatever is said beside it

    def _see_tool(self, chunk: Any) -> None:
        """A tool that MassGen runs itself: called, its arguments, its result, its end."""
        status, content = _text(getattr(chunk, "status", None)), _text(getattr(chunk, "content", None))
        told = _TOLD_OF_A_TOOL.match(content)
        calling = told or _CALLING.search(content)
        source = re.sub("^(mcp|custom)_", "", _text(getattr(chunk, "source", None)))
        name = calling[1] if calling and status != "injection" else source
        key = _text(getattr(chunk, "tool_call_id", None)) or source or name
        if status.endswith("_tool_called"):
            self._open_call(key, name)
        elif status == "function_call" and told:
            self._open_call(key, name).arguments = _arguments(told[2])
        elif status == "function_call_output" and told:
            self._open_call(key, name).result = told[2]
        elif status.endswith("_tool_response") and key in self._calls:
            self._end_call(key)
        elif status.endswith("_tool_error") and key in self._calls:
            self._end_call(key, error=content)

    def _open_call(self, key: str, name: str) -> _Call:
        if key not in self._calls:
            self._end_thoughts()
            self._end_text(is_before_a_call=True)
            self._calls[key] = _Call(name, time.perf_counter())
        return self._calls[key]

    def _end_call(self, key: str, *, is_known: bool = True, error: str | None = None) -> None:
        call = self._calls.pop(key)
        took = time.perf_counter() - call.began if is_known else 0.0
        self._collector.emit_tool_span(
            self._trace_id,
            call.name,
            call.arguments,
            call.result,
            success=error is None,
            execution_time=took,
            error=error,
        )
        if is_known and self._config.enable_tool_rewards:
            reward = self._rewards.compute_tool_reward({"name": call.name, "error": error}, call.result)
            self._collector.emit_reward_span(self._trace_id, reward, "tool", call.name)

    def _count(self, usage: Any) -> None:
        if not isinstance(usage, Mapping):
            return
        for name, other in (("input", "prompt"), ("output", "completion")):
            count = usage.get(f"{name}_tokens", usage.get(f"{other}_tokens"))
            if isinstance(count, int):
                self._usage[name] = self._usage.get(name, 0) + count


def _arguments(told: Any) -> dict[str, Any]:
    """A call's arguments; what is no object is kept as text."""
    if isinstance(told, str):
        try:
            told = json.loads(told)
        except ValueError:
            return {"text": told} if told.strip() else {}
    return dict(told) if isinstance(told, Mapping) else {} if told is None else {"text": str(told)}


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "\n".join(part.get("text", "") for part in value if isinstance(part, Mapping))
    return value if isinstance(value, str) else "" if value is None else str(value)
