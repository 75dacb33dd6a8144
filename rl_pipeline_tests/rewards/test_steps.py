"""Calls are told apart by what they ask and judged by what they bring; steps belong to those who achieved them."""

from typing import Any

import pytest

from rl_pipeline.rewards.credit import coverage_game, shapley
from rl_pipeline.rewards.steps import Calls, Credits, calls_made, count_calls, credits_of, steps_of
from rl_pipeline_tests.rewards.documents import call, read_turns, says, turn


def counted(*turns: dict[str, Any]) -> Calls:
    return count_calls(calls_made(read_turns(turns)))


def credited(*turns: dict[str, Any]) -> Credits:
    read = read_turns(turns)
    return credits_of(read, steps_of(read, calls_made(read)))


def test_calls_are_the_same_whatever_the_order_of_their_arguments() -> None:
    calls = counted(
        call("read", {"a": 1, "b": {"c": 2, "d": 3}}, output="x"),
        call("read", {"b": {"d": 3, "c": 2}, "a": 1}, output="y"),
        call("read", {"a": 1}, output="z"),
        turn({"type": "subordinate_call", "tool_args": {"a": 1}}, output="w"),
        turn({"type": "memory_update", "tool_args": {"a": 1}}),
    )
    assert calls == Calls(calls=4, distinct_calls=3, failed_calls=0, redundant_calls=0, empty_results=0)


def test_repeating_a_call_is_redundant_only_if_it_brings_what_it_brought_before() -> None:
    same = [call("status", {}, output="red")] * 3
    changed = [call("status", {}, output=output) for output in ("red", "green", "red")]
    assert counted(*same).redundant_calls == 2
    assert counted(*changed).redundant_calls == 0


def test_repeating_a_failed_call_is_not_redundant_and_a_call_that_succeeds_in_the_end_has_not_failed() -> None:
    tried = [call("fetch", {}, success=False, error="503")] * 2
    assert counted(*tried) == Calls(2, 1, 1, 0, 0)
    assert counted(*tried, call("fetch", {}, output="page")) == Calls(3, 1, 0, 0, 0)


@pytest.mark.parametrize("nothing", [None, "", " \n", {}, {"stdout": "", "stderr": None, "parts": []}])
def test_a_call_that_returned_nothing_is_counted_once(nothing: Any) -> None:
    assert counted(*[call("search", {}, output=nothing)] * 2).empty_results == 1


def test_a_call_that_returned_something_once_is_not_empty() -> None:
    assert counted(call("search", {}, output=""), call("search", {}, output={"rows": 0})).empty_results == 0


def test_every_step_is_shared_by_those_who_achieved_it() -> None:
    team = credited(
        call("search", {"q": 1}, output="found", agent="a"),
        call("search", {"q": 1}, output="found", agent="b"),
        call("write", {}, output="ok", agent="b"),
        call("write", {"bad": 1}, success=False, agent="c"),
        says("The answer.", agent="a"),
    )
    assert team.agents == ["a", "b", "c"]
    assert team.turn_agents == ["a", "b", "b", "c", "a"]
    assert team.credit_shares == pytest.approx([1.5 / 3, 1.5 / 3, 0.0])
    assert sum(team.credit_shares) == pytest.approx(1.0, abs=1e-12)


def test_a_repetition_with_another_result_takes_nothing_from_the_first() -> None:
    team = credited(call("date", {}, output="1", agent="a"), call("date", {}, output="2", agent="b"))
    assert team.credit_shares == [1.0, 0.0]


def test_without_steps_credit_goes_by_turns() -> None:
    failed = [call("x", {}, success=False, agent=agent) for agent in ("a", "b", "b", "b")]
    assert credited(*failed).credit_shares == pytest.approx([0.25, 0.75])


def test_the_shares_are_the_exact_shapley_value_of_the_coverage_game() -> None:
    agents = ["a", "b", "c", "d"]
    turns = [
        call("tool", {"q": number % 5}, output=number % 2, agent=agents[number * number % 4], success=number % 7 != 0)
        for number in range(40)
    ]
    read = read_turns(turns)
    steps = steps_of(read, calls_made(read))
    team = credits_of(read, steps)
    game = coverage_game(1.0, team.agents, [step.agents for step in steps])
    exact = shapley(team.agents, game)
    assert team.credit_shares == pytest.approx([exact[agent] for agent in team.agents], abs=1e-12)


def test_the_potential_rises_with_new_steps_alone_and_ends_at_zero() -> None:
    team = credited(
        call("a", {}, output="1"),
        call("a", {}, output="1"),
        call("b", {}, success=False),
        call("b", {}, output="2"),
        call("c", {}, output="3"),
        says("Done."),
    )
    assert team.turn_potentials == [0.5 * n / (n + 1) for n in (1, 1, 1, 2, 3)] + [0.0]


def test_a_trajectory_without_readable_turns_has_no_agents() -> None:
    assert credits_of([], []) == Credits([], [], [], [], [])


def test_a_turn_without_an_agent_belongs_to_the_trajectorys_agent() -> None:
    assert credited(call("a", {}, output="1"), call("b", {}, output="1", agent="helper")).agents == ["main", "helper"]


def test_arguments_too_deep_to_compare_raise_nothing() -> None:
    deep: Any = "x"
    for _ in range(600):
        deep = {"inner": deep}
    assert counted(call("a", {"deep": deep}, output=deep)).distinct_calls == 1
