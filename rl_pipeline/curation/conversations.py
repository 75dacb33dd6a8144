"""From a trajectory's document to chat messages: what its agent was shown, and what it wrote.

A conversation is the view of the trajectory's own agent. Turns of other agents are not in it: whatever of them the
agent was shown is in its own observations. `trained` is true for what the agent itself wrote in its turn, and for
nothing else: not for observations, and not for a turn that is marked as copied context (`is_copied_context`).

What an agent wrote is its raw response. Where that does not tell the call that the turn made, or where there is none,
the call is added as `tool_calls`. What a tool returned is told by the next observation, else by the result; what the
last action led to is left out, for nobody answered it. Documents are valid when they get here; what an open object
holds is read if it can be, and passed over if not.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NotRequired, TypedDict

import orjson

from rl_pipeline.rewards.document import JsonObject, as_list, as_object, as_text, texts_of

Role = Literal["system", "user", "assistant", "tool"]

_KINDS = {"system": "system_message", "developer": "system_message", "tool": "tool_result"}
"""What the messages are that a turn of an imported trajectory shows before its observation (`shown_before`)."""

_MARKED_IN = ("observation", "action", "result", "sampling", "extra", "metadata")
"""Parts of a turn in which it may say that it is copied."""


class Message(TypedDict):
    """One message, as chat templates take it; `trained` says whether a policy learns to write it."""

    role: Role
    content: str
    trained: bool
    tool_calls: NotRequired[list[JsonObject]]


@dataclass(frozen=True)
class Conversation:
    """What one trajectory teaches. It opens with what was asked, and ends with what the agent wrote last."""

    messages: Sequence[Message]
    environment: str | None
    environment_task: str | None
    """As JSON."""


@dataclass(frozen=True)
class Unusable:
    """Why nothing can be learnt from a trajectory: `unreadable`, `opted_out`, `nothing_asked` or `nothing_written`."""

    reason: str


def conversation_of(document: str | bytes, longest_observation: int) -> Conversation | Unusable:
    """The conversation that a document tells; of longer observations the middle is left out."""
    try:
        trajectory = orjson.loads(document)
    except orjson.JSONDecodeError:
        return Unusable("unreadable")
    if not isinstance(trajectory, dict):
        return Unusable("unreadable")
    task, metadata = as_object(trajectory.get("task_context")), as_object(trajectory.get("metadata"))
    if _is_set(task.get("opt_out")) or _is_set(metadata.get("opt_out")):
        return Unusable("opted_out")
    environment = as_text(task.get("environment")) or None
    telling = _Telling(longest_observation, in_words=environment is not None)
    for turn in _own_turns(trajectory):
        telling.add(turn)
    messages = _ended(_asked(telling.messages, as_text(task.get("instructions")), longest_observation))
    if not any(message["trained"] for message in messages):
        return Unusable("nothing_written")
    if messages[0]["role"] == "assistant":
        return Unusable("nothing_asked")
    start = task.get("environment_task") if environment else None
    return Conversation(messages, environment, None if start is None else dump(start))


def opening_of(messages: Sequence[Message]) -> Sequence[Message]:
    """Everything before the agent's first action."""
    roles = [message["role"] for message in messages]
    return messages[: roles.index("assistant") if "assistant" in roles else len(roles)]


def dump(value: Any) -> str:
    """A value as JSON, always the same way."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()


class _Telling:
    """Messages as turns are added to them."""

    def __init__(self, longest_observation: int, *, in_words: bool) -> None:
        self.messages: list[Message] = []
        self._longest = longest_observation
        self._in_words = in_words
        """Whether raw responses are whole actions, as in a world that is acted in by text."""
        self._shown = ""
        self._result: str | None = None
        """What came of the last action, if it was a call."""
        self._is_owed = False
        """Whether nothing has told yet what came of it."""
        self._is_known = False
        """Whether the result says so: else what is shown next may be all that came of it."""

    def add(self, turn: JsonObject) -> None:
        """Tell one turn of the agent: what it was shown, then what it wrote."""
        for message in map(as_object, as_list(turn.get("shown_before"))):
            kind = _KINDS.get(as_text(message.get("role")), "user_message")
            self._show(kind, text_of(message.get("content")))
        observation = as_object(turn.get("observation"))
        self._show(as_text(observation.get("type")), text_of(observation.get("content")))
        action, result = as_object(turn.get("action")), as_object(turn.get("result"))
        written = _written(action, result, _thoughts(turn), in_words=self._in_words)
        self._result, self._is_owed = None, False
        if written is not None:
            self.messages.append({**written, "trained": not _is_copied(turn)})
            self._is_owed = _is_call(action)
            self._is_known = result.get("output") is not None or bool(result.get("error"))
            self._result = _result_text(result) if self._is_owed else None

    def _show(self, kind: str, text: str) -> None:
        is_answer = kind in ("tool_result", "subordinate_response") or _same(text, self._result)
        repeats = text == self._shown and self._result is not None
        self._shown = text
        if is_answer and text.strip():
            self._say("tool" if self._was_acted() else "user", text)
            self._is_owed = False
            return
        # The result, be it empty, is not what was shown next, so it stands between the call and what was.
        if self._is_owed and (self._is_known or not text.strip() or "tool_calls" in self.messages[-1]):
            self._say("tool", self._result or "")
        self._is_owed = False
        if text.strip() and not repeats:
            self._say("system" if kind == "system_message" and not self._was_begun() else "user", text)

    def _was_acted(self) -> bool:
        return bool(self.messages) and self.messages[-1]["role"] in ("assistant", "tool")

    def _was_begun(self) -> bool:
        return any(message["role"] != "system" for message in self.messages)

    def _say(self, role: Role, text: str) -> None:
        """Add what was shown; two messages of one user or system in a row are one, as most templates want it."""
        text = _shortened(text, self._longest)
        if role != "tool" and self.messages and self.messages[-1]["role"] == role:
            self.messages[-1]["content"] += "\n" + text
        else:
            self.messages.append({"role": role, "content": text, "trained": False})


def text_of(content: Any) -> str:
    """What an observation or a result says, as text: parts one below the other, objects that are no text as JSON."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    parts = content.get("parts") if isinstance(content, dict) and len(content) == 1 else content
    if isinstance(parts, list):
        return "\n".join(map(_part_text, parts))
    return _part_text(content)


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        if isinstance(part.get("text"), str) and part.keys() <= {"text", "type"}:
            return str(part["text"])
        kind = as_text(part.get("type"))
        if kind.startswith(("image", "audio", "video", "input_image", "input_audio", "file")):
            return f"[{kind}]"
    return orjson.dumps(part).decode()


