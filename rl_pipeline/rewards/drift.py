"""Whether the raw mean has drifted: the rewards of a day against those just before it.

**The sample** is the raw totals of the day, **the reference** the last 1,000 raw totals before it in stream order, both
of revision 0, since later revisions change with the feedback that happens to come. All task types and model versions
count together: the question is whether what agents do now is as good as what they did, whatever the cause. Versions
are told apart by a canary, task types by the trend. The normalised total cannot answer it: it is made to forget a drop.

**The test** is two-sided, and drift is what is both certain and large: a probability below `FALSE_ALARMS` and a change
of at least `LEAST_CHANGE`, with at least `LEAST_SAMPLE` rewards on either side. The probability is the larger of that
of Welch's test and that of Student's. Raw totals are skewed, so a small sample without a failure has a small variance
too: with 30 rewards a day Welch's test alone gave an alarm on 8 days of 1,000 without drift, Student's on 1.5, both
together on none. So without drift at most one day in 1,000 gives an alarm. That holds for trajectories which are
independent of each other; many attempts at one task on one day are not, and the least change is what guards against
them. A decline of less than that from day to day is not seen here: the reference moves along.
"""

from dataclasses import dataclass
from math import erfc, log1p, sqrt

import polars as pl

REFERENCE = 1_000
LEAST_SAMPLE = 30
LEAST_CHANGE = 0.05
FALSE_ALARMS = 0.001


@dataclass(frozen=True, slots=True)
class Drift:
    """A day's raw totals and the reference, side by side; the means are None where there are no rewards."""

    count: int
    mean: float | None
    reference_count: int
    reference_mean: float | None
    probability: float | None
    """Of a difference at least this large if nothing had changed; None where there are too few rewards to tell."""

    @property
    def change(self) -> float | None:
        """How far the mean has moved."""
        return None if self.mean is None or self.reference_mean is None else self.mean - self.reference_mean

    @property
    def has_drifted(self) -> bool:
        """Whether the change is both certain and large."""
        certain = self.probability is not None and self.probability < FALSE_ALARMS
        return certain and abs(self.change or 0.0) >= LEAST_CHANGE

    def __str__(self) -> str:
        if self.change is None or self.probability is None:
            return (
                f"too few rewards to compare: {self.count} and {self.reference_count} before, "
                f"where {LEAST_SAMPLE} of each are needed"
            )
        verdict = "has drifted" if self.has_drifted else "has not drifted"
        return (
            f"the raw mean {verdict}: {self.mean:.3f} of {self.count} rewards against {self.reference_mean:.3f} of the "
            f"{self.reference_count} before, {self.change:+.3f} (p = {self.probability:.2g})"
        )


def find_drift(totals: pl.Series, before: pl.Series) -> Drift:
    """Compare the raw totals of a day with the last 1,000 `before` it; both of revision 0, in stream order."""
    reference = before.tail(REFERENCE)
    sample, usual = _Moments.of(totals), _Moments.of(reference)
    enough = min(sample.count, usual.count) >= LEAST_SAMPLE
    return Drift(
        sample.count,
        sample.mean if sample.count else None,
        usual.count,
        usual.mean if usual.count else None,
        _probability(sample, usual) if enough else None,
    )


@dataclass(frozen=True, slots=True)
class _Moments:
    count: int
    mean: float
    variance: float
    """Of a single value."""

    @classmethod
    def of(cls, values: pl.Series) -> "_Moments":
        known = values.drop_nulls().to_numpy()
        count = len(known)
        variance = float(known.var(ddof=1)) if count > 1 else 0.0
        return cls(count, float(known.mean()) if count else 0.0, variance)


def _probability(one: _Moments, other: _Moments) -> float:
    """The larger of two. With v the variances and n the counts, t is the change of the mean over a standard error:

    Welch: √(v₁/n₁ + v₂/n₂), with (v₁/n₁ + v₂/n₂)² / ((v₁/n₁)²/(n₁-1) + (v₂/n₂)²/(n₂-1)) degrees of freedom.
    Student: √(v·(1/n₁ + 1/n₂)) with n₁ + n₂ - 2 degrees, v = ((n₁-1)·v₁ + (n₂-1)·v₂) / (n₁ + n₂ - 2).
    """
    change = one.mean - other.mean
    first, second = one.variance / one.count, other.variance / other.count
    if first + second < 1e-24:  # every reward the same, but for the rounding of their mean
        return 1.0 if abs(change) < 1e-12 else 0.0
    freedom = (first + second) ** 2 / (first**2 / (one.count - 1) + second**2 / (other.count - 1))
    welch = two_sided_tail(change / sqrt(first + second), freedom)
    degrees = one.count + other.count - 2
    pooled = ((one.count - 1) * one.variance + (other.count - 1) * other.variance) / degrees
    student = two_sided_tail(change / sqrt(pooled * (1 / one.count + 1 / other.count)), degrees)
    return max(welch, student)


def two_sided_tail(t: float, freedom: float) -> float:
    """The probability of a t at least as far from 0, by Peizer and Pratt's normal approximation.

    z = (f - 2/3 + 1/(10f)) · √(log(1 + t²/f) / (f - 5/6)); from 29 degrees of freedom on, which the least sample
    ensures, it is right to within 0.3 % at 0.001 and 2 % at 10⁻⁶.
    """
    z = (freedom - 2 / 3 + 0.1 / freedom) * sqrt(log1p(t * t / freedom) / (freedom - 5 / 6))
    return erfc(z / sqrt(2))
