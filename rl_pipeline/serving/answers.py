"""Puts the served model's id into what a backend answers, so that every trajectory can say who wrote it."""

import os
from typing import Any

import orjson

LARGEST_EVENT_BYTES = 16 * 2**20
_DONE = b"[DONE]"


class Unreadable(ValueError):
    """No answer of an OpenAI-compatible server."""


def answer_id(generation: int, model_id: str) -> str:
    """A new id of an answer, from which `rl-pipeline explain` finds back to its model."""
    return f"chatcmpl-{generation}-{model_id}-{os.urandom(8).hex()}"


def renamed(answer: bytes, model_id: str, new_id: str) -> tuple[bytes, Any]:
    """The answer with our ids, and the usage that it tells of. Raises `Unreadable`."""
    try:
        content = orjson.loads(answer)
    except orjson.JSONDecodeError:
        raise Unreadable("its answer is no JSON") from None
    if not isinstance(content, dict) or "choices" not in content:
        raise Unreadable("its answer has no choices")
    content["id"], content["model"] = new_id, model_id
    return _encoded(content), content.get("usage")


class EventStream:
    """Renames the events of a stream as they pass. Only an unfinished line is ever held back."""

    def __init__(self, model_id: str, new_id: str) -> None:
        self.is_done = False
        """The backend said that the stream is complete."""
        self.has_failed = False
        """The backend told of an error within the stream."""
        self.usage: Any = None
        self._model_id = model_id
        self._id = new_id
        self._rest = b""

    def feed(self, piece: bytes) -> bytes:
        """What can be passed on now. Raises `Unreadable`."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if len(self._rest) > LARGEST_EVENT_BYTES:
            raise Unreadable("an event of its stream is too large")
        return b"".join([self._line(line) for line in lines])

    def finish(self) -> bytes:
        """What can be passed on once the backend says no more: its last line may lack its end. Raises `Unreadable`."""
        rest, self._rest = self._rest, b""
        return self._line(rest) + b"\n" if rest.strip() and not self.is_done else b""

    def _line(self, line: bytes) -> bytes:
        if not line.startswith(b"data:"):
            return line + b"\n"
        data = line[5:].strip()
        if not data:
            return b""  # some send it to keep the connection alive; clients would read it as an event
        if data == _DONE:
            self.is_done = True
            return line + b"\n"
        try:
            event = orjson.loads(data)
        except orjson.JSONDecodeError:
            raise Unreadable("an event of its stream is no JSON") from None
        if isinstance(event, dict):
            self.has_failed = self.has_failed or event.get("error") is not None
            self.usage = event.get("usage") or self.usage
            if "choices" in event:
                event["id"], event["model"] = self._id, self._model_id
                return b"data: " + _encoded(event) + b"\n"
        return line + b"\n"


def _encoded(content: dict[str, Any]) -> bytes:
    try:
        return orjson.dumps(content)
    except orjson.JSONEncodeError:
        raise Unreadable("its answer is nested too deeply") from None
