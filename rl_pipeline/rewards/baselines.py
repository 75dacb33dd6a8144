"""What is usual for a task type: the standard that efficiency is measured against.

The trajectory at position k of its task type, in stream order, is compared with the first min(k, 200) of the type: the
standard is frozen after 200, so it does not forget what good was, and it is the same for every model version. Only
first revisions that were not late count. Sums are integers: any batching gives the same bits.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl

from rl_pipeline.rewards.normalization import ONE, Floats, Integers

LARGEST_BASELINE = 1_000
"""The squares of so many values, each at its bound, sum to less than 2⁶³."""
_MOST_TURNS = 1 << 26
_MOST_LOG = 60.0
_UNKNOWN = -1

_UNITS = {"turns": 1, "log_seconds": ONE, "log_tokens": ONE}
BASELINE_COLUMNS = tuple(f"usual_{part}{suffix}" for part in _UNITS for suffix in ("", "_std"))


@dataclass(frozen=True)
class Standard:
    """The first trajectories of one task type, in stream order, and what was usual among them."""

    sequences: Integers
    parts: Mapping[str, Integers]
    """Turns, and in multiples of 2⁻²⁰ log(1 + seconds) and log(1 + tokens); -1 where unknown."""

    @classmethod
    def empty(cls) -> "Standard":
        """That of a task type that was never seen."""
        return cls(np.zeros(0, np.int64), {part: np.zeros(0, np.int64) for part in _UNITS})

    def joined_by(self, sequences: Integers, parts: Mapping[str, Integers], size: int) -> "Standard":
        """The first `size` of these and those; of two with one sequence the new one counts."""
        if len(self.sequences) >= size and sequences.min(initial=self.sequences[-1] + 1) > self.sequences[-1]:
            return self
        kept = ~np.isin(self.sequences, sequences)
        together = np.concatenate([self.sequences[kept], sequences])
        order = np.argsort(together, kind="stable")[:size]
        return Standard(
            together[order],
            {part: np.concatenate([values[kept], parts[part]])[order] for part, values in self.parts.items()},
        )

    @cached_property
    def usual(self) -> dict[str, tuple[Integers, Floats, Floats]]:
        """For each part, at position k: how many of the first k are known, their mean, and their deviation."""
        return {part: _usual(values, _UNITS[part]) for part, values in self.parts.items()}


def measured_parts(signals: pl.DataFrame) -> dict[str, Integers]:
    """Turns, log(1 + seconds) and log(1 + tokens) of each row, as a `Standard` has them."""

    def logarithm(column: str) -> Integers:
        values = np.clip(np.log1p(signals[column].cast(pl.Float64).to_numpy()), 0.0, _MOST_LOG)
        return np.where(np.isnan(values), _UNKNOWN, np.rint(np.nan_to_num(values) * ONE)).astype(np.int64)

    return {
        "turns": np.clip(signals["turns"].to_numpy().astype(np.int64), 0, _MOST_TURNS),
        "log_seconds": logarithm("seconds"),
        "log_tokens": logarithm("tokens"),
    }


def baseline_columns(
    sequences: Integers, rows_of_types: Mapping[str, Integers], standards: Mapping[str, Standard], least: int
) -> list[pl.Series]:
    """The columns `usual_turns`, `usual_turns_std` and so on; null where fewer than `least` values are known.

    `rows_of_types` has the places of each task type's rows. A row is compared with those of its standard that have a
    smaller sequence, so the standard may hold the row itself and later ones.
    """
    columns = {name: np.full(len(sequences), np.nan) for name in BASELINE_COLUMNS}
    for task_type, rows in rows_of_types.items():
        standard = standards[task_type]
        position = np.searchsorted(standard.sequences, sequences[rows], side="left")
        for part, (counts, means, deviations) in standard.usual.items():
            known = counts[position] >= least
            columns[f"usual_{part}"][rows] = np.where(known, means[position], np.nan)
            columns[f"usual_{part}_std"][rows] = np.where(known, deviations[position], np.nan)
    return [pl.Series(name, values, nan_to_null=True) for name, values in columns.items()]


def _usual(values: Integers, unit: int) -> tuple[Integers, Floats, Floats]:
    known = values != _UNKNOWN
    present = np.where(known, values, 0)
    counts, sums, squares = (np.concatenate([[0], np.cumsum(column)]) for column in (known, present, present * present))
    # Products of whole numbers without a bound: the difference is small and its terms are not.
    spreads = counts.astype(object) * squares.astype(object) - sums.astype(object) ** 2
    scale = np.maximum(counts, 1) * float(unit)
    return counts, sums / scale, np.sqrt(spreads.astype(np.float64)) / scale
