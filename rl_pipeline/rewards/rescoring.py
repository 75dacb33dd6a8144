"""What a new reward configuration would change, before anything is written.

Two frames of rewards of the same trajectories, under the stored and the proposed configuration, become a plan: who
would enter and leave the dataset (whose filter is a least raw total), how rewards would move, and by which term most.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from rl_pipeline.rewards.normalization import ONE

MOVED = 0.05
"""A raw total that changes by more than this has moved."""

_LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)
_LARGEST = 10
_LISTED = 10
_SAME = 1e-12


@dataclass(frozen=True, slots=True)
class TaskTypeMove:
    """How the rewards of one task type would move."""

    task_type: str
    count: int
    mean_before: float
    mean_after: float
    entering: int
    leaving: int


@dataclass(frozen=True, slots=True)
class Mover:
    """A trajectory whose reward would change by much, and the term that moves it most."""

    trajectory_id: str
    task_type: str
    before: float
    after: float
    term: str
    share: float
    """How much of the change is this term's."""


@dataclass(frozen=True, slots=True)
class RescorePlan:
    """What would change. Trajectories that one side alone has are counted, and not compared."""

    min_reward: float
    compared: int
    only_before: int
    only_after: int
    chosen_before: int
    chosen_after: int
    entering: tuple[str, ...]
    """Those who would enter the dataset, by id."""
    leaving: tuple[str, ...]
    unchanged: int
    moved: int
    """How many raw totals change by more than `MOVED`."""
    mean_before: float | None
    mean_after: float | None
    quantiles: Mapping[float, float]
    """Of the changes; empty where nothing was compared."""
    rank_correlation: float | None
    """Spearman's: 1 where the order stays as it is. None where a side has fewer than two different rewards."""
    task_types: tuple[TaskTypeMove, ...]
    movers: tuple[Mover, ...]
    """The largest moves, the largest first."""

    @property
    def moved_share(self) -> float:
        """The share of the trajectories whose raw total changes by more than `MOVED`."""
        return self.moved / self.compared if self.compared else 0.0

    def table(self) -> str:
        """The plan for the terminal."""
        if not self.compared:
            return "Nothing to compare: no trajectory has rewards under both configurations."
        order = "unknown" if self.rank_correlation is None else f"{self.rank_correlation:.3f}"
        spread = ", ".join(f"{level:.0%} {change:+.3f}" for level, change in self.quantiles.items())
        lines = [
            f"trajectories      {self.compared:,} compared, {self.unchanged:,} unchanged, "
            f"{self.moved:,} ({self.moved_share:.1%}) moved by more than {MOVED}",
            f"dataset           {self.chosen_before:,} -> {self.chosen_after:,} with a raw total of at least "
            f"{self.min_reward:g}: {len(self.entering):,} enter, {len(self.leaving):,} leave",
            f"raw mean          {self.mean_before:.3f} -> {self.mean_after:.3f}",
            f"changes           {spread}",
            f"rank correlation  {order}",
        ]
        if self.only_before or self.only_after:
            lines.append(f"not compared      {self.only_before:,} stored only, {self.only_after:,} proposed only")
        for title, ids in (("entering", self.entering), ("leaving", self.leaving)):
            if ids:
                more = f" and {len(ids) - _LISTED:,} more" if len(ids) > _LISTED else ""
                lines.append(f"{title:<18}{', '.join(ids[:_LISTED])}{more}")
        return "\n".join([*lines, "", *self._task_type_lines(), "", *self._mover_lines()]).rstrip()

    def _task_type_lines(self) -> list[str]:
        lines = [f"{'task type':<28}{'count':>10}{'before':>9}{'after':>9}{'enter':>9}{'leave':>9}"]
        for each in self.task_types:
            lines.append(
                f"{each.task_type[:27]:<28}{each.count:>10,}{each.mean_before:>9.3f}{each.mean_after:>9.3f}"
                f"{each.entering:>9,}{each.leaving:>9,}"
            )
        return lines

    def _mover_lines(self) -> list[str]:
        if not self.movers:
            return []
        lines = [f"{'largest moves':<38}{'before':>9}{'after':>9}  moved most by"]
        for each in self.movers:
            lines.append(
                f"{each.trajectory_id[:37]:<38}{each.before:>9.3f}{each.after:>9.3f}  {each.term} ({each.share:+.3f})"
            )
        return lines


