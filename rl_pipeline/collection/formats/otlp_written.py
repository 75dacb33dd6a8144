"""Trajectories as spans of a trace: the agent's, one for each call to a model, one for each call of a tool."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

from rl_pipeline.collection.formats.chat import arguments_written, compact
from rl_pipeline.collection.formats.exchanges import Exchange
from rl_pipeline.collection.formats.format import UNKNOWN_MODEL
from rl_pipeline.collection.formats.lightning_attributes import ModelCall
from rl_pipeline.collection.formats.lightning_written import WrittenSpans
from rl_pipeline.collection.formats.otlp_spans import evaluation, written_call
from rl_pipeline.collection.formats.otlp_values import written_nanoseconds
from rl_pipeline.collection.formats.values import JsonObject, as_cost, as_list, as_moment, as_number, as_object, filled

_CLIENT, _INTERNAL, _ERROR = 3, 1, 2


def made_place() -> JsonObject:
    """The resource and the scope of spans that are made here."""
    service = {"key": "service.name", "value": {"stringValue": "rl-pipeline"}}
    return {"resource": {"resource": {"attributes": [service]}}, "scope": {"scope": {"name": "rl_pipeline"}}}


class WrittenTrace(WrittenSpans):
    """Flattened spans of a trajectory, with the prompts written out."""

    def __init__(self, trajectory: JsonObject, *, is_chat: bool, is_own: bool) -> None:
        super().__init__(trajectory, is_chat=is_chat, is_own=is_own)
        self._root = self._span_id()

    def spans(self) -> Iterator[JsonObject]:
        """See `WrittenSpans.spans`; a trace that is made here begins with the agent's own span."""
        if not self._is_own:
            yield self._agent()
        yield from super().spans()

    def _agent(self) -> JsonObject:
        trajectory, task = self._trajectory, self._trajectory["task_context"]
        start, end = (_moment(trajectory[f"{name}_timestamp"]) for name in ("start", "end"))
        first = min([start, *(_moment(turn.get("timestamp")) for turn in trajectory["turns"])])
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": trajectory["agent_id"],
            "gen_ai.conversation.id": trajectory["session_id"],
        }
        span = self._spanned(f"invoke_agent {trajectory['agent_id']}", _INTERNAL, attributes, first, end)
        reward = as_number(task.get("reward"))
        span |= {"spanId": self._root, "parentSpanId": ""}
        span |= {"status": {"code": _ERROR}} if task.get("task_status") == "failed" else {}
        return span | ({"events": [evaluation(reward, span["endTimeUnixNano"])]} if reward is not None else {})

    def _span(self, exchange: Exchange, prompt: list[JsonObject], answer: JsonObject) -> JsonObject:
        sampling, rest = as_object(exchange.turn.get("sampling")), exchange.turn.get("call_span")
        if isinstance(rest, dict) and self._is_own:
            return written_call(ModelCall(prompt, answer, sampling, rest))
        model = sampling.get("model_version") or self._trajectory["metadata"].get("model") or UNKNOWN_MODEL
        usage = as_object(exchange.turn.get("usage"))
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.request.model": model,
            "gen_ai.usage.input_tokens": usage.get("prompt_tokens"),
            "gen_ai.usage.output_tokens": usage.get("completion_tokens"),
        }
        moment = _moment(exchange.turn.get("timestamp"))
        span = self._spanned(f"chat {model}", _CLIENT, attributes, moment, moment)
        reward = as_number(exchange.turn.get("reward"))
        span |= {"events": [evaluation(reward, span["endTimeUnixNano"])]} if reward is not None else {}
        return written_call(ModelCall(prompt, answer, sampling, span))

    def _behind(self, exchange: Exchange) -> Iterator[JsonObject]:
        if self._is_own:
            yield from as_list(exchange.turn.get("other_spans"))
            return
        for place, call in enumerate(exchange.calls):
            returned = exchange.returned[place] if place < len(exchange.returned) else None
            content = returned.content if returned else None
            attributes = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call.name,
                "gen_ai.tool.call.id": call.id,
                "gen_ai.tool.call.arguments": arguments_written(call),
                "gen_ai.tool.call.result": content if isinstance(content, str | None) else compact(content),
            }
            moment = _moment(exchange.turn.get("timestamp"))
            took = as_cost(returned.milliseconds) if returned else None
            ended = moment + timedelta(milliseconds=min(took or 0.0, 1e12))
            span = self._spanned(f"execute_tool {call.name}", _INTERNAL, attributes, moment, ended)
            yield span | ({"status": {"code": _ERROR}} if returned and returned.failed else {})

    def _spanned(self, name: str, kind: int, attributes: JsonObject, start: datetime, end: datetime) -> JsonObject:
        return {
            "traceId": str(self._trajectory["trajectory_id"]).replace("-", ""),
            "spanId": self._span_id(),
            "parentSpanId": self._root,
            "name": name,
            "kind": kind,
            "startTimeUnixNano": written_nanoseconds(start),
            "endTimeUnixNano": written_nanoseconds(max(start, end)),
            "attributes": filled(attributes),
        }

    def _span_id(self) -> str:
        self._count += 1
        return sha256(f"{self._trajectory['trajectory_id']} {self._count}".encode()).hexdigest()[:16]


def _moment(value: Any) -> datetime:
    return as_moment(value) or datetime(1971, 1, 1, tzinfo=UTC)
