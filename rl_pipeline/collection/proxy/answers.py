"""What a model answered, from the bytes that went by: whole, or as a stream of events."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rl_pipeline.collection.formats.values import JsonObject, as_count, as_list, as_name, as_object, numbers, token_ids

_DONE = b"[DONE]"
_MOST_CALLS = 1000
_JOINED = ("content", "reasoning_content", "reasoning", "refusal")


@dataclass
class Answer:
    """The first choice of an answer: an assistant's message, and how it was drawn."""

    message: JsonObject
    is_whole: bool
    """Whether the model came to its end; a caller may hang up before."""
    completion_id: str | None = None
    sampling: JsonObject = field(default_factory=dict)
    usage: JsonObject = field(default_factory=dict)


def read_answer(body: bytes, *, is_stream: bool) -> Answer | None:
    """The answer; None where there is none to be read."""
    try:
        events = list(_events(body)) if is_stream else [json.loads(body)]
    except (ValueError, RecursionError):
        return None
    merged = _Merged()
    for event in events:
        merged.take(as_object(event))
    if not merged.message:
        return None
    is_whole = not is_stream or merged.is_finished or body.rstrip().endswith(_DONE)
    return Answer(merged.message, is_whole, merged.completion_id, merged.sampling(), merged.usage)


class _Merged:
    """The parts of an answer, put together as they come."""

    def __init__(self) -> None:
        self.message: JsonObject = {}
        self.completion_id: str | None = None
        self.usage: JsonObject = {}
        self.is_finished = False
        self._model: Any = None
        self._drawn: dict[str, list[Any]] = {}

    def take(self, event: JsonObject) -> None:
        self._model = event.get("model") or self._model
        if isinstance(event.get("id"), str):
            self.completion_id = event["id"]
        counts = as_object(event.get("usage"))
        self.usage |= {
            name: counts[name] for name in ("prompt_tokens", "completion_tokens") if isinstance(counts.get(name), int)
        }
        self._draw("prompt_token_ids", token_ids(event.get("prompt_token_ids")))
        for choice in map(as_object, as_list(event.get("choices"))):
            if choice.get("index", 0) == 0:
                self._take_choice(choice)

    def sampling(self) -> JsonObject:
        """How it was drawn, as far as the server says."""
        version = as_name(self._model)
        return {**({"model_version": version} if version else {}), **self._drawn}

    def _take_choice(self, choice: JsonObject) -> None:
        said = as_object(choice.get("delta") or choice.get("message"))
        self.message.setdefault("role", "assistant")
        for name, value in said.items():
            if name in _JOINED and isinstance(value, str):
                self.message[name] = (self.message.get(name) or "") + value
            elif name == "tool_calls":
                self._take_calls(as_list(value))
            elif name != "role" and value is not None:
                self.message[name] = value
        tokens = [as_object(token) for token in as_list(as_object(choice.get("logprobs")).get("content"))]
        self._draw("logprobs", numbers([token.get("logprob") for token in tokens]))
        self._draw("completion_token_ids", token_ids(choice.get("token_ids")))
        self.is_finished = self.is_finished or choice.get("finish_reason") is not None

    def _take_calls(self, calls: list[Any]) -> None:
        known: list[JsonObject] = self.message.setdefault("tool_calls", [])
        for place, call in enumerate(map(as_object, calls)):
            index = as_count(call.get("index", place))
            if index is None or index > _MOST_CALLS:
                continue
            while len(known) <= index:
                known.append({"type": "function", "function": {"name": "", "arguments": ""}})
            whole, function = known[index], as_object(call.get("function"))
            whole |= {name: call[name] for name in ("id", "type") if call.get(name)}
            for name in ("name", "arguments"):
                if isinstance(function.get(name), str):
                    whole["function"][name] += function[name]

    def _draw(self, name: str, values: Sequence[float] | None) -> None:
        if values:
            self._drawn.setdefault(name, []).extend(values)


def _events(body: bytes) -> Iterator[Any]:
    """The JSON of a stream's events; one that is cut off ends it."""
    for line in body.split(b"\n"):
        name, _, value = line.strip().partition(b":")
        if name == b"data" and value.strip() and value.strip() != _DONE:
            try:
                yield json.loads(value)
            except ValueError:
                return
