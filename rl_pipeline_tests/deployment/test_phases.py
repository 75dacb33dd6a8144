"""How the desired state may change, walked in full and at random."""

import contextlib
from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_pipeline.deployment import phases
from rl_pipeline.deployment.phases import VALID_TRANSITIONS, Event, TransitionRefused
from rl_pipeline.deployment.state import DesiredState, Phase, RampStep, Strategy
from rl_pipeline_tests.deployment.states import NOW, RAMP, a_model, a_rollout, because, first_state, started

WHOLE = RampStep(share=1.0, min_seconds=0, min_samples=0)
HALF = RampStep(share=0.5, min_seconds=0, min_samples=0)


def proposed() -> DesiredState:
    return phases.start(first_state(), a_model("new"), a_rollout(), because(), approved=False)


def baking() -> DesiredState:
    return phases.promote(started(), because())


def promoted() -> DesiredState:
    return phases.promote(baking(), because())


STATES: dict[Phase, DesiredState] = {
    "steady": promoted(),
    "awaiting_approval": proposed(),
    "ramping": started(),
    "testing": started("ab_test", (HALF,)),
    "baking": baking(),
}


def starting(
    strategy: Strategy = "canary", steps: tuple[RampStep, ...] = RAMP, *, approved: bool = True
) -> Callable[[DesiredState], DesiredState]:
    def start(state: DesiredState) -> DesiredState:
        rollout = a_rollout("newer", state.serving, strategy, steps)
        return phases.start(state, a_model("newer"), rollout, because(), approved=approved)

    return start


EVENTS: dict[Event, list[Callable[[DesiredState], DesiredState]]] = {
    "start": [
        starting(),
        starting(approved=False),
        starting("ab_test", (HALF,)),
        starting("immediate", (WHOLE,)),
    ],
    "approve": [lambda state: phases.approve(state, because())],
    "abort": [lambda state: phases.abort(state, because())],
    "advance": [lambda state: phases.advance(state, because())],
    "set_traffic": [
        lambda state: phases.set_traffic(state, "new", 0.3, because()),
        lambda state: phases.set_traffic(state, "new", 0.0, because()),
        lambda state: phases.set_traffic(state, "new", 1.0, because()),
    ],
    "recheck": [lambda state: phases.recheck(state, because())],
    "promote": [lambda state: phases.promote(state, because())],
    "roll_back": [lambda state: phases.roll_back(state, because())],
    "take_back": [lambda state: phases.take_back(state, a_model("older"), because())],
    "freeze": [lambda state: phases.freeze(state, because())],
    "unfreeze": [lambda state: phases.unfreeze(phases.freeze(state, because()), because())],
    "restore": [lambda state: phases.restore(state, 40, because())],
}


def test_every_event_is_named_in_the_table_and_tried_here() -> None:
    events = set(get_args(Event))
    assert {event for _, event in VALID_TRANSITIONS} == events == EVENTS.keys()
    assert {phase for phase, _ in VALID_TRANSITIONS} == set(get_args(Phase)) == STATES.keys()


@pytest.mark.parametrize("event", sorted(EVENTS))
@pytest.mark.parametrize("phase", sorted(STATES))
def test_an_event_leads_to_the_phases_of_the_table_and_is_refused_elsewhere(phase: Phase, event: Event) -> None:
    state = STATES[phase]
    allowed = VALID_TRANSITIONS.get((phase, event), frozenset())
    reached = set()
    for happen in EVENTS[event]:
        try:
            following = happen(state)
        except TransitionRefused:
            continue
        reached.add(following.phase)
        assert following.generation > state.generation
        assert DesiredState.decoded(following.encoded()) == following
    if event in ("advance", "approve"):  # where they lead depends on the rollout, of which there is one here
        assert reached <= allowed
        assert bool(reached) == bool(allowed)
    else:
        assert reached == allowed


def test_each_generation_names_the_one_before_it() -> None:
    chain = [first_state()]
    chain.append(phases.start(chain[-1], a_model("new"), a_rollout(), because("better"), approved=True))
    for event in (phases.advance, phases.advance, phases.advance, phases.recheck, phases.advance, phases.promote):
        chain.append(event(chain[-1], because()))
    for before, after in pairwise(chain):
        assert (after.generation, after.previous_hash) == (before.generation + 1, before.hash)
    events = [state.change.event for state in chain]
    assert events == ["created", "deployed", "ramped", "ramped", "ramped", "rechecked", "ramped", "promoted"]
    assert (chain[0].previous_hash, chain[1].change.reason) == ("", "better")


