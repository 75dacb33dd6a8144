"""Scores of different terms on one scale, and their weighted mean: the arithmetic, on columns, and nothing else.

A score is compared with the trailing window of its term and task type. The sums over a window are integers (unit scores
in fixed point), so they are exact, and everything after them is done row by row: the result for a row does not depend
on which other rows were computed with it. Which rows there are and in which order is the caller's matter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Method: TypeAlias = Literal["z-score", "min-max", "none"]
Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Flags: TypeAlias = NDArray[np.bool_]

ONE = 1 << 20
"""1.0 in fixed point."""
LONGEST_WINDOW = 5_000
"""n²·variance of so many unit scores is below 2⁶³, and so exact."""


def fixed_point(values: Floats) -> Integers:
    """The values as multiples of 2⁻²⁰."""
    return np.rint(values * ONE).astype(np.int64)


@dataclass(frozen=True)
class Windows:
    """The trailing window of each row for one term: the entering values from `first` up to, not including, `end`."""

    values: Integers
    first: Integers
    end: Integers

    @cached_property
    def counts(self) -> Integers:
        return self.end - self.first

    @cached_property
    def sums(self) -> Integers:
        return self._sums_of(self.values)

    @cached_property
    def spreads(self) -> Integers:
        """n·Σq² - (Σq)², which is n²·variance. Sums that wrap around 2⁶⁴ on the way cancel in the end."""
        spreads = self._sums_of(self.values * self.values)
        spreads *= self.counts
        spreads -= self.sums * self.sums
        return spreads

    @property
    def means(self) -> Floats:
        """Mean unit score; 0 for an empty window."""
        means: Floats = self.sums / (np.maximum(self.counts, 1) * ONE)
        return means

    @property
    def deviations(self) -> Floats:
        """Standard deviation of the unit scores (of the window itself, not an estimate beyond it)."""
        deviations: Floats = np.sqrt(self.spreads) / (np.maximum(self.counts, 1) * ONE)
        return deviations

    def extremes(self) -> tuple[Integers, Integers]:
        """The least and the greatest value of each window; 0 for an empty one.

        A window of 2ᵏ to 2ᵏ⁺¹ values is covered by two spans of 2ᵏ, of which one begins where it begins and one ends
        where it ends; the extremes of all spans come from those of half the length.
        """
        least, greatest = np.zeros_like(self.counts), np.zeros_like(self.counts)
        low, high = self.values, self.values
        length, longest = 1, int(self.counts.max(initial=0))
        while length <= longest:
            rows = np.flatnonzero((self.counts >= length) & (self.counts < 2 * length))
            begins, ends = self.first[rows], self.end[rows] - length
            least[rows] = np.minimum(low[begins], low[ends])
            greatest[rows] = np.maximum(high[begins], high[ends])
            low, high = np.minimum(low[:-length], low[length:]), np.maximum(high[:-length], high[length:])
            length *= 2
        return least, greatest

    def _sums_of(self, values: Integers) -> Integers:
        until = np.zeros(len(values) + 1, np.int64)
        np.cumsum(values, out=until[1:])
        sums = until[self.end]
        sums -= until[self.first]
        return sums


def trailing_windows(units: Integers, enters: Flags, starts: Integers, window: int) -> Windows:
    """The window of each row: the last `window` entering values before it, of its own task type.

    Rows are sorted by task type and sequence. `starts` has, for each row, the first row of its task type. `enters`:
    the row's value is part of the windows of later rows. A row that does not enter (a later revision, for which the
    trajectory's own first value is no history either) stands before the entering row of the same sequence.
    """
    end = np.cumsum(enters, dtype=np.int64)
    end -= enters
    first = np.maximum(end - window, end[starts])
    return Windows(units[enters], first, end)


def normalised(units: Integers, windows: Windows, method: Literal["z-score", "min-max"], least_history: int) -> Floats:
    """Each unit score within its window, as a number from 0 to 1.

    z-score: `(z + 2) / 4` with z = (q - mean)/std, clipped. min-max: `(q - min) / (max - min)`, clipped. Where all
    values of the window are equal: 0.5 at that value, else 0 or 1 by side. Fewer than `least_history` values: 0.5.
    """
    if method == "z-score":
        distance = units * windows.counts - windows.sums
        with np.errstate(divide="ignore", invalid="ignore"):
            result = distance / np.sqrt(windows.spreads)
        result += 2.0
        result /= 4.0
        flat = windows.spreads == 0
    else:
        least, greatest = windows.extremes()
        distance = units - least
        with np.errstate(divide="ignore", invalid="ignore"):
            result = distance / (greatest - least)
        flat = greatest == least
    np.clip(result, 0.0, 1.0, out=result)
    result[flat] = (np.sign(distance[flat]) + 1) / 2
    result[windows.counts < least_history] = 0.5
    return result


@dataclass(frozen=True)
class Part:
    """One term's share in a total: its value for each row, and whether it applies to the row at all."""

    weight: float
    values: Floats
    applies: Flags


def applicable_weight(parts: Sequence[Part], rows: int) -> Floats:
    """The sum of the weights that apply to each row, added in the order given."""
    total = np.zeros(rows)
    for part in parts:
        total += part.weight * part.applies
    return total


def weighted_mean(parts: Sequence[Part], weight: Floats) -> Floats:
    """Σ wᵢ·valueᵢ / Σ wᵢ over the parts that apply, added in the order given; 0.5 where none does.

    Rounded to 12 decimals, so that a total which is 0.83 on paper is 0.83. Rounding is monotonic: values within [0, 1]
    have a mean within [0, 1], to the bit.
    """
    total = np.zeros(len(weight))
    for part in parts:
        total += part.weight * np.where(part.applies, part.values, 0.0)
    mean = np.full(len(weight), 0.5)
    np.divide(total, weight, out=mean, where=weight > 0)
    return np.round(mean, 12)
