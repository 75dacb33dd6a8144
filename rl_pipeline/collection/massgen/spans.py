"""A trace of MassGen: what one agent, or the orchestrator of several, did for one task, in six kinds of spans."""

from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal

from rl_pipeline.collection.plain_values import plain

TraceStatus = Literal["running", "completed", "failed", "abandoned"]


@dataclass(kw_only=True)
class Span:
    """Something that happened."""

    span_type: ClassVar[str] = ""

    span_id: str = ""
    timestamp: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        told: dict[str, Any] = plain({item.name: getattr(self, item.name) for item in fields(self)})
        return {"span_id": told.pop("span_id"), "span_type": self.span_type, **told}


@dataclass(kw_only=True)
class PromptSpan(Span):
    """A call to a model: what it was shown and what it said first, before any tool."""

    span_type: ClassVar[str] = "prompt"

    input: Any = ""
    output: str = ""
    model: str = ""
    input_tokens: int | None = None
    """Of the whole chat: its later calls to the model have no span of this kind."""
    output_tokens: int | None = None
    reasoning: str | None = None


@dataclass(kw_only=True)
class ToolSpan(Span):
    """A tool that was called."""

    span_type: ClassVar[str] = "tool"

    tool_name: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    success: bool = True
    execution_time: float = 0.0
    error: str | None = None


@dataclass(kw_only=True)
class RewardSpan(Span):
    """What something was worth."""

    span_type: ClassVar[str] = "reward"

    reward: float = 0.0
    reward_type: str = ""
    """`tool`, `answer_quality`, `coordination`, `voting` or `restart`."""
    reason: str | None = None


@dataclass(kw_only=True)
class CoordinationSpan(Span):
    """What agents did with each other: a `vote`, an `answer`, a `restart`."""

    span_type: ClassVar[str] = "coordination"

    action_type: str = ""
    action_data: dict[str, Any] = field(default_factory=dict)
    agent_states: dict[str, Any] = field(default_factory=dict)
    coordination_round: int = 0


@dataclass(kw_only=True)
class ContentSpan(Span):
    """What was said, by whom."""

    span_type: ClassVar[str] = "content"

    content: str = ""
    source: str | None = None


@dataclass(kw_only=True)
class ReasoningSpan(Span):
    """What was thought before acting."""

    span_type: ClassVar[str] = "reasoning"

    reasoning: str = ""
    source: str | None = None


_SPANS: dict[str, type[Span]] = {
    kind.span_type: kind for kind in (PromptSpan, ToolSpan, RewardSpan, CoordinationSpan, ContentSpan, ReasoningSpan)
}


@dataclass
class Trace:
    """What happened for one task, from its start to its end."""

    trace_id: str
    agent_id: str
    task: str
    spans: list[Span] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    start_time: float = 0.0
    end_time: float | None = None
    duration: float | None = None
    total_reward: float | None = None
    """The sum of the rewards; None while there are none."""
    status: TraceStatus = "running"

    def add_span(self, span: Span) -> None:
        """One more."""
        self.spans.append(span)
        if isinstance(span, RewardSpan):
            self.total_reward = (self.total_reward or 0.0) + span.reward

    def end(self, status: TraceStatus, now: float) -> None:
        """Nothing more comes."""
        self.status, self.end_time, self.duration = status, now, now - self.start_time

    def to_dict(self) -> dict[str, Any]:
        """As its file has it."""
        told = {item.name: getattr(self, item.name) for item in fields(self) if item.name != "spans"}
        return {**plain(told), "spans": [span.to_dict() for span in self.spans]}

    @classmethod
    def from_dict(cls, told: dict[str, Any]) -> "Trace":
        """From its file; what a span or trace has no field for is left out."""
        spans = [
            _made(_SPANS[one["span_type"]], one) for one in told.get("spans", []) if one.get("span_type") in _SPANS
        ]
        trace: Trace = _made(cls, told)
        trace.spans = spans
        return trace


def _made(kind: Any, told: dict[str, Any]) -> Any:
    return kind(**{item.name: told[item.name] for item in fields(kind) if item.name in told})