def test_a_bake_that_is_rechecked_goes_on_from_where_it_was() -> None:
    state = baked_for(HOUR)
    for times in (1, 2):
        state = rechecked_after(state, timedelta(minutes=6), fails_for=timedelta(minutes=1))
        assert state.rollout.baked_seconds == 300 * times, "not while it failed"  # type: ignore[union-attr]
        state = phases.advance(state, because(at=state.change.at + HOUR))
        assert state.rollout.current.min_seconds == state.rollout.bake_left == 3600 - 300 * times  # type: ignore[union-attr]


def test_a_bake_that_is_rechecked_near_its_end_goes_on_for_long_enough_to_see_it_fail_again() -> None:
    assert started().rollout.bake_left == 120, "a bake is never longer than it was asked for"  # type: ignore[union-attr]
    late = rechecked_after(baked_for(HOUR), timedelta(minutes=59), fails_for=timedelta())
    again = phases.advance(late, because(at=late.change.at + HOUR)).rollout
    assert again is not None
    assert again.bake_left == again.current.min_seconds == 600
    assert again.current.min_samples == 50, "those of the split to which it went back"
    unknown = phases.recheck(baked_for(HOUR), because(at=NOW + HOUR)).rollout
    assert unknown is not None
    assert unknown.baked_seconds == 0, "nobody knows since when it failed"


HOUR = timedelta(hours=1)


def baked_for(bake: timedelta) -> DesiredState:
    """A candidate that has just got all of the traffic."""
    rollout = a_rollout().model_copy(update={"bake_seconds": bake.total_seconds()})
    return phases.promote(phases.start(first_state(), a_model("new"), rollout, because(), approved=True), because())


def rechecked_after(state: DesiredState, seconds: timedelta, *, fails_for: timedelta) -> DesiredState:
    assert state.rollout is not None
    at = state.rollout.step_since + seconds
    return phases.recheck(state, because(at=at), at - fails_for)


def test_a_canary_climbs_its_steps_bakes_with_the_old_model_warm_and_is_promoted() -> None:
    later = because(at=NOW + timedelta(hours=1))
    state = started()
    for share in (0.1, 0.25, 0.5):
        assert (state.phase, state.weights) == ("ramping", {"old": 1 - share, "new": share})
        state = phases.advance(state, later)
    assert (state.phase, state.weights, state.serving) == ("baking", {"new": 1.0}, "old")
    assert set(state.models) == {"old", "new"}
    assert state.rollout is not None
    assert (state.rollout.step, state.rollout.step_since, state.rollout.current.share) == (3, later.at, 1.0)
    done = phases.promote(state, later)
    assert (done.phase, done.serving, done.weights, set(done.models)) == ("steady", "new", {"new": 1.0}, {"new"})
    assert (done.rollout, done.retired) == (None, ())


def test_an_immediate_rollout_has_everything_at_once_and_bakes() -> None:
    state = started("immediate", (WHOLE,))
    assert (state.phase, state.weights, state.serving) == ("baking", {"new": 1.0}, "old")
    split = phases.recheck(state, because())
    assert (split.phase, split.weights) == ("ramping", {"old": 0.5, "new": 0.5})


def test_a_recheck_goes_back_to_the_last_split_under_a_step_of_its_own() -> None:
    state = phases.recheck(baking_by_steps(), because())
    assert (state.phase, state.weights) == ("ramping", {"old": 0.5, "new": 0.5})
    assert state.rollout is not None
    assert [step.share for step in state.rollout.steps] == [0.1, 0.25, 0.5, 1.0, 0.5]
    assert state.rollout.step == 4
    again = phases.advance(state, because())
    assert (again.phase, again.rollout and again.rollout.step) == ("baking", 5)


def baking_by_steps() -> DesiredState:
    state = started()
    for _ in RAMP:
        state = phases.advance(state, because())
    return state


def test_an_approval_lets_in_what_was_proposed_and_its_evidence_counts_from_then() -> None:
    waiting = proposed()
    assert (waiting.phase, waiting.weights, set(waiting.models)) == (
        "awaiting_approval",
        {"old": 1.0},
        {"old", "new"},
    )
    later = because(at=NOW + timedelta(days=1))
    state = phases.approve(waiting, later)
    assert (state.phase, state.weights) == ("ramping", {"old": 0.9, "new": 0.1})
    assert state.rollout is not None
    assert (state.rollout.started_at, state.rollout.step_since) == (later.at, later.at)


