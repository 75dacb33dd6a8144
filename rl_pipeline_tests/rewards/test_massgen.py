"""MassGen's rewards: the figures of its documentation where they hold, and the arithmetic where they cannot."""

from typing import Any

import pytest

from rl_pipeline.rewards.massgen import RewardComputer

COMPUTER = RewardComputer()

WELL_STRUCTURED = """# Binary search

Binary search halves a sorted list at every comparison, so that a million entries need 20 comparisons.

## Why the list must be sorted

- Order tells which half can be discarded, because larger entries stand right of the middle.
- Without order, every entry has to be examined, therefore the cost grows linearly.
- Duplicates are harmless: any matching index is returned.

## Example

For example, searching 7 in `[1, 3, 7, 9]` compares 3 first, then 7, and returns index 2.

Insertion afterwards costs linear time since elements shift; trees avoid that price.
"""


@pytest.mark.parametrize(
    ("result", "reward"),
    [
        pytest.param({"results": ["a page about binary search"]}, 1.0, id="a search with good results"),
        pytest.param("12 passed", 1.0, id="text"),
        pytest.param(0, 1.0, id="zero is a result"),
        pytest.param(RuntimeError("no such module"), -1.0, id="an exception"),
        pytest.param({"error": "SyntaxError", "output": "x"}, -1.0, id="an error beside output"),
        pytest.param({"success": False}, -1.0, id="no success"),
        pytest.param(None, -0.5, id="nothing"),
        pytest.param("  \n", -0.5, id="blank text"),
        pytest.param({"success": True, "error": None, "results": [], "text": ""}, -0.5, id="nothing, well wrapped"),
    ],
)
def test_a_tool_call_is_worth_what_came_of_it(result: object, reward: float) -> None:
    assert COMPUTER.compute_tool_reward({"name": "search", "arguments": {"q": "binary search"}}, result) == reward


@pytest.mark.parametrize("name", ["search", "code_execute", "vote", "anything"])
def test_the_name_of_a_tool_is_worth_nothing(name: str) -> None:
    assert COMPUTER.compute_tool_reward({"name": name}, "short") == 1.0


def test_a_call_that_says_it_failed_has_failed_whatever_it_returned() -> None:
    assert COMPUTER.compute_tool_reward({"name": "search", "error": "timeout"}, "partial page") == -1.0


def test_a_well_structured_answer_with_examples_is_worth_much_a_short_one_little_and_an_empty_one_nothing() -> None:
    """The documentation's +0.8, +0.2 and 0.0 as ranges: they are examples, and texts differ."""
    assert COMPUTER.compute_answer_quality_reward(WELL_STRUCTURED) >= 0.8
    assert 0.0 < COMPUTER.compute_answer_quality_reward("It halves the sorted list.") <= 0.2
    assert COMPUTER.compute_answer_quality_reward("") == 0.0
    assert COMPUTER.compute_answer_quality_reward("", "It halves the sorted list.") == 0.0


def test_likeness_to_a_reference_is_worth_up_to_three_tenths() -> None:
    same = COMPUTER.compute_answer_quality_reward("It halves the sorted list.", "It halves the sorted list.")
    other = COMPUTER.compute_answer_quality_reward("It halves the sorted list.", "Nothing alike")
    assert same - other == pytest.approx(0.3)


def test_the_examples_of_coordination_are_ranges_because_the_formula_does_not_give_their_figures() -> None:
    """Documented as +2.5: 2 · 0.7 + 1 + 0.5 = 2.9 is the least that the bonus gives, at a quality just above 0.7.
    Documented as -1.0: -0.1 · 2 - 0.5 = -0.7 at quality 0, and -1.0 only with 10,300 tokens."""
    quick = {"coordination_rounds": 2, "token_usage": 5_000, "consensus_achieved": True}
    assert COMPUTER.compute_coordination_reward(final_answer_quality=0.71, **quick) == pytest.approx(2.92)
    assert COMPUTER.compute_coordination_reward(final_answer_quality=0.70, **quick) == pytest.approx(2.4)
    slow: dict[str, Any] = {"coordination_rounds": 5, "final_answer_quality": 0.0, "consensus_achieved": False}
    assert COMPUTER.compute_coordination_reward(token_usage=10_000, **slow) == pytest.approx(-0.7)
    assert COMPUTER.compute_coordination_reward(token_usage=10_300, **slow) == pytest.approx(-1.0)


def test_tokens_cost_at_most_the_cap() -> None:
    """Uncapped, 30,000 tokens cost 20: a perfect answer by consensus would be worth -16.5."""
    perfect: dict[str, Any] = {"coordination_rounds": 2, "final_answer_quality": 1.0, "consensus_achieved": True}
    assert COMPUTER.compute_coordination_reward(token_usage=30_000, **perfect) == pytest.approx(2.5)
    uncapped = RewardComputer(token_penalty_cap=-100.0)
    assert uncapped.compute_coordination_reward(token_usage=30_000, **perfect) == pytest.approx(-16.5)


def test_fewer_rounds_are_better_beyond_three() -> None:
    rewards = [COMPUTER.compute_coordination_reward(rounds, 0.5, 0, True) for rounds in (3, 4, 5, 6)]
    assert rewards == pytest.approx([2.0, 1.9, 1.8, 1.7])


def test_a_vote_for_the_winner_is_worth_one_and_another_costs_a_half() -> None:
    assert COMPUTER.compute_voting_reward("agent-1", "agent-1") == 1.0
    assert COMPUTER.compute_voting_reward("agent-2", "agent-1") == -0.5


@pytest.mark.parametrize(
    ("decision", "before", "after", "reward"),
    [
        pytest.param(False, 0.8, None, 0.5, id="going on with a good answer"),
        pytest.param(False, 0.7, None, -0.3, id="going on with a poor one"),
        pytest.param(True, 0.4, None, 0.0, id="not yet known"),
        pytest.param(True, 0.4, 0.7, 1.0, id="much better"),
        pytest.param(True, 0.4, 0.5, 0.5, id="better"),
        pytest.param(True, 0.4, 0.4, -0.5, id="in vain"),
    ],
)
def test_a_restart_is_worth_what_it_did_to_the_answer(
    decision: bool, before: float, after: float | None, reward: float
) -> None:
    computed = COMPUTER.compute_restart_decision_reward(decision, before, after)
    assert computed == reward
