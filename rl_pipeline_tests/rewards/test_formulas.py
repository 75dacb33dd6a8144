"""The formulas for one trajectory: the figures of the specification, and what was decided where they cannot hold."""

from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.rewards.formulas import (
    Usual,
    answer_quality,
    code_quality,
    coordination,
    efficiency,
    lint_of_snippets,
    outcome,
    restart_decision,
    run_efficiency,
    task_completion,
    tool_execution,
    user_feedback,
    vote,
    voting,
)


def test_task_completion_is_binary_with_credit_for_a_part() -> None:
    assert task_completion("success", None) == 1.0
    assert [task_completion("partial", share) for share in (0.0, 0.5, 1.0)] == [0.5, 0.75, 1.0]
    assert task_completion("partial", None) == 0.5
    assert [task_completion(status, 0.9) for status in ("failed", "abandoned", "")] == [0.0, 0.0, 0.0]


def test_a_success_is_held_against_its_subtasks_and_failed_calls() -> None:
    assert outcome("success", None, subtasks=4, subtasks_done=2.5) == 0.5 + 0.5 * 2.5 / 4
    assert outcome("success", None, failed_calls=1, distinct_calls=4) == pytest.approx(1.0 - 0.1 / 4)
    assert outcome("success", None, failed_calls=4, distinct_calls=4, error_weight=0.0) == 1.0
    assert outcome("partial", None, subtasks=4, subtasks_done=1, failed_calls=4, distinct_calls=4) == 0.625
    assert outcome("partial", 0.8, subtasks=4, subtasks_done=1) == 0.9
    assert outcome("failed", None, subtasks=4, subtasks_done=4) == 0.0


def test_without_a_status_the_subtasks_decide_and_without_them_nothing_does() -> None:
    assert outcome("", None, subtasks=4, subtasks_done=3) == 0.75
    assert outcome("", None) is None


def test_efficiency_maps_two_standard_deviations_onto_the_unit_interval() -> None:
    assert [efficiency(turns, 6.0, 2.0) for turns in (2, 4, 6, 8, 10)] == [1.0, 0.75, 0.5, 0.25, 0.0]


def test_efficiency_stays_within_the_unit_interval_where_the_bare_formula_leaves_it() -> None:
    """(z + 2) / 4 is 1.25 at z = 3 and -0.25 at z = -3."""
    assert (efficiency(0, 6.0, 2.0), efficiency(12, 6.0, 2.0)) == (1.0, 0.0)


def test_efficiency_without_spread_is_decided_by_the_side() -> None:
    assert [efficiency(turns, 6.0, 0.0) for turns in (5, 6, 7)] == [1.0, 0.5, 0.0]


def test_efficiency_counts_what_has_a_baseline_and_loses_the_redundant_calls() -> None:
    only_turns = Usual(turns=6.0, turns_std=2.0)
    assert run_efficiency(4, 30.0, 900, only_turns) == 0.75
    assert run_efficiency(4, 30.0, 900, only_turns, calls=4, redundant_calls=1) == 0.75 * 0.75
    assert run_efficiency(4, 30.0, 900, Usual()) is None
    all_parts = Usual(6.0, 2.0, 0.0, 1.0, 0.0, 1.0)
    assert run_efficiency(4, 30.0, 900, all_parts) == pytest.approx(0.75 / 3)  # far more time and tokens than usual
    assert run_efficiency(4, 0.0, 0, all_parts) == 0.75  # neither time nor tokens were measured


def test_code_quality_is_the_mean_of_what_is_known() -> None:
    assert code_quality(8.0, 0.5, 1) == pytest.approx((0.8 + 0.5 + 0.5) / 3)
    assert code_quality(None, None, 3) == 0.0
    assert code_quality(None, None, None) == 0.5
    assert code_quality(None, None, None, has_code=False) is None


def test_snippets_that_do_not_parse_lint_as_zero() -> None:
    assert lint_of_snippets(8.0, 4, 1) == 6.0
    assert lint_of_snippets(8.0, 4, 0) == 8.0
    assert lint_of_snippets(None, 4, 0) is None
    assert lint_of_snippets(None, 4, 4) == 0.0
    assert lint_of_snippets(None, 4, 1) == 3.75  # the others are worth 5, as code of which nothing is known


