"""Desired states and what they are made of, for tests."""

from datetime import UTC, datetime, timedelta

from rl_pipeline.deployment import phases
from rl_pipeline.deployment.phases import Cause
from rl_pipeline.deployment.releases import Release, RolloutPlan
from rl_pipeline.deployment.state import DesiredState, RampStep, Rollout, ServedModel, Strategy

NOW = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
VALIDATION = {"benchmark_passed": True, "safety_checks_passed": True, "performance_regression": False}
RAMP = tuple(
    RampStep(share=share, min_seconds=60, min_samples=samples)
    for share, samples in ((0.1, 50), (0.25, 100), (0.5, 150))
)


def a_model(model_id: str = "old") -> ServedModel:
    return ServedModel(
        model_id=model_id,
        base_model="small",
        checkpoint_path=f"s3://models/{model_id}/",
        manifest_sha256="0" * 64,
        training_job_id=f"job-of-{model_id}",
    )


def because(reason: str = "because", by: str = "tester", at: datetime = NOW) -> Cause:
    return Cause(reason, by, at)


def a_rollout(
    candidate: str = "new", control: str = "old", strategy: Strategy = "canary", steps: tuple[RampStep, ...] = RAMP
) -> Rollout:
    return Rollout(
        deployment_id=f"deployment-of-{candidate}",
        candidate=candidate,
        control=control,
        strategy=strategy,
        steps=steps,
        started_at=NOW,
        step_since=NOW,
        bake_seconds=120,
        validation=VALIDATION,
    )


def first_state() -> DesiredState:
    return phases.create(a_model(), because())


def started(strategy: Strategy = "canary", steps: tuple[RampStep, ...] = RAMP) -> DesiredState:
    """A rollout of `new` against `old`."""
    rollout = a_rollout(strategy=strategy, steps=steps)
    return phases.start(first_state(), a_model("new"), rollout, because(), approved=True)


def a_release(
    number: int, model_id: str | None = None, *, needs_approval: bool = False, measured_against: str = "old"
) -> Release:
    name = model_id or f"agent-zero-rl-v{number}"
    return Release(
        training_job_id=f"job-of-{name}",
        number=number,
        deployment_id=f"deployment-of-{name}",
        model=a_model(name),
        plan=RolloutPlan(
            strategy="canary",
            steps=RAMP,
            bake_seconds=120,
            explanation="it is better",
            measured_against=measured_against,
        ),
        validation=VALIDATION,
        needs_approval=needs_approval,
        released_at=NOW,
        changed_at=NOW,
    )
