"""OpenTelemetry's traces as OTLP's JSON has them: a record is a request with `resourceSpans`, of any number of traces.

All spans of a trace are a trajectory, however many requests brought them. A span with the messages of a call to a model
(`otlp_messages.py` has the dialects) is one answer; of its prompt a turn keeps what the calls before have not shown.
A span of a tool tells how long its call took, whether it failed and, for the last call, what it returned. A score
(`gen_ai.evaluation.result`, agent-lightning's rewards) belongs to the last call before it. Every other span is kept
where it stood.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any
from uuid import UUID

from rl_pipeline.collection.formats.exchanges import Exchange, Returned, first_request
from rl_pipeline.collection.formats.format import (
    CARRIED,
    Layout,
    NotOfFormat,
    Origin,
    carried_of,
    is_chat,
    is_own,
    make_trajectory,
    original,
    outcome,
    source_of,
)
from rl_pipeline.collection.formats.lightning_attributes import agent_name
from rl_pipeline.collection.formats.lightning_spans import ReadCall, SpanReading, calls_in
from rl_pipeline.collection.formats.otlp_spans import (
    PLACE,
    began,
    call_of,
    evaluation_of,
    flattened,
    is_error,
    located_spans,
    request_of,
    restored,
    tool_of,
    trace_of,
)
from rl_pipeline.collection.formats.otlp_values import nanoseconds, plain_attributes
from rl_pipeline.collection.formats.otlp_written import WrittenTrace, made_place
from rl_pipeline.collection.formats.values import JsonObject, as_list, as_moment, as_name, as_object, filled, without

NAME = "otlp"

_SESSIONS = ("gen_ai.conversation.id", "session.id")
_USERS = ("user.id", "enduser.id")


class OtlpTraces:
    """Traces of OpenTelemetry."""

    name = NAME
    layout: Layout = "lines"
    suffix = ".jsonl"
    members = False

    def fits(self, record: Any) -> bool:
        """See `Format.fits`."""
        return isinstance(record, dict) and isinstance(record.get("resourceSpans"), list)

    def groups(self, record: Any) -> Iterable[tuple[str, Any]]:
        """By the trace."""
        traces: dict[str, list[tuple[JsonObject, Any]]] = {}
        for place, span in located_spans(record):
            traces.setdefault(trace_of(span), []).append((place, span))
        return [(trace, request_of(located)) for trace, located in traces.items()]

    def read(self, record: Any, origin: Origin) -> Iterator[JsonObject]:
        """See `Format.read`; spans of a trace may come in several requests, and twice."""
        traces: dict[str, list[tuple[JsonObject, Any]]] = {}
        for request in record if isinstance(record, list) else [record]:
            if not self.fits(request):
                raise NotOfFormat("it has no `resourceSpans`: a request of OTLP in JSON is expected")
            for place, span in located_spans(request):
                traces.setdefault(trace_of(span), []).append((place, span))
        if not traces:
            raise NotOfFormat("it has no spans: there is nothing to read in it")
        for trace, located in traces.items():
            yield _trajectory(trace, located, origin)

    def write(self, trajectory: JsonObject) -> Iterable[Any]:
        """See `Format.write`: a request with the spans of one trace."""
        own = is_own(trajectory, NAME)
        source = source_of(trajectory, NAME)
        written = WrittenTrace(trajectory, is_chat=own or is_chat(trajectory), is_own=own)
        spans = [*as_list(source.get("spans_before")), *written.spans()]
        carried = json.dumps(carried_of(trajectory, NAME), ensure_ascii=False)
        spans[0] = {**spans[0], "attributes": {**as_object(spans[0].get("attributes")), CARRIED: carried}}
        places = [as_object(place) for place in as_list(source.get("places"))]
        return [request_of((_place(places, span), restored(span)) for span in spans)]

    def name_of(self, trajectory: JsonObject) -> str:
        """Its id."""
        return str(trajectory["trajectory_id"])


def _place(places: list[JsonObject], span: JsonObject) -> JsonObject:
    number = span.get(PLACE)
    known = places[number] if isinstance(number, int) and 0 <= number < len(places) else {}
    return {name: as_object(known.get(name)) for name in ("resource", "scope")} if known else made_place()


def _trajectory(trace: str, located: list[tuple[JsonObject, Any]], origin: Origin) -> JsonObject:
    try:
        identity = str(UUID(hex=trace)) if len(trace) == 32 else None
    except ValueError:
        identity = None
    if identity is None:
        raise NotOfFormat("a span has no `traceId` of 32 hexadecimal digits: without it nothing belongs together")
    places: list[JsonObject] = []
    spans: dict[Any, JsonObject] = {}
    for place, span in sorted(located, key=lambda one: began(as_object(one[1])) or 0):
        if place not in places:
            places.append(place)
        flat = flattened(as_object(span), places.index(place))
        spans.setdefault(json.dumps(flat.get("spanId")), flat)
    carried = _carried(spans.values())
    told: JsonObject = {"spans": list(spans.values())} | ({CARRIED: carried} if carried else {})
    reading = _TraceReading(calls_in(told["spans"], call_of))
    for span in told["spans"]:
        reading.add(span)
    ends = ("startTimeUnixNano", "endTimeUnixNano")
    times = [moment for span in told["spans"] for name in ends if (moment := as_moment(nanoseconds(span.get(name))))]
    turns = reading.turns()
    source: JsonObject = {"places": places} | ({"spans_before": reading.before} if reading.before else {})
    return make_trajectory(
        NAME,
        told,
        original(origin, told),
        turns=turns,
        task={"instructions": first_request(turns), **_ended(told["spans"]), **outcome(reading.final_reward)}
        | filled({"user_id": _named(told["spans"], _USERS)}),
        metadata={**reading.metadata(), "framework": "opentelemetry"},
        source=source,
        session_id=_named(told["spans"], _SESSIONS),
        agent_id=_agent(told["spans"], places),
        own_id=identity,
        start=min(times, default=None),
        end=max(times, default=None),
    )


def _carried(spans: Iterable[JsonObject]) -> JsonObject | None:
    """What a trajectory carried when it was written; it is taken out of its span."""
    for span in spans:
        text = span["attributes"].get(CARRIED)
        if isinstance(text, str):
            try:
                carried = json.loads(text)
            except (ValueError, RecursionError):
                continue
            if isinstance(carried, dict):
                span["attributes"] = without(span["attributes"], [CARRIED])
                return carried
    return None


def _ended(spans: list[JsonObject]) -> JsonObject:
    """How the task ended, as far as the root says."""
    roots = [span for span in spans if not span.get("parentSpanId")]
    return {"task_status": "failed"} if any(map(is_error, roots)) else {}


def _named(spans: list[JsonObject], names: tuple[str, ...]) -> str | None:
    found = (as_name(span["attributes"].get(name)) for span in spans for name in names)
    return next(filter(None, found), None)


def _agent(spans: list[JsonObject], places: list[JsonObject]) -> str | None:
    agents = (as_name(agent_name(span["attributes"])) for span in spans)
    resources = (as_object(as_object(place.get("resource")).get("resource")) for place in places)
    services = (as_name(plain_attributes(resource.get("attributes")).get("service.name")) for resource in resources)
    return next(filter(None, agents), None) or next(filter(None, services), None)


class _TraceReading(SpanReading):
    """The calls of a trace, with what spans of tools and events say of them."""

    def __init__(self, read_call: ReadCall) -> None:
        super().__init__(read_call, began)

    def add(self, span: JsonObject) -> None:
        """Read a span."""
        super().add(span)
        score = evaluation_of(span)
        if score is not None:
            self.reward(score)

    def exchanges(self) -> tuple[list[Exchange], list[JsonObject]]:
        """See `SpanReading.exchanges`."""
        exchanges, after = super().exchanges()
        for exchange in exchanges:
            tools = [tool for span in as_list(exchange.turn.get("other_spans")) if (tool := tool_of(span))]
            for place, call in enumerate(exchange.calls):
                tool = next((one for one in tools if call.id is not None and one["id"] == call.id), None)
                tool = tool or next((one for one in tools if one["id"] is None and one["name"] == call.name), None)
                if tool is None:
                    continue
                tools.remove(tool)
                returned = exchange.returned[place]
                # What an earlier call returned is in the prompts after it, or was never shown.
                if returned is None and exchange is exchanges[-1] and not after:
                    returned = exchange.returned[place] = Returned(tool["content"])
                if returned is not None:
                    returned.failed, returned.milliseconds = tool["failed"], tool["milliseconds"]
        return exchanges, after