def test_feedback_has_the_scores_of_the_specification() -> None:
    assert user_feedback(["thumbs_up"], [0], [""]) == 1.0
    assert user_feedback(["thumbs_down"], [0], [""]) == 0.0
    assert [user_feedback(["stars"], [rating], [""]) for rating in range(1, 6)] == [0.2, 0.4, 0.6, 0.8, 1.0]
    assert user_feedback(["correction"], [0], [""]) == 0.2
    assert user_feedback(["abandoned"], [0], [""]) == 0.0
    assert user_feedback([], [], []) == 0.5


def test_centred_stars_put_one_star_at_thumbs_down_and_three_at_neutral() -> None:
    """Literal stars say rating / 5: one star is 0.2, above a thumb down at 0.0; three are 0.6, not the neutral 0.5."""
    centred = [user_feedback(["stars"], [rating], [""], stars="centred") for rating in range(1, 6)]
    assert centred == [0.0, 0.25, 0.5, 0.75, 1.0]


def test_what_was_shown_counts_only_where_nothing_was_said_and_the_worst_of_it_does() -> None:
    assert user_feedback(["correction", "thumbs_up"], [0, 0], ["ada", "ada"]) == 1.0
    assert user_feedback([], [], [], abandoned=True, corrections_shown=2) == 0.0
    assert user_feedback(["correction", "abandoned"], [0, 0], ["ada", "ada"]) == 0.0
    assert user_feedback([], [], [], corrections_shown=1) == 0.2
    assert user_feedback(["comment"], [0], ["ada"]) == 0.5


def test_of_each_user_the_last_opinion_counts_and_of_people_unknown_each() -> None:
    kinds = ["thumbs_down", "stars", "thumbs_up"]
    assert user_feedback(kinds, [0, 4, 0], ["ada", "bob", "ada"]) == pytest.approx(0.9)
    assert user_feedback(kinds, [0, 4, 0], ["", "", ""]) == pytest.approx(0.6)
    assert user_feedback(["thumbs_up", "comment"], [0, 0], ["ada", "ada"]) == 1.0


def test_the_components_of_the_first_scenario_are_one_085_090_and_a_half() -> None:
    """Scenario 1: 1.0, 0.85 (5 turns, average 6), 0.90 (pylint 9.0) and 0.5 (no feedback).

    - 0.85 = (z + 2) / 4 needs z = 1.4, so a standard deviation of (6 - 5) / 1.4 = 0.714.
    - 0.90 needs the linter alone: "tests pass" as a part of its own would make it (0.90 + 1.0) / 2 = 0.95; the
      scenario counts the tests as task completion.
    - the raw weighted sum is .40 · 1.0 + .20 · 0.85 + .15 · 0.90 + .25 · 0.5 = 0.83, not 0.87.
    """
    scores = (
        task_completion("success", None),
        efficiency(5, 6.0, 1 / 1.4),
        code_quality(9.0, None, None),
        user_feedback([], [], []),
    )
    assert scores == pytest.approx((1.0, 0.85, 0.90, 0.5))
    assert efficiency(5, 6.0, 0.714) == pytest.approx(0.85, abs=5e-4)
    assert code_quality(9.0, 1.0, None) == pytest.approx(0.95)


def test_a_call_is_worth_one_minus_one_or_minus_a_half() -> None:
    assert tool_execution(1, 0, 0, 0) == 1.0
    assert tool_execution(1, 1, 0, 0) == -1.0
    assert tool_execution(1, 0, 1, 0) == -0.5
    assert tool_execution(4, 1, 1, 0) == (2 - 1 - 0.5) / 4
    assert tool_execution(0, 0, 0, 0) is None


