"""Intervals against published and hand-computed ones."""

import numpy as np
import pytest

from rl_pipeline.deployment.ab_report import ab_report, difference, mean, rate
from rl_pipeline.deployment.columns import Columns


def test_a_rate_has_the_interval_of_wilson() -> None:
    # Newcombe (1998), Statistics in Medicine 17, 857-872: 81 of 263.
    assert rate(81, 263) == pytest.approx((0.3080, 0.2553, 0.3662), abs=1e-4)
    assert rate(0, 20) == pytest.approx((0.0, 0.0, 0.1611), abs=1e-4)
    assert rate(0, 0) is None


def test_a_mean_has_the_normal_interval() -> None:
    # Standard deviation 1, 4 values: 1.96 / 2 to either side.
    values = np.array([0.0, 2.0, 1.0, 1.0]) * np.sqrt(1.5)
    assert mean(values) == pytest.approx((np.sqrt(1.5), np.sqrt(1.5) - 0.97998, np.sqrt(1.5) + 0.97998), abs=1e-5)
    assert mean(values[:1]) is None


def test_a_difference_has_the_interval_of_newcombe() -> None:
    # Newcombe (1998), Statistics in Medicine 17, 873-890, method 10: 56 of 70 less 48 of 80.
    assert difference(rate(56, 70), rate(48, 80)) == pytest.approx((0.2, 0.0524, 0.3339), abs=1e-4)
    assert difference(rate(1, 2), None) is None


def test_without_data_there_is_a_report_without_figures() -> None:
    report = ab_report(Columns.of([]))
    assert report["reward_mean"] == {"candidate": None, "control": None, "difference": None}
