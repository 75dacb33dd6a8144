"""How the desired state may change: a table of what may follow what, and one pure function for each event.

Every function gives the next generation, which names the one before by its hash. What holds for all of them:

- A model that was rolled back is never given traffic again, by anybody.
- A freeze keeps the traffic of a candidate from growing and a rollout from starting or ending in its favour. It never
  keeps anything from being lowered.
- The steps of a rollout are a log: one that was entered keeps its place and its share for ever, and what is entered
  again gets a new place at the end. So a step and its share mean the same in every outcome that was ever told.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Any, Literal

from rl_pipeline.deployment.state import Change, DesiredState, Phase, RampStep, Rollout, ServedModel
from rl_pipeline.errors import PipelineError

Event = Literal[
    "start",
    "approve",
    "abort",
    "advance",
    "set_traffic",
    "recheck",
    "promote",
    "roll_back",
    "take_back",
    "freeze",
    "unfreeze",
    "restore",
]

_PHASES: tuple[Phase, ...] = ("steady", "awaiting_approval", "ramping", "testing", "baking")
_RUNNING: tuple[Phase, ...] = ("ramping", "testing", "baking")

VALID_TRANSITIONS: Mapping[tuple[Phase, Event], frozenset[Phase]] = MappingProxyType(
    {
        ("steady", "start"): frozenset({"awaiting_approval", *_RUNNING}),
        **{(phase, "take_back"): frozenset({"steady"}) for phase in _PHASES if phase != "baking"},
        ("awaiting_approval", "approve"): frozenset(_RUNNING),
        ("awaiting_approval", "abort"): frozenset({"steady"}),
        ("awaiting_approval", "roll_back"): frozenset({"steady"}),
        ("ramping", "advance"): frozenset({"ramping", "baking"}),
        ("ramping", "set_traffic"): frozenset({"ramping", "baking", "steady"}),
        ("ramping", "promote"): frozenset({"baking"}),
        ("ramping", "roll_back"): frozenset({"steady"}),
        ("testing", "set_traffic"): frozenset({"testing", "baking", "steady"}),
        ("testing", "promote"): frozenset({"baking"}),
        ("testing", "roll_back"): frozenset({"steady"}),
        ("baking", "set_traffic"): frozenset({"ramping", "steady"}),
        ("baking", "recheck"): frozenset({"ramping"}),
        ("baking", "promote"): frozenset({"steady"}),
        ("baking", "roll_back"): frozenset({"steady"}),
        **{(phase, "freeze"): frozenset({phase}) for phase in _PHASES},
        **{(phase, "unfreeze"): frozenset({phase}) for phase in _PHASES},
        **{(phase, "restore"): frozenset({phase}) for phase in _PHASES},
    }
)
"""The phases to which an event may lead, by the phase in which it happens. What is missing is refused."""

_RECHECK_SHARE = 0.5
"""Of a candidate that never had less than all of the traffic."""


class TransitionRefused(PipelineError):
    """The desired state may not change like this; nothing was changed."""


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a state changes, by whom and when."""

    reason: str
    by: str
    at: datetime
    evidence: Mapping[str, Any] = field(default_factory=dict)


def create(model: ServedModel, cause: Cause, *, above_generation: int = 0) -> DesiredState:
    """The first state of all: one model has all of the traffic. Gateways may remember generations of a former life."""
    return DesiredState(
        generation=above_generation + 1,
        previous_hash="",
        serving=model.model_id,
        weights={model.model_id: 1.0},
        models={model.model_id: model},
        change=_change("created", model.model_id, cause),
    )


def start(
    state: DesiredState, candidate: ServedModel, rollout: Rollout, cause: Cause, *, approved: bool
) -> DesiredState:
    """A rollout begins: with the traffic of its first step, or with none until somebody approves it."""
    _refuse_frozen(state, "start")
    if (rollout.candidate, rollout.control) != (candidate.model_id, state.serving):
        raise TransitionRefused(f"a rollout here is of {candidate.model_id} against {state.serving}: correct its plan")
    if candidate.model_id == state.serving:
        raise TransitionRefused(f"{candidate.model_id} serves already: there is nothing to roll out")
    _refuse_retired(state, candidate.model_id)
    models = {**state.models, candidate.model_id: candidate}
    if not approved:
        change = _change("proposed", candidate.model_id, cause, rollout)
        return _next(state, "start", "awaiting_approval", change, models=models, rollout=rollout)
    return _let_in(state, "start", rollout, cause, models)


def approve(state: DesiredState, cause: Cause) -> DesiredState:
    """A person lets the candidate in; its evidence counts from here."""
    _refuse_frozen(state, "approve")
    return _let_in(state, "approve", _rollout(state, "approve"), cause, dict(state.models))


def abort(state: DesiredState, cause: Cause) -> DesiredState:
    """A rollout ends before its candidate had any traffic; the candidate may be rolled out another time."""
    rollout = _rollout(state, "abort")
    change = _change("aborted", rollout.candidate, cause, rollout)
    return _next(state, "abort", "steady", change, **_alone(state, rollout.control))


