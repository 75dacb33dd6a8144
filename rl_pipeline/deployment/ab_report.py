"""What an A/B test has found: both arms and their difference, with 95 % confidence intervals.

The intervals are those of a single look. Whether the candidate is worse is for the evidence to say, at any time; that
it is better is for whoever ends the test.
"""

import math
from typing import Any, NamedTuple

from rl_pipeline.deployment.columns import ArmColumns, Columns, Floats

_Z = 1.959964
"""95 % of a normal distribution are within so many standard deviations."""


class Estimate(NamedTuple):
    """A value and its interval."""

    value: float
    low: float
    high: float


def ab_report(split: Columns) -> dict[str, Any]:
    """Error rate, share of bad ratings and mean reward: of each arm, and of the candidate less the control.

    None where an arm has too little to tell.
    """
    candidate, control = _estimates(split.candidate), _estimates(split.control)
    return {
        name: {
            "candidate": as_record(candidate[name]),
            "control": as_record(control[name]),
            "difference": as_record(difference(candidate[name], control[name])),
        }
        for name in candidate
    }


def _estimates(arm: ArmColumns) -> dict[str, Estimate | None]:
    return {
        "error_rate": rate(int(arm.errors.sum()), int(arm.sessions.sum())),
        "negative_share": rate(int(arm.negative.sum()), int(arm.rated.sum())),
        "reward_mean": mean(arm.rewards),
    }


def rate(hits: int, of: int) -> Estimate | None:
    """A share with Wilson's interval."""
    if not of:
        return None
    share = hits / of
    middle = share + _Z**2 / (2 * of)
    width = _Z * math.sqrt(share * (1 - share) / of + _Z**2 / (4 * of**2))
    scale = 1 + _Z**2 / of
    return Estimate(share, max((middle - width) / scale, 0.0), min((middle + width) / scale, 1.0))


def mean(values: Floats) -> Estimate | None:
    """A mean with the normal interval."""
    if len(values) < 2:
        return None
    value, width = float(values.mean()), _Z * float(values.std(ddof=1)) / math.sqrt(len(values))
    return Estimate(value, value - width, value + width)


def difference(one: Estimate | None, other: Estimate | None) -> Estimate | None:
    """Their difference, with Newcombe's interval: of two means it is the normal one."""
    if one is None or other is None:
        return None
    value = one.value - other.value
    return Estimate(
        value,
        value - math.hypot(one.value - one.low, other.high - other.value),
        value + math.hypot(one.high - one.value, other.value - other.low),
    )


def as_record(estimate: Estimate | None) -> dict[str, float] | None:
    """As JSON has it."""
    return {name: round(value, 6) for name, value in estimate._asdict().items()} if estimate else None
