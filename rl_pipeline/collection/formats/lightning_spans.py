"""agent-lightning's spans, one a record: all spans of one attempt at a rollout are a trajectory.

A span of a call to a model has the whole prompt in its attributes; of it, a turn keeps what the calls before have not
shown, and how much of them it repeats (`kept`). Answers that stand in a prompt but were not drawn in this attempt are
turns too, marked as copied context. A reward belongs to the last call before it, as agent-lightning matches them. Every
other span is kept where it stood (`other_spans`).
"""

import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from rl_pipeline.collection.formats.chat import exchanges_of_messages
from rl_pipeline.collection.formats.exchanges import Exchange, first_request, turns_of
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
from rl_pipeline.collection.formats.lightning_attributes import (
    ModelCall,
    agent_name,
    attributes_of,
    is_of_agent,
    literal,
    model_call,
    reward_of,
)
from rl_pipeline.collection.formats.lightning_written import WrittenSpans
from rl_pipeline.collection.formats.values import (
    JsonObject,
    as_list,
    as_moment,
    as_name,
    as_number,
    as_object,
    filled,
    without,
)

NAME = "lightning-spans"

ReadCall = Callable[[JsonObject], ModelCall | None]


class LightningSpans:
    """Spans of agent-lightning."""

    name = NAME
    layout: Layout = "lines"
    suffix = ".jsonl"
    members = False

    def fits(self, record: Any) -> bool:
        """See `Format.fits`."""
        return isinstance(record, dict) and {"rollout_id", "attributes", "span_id"} <= record.keys()

    def groups(self, record: Any) -> Iterable[tuple[str, Any]]:
        """By the rollout and its attempt."""
        return ((json.dumps([record.get("rollout_id"), record.get("attempt_id")]), record),)

    def read(self, record: Any, origin: Origin) -> Iterator[JsonObject]:
        """See `Format.read`; the record is the list of an attempt's spans."""
        spans = sorted(map(as_object, as_list(record)), key=_order)
        if not spans or not all(map(self.fits, spans)):
            raise NotOfFormat("it is no span with `rollout_id`, `span_id` and `attributes`: one a line is expected")
        told = {"spans": [without(span, [CARRIED]) for span in spans]}
        carried = next((span[CARRIED] for span in spans if CARRIED in span), None)
        told |= {CARRIED: carried} if carried else {}
        origin = original(origin, told)
        reading = SpanReading(calls_in(spans, model_call), lambda span: span.get("start_time"))
        for span in told["spans"]:
            reading.add(span)
        turns = reading.turns()
        names = (as_name(agent_name(as_object(span["attributes"]))) for span in spans)
        times = [
            moment for span in spans for name in ("start_time", "end_time") if (moment := as_moment(span.get(name)))
        ]
        yield make_trajectory(
            NAME,
            told,
            origin,
            turns=turns,
            task={"instructions": first_request(turns), **outcome(reading.final_reward)},
            metadata={**reading.metadata(), "framework": "agent-lightning"},
            source={"spans_before": reading.before} if reading.before else {},
            session_id=as_name(spans[0].get("rollout_id")),
            agent_id=next(filter(None, names), None) or "agent-lightning",
            start=min(times, default=None),
            end=max(times, default=None),
        )

    def write(self, trajectory: JsonObject) -> Iterable[Any]:
        """See `Format.write`."""
        own = is_own(trajectory, NAME)
        written = WrittenSpans(trajectory, is_chat=own or is_chat(trajectory), is_own=own)
        spans = [*as_list(source_of(trajectory, NAME).get("spans_before")), *written.spans()]
        return [spans[0] | {CARRIED: carried_of(trajectory, NAME)}, *spans[1:]]

    def name_of(self, trajectory: JsonObject) -> str:
        """Its id."""
        return str(trajectory["trajectory_id"])


def calls_in(spans: Iterable[JsonObject], read_call: ReadCall) -> ReadCall:
    """How calls are read: an agent's own span, which repeats what its calls tell, is one only without any other."""
    if not any(not is_of_agent(span) and read_call(span) for span in spans):
        return read_call
    return lambda span: None if is_of_agent(span) else read_call(span)


