"""Advantages, by hand and against their definitions."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.contracts.training_request import Algorithm
from rl_pipeline.training.plans.plan import OnlinePlan
from rl_pipeline.training.program.advantages import (
    above_the_mean,
    discounted_returns,
    generalised,
    group_normalised,
    judge,
    leave_one_out,
    standardised,
)

finite = st.floats(-10, 10, allow_nan=False, width=32)


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_a_return_discounts_by_turn() -> None:
    assert discounted_returns(torch.tensor([[1.0, 0.0, 4.0], [0.0, 2.0, 0.0]]), 0.5).tolist() == [2.0, 1.0]


def test_leave_one_out_compares_with_the_others_of_the_group() -> None:
    found = leave_one_out(numbers(1, 0, 0, 0, 5, 7), torch.tensor([0, 0, 0, 0, 1, 1]))
    assert found.tolist() == pytest.approx([1, -1 / 3, -1 / 3, -1 / 3, -2, 2])


def test_a_group_of_one_teaches_nothing() -> None:
    groups = torch.tensor([0, 1, 1])
    assert leave_one_out(numbers(9, 1, 1), groups).tolist() == [0, 0, 0]
    assert group_normalised(numbers(9, 1, 1), groups).tolist() == [0, 0, 0]


def test_group_normalisation_makes_easy_and_hard_tasks_count_alike() -> None:
    found = group_normalised(numbers(0, 2, 0, 200), torch.tensor([0, 0, 1, 1]))
    assert found.tolist() == pytest.approx([-0.7071, 0.7071, -0.7071, 0.7071], abs=1e-3)


def test_reinforce_is_measured_against_the_mean() -> None:
    assert above_the_mean(numbers(1, 2, 6)).tolist() == [-2, -1, 3]


def test_generalised_advantages_by_hand() -> None:
    values = torch.tensor([[0.5, 0.4, 0.2], [0.3, 9.0, 9.0]], dtype=torch.float64)
    rewards = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]], dtype=torch.float64)
    found = generalised(values, rewards, torch.tensor([3, 1]), gamma=0.9, gae_lambda=0.5)
    third = 1 - 0.2
    second = 0.9 * 0.2 - 0.4 + 0.45 * third
    first = 0.9 * 0.4 - 0.5 + 0.45 * second
    assert found[0].tolist() == pytest.approx([first, second, third])
    assert found[1].tolist() == pytest.approx([0.7, 0, 0]), "what follows the end counts for nothing"


@given(st.lists(st.tuples(finite, finite), min_size=1, max_size=8), st.floats(0, 1))
def test_with_lambda_one_generalised_advantages_are_returns_less_values(
    turns: list[tuple[float, float]], gamma: float
) -> None:
    values, rewards = (torch.tensor([column], dtype=torch.float64) for column in zip(*turns, strict=True))
    found = generalised(values, rewards, torch.tensor([len(turns)]), gamma, 1.0)
    for turn in range(len(turns)):
        expected = discounted_returns(rewards[:, turn:], gamma)[0] - values[0, turn]
        assert found[0, turn].item() == pytest.approx(expected.item(), abs=1e-9)


@given(st.lists(finite, min_size=2, max_size=12), finite)
def test_a_reward_that_all_of_a_group_get_changes_nothing(returns: list[float], more: float) -> None:
    of = torch.tensor(returns, dtype=torch.float64)
    groups = torch.arange(len(returns)) % 2
    assert torch.allclose(leave_one_out(of + more, groups), leave_one_out(of, groups), atol=1e-9)


def test_standardised_advantages_count_only_what_was_played() -> None:
    counted = torch.tensor([[True, True], [True, False]])
    found = standardised(torch.tensor([[1.0, 2.0], [3.0, 50.0]]), counted)
    assert found.flatten().tolist() == pytest.approx([-1, 0, 1, 0], abs=1e-3)


def test_advantages_that_are_all_alike_become_zero() -> None:
    assert standardised(torch.full((2, 1), 3.0), torch.ones(2, 1, dtype=torch.bool)).tolist() == [[0], [0]]


def test_values_are_taught_the_returns_that_the_advantages_come_from() -> None:
    """With lambda 1 and values of any kind, that is the discounted rewards to the end."""
    rewards = torch.tensor([[0.0, 1.0], [0.5, 0.0]])
    judgement = judge(
        "ppo",
        OnlinePlan(gamma=0.5, gae_lambda=1.0),
        rewards=rewards,
        lengths=torch.tensor([2, 1]),
        groups=torch.tensor([0, 0]),
        values=torch.tensor([[0.3, 0.2], [0.1, 0.0]]),
    )
    assert judgement.returns is not None
    assert judgement.returns.flatten().tolist() == pytest.approx([0.5, 1.0, 0.5, 0.0])
    assert judgement.advantages[1, 1] == 0, "a turn that was not played"


@pytest.mark.parametrize("algorithm", ["rloo", "grpo", "reinforce"])
def test_where_rewards_are_shaped_each_turn_is_judged_by_what_followed_it(algorithm: Algorithm) -> None:
    judgement = judge(
        algorithm,
        OnlinePlan(gamma=1.0, gae_lambda=0.5, shaping=1.0),
        rewards=torch.tensor([[0.1, 0.0, 1.0], [0.1, -0.1, 0.0]]),
        lengths=torch.tensor([3, 2]),
        groups=torch.tensor([0, 0]),
    )
    # What followed: 0.35, 0.5, 1.0 in one, 0.05, -0.1 in the other.
    [good, bad] = judgement.advantages.tolist()
    assert good[0] < good[1] < good[2]
    assert bad[1] < bad[0] < 0 < good[1]
    assert bad[2] == 0, "a turn that was not played"
    assert judgement.advantages.sum().item() == pytest.approx(0, abs=1e-5)


@pytest.mark.parametrize("algorithm", ["rloo", "grpo", "reinforce"])
def test_without_values_all_turns_of_an_episode_have_its_advantage(algorithm: Algorithm) -> None:
    judgement = judge(
        algorithm,
        OnlinePlan(gamma=1.0),
        rewards=torch.tensor([[0.0, 1.0], [0.0, 0.0], [0.0, 9.0], [9.0, 0.0]]),
        lengths=torch.tensor([2, 2, 2, 1]),
        groups=torch.tensor([0, 0, 1, 1]),
    )
    assert judgement.returns is None
    assert (judgement.advantages[:, 0] == judgement.advantages[:, 1]).all()
    if algorithm == "reinforce":
        assert (judgement.advantages[:2] < 0).all(), "an easy task looks better than it is"
    else:
        assert judgement.advantages[2:].abs().max() == 0, "both attempts were as good"
        assert judgement.advantages[0, 0] == -judgement.advantages[1, 0] > 0