def test_a_rollout_that_is_aborted_before_it_had_traffic_may_come_again() -> None:
    state = phases.abort(proposed(), because())
    assert (state.phase, state.weights, set(state.models), state.retired) == ("steady", {"old": 1.0}, {"old"}, ())
    assert phases.start(state, a_model("new"), a_rollout(), because(), approved=True).phase == "ramping"


@pytest.mark.parametrize("phase", ["awaiting_approval", "ramping", "testing", "baking"])
def test_a_rollback_leaves_the_control_alone_and_the_candidate_out_for_good(phase: Phase) -> None:
    state = phases.roll_back(STATES[phase], because("high_error_rate"))
    assert (state.phase, state.serving, state.weights, set(state.models)) == ("steady", "old", {"old": 1.0}, {"old"})
    assert (state.retired, state.rollout) == (("new",), None)
    assert (state.change.model_id, state.change.deployment_id) == ("new", "deployment-of-new")
    with pytest.raises(TransitionRefused, match="new was rolled back and is never raised again"):
        phases.start(state, a_model("new"), a_rollout(), because(), approved=True)
    with pytest.raises(TransitionRefused, match="new was rolled back and is never raised again"):
        phases.set_traffic(state, "new", 0.1, because())
    with pytest.raises(TransitionRefused, match="new was rolled back and is never raised again"):
        phases.take_back(state, a_model("new"), because())


def test_a_state_that_raises_what_was_rolled_back_cannot_even_be_made() -> None:
    retired = phases.roll_back(started(), because())
    with pytest.raises(ValueError, match="new was rolled back and should not be raised again"):
        DesiredState(**started().model_dump() | {"retired": retired.retired})


def test_a_promoted_model_gives_way_to_one_that_served_before() -> None:
    state = phases.take_back(promoted(), a_model("old"), because("high_error_rate"), deployment_id="deployment-of-new")
    assert (state.phase, state.serving, state.weights, state.retired) == ("steady", "old", {"old": 1.0}, ("new",))
    assert (state.change.event, state.change.model_id) == ("rolled_back", "new")
    assert state.change.deployment_id == "deployment-of-new"


@pytest.mark.parametrize("event", ["start", "approve", "advance", "promote"])
def test_a_freeze_lets_nothing_advance(event: Event) -> None:
    for phase, state in STATES.items():
        if (phase, event) in VALID_TRANSITIONS:
            frozen = phases.freeze(state, because("an incident"))
            for happen in EVENTS[event]:
                with pytest.raises(TransitionRefused, match=r"frozen \(an incident\).*unfreeze it first"):
                    happen(frozen)


def test_a_freeze_keeps_nothing_from_being_lowered() -> None:
    frozen = {phase: phases.freeze(state, because("an incident")) for phase, state in STATES.items()}
    for phase in ("awaiting_approval", "ramping", "testing", "baking"):
        rolled_back = phases.roll_back(frozen[phase], because())
        assert (rolled_back.weights, rolled_back.frozen) == ({"old": 1.0}, "an incident")
    assert phases.take_back(frozen["steady"], a_model("old"), because()).serving == "old"
    assert phases.recheck(frozen["baking"], because()).weights == {"old": 0.9, "new": 0.1}
    assert phases.set_traffic(frozen["ramping"], "new", 0.05, because()).weights == {"old": 0.95, "new": 0.05}
    with pytest.raises(TransitionRefused, match="frozen"):
        phases.set_traffic(frozen["ramping"], "new", 0.2, because())


def test_an_operator_sets_any_share_within_a_rollout_and_the_ramp_goes_on_from_there() -> None:
    state = phases.set_traffic(started(), "new", 0.3, because())
    assert (state.weights, state.phase) == ({"old": 0.7, "new": 0.3}, "ramping")
    assert state.rollout is not None
    assert [step.share for step in state.rollout.steps] == [0.1, 0.3, 0.5]
    lowered = phases.set_traffic(phases.advance(state, because()), "old", 0.8, because())
    assert lowered.weights == {"old": 0.8, "new": 0.2}
    assert lowered.rollout is not None
    assert [step.share for step in lowered.rollout.steps] == [0.1, 0.3, 0.5, 0.2, 0.3, 0.5]


