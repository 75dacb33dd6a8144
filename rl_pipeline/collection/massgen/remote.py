"""Traces on their way to the stream: each turn lies in the outbox as soon as the next begins.

What is sent is what importing the trace's file would make, but for the numbers of tokens of single spans, which are
known at the end only and are in the trajectory's metadata.
"""

from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any

from rl_pipeline.collection.formats.format import UNKNOWN_MODEL, NotOfFormat, Origin
from rl_pipeline.collection.formats.massgen_spans import is_act, joins, turns_of_spans
from rl_pipeline.collection.formats.massgen_traces import MassGenTraces
from rl_pipeline.collection.massgen.spans import Span, Trace
from rl_pipeline.collection.outbox import Outbox
from rl_pipeline.contracts import Feedback


class RemoteTraces:
    """Traces that an outbox sends."""

    def __init__(self, outbox: Outbox) -> None:
        self.outbox = outbox
        self._waiting: dict[str, list[dict[str, Any]]] = {}

    def begin(self, trace: Trace) -> None:
        """A trace has begun."""
        self._waiting[trace.trace_id] = []
        told = trace.metadata
        known = {"model": told.get("model") or UNKNOWN_MODEL, "framework": "massgen"}
        if told.get("parent_trace_id"):
            known["parent_trajectory_id"] = told["parent_trace_id"]
        begin = {
            "trajectory_id": trace.trace_id,
            "session_id": str(told.get("session_id") or f"massgen:{trace.trace_id}"),
            "agent_id": trace.agent_id,
            "start_timestamp": _moment(trace.start_time).isoformat(),
            "task_context": {"instructions": trace.task},
            "metadata": known,
        }
        self.outbox.write(trace.trace_id, "begin", begin)
        self.outbox.counting.add("begun")

    def add(self, trace: Trace, span: Span) -> None:
        """A span has come: those before it are a turn if it begins another."""
        waiting, told = self._waiting[trace.trace_id], span.to_dict()
        acts = [one for one in waiting if is_act(one)]
        if acts and is_act(told) and not (waiting[-1] is acts[-1] and joins(acts[-1], told)):
            self._write_turns(trace.trace_id)
            waiting = self._waiting[trace.trace_id]
        waiting.append(told)

    def forget(self, trace: Trace) -> None:
        """Nothing of the trace is to be sent."""
        if self._waiting.pop(trace.trace_id, None) is not None:
            self.outbox.forget(trace.trace_id)

    def finish(self, trace: Trace) -> "Future[None]":
        """The trace has ended; the future ends when it is on the disk."""
        self._write_turns(trace.trace_id)
        del self._waiting[trace.trace_id]
        ended = _moment(trace.end_time or trace.start_time)
        end: dict[str, Any] = {"end_timestamp": ended.isoformat(), "task_context": {}, "metadata": {}}
        try:
            (whole,) = MassGenTraces().read(trace.to_dict(), Origin("massgen", ended))
            end = {name: whole[name] for name in end}
        except NotOfFormat:
            pass  # without a turn nothing is sent
        return self.outbox.write(trace.trace_id, "end", end)

    def give_feedback(self, feedback: Feedback) -> None:
        """Feedback on a trace, through the same outbox; on the disk when this returns."""
        self.outbox.post(feedback)

    def _write_turns(self, trace_id: str) -> None:
        for turn in turns_of_spans(self._waiting[trace_id]):
            began = _moment(turn["timestamp"])
            ended = began + timedelta(milliseconds=turn["result"].get("execution_time_ms", 0.0))
            turn |= {"timestamp": began.isoformat(), "end_timestamp": ended.isoformat()}
            self.outbox.write(trace_id, "turn", turn)
        self._waiting[trace_id] = []


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)
