"""What a model was shown and answered, in the three dialects that spans tell it in:

- `flat`: `gen_ai.prompt.0.role`, `gen_ai.completion.0.content`, as older tracers write;
- `messages`: `gen_ai.input.messages`, `gen_ai.output.messages` and `gen_ai.system_instructions`, whose messages have
  parts, as JSON text (`messages_as_text`) or as values;
- `openinference`: `llm.input_messages.0.message.role`, `llm.output_messages.0.message.content`.

Each is read as chat messages, and written as it was. What stands elsewhere in a span (`otlp_elsewhere.py`), or has more
to it than chat messages can tell, is `KEPT`: the span has it whole, and is written as it is.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rl_pipeline.collection.formats.chat import compact
from rl_pipeline.collection.formats.lightning_attributes import (
    as_message,
    as_told,
    flat,
    literal,
    nested,
    tells_something,
)
from rl_pipeline.collection.formats.values import JsonObject, as_list, as_object, as_text, filled, without

_SHOWN, _ANSWERED, _INSTRUCTIONS = "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions"
_FLAT_SHOWN, _FLAT_ANSWERED = "gen_ai.prompt", "gen_ai.completion.0"
_OPEN_SHOWN, _OPEN_ANSWERED = "llm.input_messages", "llm.output_messages.0"
_OF_A_MESSAGE = ("role", "parts", "content", "tool_calls", "reasoning_content", "tool_call_id", _INSTRUCTIONS)


KEPT = "kept"


@dataclass(frozen=True)
class Conversation:
    """A prompt and its answer."""

    dialect: str
    prompt: list[JsonObject]
    answer: JsonObject
    taken: list[str]
    """The attributes that told it."""
    left: JsonObject
    """What remains of attributes that told more, such as further answers."""


def conversation_of(attributes: JsonObject) -> Conversation | None:
    """What a span's attributes tell; None for spans that tell no call to a model."""
    for read in (_flat, _messages, _openinference):
        found = read(attributes)
        if found is not None and (found.prompt or tells_something(found.answer)):
            return found if _is_restored(found, attributes) else Conversation(KEPT, found.prompt, found.answer, [], {})
    return None


def _is_restored(found: Conversation, attributes: JsonObject) -> bool:
    """Whether the same attributes can be written again, but for the spaces in JSON text."""
    written = attributes_of_conversation(found.dialect, found.prompt, found.answer, found.left)
    told = {name: attributes[name] for name in found.taken}
    return {name: literal(value) for name, value in written.items()} == {
        name: literal(value) for name, value in told.items()
    }


def attributes_of_conversation(
    dialect: str, prompt: list[JsonObject], answer: JsonObject, left: JsonObject
) -> JsonObject:
    """A prompt and its answer as attributes; `left` are the others of the span."""
    told: JsonObject = {}
    match dialect:
        case "kept":
            return left
        case "flat":
            for number, message in enumerate(prompt):
                told |= flat(f"{_FLAT_SHOWN}.{number}", as_told(message))
            told |= flat(_FLAT_ANSWERED, as_told(answer))
        case "openinference":
            for number, message in enumerate(prompt):
                told |= flat(f"{_OPEN_SHOWN}.{number}.message", _as_open(message))
            told |= flat(f"{_OPEN_ANSWERED}.message", _as_open(answer))
        case _:
            instructions = [part for one in prompt if one.get(_INSTRUCTIONS) for part in _parts(one)]
            shown = [_with_parts(one) for one in prompt if not one.get(_INSTRUCTIONS)]
            values = {_SHOWN: shown, _ANSWERED: [_with_parts(answer), *as_list(left.get(_ANSWERED))]}
            values |= {_INSTRUCTIONS: instructions} if instructions else {}
            is_text = dialect == "messages_as_text"
            told = {name: compact(value) if is_text else value for name, value in values.items()}
    return {**left, **told}


def _flat(attributes: JsonObject) -> Conversation | None:
    prompt, answer = nested(attributes, _FLAT_SHOWN), nested(attributes, _FLAT_ANSWERED)
    if not isinstance(answer, dict):
        return None
    taken = [name for name in attributes if name.startswith((f"{_FLAT_SHOWN}.", f"{_FLAT_ANSWERED}."))]
    shown = [as_message(message) for message in as_list(prompt)]
    return Conversation("flat", shown, as_message({**answer, "role": "assistant"}), taken, {})


def _openinference(attributes: JsonObject) -> Conversation | None:
    prompt, answer = nested(attributes, _OPEN_SHOWN), nested(attributes, _OPEN_ANSWERED)
    if not isinstance(answer, dict):
        return None
    taken = [name for name in attributes if name.startswith((f"{_OPEN_SHOWN}.", f"{_OPEN_ANSWERED}."))]
    shown = [_from_open(as_object(one).get("message")) for one in as_list(prompt)]
    said = _from_open(as_object(answer).get("message"))
    return Conversation("openinference", shown, {**said, "role": "assistant"}, taken, {})


