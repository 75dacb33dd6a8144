"""OTLP's requests as the spans of each trace, with flat attributes, and back."""

import base64
import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from rl_pipeline.collection.formats.lightning_attributes import ModelCall, attributes_of, describe
from rl_pipeline.collection.formats.otlp_elsewhere import conversation_elsewhere
from rl_pipeline.collection.formats.otlp_messages import attributes_of_conversation, conversation_of
from rl_pipeline.collection.formats.otlp_values import listed_attributes, nanoseconds, plain_attributes
from rl_pipeline.collection.formats.values import JsonObject, as_list, as_number, as_object, as_text, without

PLACE = "place"
_DIALECT = "dialect"
_BASE64_LENGTH = 24
_OLD_SCOPES = "instrumentationLibrarySpans"
"""What OTLP called them before 0.15; they are written by their new name."""
_EVALUATION = "gen_ai.evaluation.result"


def located_spans(request: Any) -> Iterator[tuple[JsonObject, Any]]:
    """Each span of a request, with where it stood: its resource and scope."""
    for group in map(as_object, as_list(as_object(request).get("resourceSpans"))):
        resource = without(group, ("scopeSpans", _OLD_SCOPES))
        older = [_renamed(as_object(scope)) for scope in as_list(group.get(_OLD_SCOPES))]
        for scope in map(as_object, [*as_list(group.get("scopeSpans")), *older]):
            place = {"resource": resource, "scope": without(scope, ["spans"])}
            for span in as_list(scope.get("spans")):
                yield place, span


def _renamed(scope: JsonObject) -> JsonObject:
    return {"scope" if name == "instrumentationLibrary" else name: value for name, value in scope.items()}


def request_of(located: Iterable[tuple[JsonObject, Any]]) -> JsonObject:
    """A request of spans; those of one resource and scope that follow each other stand together."""
    groups: list[JsonObject] = []
    last: JsonObject | None = None
    for place, span in located:
        if last is None or place["resource"] != last["resource"]:
            groups.append({**place["resource"], "scopeSpans": []})
            last = None
        scopes = groups[-1]["scopeSpans"]
        if last is None or place["scope"] != last["scope"]:
            scopes.append({**place["scope"], "spans": []})
        scopes[-1]["spans"].append(span)
        last = place
    return {"resourceSpans": groups}


def trace_of(span: Any) -> str:
    """The trace of a span, as small hexadecimal digits; empty where it names none.

    OTLP's JSON has these digits; protobuf's own JSON, which some write in its place, has Base64.
    """
    told = as_text(as_object(span).get("traceId"))
    if len(told) == _BASE64_LENGTH:
        with contextlib.suppress(ValueError):
            return base64.b64decode(told, validate=True).hex()
    return told.lower()


def flattened(span: JsonObject, place: int) -> JsonObject:
    """A span with its attributes by key."""
    return {**span, "attributes": plain_attributes(span.get("attributes")), PLACE: place}


def restored(span: JsonObject) -> JsonObject:
    """A span as OTLP has it."""
    told = without(span, (PLACE, _DIALECT))
    attributes = as_object(told.get("attributes"))
    return {**told, "attributes": listed_attributes(attributes)}


def began(span: JsonObject) -> int | None:
    """When a span began, in nanoseconds."""
    return nanoseconds(span.get("startTimeUnixNano"))


def call_of(span: JsonObject) -> ModelCall | None:
    """The call to a model that a flattened span tells."""
    attributes = as_object(span.get("attributes"))
    found = conversation_of(attributes) or conversation_elsewhere(span)
    if found is None:
        return None
    told = attributes_of(span)
    left = {**without(attributes, [*found.taken, *told.taken]), **found.left}
    rest = {**span, "attributes": left, _DIALECT: found.dialect}
    call = ModelCall(found.prompt, found.answer, told.sampling, rest)
    describe(call, attributes)
    return call


def written_call(call: ModelCall) -> JsonObject:
    """The flattened span of a call."""
    left = as_object(call.rest.get("attributes"))
    dialect = as_text(call.rest.get(_DIALECT)) or "messages_as_text"
    attributes = attributes_of_conversation(dialect, call.prompt, call.answer, left)
    ids = (("prompt_token_ids", "prompt_token_ids"), ("response_token_ids", "completion_token_ids"))
    attributes |= {name: call.sampling[of] for name, of in ids if of in call.sampling and name not in attributes}
    return {**call.rest, "attributes": attributes}


def tool_of(span: JsonObject) -> JsonObject | None:
    """What a span of a tool's execution tells: its name, the call's id, what came back, whether it failed."""
    attributes = as_object(span.get("attributes"))
    kinds = [as_text(attributes.get(f"{name}.span.kind")).lower() for name in ("openinference", "traceloop")]
    if "tool" not in kinds and attributes.get("gen_ai.operation.name") != "execute_tool":
        return None
    names = ("gen_ai.tool.name", "tool.name", "traceloop.entity.name")
    results = ("gen_ai.tool.call.result", "output.value", "traceloop.entity.output")
    start, end = began(span), nanoseconds(span.get("endTimeUnixNano"))
    return {
        "name": next((attributes[name] for name in names if attributes.get(name)), None),
        "id": attributes.get("gen_ai.tool.call.id", attributes.get("tool_call.id")),
        "content": next((attributes[name] for name in results if attributes.get(name) is not None), None),
        "failed": is_error(span),
        "milliseconds": (end - start) / 1e6 if start and end and end >= start else None,
    }


def is_error(span: JsonObject) -> bool:
    """Whether a span says that what it tells of has failed."""
    return as_object(span.get("status")).get("code") in (2, "STATUS_CODE_ERROR")


def evaluation_of(span: JsonObject) -> float | None:
    """The score that an event of a span tells."""
    for event in map(as_object, as_list(span.get("events"))):
        if event.get("name") == _EVALUATION:
            score = as_number(plain_attributes(event.get("attributes")).get("gen_ai.evaluation.score.value"))
            if score is not None:
                return score
    return None


def evaluation(score: float, moment: str) -> JsonObject:
    """An event that tells a reward."""
    told = {"gen_ai.evaluation.name": "reward", "gen_ai.evaluation.score.value": float(score)}
    return {"timeUnixNano": moment, "name": _EVALUATION, "attributes": listed_attributes(told)}
