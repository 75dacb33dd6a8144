"""Which way a candidate takes, by how much better it is."""

from datetime import timedelta

import pytest

from benchmarks.rollouts import START
from rl_pipeline.deployment.state import Rollout, Strategy
from rl_pipeline.deployment.strategy import choose, ramp, ramp_schedule


@pytest.mark.parametrize(
    ("improvement", "upper_bound", "strategy", "initial"),
    [
        (-0.04, -0.01, "abort", 0.0),
        (-0.01, 0.02, "canary", 0.05),
        (0.03, 0.06, "canary", 0.05),
        (0.05, 0.08, "canary", 0.10),
        (0.1499, 0.2, "canary", 0.10),
        (0.15, 0.2, "blue_green", 0.90),
    ],
)
def test_the_better_a_candidate_the_faster_it_goes(
    improvement: float, upper_bound: float, strategy: str, initial: float
) -> None:
    choice = choose(improvement, upper_bound, initial=0.10)
    assert (choice.strategy, choice.initial) == (strategy, initial)


def test_caution_never_starts_higher_than_what_is_configured() -> None:
    assert choose(0.0, 0.1, initial=0.02).initial == 0.02
    assert choose(0.0, 0.1, initial=0.5, cautious=0.2).initial == 0.2


def test_the_ramp_of_the_specification() -> None:
    steps = [(step.share, step.min_seconds, step.min_samples) for step in ramp("canary", 0.10, 4)]
    assert steps == [(0.10, 3600, 50), (0.25, 3600, 100), (0.50, 7200, 150)]


@pytest.mark.parametrize(
    ("initial", "shares", "seconds"),
    [
        (0.05, [0.05, 0.25, 0.50], [900, 900, 1800]),
        (0.25, [0.25, 0.50], [1800, 1800]),
        (0.30, [0.30, 0.50], [1800, 1800]),
        (0.60, [0.60], [3600]),
    ],
)
def test_a_ramp_takes_its_hours_wherever_it_starts(initial: float, shares: list[float], seconds: list[float]) -> None:
    steps = ramp("canary", initial, 1)
    assert ([step.share for step in steps], [step.min_seconds for step in steps]) == (shares, seconds)


@pytest.mark.parametrize(("strategy", "share"), [("blue_green", 0.90), ("ab_test", 0.40)])
def test_other_strategies_hold_one_split(strategy: Strategy, share: float) -> None:
    (step,) = ramp(strategy, 0.40, 4, samples=(1, 2, 3))
    assert (step.share, step.min_seconds, step.min_samples) == (share, 14400, 3)


def scheduled(strategy: Strategy, initial: float, **changes: object) -> list[tuple[float, float]]:
    """Hours since the start, and percentages."""
    rollout = Rollout(
        deployment_id="deployment-1",
        candidate="new",
        control="old",
        strategy=strategy,
        steps=ramp(strategy, initial, 4),
        started_at=START,
        step_since=START,
        bake_seconds=1800,
    ).model_copy(update=changes)
    return [((step.timestamp - START).total_seconds() / 3600, step.percentage) for step in ramp_schedule(rollout)]


def test_the_schedule_says_when_each_step_is_due_at_the_earliest() -> None:
    assert scheduled("canary", 0.10) == [(0, 10), (1, 25), (2, 50), (4, 100)]
    late = START + timedelta(hours=3)
    assert scheduled("canary", 0.10, step=1, step_since=late) == [(3, 25), (4, 50), (6, 100)]
    assert scheduled("blue_green", 0.10) == [(0, 90), (4, 100)]
    assert scheduled("immediate", 1.0) == [(0, 100)]
    assert scheduled("ab_test", 0.40) == [(0, 40)]