def _own_turns(trajectory: JsonObject) -> Iterator[JsonObject]:
    own = as_text(trajectory.get("agent_id"))
    for turn in map(as_object, as_list(trajectory.get("turns"))):
        if as_text(turn.get("agent_id")) in ("", own):
            yield turn


def _asked(messages: list[Message], instructions: str, longest: int) -> list[Message]:
    """The messages with the request before them, unless the opening tells it."""
    request = instructions.strip()
    if not request or any(request in message["content"] for message in opening_of(messages)):
        return messages
    place = next((place for place, message in enumerate(messages) if message["role"] != "system"), len(messages))
    request = _shortened(request, longest)
    if place < len(messages) and messages[place]["role"] == "user":
        told: Message = {**messages[place], "content": f"{request}\n{messages[place]['content']}"}
        return [*messages[:place], told, *messages[place + 1 :]]
    return [*messages[:place], {"role": "user", "content": request, "trained": False}, *messages[place:]]


def _ended(messages: list[Message]) -> list[Message]:
    """The messages up to the last that the agent wrote to be learnt from."""
    last = max((place for place, message in enumerate(messages) if message["trained"]), default=-1)
    return messages[: last + 1]


def _is_call(action: Mapping[str, Any]) -> bool:
    return as_text(action.get("type")) != "response"


def _written(action: JsonObject, result: JsonObject, thoughts: str, *, in_words: bool) -> Message | None:
    """What the agent wrote in a turn, if it wrote anything."""
    response = as_text(action.get("raw_response"))
    if not _is_call(action):
        said = response if response.strip() else text_of(result.get("output"))
        return {"role": "assistant", "content": said, "trained": False} if said.strip() else None
    tool, arguments = as_text(action.get("tool_name")), as_object(action.get("tool_args"))
    # In a world that is acted in by text, saying nothing is an action too.
    is_whole = isinstance(action.get("raw_response"), str) if in_words else bool(response.strip())
    if is_whole and (in_words or _tells_the_call(response, tool, arguments)):
        return {"role": "assistant", "content": response, "trained": False}
    call = {"type": "function", "function": {"name": tool or as_text(action.get("type")), "arguments": arguments}}
    content = response if response.strip() else thoughts
    return {"role": "assistant", "content": content, "trained": False, "tool_calls": [call]}


def _tells_the_call(response: str, tool: str, arguments: JsonObject) -> bool:
    """Whether a response holds the call that was made, as agents without a protocol for tools write it."""
    values = [value.strip() for value in texts_of(arguments) if value.strip()]
    if not any(len(value) > 2 for value in values):
        return bool(tool) and tool in response and all(value in response for value in values)
    return all(value in response or orjson.dumps(value).decode()[1:-1] in response for value in values)


def _thoughts(turn: JsonObject) -> str:
    return "\n".join(thought for thought in as_list(turn.get("thought_process")) if isinstance(thought, str))


def _result_text(result: JsonObject) -> str:
    told = (text_of(result.get("output")), as_text(result.get("error")))
    return "\n".join(text for text in told if text)


def _same(shown: str, result: str | None) -> bool:
    """Whether an observation tells the result; around a longer one there may be other words."""
    if not result or not shown:
        return False
    return shown.strip() == result.strip() or (len(result) >= 20 and result.strip() in shown)


def _shortened(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    end = longest // 4
    return f"{text[: longest - end]}\n[{len(text) - longest} characters left out]\n{text[len(text) - end :]}"


def _is_copied(turn: JsonObject) -> bool:
    parts = (turn, *(as_object(turn.get(name)) for name in _MARKED_IN))
    return any(_is_set(part.get("is_copied_context")) for part in parts)


def _is_set(flag: Any) -> bool:
    """Whether a flag is set; what is neither true nor false counts as set, for it is there to warn."""
    return flag not in (None, False, 0, "", "false", "False")
