"""Simulated trajectories as frames of signals, by the thousand; a term that reads a column; and the bits of a frame."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import polars as pl

from rl_pipeline.rewards.baselines import BASELINE_COLUMNS
from rl_pipeline.rewards.term import Source, TermOptions
from rl_pipeline_tests.rewards.frames import SCHEMA, term_batch

NOON = datetime(2025, 12, 8, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Column:
    """A term whose score stands in a column of its own name."""

    name: str
    low: float = 0.0
    high: float = 1.0
    source: Source = "automated"
    version: int = 1
    evidence: str = "as simulated"

    def score(self, batch: pl.DataFrame, options: TermOptions) -> pl.DataFrame:  # noqa: ARG002 (a term's signature)
        return batch.select(pl.col(self.name).cast(pl.Float64).alias("score"), pl.lit(self.evidence).alias("evidence"))


def signals_with(count: int, **columns: object) -> pl.DataFrame:
    """So many rows of signals of revision 0 in stream order, with these columns; every other one has its default."""
    rows = term_batch({})[np.zeros(count, int)].drop(BASELINE_COLUMNS)
    numbers = pl.int_range(1, count + 1, dtype=pl.UInt64, eager=True)
    placed = rows.with_columns(
        numbers.alias("sequence"), ("trajectory-" + numbers.cast(pl.String)).alias("trajectory_id"), revision=pl.lit(0)
    )
    return placed.with_columns(pl.Series(n, v, dtype=SCHEMA.get(n), strict=False) for n, v in columns.items())


def simulated_signals(count: int, seed: int, success: float = 0.7, task_types: int = 4) -> pl.DataFrame:
    """Trajectories a minute apart; a share of them with code, tokens, feedback and two agents."""
    random = np.random.default_rng(seed)
    turns = random.poisson(6, count) + 1
    calls = random.poisson(4, count)
    share = random.random(count)
    return signals_with(
        count,
        stream_time=[NOON + timedelta(minutes=n) for n in range(count)],
        task_type=[f"type-{n}" for n in random.integers(0, task_types, count)],
        status=random.choice(["success", "failed"], count, p=[success, 1 - success]),
        turns=turns,
        calls=calls,
        distinct_calls=calls,
        failed_calls=random.binomial(calls, 0.1),
        redundant_calls=random.binomial(calls, 0.05),
        seconds=random.lognormal(3, 1, count),
        tokens=[int(n) if s < 0.5 else None for n, s in zip(random.lognormal(7, 1, count), share, strict=True)],
        code_snippets=share < 0.3,
        lint_score=[10 * n if s < 0.3 else None for n, s in zip(random.random(count), share, strict=True)],
        feedback_kinds=[["stars"] if s > 0.7 else [] for s in share],
        feedback_ratings=[[n] if s > 0.7 else [] for n, s in zip(random.integers(1, 6, count), share, strict=True)],
        feedback_users=[["somebody"] if s > 0.7 else [] for s in share],
        agents=[["main", "helper"] if s > 0.9 else ["main"] for s in share],
        credit_shares=[[0.75, 0.25] if s > 0.9 else [1.0] for s in share],
        sole_shares=[[0.5, 0.0] if s > 0.9 else [1.0] for s in share],
        turn_potentials=[[0.5 * n / m for n in range(1, m)] + [0.0] for m in turns.tolist()],
    )


def bits(frame: pl.DataFrame) -> dict[str, object]:
    """What a frame holds, floats as their bits: -0.0 is not 0.0 here, and the next float is another."""
    return {column.name: _bits(column) for column in frame}


def _bits(column: pl.Series) -> object:
    if isinstance(column.dtype, pl.List):
        return column.list.len().to_list(), _bits(column.explode(empty_as_null=False, keep_nulls=False))
    return column.to_numpy().tobytes() if column.dtype == pl.Float64 else column.to_list()
