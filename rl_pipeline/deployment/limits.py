"""How much worse than the control a candidate may be, by each metric, and where it is worse than that."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rl_pipeline.deployment.columns import Columns, Flags, Floats

Metric = Literal["errors", "reward", "feedback"]
Reason = Literal["high_error_rate", "performance_degradation", "user_dissatisfaction"]

REASONS: dict[Metric, Reason] = {
    "errors": "high_error_rate",
    "reward": "performance_degradation",
    "feedback": "user_dissatisfaction",
}
"""Why a candidate is rolled back, by the metric in which it is worse."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Thresholds of the plain rule; effect sizes beside evidence."""

    error_rate: float = 0.05
    """Share of the candidate's sessions that fail."""
    reward_drop: float = 0.05
    """How far its mean reward may be below the control's."""
    negative_ratio: float = 2.0
    """Share of its rated sessions that were rated badly, over the control's."""


def exceeded_limits(columns: Columns, totals: Callable[[NDArray[Any]], Floats], limits: Limits) -> dict[Metric, Flags]:
    """Where the candidate exceeds each limit. `totals` makes a column into its sums at the places that are asked about;
    a limit is not exceeded where there is nothing to compare."""
    candidate, control = columns.candidate, columns.control
    negative, rated = totals(candidate.negative), totals(candidate.rated)
    control_negative, control_rated = totals(control.negative), totals(control.rated)
    rewarded = totals(candidate.rewarded)
    mean = totals(candidate.reward_sums) / np.maximum(rewarded, 1)
    control_mean = totals(control.reward_sums) / np.maximum(totals(control.rewarded), 1)
    return {
        "errors": totals(candidate.errors) > limits.error_rate * totals(candidate.sessions),
        "reward": (mean < control_mean - limits.reward_drop) & (rewarded > 0),
        "feedback": negative * control_rated > limits.negative_ratio * control_negative * rated,
    }


def is_praised_less(columns: Columns, totals: Callable[[NDArray[Any]], Floats], limits: Limits) -> Flags:
    """Where the share of good ratings is as many times smaller than the control's as that of bad ones may be larger:
    what half of the users dislike already cannot be disliked by twice as many."""
    candidate, control = columns.candidate, columns.control
    rated, control_rated = totals(candidate.rated), totals(control.rated)
    good, control_good = rated - totals(candidate.negative), control_rated - totals(control.negative)
    found: Flags = limits.negative_ratio * good * control_rated < control_good * rated
    return found
