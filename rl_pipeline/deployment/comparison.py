"""The candidate against the concurrent control: what the evidence is, when it was enough, and for what.

A rollback needs two things: the combined evidence has reached `THRESHOLD`, and then or later the candidate exceeds the
limit of a metric whose own evidence has reached it too (of the e-values in an average, one at least is as large as the
average). The limit is looked at since the start from which that evidence comes (`EvidencePath.since`), or a model that
breaks after healthy days would stay within it for hours. All of it is followed window by window, so neither the outcome
nor its moment depends on when anybody looked.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_pipeline.deployment.columns import ArmColumns, Columns, Flags, Floats, Integers
from rl_pipeline.deployment.evidence import (
    EvidencePath,
    combined,
    errors_path,
    feedback_path,
    is_lately_split_as_configured,
    reward_path,
    sample_ratio_path,
)
from rl_pipeline.deployment.limits import Limits, Metric, exceeded_limits, is_praised_less
from rl_pipeline.deployment.windows import WINDOW_SECONDS

THRESHOLD = 20.0
"""Reached by a candidate that is not worse in at most one of 20 rollouts, whoever looks how often."""
SAMPLE_RATIO_THRESHOLD = 1000.0
SESSIONS_TO_CLEAR = 2
"""How many times as many sessions as it took to doubt the split it takes to trust it again."""

_PATHS: dict[Metric, Callable[[Columns], EvidencePath]] = {
    "errors": errors_path,
    "reward": reward_path,
    "feedback": feedback_path,
}
_FIGURES: dict[Metric, tuple[str, str]] = {
    "errors": ("error_rate", ".1%"),
    "reward": ("reward_mean", ".3f"),
    "feedback": ("negative_share", ".1%"),
}
"""What a metric is told by, and how it is written."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What the windows with a split say, up to the last of them."""

    split: Columns
    weights: Mapping[Metric, float]
    paths: Mapping[Metric, EvidencePath]
    combined: Floats
    worse_since: datetime | None
    """When the combined evidence reached the threshold."""
    decided: int | None
    """The place of the window at which the candidate was to be rolled back."""
    exceeded: Metric | None
    """Why: of the metrics whose limits it exceeded then, the one with the most evidence."""
    sample_ratio: Floats
    doubted_since: datetime | None
    """Since when the traffic is not split as configured; None where it is, or is again."""

    @property
    def worst(self) -> Metric:
        """The metric with the most evidence against the candidate."""
        return max(self.paths, key=lambda metric: self.paths[metric].values.max(initial=1.0))

    def in_words(self, metric: Metric) -> str:
        """How the arms compare in a metric, since the start from which its evidence comes."""
        since = self.split.where(np.arange(len(self.split)) >= self._since(metric))
        candidate, control = figures(since.candidate), figures(since.control)
        name, form = _FIGURES[metric]
        arms = f"{name} {candidate[name]:{form}}, of the control {control[name]:{form}}"
        highest = now_and_highest(self.paths[metric].values)["highest"]
        return f"{arms} (e-value {highest:.3g}, threshold {THRESHOLD:.0f})"

    def _since(self, metric: Metric) -> int:
        """The place of the window since which the evidence is, at the decision, or at last where there is none."""
        return int(self.paths[metric].since[-1 if self.decided is None else self.decided])

    def evidence(self) -> dict[str, Any]:
        """All of it in numbers, for a record."""
        decided_at = end_of(self.split, self.decided)
        e_values = {
            metric: {
                **now_and_highest(path.values),
                "weight": self.weights[metric],
                "since": begin_of(self.split, self._since(metric)).isoformat() if len(self.split) else None,
            }
            for metric, path in self.paths.items()
        }
        return {
            "threshold": THRESHOLD,
            "combined": now_and_highest(self.combined),
            "e_values": e_values,
            "worse_since": self.worse_since and self.worse_since.isoformat(),
            "decided_at": decided_at and decided_at.isoformat(),
            "candidate": figures(self.split.candidate),
            "control": figures(self.split.control),
            "sample_ratio": {
                **now_and_highest(self.sample_ratio),
                "threshold": SAMPLE_RATIO_THRESHOLD,
                "doubted_since": self.doubted_since and self.doubted_since.isoformat(),
                "expected": round(float(self.split.share @ self.split.sessions), 1),
                "observed": int(self.split.candidate.sessions.sum()),
            },
        }


