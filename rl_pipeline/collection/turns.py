"""One turn while it happens: what the agent was shown, thought, said and did, and what came of it."""

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Literal

from rl_pipeline.collection.harmless import harmless
from rl_pipeline.collection.outbox.counts import Counting
from rl_pipeline.collection.plain_values import plain
from rl_pipeline.contracts import wrap_parts

ObservationKind = Literal["user_message", "tool_result", "subordinate_response", "system_message"]
ActionKind = Literal["tool_call", "subordinate_call", "response", "memory_update"]


def observation(content: Any, kind: ObservationKind, context: Any = None) -> dict[str, Any]:
    """What the agent was shown, as the contract has it."""
    seen: dict[str, Any] = {"type": kind, "content": wrap_parts(plain(content))}
    if context is not None:
        seen["context"] = plain(context)
    return seen


class OpenTurn:
    """A turn that is going on. Nothing that is called here raises; the last word on a subject counts."""

    def __init__(self, seen: dict[str, Any], clock: Callable[[], datetime], counting: Counting) -> None:
        self.counting = counting
        self.seen = seen
        self._clock = clock
        self._began = clock()
        self._acted = self._began
        self._action: dict[str, Any] = {"type": "response"}
        self._result: dict[str, Any] | None = None
        self._thoughts: list[str] = []
        self._sampling: dict[str, Any] = {}
        self._usage: dict[str, int] = {}
        self._more: dict[str, Any] = {}
        self._unclaimed = threading.Lock()

    @property
    def is_settled(self) -> bool:
        """Whether it is known what came of the turn."""
        return self._result is not None

    def claim(self) -> bool:
        """Whether the caller is the first to claim the turn's action; of tools, several may run at once."""
        return self._unclaimed.acquire(blocking=False)

    @harmless
    def think(self, *thoughts: str) -> None:
        """What the agent thought before it acted."""
        self._thoughts += [str(plain(thought)) for thought in thoughts]

    @harmless
    def answer(
        self,
        raw_response: str,
        *,
        model_version: str | None = None,
        prompt_token_ids: Sequence[int] | None = None,
        completion_token_ids: Sequence[int] | None = None,
        logprobs: Sequence[float] | None = None,
        prompt_tokens: int | None = None,
        completion_tokens: int | None = None,
    ) -> None:
        """What the model said, by which version, and how it was drawn, as far as that is known.

        Numbers of tokens that are left out are counted from the token ids.
        """
        self._action["raw_response"] = plain(raw_response)
        drawn = {
            "model_version": model_version,
            "prompt_token_ids": prompt_token_ids,
            "completion_token_ids": completion_token_ids,
            "logprobs": logprobs,
        }
        self._sampling |= {name: plain(value) for name, value in drawn.items() if value is not None}
        for name, count in (("prompt_tokens", prompt_tokens), ("completion_tokens", completion_tokens)):
            ids = self._sampling.get(f"{name.removesuffix('s')}_ids")
            if count is not None:
                self._usage[name] = int(count)
            elif ids is not None:
                self._usage[name] = len(ids)

    @harmless
    def call(self, tool_name: str, tool_args: Any = None, *, kind: ActionKind = "tool_call") -> None:
        """What the agent does; its time begins here."""
        self._action |= {"type": kind, "tool_name": plain(tool_name)}
        if tool_args is not None:
            arguments = plain(tool_args)
            self._action["tool_args"] = arguments if isinstance(arguments, dict) else wrap_parts([arguments])
        self._acted = self._clock()

    @harmless
    def succeed(self, output: Any = None) -> None:
        """The action worked."""
        self._settle({"success": True}, output)

    @harmless
    def fail(self, error: BaseException | str, output: Any = None) -> None:
        """The action did not work."""
        told = error if isinstance(error, str) else _told(error)
        self._settle({"success": False, "error": plain(told)}, output)

    @harmless
    def note(self, /, **fields: Any) -> None:
        """Fields of a turn that have no other word here, such as `agent_id` for a turn of another agent."""
        self._more |= {name: plain(value) for name, value in fields.items()}

    def content(self) -> dict[str, Any]:
        """The turn as it stands."""
        if self._result is None:
            self._settle({"success": True}, None)
        turn = {
            **self._more,
            "timestamp": self._began.isoformat(),
            "end_timestamp": self._clock().isoformat(),
            "observation": self.seen,
            "action": self._action,
            "result": self._result,
        }
        optional = {"thought_process": self._thoughts, "sampling": self._sampling, "usage": self._usage}
        return turn | {name: value for name, value in optional.items() if value}

    def _settle(self, result: dict[str, Any], output: Any) -> None:
        # To answer is itself what took the time; a tool's time begins with its call.
        since = self._began if self._action["type"] == "response" else self._acted
        took = (self._clock() - since).total_seconds() * 1000
        self._result = result | {"execution_time_ms": round(took, 3)}
        if output is not None:
            self._result["output"] = wrap_parts(plain(output))


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - an exception's own text may fail
        return type(error).__name__
