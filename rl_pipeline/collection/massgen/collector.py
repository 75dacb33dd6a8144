"""`TraceCollector`: what one agent does, as traces that go to a store. Nothing that an agent calls here raises."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

from rl_pipeline.collection.harmless import harmless
from rl_pipeline.collection.massgen.config import StoreConfig
from rl_pipeline.collection.massgen.spans import (
    ContentSpan,
    CoordinationSpan,
    PromptSpan,
    ReasoningSpan,
    RewardSpan,
    Span,
    ToolSpan,
    Trace,
    TraceStatus,
)
from rl_pipeline.collection.massgen.store import LightningStore
from rl_pipeline.collection.outbox.counts import Counting
from rl_pipeline.collection.recording import steady_clock
from rl_pipeline.contracts import Feedback, FeedbackKind

_superior: ContextVar[Trace | None] = ContextVar("rl_pipeline_massgen_trace", default=None)


@contextmanager
def within(trace: Trace | None) -> Iterator[None]:
    """What is begun in this block, in tasks too, belongs to subordinates of this trace's agent."""
    token = _superior.set(trace)
    try:
        yield
    finally:
        # Where a generator carried the block into another context there is nothing to undo.
        with suppress(ValueError):
            _superior.reset(token)


class TraceCollector:
    """Collects the spans of any number of traces at once. What comes for a trace that is not active is ignored."""

    def __init__(self, agent_id: str, store_config: StoreConfig, clock: Callable[[], float] | None = None) -> None:
        self.agent_id = agent_id
        self.store = LightningStore(store_config)
        self.active_traces: dict[str, Trace] = {}
        steady = steady_clock()
        self._clock = clock or (lambda: steady().timestamp())

    @property
    def counting(self) -> Counting:
        """Where faults are counted."""
        return self.store.counting

    def start_trace(self, task: str, metadata: dict[str, Any] | None = None) -> str:
        """Begin a trace and return its id, which is the trajectory's, too."""
        trace_id, superior = str(uuid4()), _superior.get()
        known = dict(metadata or {})
        if superior is not None:
            known |= {"parent_trace_id": superior.trace_id, "session_id": superior.metadata.get("session_id")}
        trace = Trace(trace_id, self.agent_id, task, metadata=known, start_time=self._clock())
        self._begin(trace)
        return trace_id

    def get_active_trace(self, trace_id: str) -> Trace | None:
        """The trace, while it goes on."""
        return self.active_traces.get(trace_id)

    def emit_prompt_span(self, trace_id: str, prompt: Any, response: str, model: str, **more: Any) -> None:
        """A call to a model; `more` are fields of `PromptSpan`."""
        self._emit(trace_id, lambda: PromptSpan(input=prompt, output=response, model=model, **more))

    def emit_tool_span(
        self, trace_id: str, tool_name: str, arguments: dict[str, Any], result: Any = None, **more: Any
    ) -> None:
        """A call of a tool; `more` are fields of `ToolSpan`."""
        self._emit(trace_id, lambda: ToolSpan(tool_name=tool_name, arguments=arguments, result=result, **more))

    def emit_reward_span(self, trace_id: str, reward: float, reward_type: str, reason: str | None = None) -> None:
        """What the act before it was worth."""
        self._emit(trace_id, lambda: RewardSpan(reward=reward, reward_type=reward_type, reason=reason))

    def emit_coordination_span(self, trace_id: str, action_type: str, action_data: dict[str, Any], **more: Any) -> None:
        """A vote, an answer, a restart; `more` are fields of `CoordinationSpan`."""
        self._emit(trace_id, lambda: CoordinationSpan(action_type=action_type, action_data=action_data, **more))

    def emit_content_span(self, trace_id: str, content: str, source: str | None = None) -> None:
        """What was said; by this agent, unless a `source` is told."""
        self._emit(trace_id, lambda: ContentSpan(content=content, source=source or self.agent_id))

    def emit_reasoning_span(self, trace_id: str, reasoning: str, source: str | None = None) -> None:
        """What was thought."""
        self._emit(trace_id, lambda: ReasoningSpan(reasoning=reasoning, source=source or self.agent_id))

    async def end_trace(self, trace_id: str, status: TraceStatus = "completed") -> bool:
        """End a trace and wait, not for long, until it is kept; whether it is."""
        return await self.settled(self.finish(trace_id, status))

    async def fail_trace(self, trace_id: str, error: str | None = None) -> bool:
        """End a trace that has failed."""
        trace = self.active_traces.get(trace_id)
        if trace is not None and error is not None:
            trace.metadata["error"] = error
        return await self.settled(self.finish(trace_id, "failed"))

    def finish(self, trace_id: str, status: TraceStatus) -> "Future[None] | None":
        """End a trace, for whoever cannot wait; the future ends when it is kept."""
        trace = self.active_traces.pop(trace_id, None)
        if trace is None:
            return None
        try:
            trace.end(status, self._clock())
            return self.store.finish(trace)
        except Exception as error:  # noqa: BLE001 - the agent must not fail for being recorded
            self.counting.failed("ending a trace", error)
            return None

    async def settled(self, written: "Future[None] | None") -> bool:
        """Whether a trace is kept, as far as that shows in time; whoever loses patience does not end the writing."""
        if written is None:
            return False
        try:
            await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(written)), self.store.config.disk_seconds)
        except Exception as error:  # noqa: BLE001 - the agent must not fail for being recorded
            self.counting.add("late", f"a trace is not on the disk ({type(error).__name__})")
            return False
        return True

    @harmless
    def cancel_trace(self, trace_id: str) -> None:
        """Keep nothing of a trace."""
        trace = self.active_traces.pop(trace_id, None)
        if trace is not None:
            self.store.forget(trace)

    @harmless
    def give_feedback(
        self,
        trace_id: str,
        kind: FeedbackKind,
        *,
        rating: int | None = None,
        text: str | None = None,
        user_id: str | None = None,
    ) -> None:
        """What a person thought of a trace, whether it has ended or not."""
        feedback = Feedback(
            feedback_id=f"massgen-{uuid4()}",
            trajectory_id=trace_id,
            user_id=user_id,
            timestamp=steady_clock()(),
            kind=kind,
            rating=rating,
            text=text,
        )
        self.store.give_feedback(feedback)

    @harmless
    def _begin(self, trace: Trace) -> None:
        self.active_traces[trace.trace_id] = trace
        self.store.begin(trace)

    @harmless
    def _emit(self, trace_id: str, make: Callable[[], Span]) -> None:
        trace = self.active_traces.get(trace_id)
        if trace is None:
            return
        span = make()
        span.span_id, span.timestamp = span.span_id or str(uuid4()), self._clock()
        trace.add_span(span)
        self.store.add(trace, span)
