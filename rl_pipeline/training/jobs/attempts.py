"""What follows a failed attempt: the table of retries, as a pure function of what failed and of what was tried before.

| failure | the next attempt | at most |
|---|---|---|
| OOM | half the micro-batch, the same global batch; at one: gradient checkpointing, then offloading if it can be | 10 |
| CONVERGENCE | half the learning rate, from the last good checkpoint | 3 |
| DATA | a new revision of the dataset without the rows that broke it | 3 |
| INFRA | the same again after 600 seconds, from the checkpoint | 12 |
| TIMEOUT | back into the queue, from the checkpoint, after a minute | 3 |
| UNKNOWN | none: a person has to look | 0 |

Times count from the end of the attempt that failed, not from when it was noticed: the same failure gives the same next
attempt, however often it is asked for.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from rl_pipeline.contracts.training_status import FailureCode
from rl_pipeline.training.jobs.job import Attempt, Outcome, StartsFrom, State
from rl_pipeline.training.plans.plan import TrainingPlan

LIMITS: Mapping[FailureCode, int] = MappingProxyType(
    {"OOM": 10, "CONVERGENCE": 3, "DATA": 3, "INFRA": 12, "TIMEOUT": 3, "UNKNOWN": 0}
)
"""How many attempts may end in each failure and be followed by another."""
DELAYS: Mapping[FailureCode, timedelta] = MappingProxyType(
    {"INFRA": timedelta(seconds=600), "TIMEOUT": timedelta(seconds=60)}
)
"""How long the next attempt waits; no time after the other failures."""
_LEARNING_RATE_FACTOR = 0.5


class PlanChanges(BaseModel):
    """What an attempt does otherwise than its plan says. Relative, so that a plan made for another machine takes it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    halvings: Annotated[int, Field(ge=0)] = 0
    """How often the micro-batch is halved; accumulation makes up for it."""
    gradient_checkpointing: bool = False
    offload: bool = False
    learning_rate_factor: Annotated[float, Field(gt=0, le=1)] = 1.0

    def then(self, further: "PlanChanges") -> "PlanChanges":
        """These changes and further ones."""
        return PlanChanges(
            halvings=self.halvings + further.halvings,
            gradient_checkpointing=self.gradient_checkpointing or further.gradient_checkpointing,
            offload=self.offload or further.offload,
            learning_rate_factor=self.learning_rate_factor * further.learning_rate_factor,
        )

    def as_json(self) -> str:
        """What is otherwise, and nothing else."""
        return self.model_dump_json(exclude_defaults=True)


NO_CHANGES = PlanChanges()


@dataclass(frozen=True, slots=True)
class NextAttempt:
    """Try again. `changes` are against the attempt that failed."""

    changes: PlanChanges
    starts_from: StartsFrom
    not_before: datetime
    explanation: str


@dataclass(frozen=True, slots=True)
class GiveUp:
    """Do not try again."""

    reason: str


def after_failure(attempts: Sequence[Attempt]) -> NextAttempt | GiveUp:
    """What follows the last of a job's attempts, which has failed. The plan that failed is in the attempt, if any was.

    Attempts that were preempted count for nothing.
    """
    attempt = attempts[-1]
    code = attempt.failure_code or "UNKNOWN"
    failures = sum(1 for each in attempts if each.outcome == "failed" and each.failure_code == code)
    if code == "UNKNOWN":
        return GiveUp("the failure is of no known kind: a person has to look at its traceback")
    if failures > LIMITS[code]:
        return GiveUp(f"it was the {_ordinal(failures)} {code}, and no more than {LIMITS[code]} are tried again")
    not_before = (attempt.ended_at or attempt.not_before) + DELAYS.get(code, timedelta())
    if code == "DATA":
        return _after_bad_data(attempt, failures, not_before)
    changes, explanation = NO_CHANGES, "the same again"
    if code == "CONVERGENCE":
        changes, explanation = PlanChanges(learning_rate_factor=_LEARNING_RATE_FACTOR), "half the learning rate"
    elif code == "OOM":
        relief = _less_memory(attempt)
        if isinstance(relief, GiveUp):
            return relief
        changes, explanation = relief
    return NextAttempt(changes, goes_on_from(attempt), not_before, explanation)


