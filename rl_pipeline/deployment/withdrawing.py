"""Taking a model out: the gateways are fenced first, at once and whatever else is down; then it is recorded.

A fence outlives whoever made it and can be seen, so a record that its maker could not write is written by whoever looks
next: the controller and every watchdog.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rl_pipeline.deployment import phases, record
from rl_pipeline.deployment.phases import Cause
from rl_pipeline.deployment.record import Recorded, brought_by, former_models
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.deployment.traffic import Standing, TrafficController, TrafficRefused, TrafficUnavailable
from rl_pipeline.stores.desired_state import DesiredStates


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """A model that has to go, and why."""

    model_id: str
    reason: str
    by: str
    at: datetime
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def cause(self) -> Cause:
        """For the record."""
        return Cause(self.reason, self.by, self.at, self.evidence)


@dataclass(frozen=True, slots=True)
class Fencing:
    """What the gateways made of a fence."""

    confirmed: tuple[str, ...] = ()
    """Those that hold it."""
    refusal: str = ""
    """Why none can do it: they all have the model as the one in service."""
    trouble: str = ""
    """Why none has answered."""


def fence(traffic: TrafficController, withdrawal: Withdrawal) -> Fencing:
    """Fence a model at every gateway that answers. Fencing again is harmless."""
    try:
        return Fencing(tuple(traffic.fence(withdrawal.model_id, withdrawal.reason)))
    except TrafficRefused as refused:
        return Fencing(refusal=str(refused))
    except TrafficUnavailable as unavailable:
        return Fencing(trouble=str(unavailable))


def record_withdrawal(
    states: DesiredStates,
    withdrawal: Withdrawal,
    *,
    fenced: bool,
    audited: Callable[[], Sequence[DesiredState]] = lambda: (),
) -> Recorded | None:
    """Write a withdrawal into the record; None where the model is out of it already, or nobody could stand in for it.

    The candidate of a rollout is rolled back. If it was promoted meanwhile and a gateway holds the fence (`fenced`), it
    gives way to the model that served before it, which the record's history knows, or else `audited`, newest first. A
    rollout of which it is the control by now ends with that, or first where its candidate has all of the traffic or
    nobody could stand in. Raises what the stores raise: the fence holds meanwhile.
    """

    def withdrawn(current: Recorded) -> DesiredState | None:
        state, model_id = current.state, withdrawal.model_id
        is_candidate = state.rollout is not None and model_id == state.rollout.candidate
        if not is_candidate and not (model_id == state.serving and fenced):
            return None
        if not is_candidate and state.phase != "baking":
            taken_back = _taken_back(states, state, withdrawal, audited)
            if taken_back is not None or state.rollout is None:
                return taken_back
        return phases.roll_back(state, withdrawal.cause())

    return record.change(states, withdrawn)


def fenced_models(standings: Sequence[Standing]) -> dict[str, str]:
    """All models that any gateway has fenced, and why."""
    return {model: reason for standing in standings for model, reason in standing.fenced.items()}


def with_traffic(standings: Sequence[Standing], model_id: str) -> bool:
    """Whether any gateway gives the model anything."""
    return any(standing.weights.get(model_id, 0.0) > 0 for standing in standings)


def _taken_back(
    states: DesiredStates,
    state: DesiredState,
    withdrawal: Withdrawal,
    audited: Callable[[], Sequence[DesiredState]],
) -> DesiredState | None:
    earlier = [each.state for each in reversed(record.history(states))]
    if not former_models(earlier, state):
        earlier = [*earlier, *audited()]
    former = former_models(earlier, state)
    if not former:
        return None
    return phases.take_back(state, former[0], withdrawal.cause(), deployment_id=brought_by(earlier, state))
