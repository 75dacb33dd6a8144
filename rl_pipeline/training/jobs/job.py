"""Training jobs and their attempts as values: their states, how one follows from another, and who may change what.

A job has exactly one end: completed, failed or cancelled. `VALID_TRANSITIONS` is the whole of what can happen to it.

The warehouse cannot compare and swap, so nobody relies on it:

- A job's row is changed by the sensor of requests alone, which holds a lease while it does. The run that trains never
  writes it: it ends its attempt, and the sensor draws the conclusion. The one exception is the import of files, which
  moves its own job on from `importing`. Should two changes be made from the same row all the same, the numbers of the
  changes decide, in whatever order they were written: a change to an end wins over any other, and of the ends cancelled
  wins (`Job.moved`).
- An attempt's row is changed by one party at a time: the sensor plans it, the run begins and ends it, and the sensor
  closes it only when the run is over and nobody holds its lease. A row of a later phase replaces one of an earlier,
  whoever was slower (`Phase`), and what the sensor closed stays closed. A job depends on its newest attempt only.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import IntEnum
from types import MappingProxyType
from typing import Literal

from rl_pipeline.contracts.training_request import Priority, TrainingRequest, TriggerReason
from rl_pipeline.contracts.training_status import FailureCode
from rl_pipeline.errors import PipelineError

State = Literal[
    "accepted",
    "importing",
    "waiting",
    "ready",
    "running",
    "preempting",
    "cancelling",
    "completed",
    "failed",
    "cancelled",
]
Source = Literal["nats_stream", "clickhouse", "s3", "local"]
StartsFrom = Literal["dataset", "checkpoint"]
Outcome = Literal["completed", "failed", "cancelled", "preempted"]

FINAL_STATES: frozenset[State] = frozenset({"completed", "failed", "cancelled"})

VALID_TRANSITIONS: Mapping[State, frozenset[State]] = MappingProxyType(
    {
        "accepted": frozenset({"importing", "waiting", "ready", "cancelled"}),
        "importing": frozenset({"waiting", "failed", "cancelled"}),
        "waiting": frozenset({"waiting", "ready", "cancelled"}),
        "ready": frozenset({"running", "cancelled"}),
        "running": frozenset({"preempting", "cancelling", "ready", "completed", "failed", "cancelled"}),
        "preempting": frozenset({"cancelling", "ready", "completed", "failed", "cancelled"}),
        "cancelling": frozenset({"completed", "cancelled"}),
        "completed": frozenset(),
        "failed": frozenset(),
        "cancelled": frozenset(),
    }
)

_RANKS: Mapping[State, int] = {state: rank for rank, state in enumerate(VALID_TRANSITIONS)}
_RANK_PLACES = 16


class InvalidTransition(PipelineError):
    """A change that no job goes through."""


class Phase(IntEnum):
    """How far an attempt's row has come; it is the version by which ClickHouse keeps the newest."""

    PLANNED = 1
    BEGUN = 2
    PLAN_KNOWN = 3
    ENDED = 4
    CLOSED = 5


