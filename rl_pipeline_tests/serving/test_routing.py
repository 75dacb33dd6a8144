"""Which model a session gets."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.serving.routing import place_of, routing_of
from rl_pipeline_tests.serving.states import NEW, OLD, model_at, ramping, steady

CONTROL, CANDIDATE = model_at(OLD), model_at(NEW)
names = st.text(min_size=1, max_size=40)


@given(session=names, salt=names)
def test_a_place_is_within_the_unit_interval_and_always_the_same(session: str, salt: str) -> None:
    assert 0 <= place_of(session, salt) < 1
    assert place_of(session, salt) == place_of(session, salt)


def test_the_split_is_the_one_that_was_asked_for() -> None:
    routing = routing_of(ramping(1, CONTROL, CANDIDATE, 0.25), OLD, (), ())
    counts = Counter(routing.choose(f"session-{number}") for number in range(20_000))
    assert abs(counts[NEW] / 20_000 - 0.25) < 0.015


@pytest.mark.parametrize("other", [{"deployment_id": "deployment-2"}, {"step": 1}])
def test_each_split_of_each_rollout_tries_its_candidate_on_other_sessions(other: dict[str, Any]) -> None:
    first = routing_of(ramping(1, CONTROL, CANDIDATE, 0.1), OLD, (), ())
    second = routing_of(ramping(1, CONTROL, CANDIDATE, 0.1, **other), OLD, (), ())
    chosen = [number for number in range(5000) if first.choose(f"session-{number}") == NEW]
    again = sum(second.choose(f"session-{number}") == NEW for number in chosen)
    assert again < 0.2 * len(chosen)


def test_what_a_fenced_or_unready_model_had_goes_to_the_model_in_service() -> None:
    state = ramping(1, CONTROL, CANDIDATE, 0.5)
    for routing in (routing_of(state, OLD, {NEW}, ()), routing_of(state, OLD, (), {NEW})):
        assert routing.weights == {OLD: 1.0}
        assert NEW not in routing.keeps
        assert routing.candidate_share == 0
        assert {routing.choose(f"session-{number}") for number in range(200)} == {OLD}


def test_sessions_are_evidence_only_while_the_candidate_can_be_chosen() -> None:
    state = ramping(1, CONTROL, CANDIDATE, 0.5)
    told = [routing_of(state, OLD, *shut_out).deployment_id for shut_out in (((), ()), ({NEW}, ()), ((), {NEW}))]
    assert told == [state.rollout and state.rollout.deployment_id, None, None]


def test_a_third_model_keeps_its_sessions_when_the_candidate_goes() -> None:
    third = model_at("third")
    state = ramping(1, CONTROL, CANDIDATE, 0.3).model_copy(
        update={
            "weights": {OLD: 0.4, NEW: 0.3, "third": 0.3},
            "models": {OLD: CONTROL, NEW: CANDIDATE, "third": third},
        }
    )
    before, after = routing_of(state, OLD, (), ()), routing_of(state, OLD, {NEW}, ())
    for number in range(2000):
        chosen = before.choose(f"session-{number}")
        assert after.choose(f"session-{number}") == (OLD if chosen == NEW else chosen)


def test_models_that_were_rolled_back_lose_their_sessions_and_warm_ones_keep_them() -> None:
    kept = routing_of(steady(1, CONTROL, CANDIDATE), OLD, (), ()).keeps
    lost = routing_of(steady(1, CONTROL, CANDIDATE, retired=(NEW,)), OLD, (), ()).keeps
    assert kept == {OLD, NEW}
    assert lost == {OLD}


def test_all_of_the_traffic_leaves_nothing_behind() -> None:
    routing = routing_of(ramping(1, CONTROL, CANDIDATE, 1.0), OLD, (), ())
    assert routing.weights == {NEW: 1.0}
    assert {routing.choose(f"session-{number}") for number in range(500)} == {NEW}


@pytest.mark.parametrize("absent", [OLD, NEW])
def test_sessions_are_no_evidence_while_either_model_is_not_ready(absent: str) -> None:
    routing = routing_of(ramping(1, CONTROL, CANDIDATE, 0.5), OLD, (), {absent})
    assert (routing.deployment_id, routing.step) == (None, None)
    assert routing_of(ramping(1, CONTROL, CANDIDATE, 0.5), OLD, (), ()).deployment_id is not None
