"""A drift of the raw mean is seen, and what is no drift seldom gives an alarm."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from rl_pipeline.rewards.configuration import RewardConfiguration
from rl_pipeline.rewards.drift import FALSE_ALARMS, LEAST_SAMPLE, REFERENCE, find_drift, two_sided_tail
from rl_pipeline.rewards.normalization import Floats
from rl_pipeline.rewards.scoring import History, score
from rl_pipeline_tests.rewards.simulation import simulated_signals

Counts = Callable[[int, int], int]
Record = Callable[[str, object], None]


@pytest.fixture(scope="module")
def usual() -> Floats:
    """Raw totals while four of five tasks succeed."""
    return scored(simulated_signals(8_000, seed=1, success=0.8))


def scored(signals: pl.DataFrame) -> Floats:
    return score(signals, History.empty(), RewardConfiguration())["raw_total"].to_numpy()


@pytest.mark.parametrize(
    ("t", "freedom", "probability"),
    [(1.69913, 29, 0.1), (2.75639, 29, 0.01), (3.65941, 29, 0.001), (3.46020, 60, 0.001), (4.89164, 1e6, 1e-6)],
)
def test_the_tail_is_that_of_the_tables(t: float, freedom: float, probability: float) -> None:
    assert two_sided_tail(t, freedom) == two_sided_tail(-t, freedom) == pytest.approx(probability, rel=3e-3)


def test_the_larger_probability_of_welch_and_student_counts() -> None:
    """30 values with a variance of 1/4·30/29 against 60 with 1/64·60/59, and the other way round, by hand."""
    wide, narrow = pl.Series([0.0, 1.0] * 15), pl.Series([0.5, 0.75] * 30)
    v, w = (1 / 4) / 29, (1 / 64) / 59
    welch = two_sided_tail((1 / 8) / np.sqrt(v + w), (v + w) ** 2 / (v**2 / 29 + w**2 / 59))
    drift = find_drift(wide, narrow)
    assert drift.probability == pytest.approx(welch)
    assert (drift.count, drift.reference_count, drift.change) == (30, 60, -0.125)

    few, many = narrow[:30], pl.Series([0.0, 1.0] * 30)
    pooled = (30 / 64 + 60 / 4) / 88
    student = two_sided_tail((1 / 8) / np.sqrt(pooled * (1 / 30 + 1 / 60)), 88)
    assert find_drift(few, many).probability == pytest.approx(student)


@pytest.mark.soak
def test_false_alarms_are_as_rare_as_promised(usual: Floats, soak_count: Counts, record_property: Record) -> None:
    """Days of 30 to 300 of the same rewards: at most one in 1,000 gives an alarm, and one in 20 is below 0.05."""
    days, random = soak_count(1_000, 40_000), np.random.default_rng(7)
    drifts = [
        find_drift(pl.Series(random.choice(usual, size)), pl.Series(random.choice(usual, 1_000)))
        for size in (30, 50, 100, 300)
        for _ in range(days // 4)
    ]
    improbable = sum(drift.probability is not None and drift.probability < 0.05 for drift in drifts)
    alarms = sum(drift.has_drifted for drift in drifts)
    assert 0.02 * days < improbable <= 0.05 * days
    assert alarms <= FALSE_ALARMS * days + 3 * np.sqrt(FALSE_ALARMS * days)  # the second part is chance
    record_property("days without drift", days)
    record_property("false alarms", alarms)


@pytest.mark.soak
def test_a_drop_of_success_is_seen_within_500_trajectories(soak_count: Counts, record_property: Record) -> None:
    """From 0.8 to 0.5, in the trajectories of one day after 1,000 good ones; most often 100 of them are enough."""
    seeds, early = soak_count(4, 100), 0
    for seed in range(seeds):
        good = simulated_signals(2_000, seed, success=0.8)
        worse = simulated_signals(500, seed + 1_000, success=0.5)
        both = pl.concat([good, worse]).with_columns(pl.int_range(1, pl.len() + 1).cast(pl.UInt64).alias("sequence"))
        totals = pl.Series(scored(both))
        drift = find_drift(totals[2_000:], totals[:2_000])
        assert drift.has_drifted
        assert drift.change is not None
        assert drift.change < -0.05
        early += find_drift(totals[2_000:2_100], totals[:2_000]).has_drifted
    assert early > seeds / 2
    record_property("drops", seeds)
    record_property("seen within 100", early)


def test_a_change_that_is_certain_and_small_is_no_drift() -> None:
    steady = pl.Series(np.tile([0.4, 0.6], 2_000))
    assert find_drift(steady + 0.04, steady).probability == pytest.approx(0.0, abs=1e-12)
    assert not find_drift(steady + 0.04, steady).has_drifted
    assert find_drift(steady + 0.06, steady).has_drifted
    assert find_drift(steady - 0.06, steady).has_drifted


def test_too_few_rewards_tell_nothing() -> None:
    good, bad = pl.Series([1.0] * LEAST_SAMPLE), pl.Series([0.0] * (LEAST_SAMPLE - 1))
    for drift in (find_drift(bad, good), find_drift(good, bad)):
        assert (drift.probability, drift.has_drifted) == (None, False)
        assert "too few" in str(drift)
    nothing = find_drift(pl.Series([], dtype=pl.Float64), good)
    assert (nothing.mean, nothing.change, nothing.has_drifted) == (None, None, False)


def test_rewards_without_spread_are_compared_by_their_means() -> None:
    same = pl.Series([0.7] * 40)
    assert find_drift(same, same).probability == 1.0
    assert find_drift(pl.Series([0.5] * 40), same).has_drifted


def test_only_the_last_thousand_before_the_day_are_the_reference() -> None:
    before = pl.Series([0.0] * 500 + [0.75] * REFERENCE)
    drift = find_drift(pl.Series([0.75] * 100), before)
    assert (drift.reference_count, drift.reference_mean) == (1_000, 0.75)
    assert str(drift) == (
        "the raw mean has not drifted: 0.750 of 100 rewards against 0.750 of the 1000 before, +0.000 (p = 1)"
    )