def _order(span: JsonObject) -> tuple[float, float]:
    return as_number(span.get("sequence_id")) or 0.0, as_number(span.get("start_time")) or 0.0


class SpanReading:
    """The calls to models as they come, and what each was told that those before it were not.

    `read_call` finds the call that a span tells, `began` when it began.
    """

    def __init__(self, read_call: ReadCall, began: Callable[[JsonObject], Any]) -> None:
        self._read_call = read_call
        self._began = began
        self.before: list[JsonObject] = []
        self.final_reward: float | None = None
        self._said: list[JsonObject] = []
        self._answers = 0
        self._known: list[JsonObject] = []
        self._fields: dict[int, JsonObject] = {}
        self._calls: list[ModelCall] = []

    def add(self, span: JsonObject) -> None:
        """Read a span."""
        call = self._read_call(span)
        fields = self._fields[self._answers] if self._calls else None
        if call is None:
            (fields.setdefault("other_spans", []) if fields is not None else self.before).append(span)
            reward = reward_of(span)
            if reward is not None:
                self.reward(reward)
            elif fields is not None and as_object(span.get("attributes")) and not fields["sampling"].get("logprobs"):
                fields["sampling"] = attributes_of(span).sampling | fields["sampling"]
            return
        kept, prompted = 0, {}
        for known, now in zip(self._known, call.prompt, strict=False):
            if known != now and not _is_same(known, now):
                break
            if known != now:
                prompted[str(kept)] = now
            kept += 1
        self._said += [*call.prompt[kept:], call.answer]
        self._answers += sum(message["role"] == "assistant" for message in (*call.prompt[kept:], call.answer))
        self._known = [*call.prompt, call.answer]
        self._calls.append(call)
        self._fields[self._answers] = {
            "kept": kept,
            "call_span": call.rest,
            "sampling": call.sampling,
            **({"prompted": prompted} if prompted else {}),
            **filled({"timestamp": self._began(span)}),
        }

    def reward(self, value: float) -> None:
        """A reward for the call before it, and the last is that of the whole."""
        self.final_reward = value
        if self._calls:
            self._fields[self._answers].setdefault("reward", value)

    def exchanges(self) -> tuple[list[Exchange], list[JsonObject]]:
        """What all calls said, and the messages that nobody answered."""
        exchanges, after = exchanges_of_messages(self._said)
        for place, exchange in enumerate(exchanges, start=1):
            exchange.turn |= self._fields.get(place, {"is_copied_context": True})
        return exchanges, after

    def turns(self) -> list[JsonObject]:
        """The turns of all calls."""
        return turns_of(*self.exchanges())

    def metadata(self) -> JsonObject:
        """The model and the tokens."""
        read, written = (
            [count for call in self._calls if (count := getattr(call, name)) is not None]
            for name in ("prompt_tokens", "completion_tokens")
        )
        temperatures = [call.temperature for call in self._calls if call.temperature is not None]
        return {
            "model": next((call.model for call in self._calls if call.model), None),
            "temperature": temperatures[0] if temperatures and 0 <= temperatures[0] <= 2 else None,
            "prompt_tokens": sum(read) if read else None,
            "completion_tokens": sum(written) if written else None,
            "total_tokens": sum(read) + sum(written) if read or written else None,
        }


def _is_same(known: JsonObject, now: JsonObject) -> bool:
    """Whether a prompt repeats a message: tracers write an answer otherwise when it is part of the next prompt."""
    calls = [[_called(call["function"]) for call in as_list(message.get("tool_calls"))] for message in (known, now)]
    said = [(message["role"], message.get("content") or "") for message in (known, now)]
    return said[0] == said[1] and calls[0] == calls[1]


def _called(function: JsonObject) -> JsonObject:
    """A call as it compares: its arguments are text with some and an object with others."""
    return {**function, "arguments": literal(function.get("arguments"))}