def test_a_ramp_that_was_lowered_twice_by_hand_rises_again() -> None:
    state = phases.advance(phases.advance(started(), because()), because())
    for share in (0.2, 0.15):
        state = phases.set_traffic(state, "new", share, because())
    assert state.rollout is not None
    assert [step.share for step in state.rollout.steps] == [0.1, 0.25, 0.5, 0.2, 0.15, 0.2, 0.25, 0.5]


@given(st.lists(st.sampled_from([None, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5, 0.7]), max_size=12))
def test_whatever_was_ordered_by_hand_the_steps_to_come_rise(orders: list[float | None]) -> None:
    """None is a step that the evidence allowed."""
    state = started()
    for share in orders:
        with contextlib.suppress(TransitionRefused):
            if share is None:
                state = phases.advance(state, because())
            else:
                state = phases.set_traffic(state, "new", share, because())
        assert state.rollout is not None
        entered = [step.share for step in state.rollout.steps[: state.rollout.step + 1]]
        to_come = [step.share for step in state.rollout.steps[state.rollout.step :]]
        assert to_come == sorted(set(to_come))
        assert state.weights["new"] == entered[-1]


@pytest.mark.parametrize(("model", "share"), [("old", 1.0), ("new", 0.0)])
def test_all_of_the_traffic_for_the_model_in_service_is_a_rollback(model: str, share: float) -> None:
    state = phases.set_traffic(started(), model, share, because())
    assert (state.change.event, state.retired) == ("rolled_back", ("new",))


def test_a_share_for_a_model_in_no_rollout_is_refused_with_what_to_do() -> None:
    with pytest.raises(TransitionRefused, match="third is in no rollout"):
        phases.set_traffic(started(), "third", 0.5, because())
    with pytest.raises(TransitionRefused, match="new has 10% of the traffic already"):
        phases.set_traffic(started(), "new", 0.1, because())


def test_a_plan_for_another_control_is_refused() -> None:
    with pytest.raises(TransitionRefused, match="a rollout here is of new against old"):
        phases.start(first_state(), a_model("new"), a_rollout(control="other"), because(), approved=True)
    with pytest.raises(TransitionRefused, match="old serves already"):
        phases.start(first_state(), a_model("old"), a_rollout("old"), because(), approved=True)


def test_a_restored_state_is_above_every_generation_that_anybody_has_seen() -> None:
    state = phases.restore(started(), 17, because())
    assert (state.generation, state.previous_hash, state.weights) == (18, started().hash, started().weights)
    assert phases.restore(started(), 0, because()).generation == 3


def test_a_first_state_begins_above_what_gateways_remember() -> None:
    assert phases.create(a_model(), because(), above_generation=6).generation == 7


CALLS = [(event, number) for event, calls in EVENTS.items() for number in range(len(calls))]


@settings(max_examples=150, deadline=None)
@given(st.lists(st.sampled_from(CALLS), max_size=40))
def test_whatever_happens_the_state_stays_sound(happenings: list[tuple[Event, int]]) -> None:
    state = first_state()
    out: set[str] = set()
    steps: dict[int, float] = {}
    for event, number in happenings:
        before = state
        try:
            state = EVENTS[event][number](state)
        except TransitionRefused:
            continue
        assert state.phase in VALID_TRANSITIONS[before.phase, event]
        assert state.generation > before.generation
        out |= {state.change.model_id} if state.change.event == "rolled_back" else set()
        assert not [model for model in out if state.weights.get(model, 0.0) > 0], "raised again"
        assert set(before.retired) <= set(state.retired)
        assert abs(sum(state.weights.values()) - 1) < 1e-9
        if before.frozen and state.frozen and before.rollout:
            candidate = before.rollout.candidate
            assert state.weights.get(candidate, 0.0) <= before.weights.get(candidate, 0.0), "raised in a freeze"
        if state.rollout:
            # A step that was entered keeps its share for ever: outcomes are told by its number.
            steps = {} if before.rollout is None else steps
            assert steps.setdefault(state.rollout.step, state.rollout.current.share) == state.rollout.current.share
            assert state.weights.get(state.rollout.candidate, 0.0) in (0.0, state.rollout.current.share)
        assert DesiredState.decoded(state.encoded()).hash == state.hash
