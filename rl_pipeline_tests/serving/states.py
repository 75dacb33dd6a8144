"""Desired states as the tests need them: one model in service, and a candidate with a share."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import count

from rl_pipeline.deployment.state import Change, DesiredState, RampStep, Rollout, ServedModel
from rl_pipeline.serving.routing import place_of

OLD, NEW = "agent-zero-rl-v2.3", "agent-zero-rl-v2.4"
DEPLOYMENT = "deployment-1"
_AT = datetime(2026, 1, 1, tzinfo=UTC)


def model_at(model_id: str, endpoint: str = "http://127.0.0.1:9") -> ServedModel:
    """A model that somebody else serves."""
    return ServedModel(model_id=model_id, base_model="base", endpoint=endpoint)


def steady(generation: int, *models: ServedModel, retired: tuple[str, ...] = ()) -> DesiredState:
    """The first of the models serves; the others are kept warm."""
    return DesiredState(
        generation=generation,
        previous_hash="",
        serving=models[0].model_id,
        weights={models[0].model_id: 1.0},
        models={model.model_id: model for model in models},
        retired=retired,
        change=Change(event="created", model_id=models[0].model_id, reason="a test", by="test", at=_AT),
    )


def ramping(
    generation: int,
    control: ServedModel,
    candidate: ServedModel,
    share: float,
    *,
    step: int = 0,
    deployment_id: str = DEPLOYMENT,
) -> DesiredState:
    """The candidate has a share, and the control the rest."""
    rollout = Rollout(
        deployment_id=deployment_id,
        candidate=candidate.model_id,
        control=control.model_id,
        strategy="canary",
        steps=tuple(RampStep(share=each, min_seconds=0, min_samples=0) for each in (0.1, 0.25, 0.5, 1.0, 0.5)),
        step=step,
        started_at=_AT,
        step_since=_AT,
        bake_seconds=60,
    )
    return DesiredState(
        generation=generation,
        previous_hash="",
        phase="ramping",
        serving=control.model_id,
        weights={control.model_id: 1 - share, candidate.model_id: share},
        models={control.model_id: control, candidate.model_id: candidate},
        rollout=rollout,
        change=Change(event="ramped", model_id=candidate.model_id, reason="a test", by="test", at=_AT),
    )


def sessions_at(below: float, above: float = 0.0, deployment_id: str = DEPLOYMENT, *, split: int = 0) -> Iterator[str]:
    """Ids of sessions whose place at a split is from `above` to `below`."""
    for number in count():
        session_id = f"session-{number}"
        if above <= place_of(session_id, f"{deployment_id}/{split}") < below:
            yield session_id