def advance(state: DesiredState, cause: Cause) -> DesiredState:
    """The next step of the ramp, or all of the traffic after the last."""
    _refuse_frozen(state, "advance")
    rollout = _rollout(state, "advance")
    if rollout.step + 1 < len(rollout.steps):
        return _entered(state, "advance", rollout.steps, rollout.step + 1, cause)
    return _all_traffic(state, "advance", cause)


def set_traffic(state: DesiredState, model_id: str, share: float, cause: Cause) -> DesiredState:
    """What an operator asks for: another share for the candidate within its rollout, or all for the model in service,
    which is a rollback, as is nothing for the candidate."""
    _refuse_retired(state, model_id)
    rollout = state.rollout
    if rollout is None or model_id not in (rollout.candidate, rollout.control):
        raise TransitionRefused(f"{model_id} is in no rollout: `rl-pipeline deployment ab-test` starts one")
    wanted = share if model_id == rollout.candidate else _rest(share)
    if wanted <= 0:
        _check(state, "set_traffic", "steady")
        return roll_back(state, cause)
    now = state.weights.get(rollout.candidate, 0.0)
    if wanted == now:
        raise TransitionRefused(f"{rollout.candidate} has {now:.0%} of the traffic already")
    if wanted > now:
        _refuse_frozen(state, "set_traffic")
    if wanted >= 1:
        return _all_traffic(state, "set_traffic", cause)
    place = rollout.step + 1
    # One step for each share, upwards: a share that was lowered before is in the log several times.
    later = {step.share: step for step in rollout.steps if wanted < step.share < 1}
    upwards = (later[share] for share in sorted(later))
    steps = (*rollout.steps[:place], _last_split(rollout).model_copy(update={"share": wanted}), *upwards)
    return _entered(state, "set_traffic", steps, place, cause)


def recheck(state: DesiredState, cause: Cause, fails_since: datetime | None = None) -> DesiredState:
    """Back from all of the traffic to the last split, which shows whether the candidate or the weather is at fault. The
    bake goes on later from where the trouble began: were the time of trouble baked too, what fails whenever it has all
    of the traffic would come through in the end. Where nobody knows since when it fails, nothing of this bake counts.
    """
    rollout = _rollout(state, "recheck")
    entered = rollout.steps[: rollout.step + 1]
    until = min(fails_since or rollout.step_since, cause.at)
    baked = rollout.baked_seconds + max((until - rollout.step_since).total_seconds(), 0.0)
    return _entered(state, "recheck", (*entered, _last_split(rollout)), len(entered), cause, baked_seconds=baked)


def promote(state: DesiredState, cause: Cause) -> DesiredState:
    """The bake is over, and the candidate is the model in service; or a person gives it all of the traffic before."""
    _refuse_frozen(state, "promote")
    rollout = _rollout(state, "promote")
    if state.phase != "baking":
        return _all_traffic(state, "promote", cause)
    change = _change("promoted", rollout.candidate, cause, rollout)
    return _next(state, "promote", "steady", change, **_alone(state, rollout.candidate))


def roll_back(state: DesiredState, cause: Cause) -> DesiredState:
    """The control has all of the traffic again, and the candidate never any more."""
    rollout = _rollout(state, "roll_back")
    change = _change("rolled_back", rollout.candidate, cause, rollout)
    retired = _with(state.retired, rollout.candidate)
    return _next(state, "roll_back", "steady", change, **_alone(state, rollout.control), retired=retired)


def take_back(
    state: DesiredState, former: ServedModel, cause: Cause, *, deployment_id: str | None = None
) -> DesiredState:
    """A model that was promoted already goes, and one that served before it is in service again. `deployment_id` is
    that of the rollout that brought it.

    A rollout against it ends, and speaks against its candidate in no way: the evidence names it as `interrupted`. While
    a candidate bakes the control has no traffic, so there is nothing to take back.
    """
    _refuse_retired(state, former.model_id)
    if former.model_id == state.serving:
        raise TransitionRefused(f"{former.model_id} serves already: there is nothing to take back")
    interrupted = {"interrupted": state.rollout.deployment_id} if state.rollout else {}
    change = _change("rolled_back", state.serving, cause).model_copy(
        update={"deployment_id": deployment_id, "evidence": {**cause.evidence, **interrupted}}
    )
    return _next(
        state,
        "take_back",
        "steady",
        change,
        serving=former.model_id,
        weights={former.model_id: 1.0},
        models={former.model_id: former},
        rollout=None,
        retired=_with(state.retired, state.serving),
    )


def freeze(state: DesiredState, cause: Cause) -> DesiredState:
    """From now on nothing advances."""
    return _next(
        state, "freeze", state.phase, _change("frozen", state.serving, cause, state.rollout), frozen=cause.reason
    )


def unfreeze(state: DesiredState, cause: Cause) -> DesiredState:
    """Things advance again."""
    if state.frozen is None:
        raise TransitionRefused("nothing is frozen")
    return _next(state, "unfreeze", state.phase, _change("unfrozen", state.serving, cause, state.rollout), frozen=None)


