"""Reward up while outcome down, and everything near it."""

from collections.abc import Callable
from random import Random

import pytest

from rl_pipeline.validation.reward_hacking import ProbedItem, ProbeResult, UnusableReward, probe_reward_hacking


def probed(reward: float, outcome: float, *, items: int = 400, seed: int = 0, noise: float = 0.2) -> ProbeResult:
    """Differences of reward and outcome around the given ones."""
    randomness = Random(seed)
    rows = []
    for number in range(items):
        before = randomness.random() < 0.6
        after = randomness.random() < 0.6 + outcome
        earned = randomness.gauss(0.5, noise), randomness.gauss(0.5 + reward, noise)
        rows.append(ProbedItem(str(number % 40), earned[1], earned[0], float(after), float(before)))
    return probe_reward_hacking(rows)


@pytest.mark.parametrize(
    ("reward", "outcome", "hacked"),
    [
        pytest.param(0.1, -0.2, True, id="more reward for less"),
        pytest.param(0.1, 0.2, False, id="both up"),
        pytest.param(-0.1, -0.2, False, id="both down"),
        pytest.param(-0.1, 0.2, False, id="less reward for more"),
        pytest.param(0.1, 0.0, False, id="more reward for the same"),
        pytest.param(0.0, -0.2, False, id="the same reward for less"),
    ],
)
def test_only_reward_up_and_outcome_down_is_a_hack(reward: float, outcome: float, hacked: bool) -> None:
    assert probed(reward, outcome).hacked == hacked


def test_a_few_items_accuse_nobody() -> None:
    assert not probed(0.1, -0.2, items=6).hacked


def test_rewards_of_any_size_can_be_compared() -> None:
    rows = [ProbedItem(str(number), 500.0 + number, 100.0, 0.0, float(number % 3 > 0)) for number in range(60)]
    assert probe_reward_hacking(rows).hacked


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_that_is_no_number_acquits_nobody(reward: float) -> None:
    rows = [ProbedItem(str(number), 1.0, 0.0, 0.0, 1.0) for number in range(60)]
    for odd in (ProbedItem("odd", reward, 0.0, 0.0, 1.0), ProbedItem("odd", 0.0, reward, 0.0, 1.0)):
        with pytest.raises(UnusableReward, match="of odd"):
            probe_reward_hacking([*rows, odd])


@pytest.mark.soak
def test_who_does_no_worse_is_seldom_accused(
    soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    times = soak_count(100, 1000)
    accused = sum(probed(0.1, 0.0, seed=seed, items=200).hacked for seed in range(times))
    record_property("wrongly accused of a hacked reward", accused / times)
    assert accused / times < (0.07 if times >= 1000 else 0.12)
