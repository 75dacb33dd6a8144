"""When the pipeline itself asks for a training, and with which priority: one decision for every occasion.

| evidence | reason | priority |
|---|---|---|
| the model in service has become worse | `performance_degradation` | urgent |
| enough new trajectories since the last training | `threshold_reached` | normal |
| it is time, and something is new since the last that completed | `scheduled` | normal |
| otherwise | wait | |

The first row that holds decides. But for degradation, all of them wait while a model is on its way into service, from
which the training would start if it were there already: not for one that waits for a person, nor for ever.

Whatever is decided becomes a request on `agent.rl.training.request.v1`, like any other; its id is made of what caused
it, so that saying it again asks for nothing more. A person who asks (`manual`, high) needs no evidence and no decision:
see `spoken` and the command `train`. Among jobs the priority decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID, uuid5

from rl_pipeline.contracts import Priority, TrainingRequest, TriggerReason
from rl_pipeline.contracts.training_request import Evaluation
from rl_pipeline.contracts.trajectory import Domain
from rl_pipeline.training.degradation import ServingModel, needs_training
from rl_pipeline.training.jobs.requests import PRIORITIES

_CAUSES = UUID("6f1d3c52-8f0e-4d0a-9a53-6c2f6a0d7a10")
# However fast the clock of rollouts is set, a model has to be validated first.
_LEAST_PATIENCE = timedelta(hours=1)


def patience_for(ramp_hours: float, bake_hours: float) -> timedelta:
    """How long a model on its way is waited for: samples decide when a ramp ends, its hours are only the least."""
    return max(_LEAST_PATIENCE, timedelta(hours=2 * ramp_hours + bake_hours))


@dataclass(frozen=True, slots=True)
class TriggerPolicy:
    """When this deployment trains by itself, and on what."""

    threshold: int = 5000
    """So many new rewarded trajectories since the last training."""
    min_new: int = 500
    """With fewer new ones since the last completed training the schedule trains nothing."""
    degradation_drop: float = 0.10
    sample_size: int = 10_000
    last_days: int = 30
    min_reward: float = 0.5
    domain_shares: Mapping[Domain, float] | None = None
    """Balanced if left out."""
    literal_filter: bool = False
    """Whether the least reward holds for every trajectory, whatever the algorithm makes of them."""
    patience: timedelta = timedelta(hours=32)
    """So long a model on its way is waited for."""


@dataclass(frozen=True, slots=True)
class OnItsWay:
    """A model that was trained and is not in service yet: to be validated, to be rolled out, or being rolled out."""

    name: str
    age: timedelta
    """Since its rollout has begun; before that, since its training has completed."""
    waits_for_a_person: bool = False
    """It comes no further by itself."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What is known when it is decided."""

    new_since_last_training: int
    new_since_last_completed: int
    last_training: str = ""
    """The training that was accepted last: it may be under way, or have failed if the pipeline itself asked for it."""
    under_way: str | None = None
    """A job that was asked for by the pipeline itself and has not ended."""
    on_its_way: OnItsWay | None = None
    serving: ServingModel | None = None
    scheduled_for: datetime | None = None
    """The time of the schedule, if it is that which asks."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Ask for a training."""

    reason: TriggerReason
    explanation: str
    cause: str
    """What happened, as a text that is the same whenever the same is decided."""
    degraded_model: str | None = None

    @property
    def priority(self) -> Priority:
        """By the reason."""
        return PRIORITIES[self.reason]

    @property
    def job_id(self) -> str:
        """The id of the job to ask for."""
        return str(uuid5(_CAUSES, self.cause))


@dataclass(frozen=True, slots=True)
class Wait:
    """Ask for nothing now."""

    reason: str


def decide(evidence: Evidence, policy: TriggerPolicy) -> Decision | Wait:
    """What the evidence calls for, by the table above.

    While a job that the pipeline asked for is under way, neither the threshold nor the schedule asks for another: it
    would learn from the same trajectories. Nor do they while a model is being rolled out: what they start would start
    from the model that this one is about to replace. A model that becomes worse waits for neither.
    """
    serving = evidence.serving
    if serving is not None and needs_training(serving, policy.degradation_drop):
        return Decision(
            "performance_degradation",
            f"the raw reward of {serving.version} fell from {serving.bake.mean:.3f} (its first {serving.bake.count}) "
            f"to {serving.recent.mean:.3f} (the last {serving.recent.count})",
            cause=f"degradation {serving.version} {serving.times_asked}",
            degraded_model=serving.version,
        )
    return _of_its_own_accord(evidence, policy)


def request_for(decision: Decision, policy: TriggerPolicy, *, requester: str, now: datetime) -> TrainingRequest:
    """The request that a decision makes. What it learns from is in the warehouse already: nothing has to be drained."""
    chosen: dict[str, object] = {"min_reward": policy.min_reward, "last_days": policy.last_days}
    if policy.domain_shares is not None:
        chosen["domain_shares"] = dict(policy.domain_shares)
    if policy.literal_filter:
        chosen["literal_filter"] = True
    metadata = {"notes": decision.explanation}
    if decision.degraded_model is not None:
        metadata["degraded_model"] = decision.degraded_model
    return TrainingRequest.model_validate(
        {
            "training_job_id": decision.job_id,
            "timestamp": now,
            "requester": requester,
            "trigger_reason": decision.reason,
            "priority": decision.priority,
            "training_config": {
                "dataset": {"source": "clickhouse", "sample_size": policy.sample_size, "filter": chosen}
            },
            "evaluation": Evaluation().model_dump(include={"metrics", "benchmark_tasks"}),
            "metadata": metadata,
        }
    )


def _of_its_own_accord(evidence: Evidence, policy: TriggerPolicy) -> Decision | Wait:
    if evidence.under_way is not None:
        return Wait(f"the job {evidence.under_way} is under way")
    coming = evidence.on_its_way
    if coming is not None and not coming.waits_for_a_person and coming.age < policy.patience:
        return Wait(
            f"{coming.name} is on its way into service: what is trained next starts from it, or from its control"
        )
    new = f"{evidence.new_since_last_training:,} new trajectories since the last training"
    if evidence.new_since_last_training >= policy.threshold:
        return Decision("threshold_reached", new, cause=f"threshold after {evidence.last_training}")
    if evidence.scheduled_for is None:
        return Wait(f"{new}, {policy.threshold:,} are needed")
    fresh = f"{evidence.new_since_last_completed:,} new trajectories since the last completed training"
    if evidence.new_since_last_completed < policy.min_new:
        return Wait(f"{fresh}, the schedule needs {policy.min_new:,}")
    return Decision("scheduled", fresh, cause=f"scheduled {evidence.scheduled_for.isoformat()}")