def goes_on_from(attempt: Attempt) -> StartsFrom:
    """Where the attempt after this one starts: from the checkpoint once there was a plan, which needs the dataset."""
    return "checkpoint" if attempt.plan else attempt.starts_from


def outcome_of_stop(job_state: State, *, run_is_canceling: bool) -> tuple[Outcome, FailureCode | None]:
    """What a run writes as its end when it was interrupted and has saved its state.

    Whoever cancels a run, a person or the sensor, tells Dagster so first; a machine that goes down only interrupts it,
    and then the job goes on later.
    """
    if job_state == "preempting":
        return "preempted", None
    return ("cancelled", None) if run_is_canceling or job_state == "cancelling" else ("failed", "INFRA")


def changes_of(attempts: Sequence[Attempt]) -> PlanChanges:
    """All that the last of the attempts does otherwise than the first plan: its own changes and those before it."""
    combined = NO_CHANGES
    for attempt in attempts:
        combined = combined.then(PlanChanges.model_validate_json(attempt.changes))
    return combined


def apply_changes(plan: TrainingPlan, changes: PlanChanges) -> TrainingPlan:
    """The plan with the changes. Its global batch is what it was: halving the micro-batch adds to the accumulation.

    Nothing is offloaded without DeepSpeed, nor where there is no compiler: this machine may be another than the one on
    which it was decided to offload.
    """
    micro, accumulation = plan.optimization.micro_batch, plan.optimization.accumulation
    for _ in range(changes.halvings):
        micro, accumulation = _halved(micro, accumulation)
    distribution = plan.distribution
    offload = changes.offload and distribution.deepspeed and distribution.can_compile
    return plan.model_copy(
        update={
            "optimization": plan.optimization.model_copy(
                update={
                    "micro_batch": micro,
                    "accumulation": accumulation,
                    "learning_rate": plan.optimization.learning_rate * changes.learning_rate_factor,
                }
            ),
            "distribution": distribution.model_copy(
                update={
                    "gradient_checkpointing": distribution.gradient_checkpointing or changes.gradient_checkpointing,
                    "offload_optimizer": distribution.offload_optimizer or (offload and distribution.zero_stage >= 1),
                    "offload_parameters": distribution.offload_parameters or (offload and distribution.zero_stage == 3),
                }
            ),
        }
    )


def _after_bad_data(attempt: Attempt, failures: int, not_before: datetime) -> NextAttempt | GiveUp:
    quarantined = int(json.loads(attempt.result).get("quarantined", 0))
    if not quarantined and failures > 1:
        return GiveUp("the data broke it again, and no row was found to blame: look at the dataset's checks")
    explanation = f"a dataset without {quarantined} rows" if quarantined else "a dataset that is made and checked anew"
    return NextAttempt(NO_CHANGES, "dataset", not_before, explanation)


def _less_memory(attempt: Attempt) -> tuple[PlanChanges, str] | GiveUp:
    if not attempt.plan:
        return GiveUp("the memory was used up before there was a plan: ask for fewer samples")
    plan = TrainingPlan.model_validate_json(attempt.plan)
    distribution = plan.distribution
    if plan.optimization.micro_batch > 1:
        micro, accumulation = _halved(plan.optimization.micro_batch, plan.optimization.accumulation)
        return PlanChanges(
            halvings=1
        ), f"micro-batch {micro} and accumulation {accumulation}, the global batch as it was"
    if not distribution.gradient_checkpointing:
        return PlanChanges(gradient_checkpointing=True), "gradient checkpointing"
    # Without a GPU there is no other memory to offload to.
    if distribution.device == "cuda" and apply_changes(plan, PlanChanges(offload=True)) != plan:
        return PlanChanges(offload=True), "offloading to the machine's memory"
    if distribution.device == "cuda" and not distribution.can_compile:
        return GiveUp("one sequence at a time with gradient checkpointing is too much: offloading takes a C++ compiler")
    return GiveUp("one sequence at a time with gradient checkpointing, and offloading to where it can be, is too much")


def _halved(micro: int, accumulation: int) -> tuple[int, int]:
    """At most half the micro-batch and at least twice the accumulation, with the same product."""
    if micro == 1:
        return micro, accumulation
    whole = micro * accumulation
    smaller = next(size for size in range(micro // 2, 0, -1) if whole % size == 0)
    return smaller, whole // smaller


def _ordinal(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