def plan_rescore(before: pl.DataFrame, after: pl.DataFrame, min_reward: float = 0.5) -> RescorePlan:
    """Compare rewards as `score` gives them; of several revisions of a trajectory the newest counts."""
    stored, proposed = _newest(before), _newest(after)
    both = stored.join(proposed, on="trajectory_id", suffix="_after").with_columns(
        change=pl.col("raw_total_after") - pl.col("raw_total"),
        was=pl.col("raw_total") >= min_reward,
        will=pl.col("raw_total_after") >= min_reward,
    )
    both = both.with_columns(entering=pl.col("will") & ~pl.col("was"), leaving=pl.col("was") & ~pl.col("will"))
    size = pl.col("change").abs()
    unchanged, moved = both.select((size <= _SAME).sum().alias("same"), (size > MOVED + _SAME).sum()).row(0)
    return RescorePlan(
        min_reward=min_reward,
        compared=both.height,
        only_before=stored.height - both.height,
        only_after=proposed.height - both.height,
        chosen_before=int(both["was"].sum()),
        chosen_after=int(both["will"].sum()),
        entering=tuple(both.filter("entering")["trajectory_id"].sort()),
        leaving=tuple(both.filter("leaving")["trajectory_id"].sort()),
        unchanged=unchanged,
        moved=moved,
        mean_before=_mean(both["raw_total"]),
        mean_after=_mean(both["raw_total_after"]),
        quantiles=_quantiles(both["change"]),
        rank_correlation=_rank_correlation(both),
        task_types=_task_types(both),
        movers=_movers(both),
    )


def _newest(rewards: pl.DataFrame) -> pl.DataFrame:
    columns = ("trajectory_id", "task_type", "raw_total", "terms", "units", "weights")
    return rewards.sort("revision").unique("trajectory_id", keep="last").select(columns)


def _mean(values: pl.Series) -> float | None:
    return float(values.to_numpy().mean()) if len(values) else None


def _quantiles(changes: pl.Series) -> dict[float, float]:
    found = {level: changes.quantile(level, "linear") for level in _LEVELS}
    return {level: value for level, value in found.items() if value is not None}


def _rank_correlation(both: pl.DataFrame) -> float | None:
    if min(both["raw_total"].n_unique(), both["raw_total_after"].n_unique()) < 2:
        return None
    return float(both.select(pl.corr("raw_total", "raw_total_after", method="spearman")).item())


def _task_types(both: pl.DataFrame) -> tuple[TaskTypeMove, ...]:
    moves = both.group_by("task_type").agg(
        count=pl.len(),
        mean_before=pl.col("raw_total").mean(),
        mean_after=pl.col("raw_total_after").mean(),
        entering=pl.col("entering").sum(),
        leaving=pl.col("leaving").sum(),
    )
    return tuple(TaskTypeMove(**row) for row in moves.sort("task_type").iter_rows(named=True))


def _movers(both: pl.DataFrame) -> tuple[Mover, ...]:
    size = pl.col("change").abs()
    largest = both.filter(size > _SAME).sort(size, "trajectory_id", descending=[True, False]).head(_LARGEST)
    return tuple(_mover(row) for row in largest.iter_rows(named=True))


def _mover(row: Mapping[str, Any]) -> Mover:
    """A term's part in the change: weight · (unit - total before), after less before; the parts sum to the change.

    Against the total before, so that a poor term which loses its weight is what raised the reward.
    """
    before, after = row["raw_total"], row["raw_total_after"]
    parts: dict[str, float] = {}
    for sign, suffix in ((-1.0, ""), (1.0, "_after")):
        lists = (row[f"{name}{suffix}"] for name in ("terms", "units", "weights"))
        for term, unit, weight in zip(*lists, strict=True):
            parts[term] = parts.get(term, 0.0) + sign * weight * (unit / ONE - before)
    direction = 1.0 if after > before else -1.0
    term = max(sorted(parts), key=lambda name: direction * parts[name], default="")
    return Mover(row["trajectory_id"], row["task_type"], before, after, term, parts.get(term, 0.0))
