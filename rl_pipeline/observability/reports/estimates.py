"""Means with their error bars, and what may be said of two of them.

Trajectories of one session resemble each other, so they are no independent observations: a standard error here is that
of the mean over sessions (the sandwich estimator with sessions as clusters, times G / (G - 1)), which is the usual one
where each session has one trajectory.
"""

from dataclasses import dataclass
from math import sqrt

NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over `count` observations; without any there is no mean, and without two sessions no error."""

    count: int = 0
    mean: float | None = None
    error: float | None = None

    @property
    def margin(self) -> float | None:
        """Half of the 95 % interval."""
        return None if self.error is None else NORMAL_95 * self.error


@dataclass(frozen=True, slots=True)
class Change:
    """Two estimates, and how far the second is from the first."""

    base: Estimate
    now: Estimate

    @property
    def difference(self) -> float | None:
        """Of the means."""
        if self.base.mean is None or self.now.mean is None:
            return None
        return self.now.mean - self.base.mean

    @property
    def error(self) -> float | None:
        """Of the difference."""
        if self.base.error is None or self.now.error is None:
            return None
        return sqrt(self.base.error**2 + self.now.error**2)

    @property
    def relative(self) -> float | None:
        """The difference as a share of the base; None where the base is nothing."""
        return None if self.difference is None or not self.base.mean else self.difference / self.base.mean

    @property
    def relative_interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the relative change, by the delta method."""
        if self.relative is None or self.base.error is None or self.now.error is None or not self.base.mean:
            return None
        spread = sqrt(self.now.error**2 + ((1 + self.relative) * self.base.error) ** 2) / abs(self.base.mean)
        return self.relative - NORMAL_95 * spread, self.relative + NORMAL_95 * spread

    def is_certain(self, sigmas: float) -> bool:
        """Whether the difference is more than so many of its standard errors."""
        return self.difference is not None and self.error is not None and abs(self.difference) > sigmas * self.error


def clustered_estimate(
    *, observations: int, total: float, clusters: int, squares: float, products: float, squared_sizes: float
) -> Estimate:
    """The estimate from sums over clusters, each of size n and sum s: `squares` of s², `products` of s·n,
    `squared_sizes` of n²."""
    if not observations:
        return Estimate()
    mean = total / observations
    if clusters < 2:
        return Estimate(observations, mean)
    spread = max(squares - 2 * mean * products + mean**2 * squared_sizes, 0.0)
    return Estimate(observations, mean, sqrt(clusters / (clusters - 1) * spread) / observations)
