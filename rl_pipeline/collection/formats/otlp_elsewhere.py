"""Calls to models that spans tell outside of the attributes for messages:

- in events: `gen_ai.user.message`, `gen_ai.choice` and their kind, as older conventions have them;
  `gen_ai.client.inference.operation.details`, with the attributes of the newer ones; `gen_ai.content.prompt` and
  `gen_ai.content.completion`;
- in one attribute each for what was shown and what was answered: `gen_ai.prompt` and `gen_ai.completion`, `input.value`
  and `output.value` of a model's span of OpenInference, and those of the AI SDK.

They are read only: the span keeps all of it, so nothing of it is written anew.
"""

from typing import Any

from rl_pipeline.collection.formats.lightning_attributes import as_message, literal
from rl_pipeline.collection.formats.otlp_messages import KEPT, Conversation, conversation_of
from rl_pipeline.collection.formats.otlp_values import plain_attributes
from rl_pipeline.collection.formats.values import JsonObject, as_list, as_name, as_object, as_text, filled

_ROLES = {f"gen_ai.{role}.message": role for role in ("system", "user", "assistant", "tool")}
_CHOICE, _DETAILS, _BODY = "gen_ai.choice", "gen_ai.client.inference.operation.details", "gen_ai.event.content"
_SDK_SHOWN, _SDK_TEXT, _SDK_CALLS = "ai.prompt.messages", "ai.response.text", "ai.response.toolCalls"


def conversation_elsewhere(span: JsonObject) -> Conversation | None:
    """What a flattened span tells; None for spans that tell no call to a model."""
    attributes = as_object(span.get("attributes"))
    events = [
        (as_text(event.get("name")), plain_attributes(event.get("attributes")))
        for event in map(as_object, as_list(span.get("events")))
    ]
    for found in (_events(events), _details(events), _sdk(attributes), _values(attributes, events)):
        if found and found[1]:
            return Conversation(KEPT, found[0], {**found[1], "role": "assistant"}, [], {})
    return None


def _events(events: list[tuple[str, JsonObject]]) -> tuple[list[JsonObject], JsonObject] | None:
    prompt: list[JsonObject] = []
    for name, told in events:
        body = as_object(literal(told.get(_BODY))) or told
        if name in _ROLES:
            prompt.append(_message(body, _ROLES[name]))
        elif name == _CHOICE:
            said = as_object(literal(body.get("message"))) or {"content": body.get("message", body.get("content"))}
            return prompt, _message({**filled({"tool_calls": body.get("tool_calls")}), **filled(said)}, "assistant")
    return None


def _message(body: JsonObject, role: str) -> JsonObject:
    message = {name: literal(value) if name == "tool_calls" else value for name, value in body.items()}
    message = {"role": role, **{name: value for name, value in message.items() if not name.startswith("gen_ai.")}}
    if role == "tool" and "tool_call_id" not in message:
        message |= filled({"tool_call_id": message.pop("id", None)})
    return as_message(message)


def _details(events: list[tuple[str, JsonObject]]) -> tuple[list[JsonObject], JsonObject] | None:
    found = next((conversation_of(told) for name, told in events if name == _DETAILS), None)
    return (found.prompt, found.answer) if found else None


def _values(attributes: JsonObject, events: list[tuple[str, JsonObject]]) -> tuple[list[JsonObject], JsonObject] | None:
    pairs = [("gen_ai.prompt", "gen_ai.completion")]
    if as_text(attributes.get("openinference.span.kind")).upper() == "LLM":
        pairs.append(("input.value", "output.value"))
    held = [attributes, {key: told[key] for _, told in events for key in pairs[0] if key in told}]
    for place in held:
        for shown, answered in pairs:
            if place.get(shown) and place.get(answered):
                return _shown(place[shown]), _answered(place[answered])
    return None


def _shown(value: Any) -> list[JsonObject]:
    told = literal(value)
    told = as_object(told).get("messages", told)
    messages = [as_message(one) for one in as_list(told) if isinstance(one, dict)]
    return messages or [{"role": "user", "content": value}]


def _answered(value: Any) -> JsonObject:
    told = literal(value)
    for name in ("choices", "messages", "generations"):
        told = as_object(told).get(name, told)
    told = told[0] if isinstance(told, list) and told else told
    told = as_object(told).get("message", told)
    is_message = isinstance(told, dict) and bool({"content", "tool_calls"} & told.keys())
    return as_message(told) if is_message else {"content": value}


def _sdk(attributes: JsonObject) -> tuple[list[JsonObject], JsonObject] | None:
    """The AI SDK's, whose messages have parts with the calls and results among them."""
    shown = [as_object(one) for one in as_list(literal(attributes.get(_SDK_SHOWN)))]
    calls = [_sdk_call(as_object(one)) for one in as_list(literal(attributes.get(_SDK_CALLS)))]
    if not shown or not (calls or _SDK_TEXT in attributes):
        return None
    prompt = [message for told in shown for message in _sdk_messages(told)]
    answer: JsonObject = {"content": attributes.get(_SDK_TEXT)}
    return prompt, answer | ({"tool_calls": calls} if calls else {})


def _sdk_messages(told: JsonObject) -> list[JsonObject]:
    parts = [as_object(part) for part in as_list(told.get("content"))]
    results = [part for part in parts if part.get("type") == "tool-result"]
    if results:
        return [
            {"role": "tool", **filled({"tool_call_id": as_name(part.get("toolCallId"))}), "content": _sdk_result(part)}
            for part in results
        ]
    calls = [_sdk_call(part) for part in parts if part.get("type") == "tool-call"]
    message = as_message(told)
    if calls:
        said = [part for part in parts if part.get("type") != "tool-call"]
        return [{**message, "content": said or None, "tool_calls": calls}]
    return [message]


def _sdk_call(part: JsonObject) -> JsonObject:
    arguments = part.get("input", part.get("args"))
    function = {"name": as_text(part.get("toolName")), **filled({"arguments": arguments})}
    return {**filled({"id": as_name(part.get("toolCallId"))}), "type": "function", "function": function}


def _sdk_result(part: JsonObject) -> Any:
    told = part.get("output", part.get("result"))
    return told["value"] if isinstance(told, dict) and told.keys() == {"type", "value"} else told