def compare(columns: Columns, weights: Mapping[Metric, float], limits: Limits) -> Comparison:
    """Follow the evidence over all windows with a split, oldest first."""
    split = columns.where(columns.is_split)
    routed = split.where(split.sessions > 0)
    paths: dict[Metric, EvidencePath] = {metric: _PATHS[metric](split) for metric in weights}
    highest = {metric: np.maximum.accumulate(path.values) for metric, path in paths.items()}
    average = combined({metric: path.values for metric, path in paths.items()}, weights)
    worse: Flags = np.maximum.accumulate(average) >= THRESHOLD
    exceeded = {
        metric: exceeded_limits(split, _sums_since(path.since), limits)[metric] for metric, path in paths.items()
    }
    exceeded["feedback"] |= is_praised_less(split, _sums_since(paths["feedback"].since), limits)
    proven = {metric: worse & exceeded[metric] & (highest[metric] >= THRESHOLD) for metric in paths}
    decided = _first(np.logical_or.reduce(list(proven.values())))
    exceeding = [metric for metric in paths if decided is not None and proven[metric][decided]]
    exceeding.sort(key=lambda metric: float(highest[metric][decided]))
    sample_ratio = sample_ratio_path(routed)
    return Comparison(
        split,
        weights,
        paths,
        average,
        end_of(split, _first(worse)),
        decided,
        exceeding[-1] if exceeding else None,
        sample_ratio,
        _doubted_since(routed, sample_ratio),
    )


def _sums_since(since: Integers) -> Callable[[NDArray[Any]], Floats]:
    """What sums a column up to each window, from the place that is given for it."""

    def sums(values: NDArray[Any]) -> Floats:
        before = np.concatenate([[0], np.cumsum(values)])
        found: Floats = before[1:] - before[since]
        return found

    return sums


def _doubted_since(split: Columns, path: Floats) -> datetime | None:
    """When the last doubt about the split began that has not passed, by its evidence.

    A doubt begins when the evidence reaches the threshold. It has passed once the last sessions after it, which are
    `SESSIONS_TO_CLEAR` times as many as that took, by themselves speak for the configured share: a fault that lasts
    would show in them. From there on the split is watched afresh.
    """
    while True:
        doubt = _first(path >= SAMPLE_RATIO_THRESHOLD)
        if doubt is None:
            return None
        enough = SESSIONS_TO_CLEAR * int(split.sessions[: doubt + 1].sum())
        later = split.where(np.arange(len(split)) > doubt)
        passed = _first(is_lately_split_as_configured(later, enough))
        if passed is None:
            return end_of(split, doubt)
        split = later.where(np.arange(len(later)) > passed)
        path = sample_ratio_path(split)


def figures(arm: ArmColumns) -> dict[str, Any]:
    """One arm in numbers; None where there is nothing to divide by."""
    sessions, errors, rated, negative = (
        int(each.sum()) for each in (arm.sessions, arm.errors, arm.rated, arm.negative)
    )
    return {
        "sessions": sessions,
        "errors": errors,
        "error_rate": round(errors / sessions, 6) if sessions else None,
        "rated": rated,
        "negative": negative,
        "negative_share": round(negative / rated, 6) if rated else None,
        "rewards": len(arm.rewards),
        "reward_mean": round(float(arm.rewards.mean()), 6) if len(arm.rewards) else None,
    }


def reached(path: EvidencePath) -> int | None:
    """The place of the window at which an e-process first reached the threshold."""
    return _first(path.values >= THRESHOLD)


def _first(flags: Flags) -> int | None:
    return int(flags.argmax()) if flags.any() else None


def begin_of(columns: Columns, place: int) -> datetime:
    """When a window began."""
    return datetime.fromtimestamp(columns.start[place], UTC)


def end_of(columns: Columns, place: int | None) -> datetime | None:
    """When a window ended."""
    return None if place is None else datetime.fromtimestamp(columns.start[place] + WINDOW_SECONDS, UTC)


def now_and_highest(path: Floats) -> dict[str, float]:
    """An e-process is at 1 where there is nothing yet."""
    now, highest = (path[-1], path.max()) if len(path) else (1.0, 1.0)
    return {"now": float(f"{now:.4g}"), "highest": float(f"{max(highest, 1.0):.4g}")}
