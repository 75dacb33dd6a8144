"""What must hold of a dataset before anything learns from it. Pure functions; answers are counts, and 0 is good."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import polars as pl

from rl_pipeline.curation.candidates import LONG_OPENING
from rl_pipeline.curation.likeness import near_pairs
from rl_pipeline.redaction.residual import residual_findings


@dataclass(frozen=True)
class Leakage:
    """What train and holdout have in common."""

    tasks: int
    """Tasks that are on both sides."""
    openings: int
    """Long requests that are on both sides."""
    near_copies: int
    """Pairs of near copies with one on each side."""

    @property
    def total(self) -> int:
        """0 if nothing leaks."""
        return self.tasks + self.openings + self.near_copies


def leakage(rows: pl.DataFrame) -> Leakage:
    """What the two sides of a split have in common."""
    sides = rows["split"].to_list()
    return Leakage(
        tasks=_on_both_sides(rows, "task"),
        openings=_on_both_sides(rows.filter(pl.col("asked") >= LONG_OPENING), "opening"),
        near_copies=sum(sides[one] != sides[other] for one, other in near_pairs(rows)),
    )


def missing_domains(quotas: Mapping[str, int], kept: Mapping[str, int]) -> tuple[str, ...]:
    """The domains that should be there and are not."""
    return tuple(sorted(domain for domain, quota in quotas.items() if quota and not kept.get(domain)))


def residual_secrets(
    messages: Iterable[str], allowed: Collection[str] = frozenset(), tolerated: Collection[str] = frozenset()
) -> Counter[str]:
    """How many sensitive values of each kind are left in messages, as JSON."""
    found: Counter[str] = Counter()
    for text in messages:
        found.update(residual_findings(text, allowed))
    return Counter({kind: count for kind, count in found.items() if kind not in tolerated})


def _on_both_sides(rows: pl.DataFrame, column: str) -> int:
    sides = rows.group_by(column).agg(pl.col("split").n_unique())
    return sides.filter(pl.col("split") > 1).height