@dataclass(frozen=True, slots=True)
class Job:
    """An accepted request and where it stands. `request` has every default filled in that decides what is trained."""

    job_id: str
    request: TrainingRequest
    state: State
    explanation: str
    """Why it is in this state, for people."""
    accepted_at: datetime
    changed_at: datetime
    version: int
    through_sequence: int = 0
    """Trajectories up to here must be ingested and scored before the dataset is made; 0 for none."""
    watermark: int = 0
    """The last sequence that the dataset could use, fixed when the job first starts; 0 before that."""

    @classmethod
    def accepted(cls, request: TrainingRequest, *, through_sequence: int, now: datetime) -> "Job":
        """A job as it begins."""
        return cls(
            job_id=request.training_job_id,
            request=request,
            state="accepted",
            explanation=f"asked for by {request.requester}",
            accepted_at=now,
            changed_at=now,
            version=_RANK_PLACES + _RANKS["accepted"],
            through_sequence=through_sequence,
        )

    @property
    def is_final(self) -> bool:
        """Whether it has ended."""
        return self.state in FINAL_STATES

    @property
    def is_wanted(self) -> bool:
        """Whether something is still to come of it."""
        return not self.is_final and self.state != "cancelling"

    @property
    def priority(self) -> Priority:
        """As asked for, or by the reason of the request."""
        return self.request.priority

    @property
    def trigger_reason(self) -> TriggerReason:
        """Why it was asked for."""
        return self.request.trigger_reason

    @property
    def source(self) -> Source:
        """Where its trajectories come from."""
        return self.request.training_config.dataset.source

    @property
    def shadow(self) -> bool:
        """Whether it trains and is validated, and is never deployed."""
        return bool(self.request.metadata.shadow)

    def moved(
        self,
        state: State,
        explanation: str,
        now: datetime,
        *,
        through_sequence: int | None = None,
        watermark: int | None = None,
    ) -> "Job":
        """The job after a change. Raises `InvalidTransition`.

        The number of a change is the number of changes, then the rank of the state: of two changes of the same row, one
        to an end wins.
        """
        if state not in VALID_TRANSITIONS[self.state]:
            raise InvalidTransition(f"job {self.job_id} is {self.state} and cannot become {state}: leave it as it is")
        return replace(
            self,
            state=state,
            explanation=explanation,
            changed_at=now,
            version=(self.version // _RANK_PLACES + 1) * _RANK_PLACES + _RANKS[state],
            through_sequence=self.through_sequence if through_sequence is None else through_sequence,
            watermark=self.watermark if watermark is None else watermark,
        )


@dataclass(frozen=True, slots=True)
class Attempt:
    """One run at a job. `plan`, `changes` and `result` are JSON; the first is empty until the run has made it."""

    job_id: str
    number: int
    starts_from: StartsFrom
    not_before: datetime
    changes: str = "{}"
    plan: str = ""
    run_id: str = ""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: Outcome | None = None
    failure_code: FailureCode | None = None
    message: str = ""
    traceback: str = ""
    result: str = "{}"
    phase: Phase = Phase.PLANNED

    @property
    def key(self) -> str:
        """Its name, under which its run is asked for: Dagster starts it once."""
        return f"{self.job_id}#{self.number}"

    @property
    def holder(self) -> str:
        """Its run as the holder of the lease. No job id has a `#`, so it is the name of no other."""
        return f"{self.key}#{self.run_id}"

    def is_holder(self, holder: str | None) -> bool:
        """Whether this is a run of the attempt."""
        return holder is not None and holder.startswith(f"{self.key}#")

    @property
    def tags(self) -> dict[str, str]:
        """By which its run is found."""
        return {"rl/job": self.job_id, "rl/attempt": str(self.number)}

    @property
    def is_open(self) -> bool:
        """Whether it has no outcome yet."""
        return self.outcome is None

    @property
    def has_begun(self) -> bool:
        """Whether its run has told of itself."""
        return self.started_at is not None

    def begun(self, run_id: str, now: datetime) -> "Attempt":
        """Its run has started."""
        return replace(self, run_id=run_id, started_at=now, phase=max(self.phase, Phase.BEGUN))

    def with_plan(self, plan: str) -> "Attempt":
        """The dataset is there, and it is known how to train."""
        return replace(self, plan=plan, phase=Phase.PLAN_KNOWN)

    def ended(
        self,
        outcome: Outcome,
        now: datetime,
        *,
        phase: Phase = Phase.ENDED,
        failure_code: FailureCode | None = None,
        message: str = "",
        traceback: str = "",
        result: str = "{}",
    ) -> "Attempt":
        """It is over. A run ends its own attempt; `Phase.CLOSED` is for the sensor, where the run could not."""
        return replace(
            self,
            outcome=outcome,
            ended_at=now,
            failure_code=failure_code,
            message=message,
            traceback=traceback,
            result=result,
            phase=phase,
        )
