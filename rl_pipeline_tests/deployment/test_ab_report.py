"""Intervals against published and hand-computed ones."""

import numpy as np
import pytest

from rl_pipeline.deployment.ab_report import ab_report, difference, mean, rate
from rl_pipeline.deployment.ab_tests import report_text
from rl_pipeline.deployment.columns import Columns
from rl_pipeline.deployment.windows import Arm, Window
from rl_pipeline_tests.deployment.states import MINUTE, NOW, a_rollout


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


def test_a_report_counts_what_happened_under_the_split_alone_and_says_of_how_many() -> None:
    both = [Window(NOW, 0, 0.5, Arm(40, 4, 10, 1, (0.5, 0.7)), Arm(60, 3, 0, 0, (0.4, 0.4)))]
    alone = [Window(NOW + MINUTE, 1, 1.0, Arm(1000, 1000), Arm())]
    text = report_text(a_rollout(strategy="ab_test"), both + alone)
    assert "A/B test of new against old since 2026-03-02 12:00 UTC, counted up to 2026-03-02 12:00:10 UTC" in text
    failed, rated, reward = text.splitlines()[-3:]
    assert failed == (
        "| failed sessions | 0.100 (0.040 to 0.231) | 0.050 (0.017 to 0.137) | 0.050 (-0.056 to 0.185) | 40 and 60 |"
    )
    assert rated == "| bad ratings | 0.100 (0.018 to 0.404) | too little to tell | too little to tell | 10 and 0 |"
    assert reward.endswith("| 0.200 (0.004 to 0.396) | 2 and 2 |")