@given(st.integers(1, 20), st.data())
def test_repeating_a_call_that_succeeded_never_raises_a_positive_worth(distinct: int, data: st.DataObject) -> None:
    failed = data.draw(st.integers(0, distinct // 2))
    before = tool_execution(distinct, failed, 0, 0)
    after = tool_execution(distinct, failed, 0, data.draw(st.integers(1, 20)))
    assert before is not None
    assert after is not None
    assert after <= before


def test_the_parts_of_an_answer_add_up_and_no_reference_leaves_its_share_to_the_others() -> None:
    """Structure 0.3, depth 0.4 and similarity 0.3 make 1. Without a reference the bare sum ends at 0.7, so the
    specification's "+0.8 for a well-structured answer with examples" could not be reached: the two parts are put on
    the whole scale, 0.56 / 0.7 = 0.8."""
    assert answer_quality(0.3, 0.4, 0.3) == 1.0
    assert answer_quality(0.3, 0.4, 0.0) == pytest.approx(0.7)
    assert answer_quality(0.3, 0.4, None) == 1.0
    assert answer_quality(0.24, 0.32, None) == pytest.approx(0.8)
    assert answer_quality(0.0, 0.0, None) == 0.0
    assert answer_quality(None, None, None) is None


def test_two_rounds_to_a_good_answer_by_consensus_are_worth_more_than_the_example_says() -> None:
    """The example says +2.5. With consensus +1, quality above 0.7 doubled (> 1.4) and the bonus of 0.5 for two rounds,
    the formula gives more than 2.9, at most 3.5; without the bonus +2.5 is a quality of 0.75 (1 + 1.5)."""
    assert 2.9 < coordination(2, 0.71, 5_000, consensus=True) <= coordination(2, 1.0, 5_000, consensus=True) == 3.5
    assert coordination(3, 0.75, 5_000, consensus=True) == 2.5


def test_five_rounds_to_a_bad_answer_without_consensus_are_worth_what_their_tokens_leave() -> None:
    """The example says -1.0. Rounds cost 0.2 and the missing consensus 0.5: -0.7 for an answer worth nothing. The rest
    must be tokens: 10,300 cost 0.3. The cap of -1 ends the range at -1.7, where 30,000 tokens would make it -20.7."""
    assert coordination(5, 0.0, None, consensus=False) == pytest.approx(-0.7)
    assert coordination(5, 0.0, 10_300, consensus=False) == pytest.approx(-1.0)
    assert coordination(5, 0.0, 30_000, consensus=False) == pytest.approx(-1.7)
    assert coordination(5, 0.0, 30_000, consensus=False, token_penalty_cap=-0.25) == pytest.approx(-0.95)


@given(st.integers(0, 10_000), st.floats(0, 1), st.integers(0, 10**12), st.booleans())
def test_coordination_stays_within_its_range(rounds: int, quality: float, tokens: int, consensus: bool) -> None:
    assert -2.5 <= coordination(rounds, quality, tokens, consensus=consensus) <= 3.5


def test_fewer_rounds_are_never_worse() -> None:
    worth = [coordination(rounds, 0.8, None, consensus=True) for rounds in range(20)]
    assert worth == sorted(worth, reverse=True)


def test_a_right_vote_is_worth_one_and_a_wrong_one_costs_a_half() -> None:
    assert (vote(right=True), vote(right=False)) == (1.0, -0.5)
    assert voting(4, 3) == 0.625
    assert voting(0, 0) is None
    assert voting(None, None) is None
    assert voting(3, None) is None


def test_a_restart_is_worth_what_it_gained() -> None:
    assert restart_decision(restarted=False, quality_before=0.8) == 0.5
    assert restart_decision(restarted=False, quality_before=0.7) == -0.3
    assert restart_decision(restarted=True, quality_before=0.5) == 0.0
    assert restart_decision(restarted=True, quality_before=0.5, quality_after=0.75) == 1.0
    assert restart_decision(restarted=True, quality_before=0.5, quality_after=0.6) == 0.5
    assert restart_decision(restarted=True, quality_before=0.5, quality_after=0.5) == -0.5


@given(st.floats(0, 1000), st.lists(st.floats(0, 1000), min_size=2, max_size=30))
def test_efficiency_falls_as_turns_rise(turns: float, history: list[float]) -> None:
    mean = sum(history) / len(history)
    std = sqrt(sum((value - mean) ** 2 for value in history) / len(history))
    assert 0.0 <= efficiency(turns + 1, mean, std) <= efficiency(turns, mean, std) <= 1.0
