"""What scores on the same items say about a difference: three outcomes, a few planned looks, families of items.

A difference is FAIL when its mean is at most -0.05 and differs from 0 with a two-sided p below 0.05, PASS when its
one-sided lower bound is above -0.05, else INCONCLUSIVE. To fail whoever is 0.05 worse on the point alone would block an
equal model in every fifth comparison of 50 items.

A floor of safety has no such margin: FAIL is to be surely below it, PASS to be surely not.

- **Families.** Items of one family stand or fall together, so the error is that of the families: the cluster-robust
  estimator CR2 of the mean, with the degrees of freedom of Bell and McCaffrey (2002), and Student's t.
- **Few items.** Two made-up items, one at each end of the range, join the others, as Bonett and Price (2012) do for
  paired proportions: 20 items without any difference prove little, and their plain error would be zero.
- **Looks.** More items are drawn while the outcome is open. By each look the error is spent up to the square of its
  share of the items (Kim and DeMets, 1987), and added up over the looks (Bonferroni): to look early costs little power,
  and never truth.
- **Suites.** One FAIL is enough to refuse a model: failures are found by Holm's procedure over all suites of a look. A
  PASS takes all suites at once, which needs no correction (an intersection-union test).
"""

from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special  # type: ignore[import-untyped]  # ships no types

Outcome = Literal["PASS", "FAIL", "INCONCLUSIVE"]
K = TypeVar("K", bound=Hashable)

MARGIN = 0.05
"""A loss so large matters."""
ALPHA = 0.05
"""How often an equal model may fail over all looks and suites, and a model at the margin pass."""
FEWEST_FAMILIES = 5


@dataclass(frozen=True, slots=True)
class Estimate:
    """The mean of differences, and how well it is known."""

    count: int
    families: int
    mean: float
    """Of the items themselves."""
    centre: float
    """Of the items and the two made-up ones: the middle of all intervals."""
    standard_error: float
    degrees_of_freedom: float

    def lower(self, alpha: float) -> float:
        """The one-sided lower bound that is too high with probability `alpha`."""
        return self.centre - _quantile(1 - alpha, self.degrees_of_freedom) * self.standard_error

    def upper(self, alpha: float) -> float:
        """The one-sided upper bound that is too low with probability `alpha`."""
        return self.centre + _quantile(1 - alpha, self.degrees_of_freedom) * self.standard_error

    @property
    def p_value(self) -> float:
        """How likely a mean so far from 0 on either side would be if the true one were 0."""
        return float(2 * special.stdtr(self.degrees_of_freedom, -abs(self.centre) / self.standard_error))


def estimate(values: Sequence[float], families: Sequence[str], *, low: float = -1.0, high: float = 1.0) -> Estimate:
    """The mean of `values`, each of which lies within `low` and `high` and belongs to a family."""
    if not values or len(values) != len(families):
        raise ValueError("there should be values, and a family for each")
    observed = np.asarray([*values, low, high], dtype=float)
    _, family_of = np.unique(np.asarray(families), return_inverse=True)
    count_of_families = int(family_of.max()) + 1
    members = np.concatenate([family_of, [count_of_families, count_of_families + 1]])
    sizes = np.bincount(members).astype(float)
    total, centre = float(sizes.sum()), float(observed.mean())
    sums = np.bincount(members, weights=observed - centre)
    variance = float(np.sum(sums**2 / (1 - sizes / total))) / total**2
    return Estimate(
        count=len(values),
        families=count_of_families,
        mean=float(np.mean(values)),
        centre=centre,
        standard_error=float(np.sqrt(variance)),
        degrees_of_freedom=_degrees_of_freedom(sizes),
    )


def _quantile(probability: float, degrees_of_freedom: float) -> float:
    """Of Student's t."""
    return float(special.stdtrit(degrees_of_freedom, probability))


def _degrees_of_freedom(sizes: NDArray[np.float64]) -> float:
    """Bell and McCaffrey's, for a mean: (tr W)^2 / tr W^2, W being how the families' squared sums vary together."""
    total = sizes.sum()
    scale = 1 / np.sqrt(1 - sizes / total)
    together = (np.diag(sizes) - np.outer(sizes, sizes) / total) * np.outer(scale, scale)
    return float(np.trace(together) ** 2 / np.sum(together**2))


def judge(
    estimates: Mapping[K, Estimate], alpha: float, *, tests: int | None = None, strict: Collection[K] = ()
) -> dict[K, Outcome]:
    """The outcome of each suite at one look, which may spend `alpha`; those in `strict` have no margin.

    `tests` counts suites that ended before, too.
    """
    margins = {name: 0.0 if name in strict else MARGIN for name in estimates}
    failed = {
        name for name in _different(estimates, alpha, tests or len(estimates)) if estimates[name].mean <= -margins[name]
    }
    outcomes: dict[K, Outcome] = {}
    for name, found in estimates.items():
        if name in failed:
            outcomes[name] = "FAIL"
        elif found.families >= FEWEST_FAMILIES and found.lower(alpha) > -margins[name]:
            outcomes[name] = "PASS"
        else:
            outcomes[name] = "INCONCLUSIVE"
    return outcomes


def _different(estimates: Mapping[K, Estimate], alpha: float, tests: int) -> set[K]:
    """Those that differ from 0 by Holm's procedure."""
    different: set[K] = set()
    ordered = sorted(estimates, key=lambda name: estimates[name].p_value)
    for rank, name in enumerate(ordered):
        if estimates[name].p_value >= alpha / (tests - rank):
            break
        different.add(name)
    return different


def spending(sizes: Sequence[int], alpha: float = ALPHA) -> list[float]:
    """What each look may spend, when after it so many items have been drawn in all."""
    if not sizes or any(after <= before for before, after in pairwise((0, *sizes))):
        raise ValueError("the sizes of looks should be positive and grow")
    spent = [alpha * (size / sizes[-1]) ** 2 for size in (0, *sizes)]
    return [after - before for before, after in pairwise(spent)]


def combined(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of several independent means, each with the same weight."""
    variances = np.asarray([one.standard_error**2 for one in estimates])
    freedoms = np.asarray([one.degrees_of_freedom for one in estimates])
    count = len(estimates)
    return Estimate(
        count=sum(one.count for one in estimates),
        families=sum(one.families for one in estimates),
        mean=float(np.mean([one.mean for one in estimates])),
        centre=float(np.mean([one.centre for one in estimates])),
        standard_error=float(np.sqrt(variances.sum())) / count,
        degrees_of_freedom=float(variances.sum() ** 2 / np.sum(variances**2 / freedoms)),
    )