def restore(state: DesiredState, highest_generation: int, cause: Cause) -> DesiredState:
    """The newest state that is still known, above every generation that anybody has seen, after the record was lost."""
    change = _change("restored", state.serving, cause, state.rollout)
    restored = _next(state, "restore", state.phase, change)
    return restored.model_copy(update={"generation": max(highest_generation, state.generation) + 1})


def _let_in(
    state: DesiredState,
    event: Literal["start", "approve"],
    rollout: Rollout,
    cause: Cause,
    models: dict[str, ServedModel],
) -> DesiredState:
    begun = rollout.model_copy(update={"step": 0, "started_at": cause.at, "step_since": cause.at})
    share = begun.current.share
    phase: Phase = "testing" if begun.strategy == "ab_test" else "baking" if share >= 1 else "ramping"
    change = _change("deployed" if event == "start" else "approved", rollout.candidate, cause, begun)
    return _next(state, event, phase, change, models=models, rollout=begun, weights=_split(begun, share))


def _entered(
    state: DesiredState, event: Event, steps: tuple[RampStep, ...], place: int, cause: Cause, **more: float
) -> DesiredState:
    """The state at another step of the rollout, of which `more` is to be noted."""
    rollout = _rollout(state, event).model_copy(update={"steps": steps, "step": place, "step_since": cause.at, **more})
    share = steps[place].share
    name: Literal["rechecked", "ramped"] = "rechecked" if event == "recheck" else "ramped"
    phase: Phase = "baking" if share >= 1 else "testing" if state.phase == "testing" else "ramping"
    change = _change(name, rollout.candidate, cause, rollout)
    return _next(state, event, phase, change, rollout=rollout, weights=_split(rollout, share))


def _all_traffic(state: DesiredState, event: Event, cause: Cause) -> DesiredState:
    """A bake that goes on after a recheck takes as many sessions as the split before it: few would prove nothing."""
    rollout = _rollout(state, event)
    is_again = any(step.share >= 1 for step in rollout.steps[: rollout.step + 1])
    samples = _last_split(rollout).min_samples if is_again else 0
    whole = RampStep(share=1.0, min_seconds=rollout.bake_left, min_samples=samples)
    steps = (*rollout.steps[: rollout.step + 1], whole)
    return _entered(state, event, steps, len(steps) - 1, cause)


def _last_split(rollout: Rollout) -> RampStep:
    """The last step at which the control had traffic too."""
    splits = [step for step in rollout.steps[: rollout.step + 1] if step.share < 1]
    return splits[-1] if splits else rollout.current.model_copy(update={"share": _RECHECK_SHARE})


def _next(state: DesiredState, event: Event, phase: Phase, change: Change, **changed: Any) -> DesiredState:
    """The next generation, checked against the table and as every state is."""
    _check(state, event, phase)
    fields = {name: getattr(state, name) for name in DesiredState.model_fields}
    fields |= {"generation": state.generation + 1, "previous_hash": state.hash, "phase": phase, "change": change}
    return DesiredState(**(fields | changed))


def _check(state: DesiredState, event: Event, phase: Phase) -> None:
    if phase not in VALID_TRANSITIONS.get((state.phase, event), ()):
        raise _impossible(state, event)


def _rollout(state: DesiredState, event: Event) -> Rollout:
    if state.rollout is None or (state.phase, event) not in VALID_TRANSITIONS:
        raise _impossible(state, event)
    return state.rollout


def _impossible(state: DesiredState, event: Event) -> TransitionRefused:
    return TransitionRefused(
        f"{event.replace('_', ' ')} is not possible while the deployment is {state.phase.replace('_', ' ')}: "
        "look at it with `rl-pipeline deployment`"
    )


def _refuse_frozen(state: DesiredState, event: Event) -> None:
    if state.frozen is not None:
        raise TransitionRefused(
            f"the deployment is frozen ({state.frozen}), so {event.replace('_', ' ')} has to wait: unfreeze it first"
        )


def _refuse_retired(state: DesiredState, model_id: str) -> None:
    if model_id in state.retired:
        raise TransitionRefused(f"{model_id} was rolled back and is never raised again: release another model")


def _alone(state: DesiredState, model_id: str) -> dict[str, Any]:
    return {
        "serving": model_id,
        "weights": {model_id: 1.0},
        "models": {model_id: state.models[model_id]},
        "rollout": None,
    }


def _split(rollout: Rollout, share: float) -> dict[str, float]:
    return {rollout.candidate: 1.0} if share >= 1 else {rollout.control: _rest(share), rollout.candidate: share}


def _rest(share: float) -> float:
    return round(1 - share, 12)


def _with(retired: Iterable[str], model_id: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*retired, model_id)))


def _change(event: str, model_id: str, cause: Cause, rollout: Rollout | None = None) -> Change:
    return Change(
        event=event,
        model_id=model_id,
        reason=cause.reason,
        by=cause.by,
        at=cause.at,
        deployment_id=rollout.deployment_id if rollout else None,
        evidence=dict(cause.evidence),
    )