def _from_open(told: Any) -> JsonObject:
    message = dict(as_object(told))
    calls = [as_object(as_object(call).get("tool_call")) for call in as_list(message.get("tool_calls"))]
    if calls:
        message["tool_calls"] = calls
    if isinstance(message.get("function_call_name"), str):
        called = {
            "name": message.pop("function_call_name"),
            "arguments": message.pop("function_call_arguments_json", None),
        }
        message["function_call"] = filled(called)
    contents = [as_object(as_object(part).get("message_content")) for part in as_list(message.pop("contents", None))]
    if contents and "content" not in message:
        message["content"] = contents
    return as_message(message)


def _as_open(message: JsonObject) -> JsonObject:
    told = as_told(message)
    if isinstance(told.get("content"), list):
        told["contents"] = [{"message_content": as_object(part)} for part in told.pop("content")]
    calls = [without(as_object(call), ["type"]) for call in as_list(told.get("tool_calls"))]
    return told | ({"tool_calls": [{"tool_call": call} for call in calls]} if calls else {})


def _messages(attributes: JsonObject) -> Conversation | None:
    values = {name: attributes[name] for name in (_SHOWN, _ANSWERED, _INSTRUCTIONS) if name in attributes}
    is_text = isinstance(values.get(_ANSWERED), str)
    shown, answers, instructions = (_json(values.get(name)) for name in (_SHOWN, _ANSWERED, _INSTRUCTIONS))
    if not answers:
        return None
    prompt = [message for told in shown for message in _from_parts(as_object(told))]
    if instructions:
        prompt.insert(0, {**_from_parts({"role": "system", "parts": instructions})[0], _INSTRUCTIONS: True})
    answer = _from_parts({**as_object(answers[0]), "role": "assistant"})[-1]
    left = {_ANSWERED: answers[1:]} if len(answers) > 1 else {}
    return Conversation("messages_as_text" if is_text else "messages", prompt, answer, list(values), left)


def _json(value: Any) -> list[Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return []
    return as_list(value)


def _from_parts(told: JsonObject) -> list[JsonObject]:
    """A message of parts as chat messages: what tools returned is a message each, before what else it says."""
    if "parts" not in told:
        return [as_message(told)]
    parts = [as_object(part) for part in as_list(told["parts"])]
    responses = [part for part in parts if part.get("type") == "tool_call_response"]
    messages: list[JsonObject] = [_returned(part) for part in responses]
    said = [part for part in parts if part.get("type") not in ("tool_call_response", "tool_call", "reasoning")]
    calls = [_called(part) for part in parts if part.get("type") == "tool_call"]
    thoughts = [as_text(part.get("content")) for part in parts if part.get("type") == "reasoning"]
    if responses and not said and not calls and not thoughts:
        return messages
    is_text = len(said) == 1 and said[0].keys() == {"type", "content"} and said[0]["type"] == "text"
    message = {**without(told, ("parts",)), "role": as_text(told.get("role")) or "user"}
    message["content"] = as_text(said[0]["content"]) if is_text else [_as_content(part) for part in said] or None
    message |= {"tool_calls": calls} if calls else {}
    message |= {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
    return [*messages, message]


def _returned(part: JsonObject) -> JsonObject:
    content = part.get("response", part.get("result"))
    content = compact(content) if isinstance(content, bool | int | float) else content
    rest = without(part, ("type", "id", "response", "result"))
    return {"role": "tool", **filled({"tool_call_id": part.get("id")}), "content": content, **rest}


def _called(part: JsonObject) -> JsonObject:
    function = {name: part[name] for name in ("name", "arguments") if name in part}
    return {**without(part, ("type", "name", "arguments")), "type": "function", "function": function}


def _as_content(part: JsonObject) -> JsonObject:
    is_text = part.get("type") == "text" and "content" in part
    return {**without(part, ["content"]), "text": part["content"]} if is_text else part


def _with_parts(message: JsonObject) -> JsonObject:
    role = "tool" if message.get("role") == "function" else message.get("role")
    told = _OF_A_MESSAGE if message.get("tool_calls") else (*_OF_A_MESSAGE, "function_call")
    return {"role": role, "parts": list(_parts(message)), **without(message, told)}


def _parts(message: JsonObject) -> Iterable[JsonObject]:
    content = message.get("content")
    if message.get("role") in ("tool", "function"):
        yield {"type": "tool_call_response", **filled({"id": message.get("tool_call_id")}), "response": content}
        return
    if isinstance(message.get("reasoning_content"), str):
        yield {"type": "reasoning", "content": message["reasoning_content"]}
    if isinstance(content, str):
        yield {"type": "text", "content": content}
    for part in as_list(content):
        told = as_object(part)
        is_text = told.get("type") == "text" and "text" in told
        yield {**without(told, ["text"]), "content": told["text"]} if is_text else told
    for call in map(as_object, as_list(message.get("tool_calls")) or [{"function": message.get("function_call")}]):
        function = call.get("function")
        if isinstance(function, dict):
            yield {"type": "tool_call", **without(call, ("type", "function")), **_called_with(function)}


def _called_with(function: JsonObject) -> JsonObject:
    """A call's name and arguments, which are an object here and JSON text in chat messages."""
    told = function.get("arguments")
    if isinstance(told, str):
        try:
            parsed = json.loads(told)
        except (ValueError, RecursionError):
            parsed = None
        told = parsed if isinstance(parsed, dict) and compact(parsed) == told else told
    return {**without(function, ["arguments"]), **({"arguments": told} if "arguments" in function else {})}
