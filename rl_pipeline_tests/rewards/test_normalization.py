"""The arithmetic of windows and totals, against a plain implementation that does one row after the other."""

import math
from statistics import fmean, pstdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.rewards.normalization import (
    ONE,
    Part,
    Windows,
    applicable_weight,
    fixed_point,
    normalised,
    trailing_windows,
    weighted_mean,
)

Row = tuple[int, int | None, bool]  # task type, unit score, whether it enters

ROWS = st.lists(
    st.tuples(st.integers(0, 2), st.none() | st.sampled_from([0, 1, ONE]) | st.integers(0, ONE), st.booleans()),
    max_size=60,
).map(lambda rows: sorted(rows, key=lambda row: row[0]))


def plainly(window: list[int], unit: int, method: str, least: int) -> float:
    """One score within the values before it: the definition, in whole numbers until the last division."""
    if len(window) < least:
        return 0.5
    count, total = len(window), sum(window)
    low, high = min(window), max(window)
    if low == high:
        return 0.5 if unit == low else float(unit > low)
    if method == "min-max":
        return min(1.0, max(0.0, (unit - low) / (high - low)))
    spread = count * sum(value * value for value in window) - total * total
    return min(1.0, max(0.0, ((unit * count - total) / math.sqrt(spread) + 2) / 4))


def by_the_kernel(rows: list[Row], window: int, method: str, least: int) -> list[float]:
    types = np.array([row[0] for row in rows], np.int64)
    units = np.array([row[1] or 0 for row in rows], np.int64)
    enters = np.array([row[2] and row[1] is not None for row in rows], bool)
    starts = np.searchsorted(types, types, side="left")
    return normalised(units, trailing_windows(units, enters, starts, window), method, least).tolist()


@pytest.mark.parametrize("method", ["z-score", "min-max"])
@given(rows=ROWS, window=st.integers(1, 9), least=st.integers(1, 4))
def test_the_kernel_gives_the_bits_of_the_plain_definition(
    method: str, rows: list[Row], window: int, least: int
) -> None:
    expected = []
    for position, (task_type, unit, _) in enumerate(rows):
        before = [u for t, u, enters in rows[:position] if t == task_type and enters and u is not None]
        expected.append(plainly(before[-window:], unit or 0, method, least))
    assert by_the_kernel(rows, window, method, least) == expected


def test_the_formula_of_the_specification_holds_to_a_millionth() -> None:
    scores = np.random.default_rng(3).random(1_500)
    units = fixed_point(scores)
    windows = trailing_windows(units, np.ones(1_500, bool), np.zeros(1_500, np.int64), 1_000)
    found = normalised(units, windows, "z-score", 30)
    for position in (30, 31, 500, 1_000, 1_001, 1_499):
        window = scores[max(0, position - 1_000) : position].tolist()
        z_score = (scores[position] - fmean(window)) / pstdev(window)
        assert found[position] == pytest.approx((z_score + 2.0) / 4.0, abs=1e-6)
        assert windows.means[position] == pytest.approx(fmean(window), abs=1e-6)
        assert windows.deviations[position] == pytest.approx(pstdev(window), abs=1e-6)


def of_the_last(history: list[float], score: float, method: str = "z-score", least: int = 1) -> float:
    rows = [(0, round(value * ONE), True) for value in [*history, score]]
    return by_the_kernel(rows, 1_000, method, least)[-1]


def test_two_deviations_from_the_mean_are_the_ends_and_beyond_is_clipped() -> None:
    history = [0.25, 0.75]  # mean 0.5, deviation 0.25
    scores = [0.0, 0.25, 0.5, 0.75, 1.0]
    assert [of_the_last(history, score) for score in scores] == [0.0, 0.25, 0.5, 0.75, 1.0]
    narrow = [0.375, 0.625]  # mean 0.5, deviation 0.125
    assert [of_the_last(narrow, score) for score in scores] == [0.0, 0.0, 0.5, 1.0, 1.0]


@pytest.mark.parametrize("method", ["z-score", "min-max"])
def test_a_window_of_equal_values_says_only_on_which_side_a_score_is(method: str) -> None:
    assert [of_the_last([0.7] * 40, score, method) for score in (0.5, 0.7, 0.9)] == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("method", ["z-score", "min-max"])
def test_too_short_a_history_says_nothing(method: str) -> None:
    values = [n / 40 for n in range(29)]
    assert of_the_last(values, 1.0, method, least=30) == 0.5
    assert of_the_last([*values, 0.5], 1.0, method, least=30) == 1.0


def test_min_max_puts_a_score_between_the_least_and_the_greatest() -> None:
    assert [of_the_last([0.25, 0.5, 0.75], score, "min-max") for score in (0.0, 0.25, 0.375, 0.75, 1.0)] == [
        0.0, 0.0, 0.25, 1.0, 1.0,
    ]  # fmt: skip


def test_sums_that_wrap_around_leave_the_window_exact() -> None:
    """9 million squares of 2²⁰ sum to more than 2⁶³; the difference of two such sums is still that of the window."""
    values = np.full(9_000_000, ONE, np.int64)
    values[-1] = 0
    window = Windows(values, np.array([len(values) - 1_000]), np.array([len(values)]))
    assert window.spreads.tolist() == [1_000 * 999 * ONE**2 - (999 * ONE) ** 2]


def test_a_part_that_does_not_apply_leaves_its_weight_to_the_others() -> None:
    parts = [
        Part(0.6, np.array([1.0, 1.0, 1.0]), np.array([True, False, False])),
        Part(0.4, np.array([0.0, 0.25, 0.25]), np.array([True, True, False])),
    ]
    weight = applicable_weight(parts, 3)
    assert weight.tolist() == [1.0, 0.4, 0.0]
    assert weighted_mean(parts, weight).tolist() == [0.6, 0.25, 0.5]


@given(st.lists(st.tuples(st.floats(0.001, 1), st.floats(0, 1)), min_size=1, max_size=8))
def test_a_mean_never_leaves_the_bounds_of_its_values(pairs: list[tuple[float, float]]) -> None:
    parts = [Part(weight, np.array([value, 1.0]), np.array([True, True])) for weight, value in pairs]
    mean = weighted_mean(parts, applicable_weight(parts, 2))
    assert 0.0 <= mean[0] <= 1.0
    assert mean[1] == 1.0
