"""How fast do scores become rewards?

The kernel: 1,000,000 trajectories of 20 task types with 4 terms, from columns in memory in stream order to the raw and
the normalised total (sorting by task type, fixed point, trailing windows of 1,000, z-score, weighted means), on one
core. Against it, in the same run, on the same scores:

- `over_python`: a plain implementation of the specification's formula, one trajectory after the other, with a deque and
  running sums.
- `over_clickhouse`: ClickHouse's window function in this process (chdb), one thread, avg and stddevPop over
  `ROWS BETWEEN 1000 PRECEDING AND 1 PRECEDING`, from an Arrow table in memory.

All are measured in CPU time, the quickest of some rounds. With `--quick` the other two are measured on a fifth of the
rows and scaled: their cost grows with the rows, no more. All totals are compared before any figure is printed.

A full re-score (`rescore_1m_s`): 1,000,000 measured trajectories are stored in the embedded warehouse; after a change
of a term all are read, scored anew and stored, scores and rewards with evidence, credit and shaped turns. Wall time,
since the warehouse is another process. With `--quick` 50,000 are, and the time is scaled.

One trajectory (`p99_ms`, `p99_ms_with_linters`): from the decoded document to its reward, against a history of 1,000
trajectories of its task type, without and with linters on code that nobody has seen before. Wall time.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent.parent))  # for its neighbours, when started as a script

from benchmarks.corpus import realistic_trajectories
from benchmarks.servers import running_front
from rl_pipeline.rewards.computing import compute_rewards
from rl_pipeline.rewards.configuration import DEFAULT_WEIGHTS, RewardConfiguration
from rl_pipeline.rewards.linting import CodeChecker
from rl_pipeline.rewards.normalization import (
    Flags,
    Floats,
    Integers,
    Part,
    applicable_weight,
    fixed_point,
    normalised,
    trailing_windows,
    weighted_mean,
)
from rl_pipeline.rewards.scoring import History, score
from rl_pipeline.rewards.signals import SIGNALS, signals_of_one
from rl_pipeline.rewards.storing import write_signals
from rl_pipeline.rewards.term import TermOptions
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.migrate import migrate

STREAM = "RL_TRAJECTORIES"
WINDOW, LEAST_HISTORY, TASK_TYPES = 1_000, 30, 20
WEIGHTS = dict(sorted(DEFAULT_WEIGHTS.items()))


@dataclass(frozen=True)
class Scored:
    """Unit scores in stream order; NaN where a term does not apply."""

    types: Integers
    units: dict[str, Floats]

    def head(self, count: int) -> "Scored":
        return Scored(self.types[:count], {name: values[:count] for name, values in self.units.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a fifth of the rows for the others, under a minute")
    quick = parser.parse_args().quick
    figures = kernel_figures(quick=quick) | rescore_figures(quick=quick) | latency_figures(quick=quick)
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


def kernel_figures(*, quick: bool) -> dict[str, float]:
    """Normalisation and combination from columns in memory, against Python and ClickHouse."""
    count = 1_000_000
    share = count // 5 if quick else count
    scored = simulated(count)
    some, ours = scored.head(share), rewards_by_the_kernel(scored)
    others: dict[str, Callable[[Scored], Floats]] = {
        "per-row Python": rewards_by_python,
        "ClickHouse window function": rewards_by_clickhouse,
    }
    for name, rewards in others.items():
        check(name, rewards(some), ours[:share])
    kernel = quickest(lambda: rewards_by_the_kernel(scored), rounds=5)
    print(f"{count:,} trajectories x {len(WEIGHTS)} terms, {TASK_TYPES} task types, windows of {WINDOW:,}; CPU time\n")
    print(f"{'':<32}{'seconds':>10}{'over kernel':>14}   measured on")
    print(f"{'kernel':<32}{kernel:>10.2f}{1:>14.0f}   {count:,}")
    over = []
    for name, rewards in others.items():
        seconds = quickest(lambda rewards=rewards: rewards(some), rounds=2) * count / share
        over.append(seconds / kernel)
        print(f"{name:<32}{seconds:>10.2f}{over[-1]:>14.0f}   {share:,}{', scaled' if quick else ''}")
    print()
    return {"kernel_1m_s": kernel, "over_python": over[0], "over_clickhouse": over[1]}


def rescore_figures(*, quick: bool) -> dict[str, float]:
    """A change of a term, from the warehouse and back."""
    count = 50_000 if quick else 1_000_000
    configuration = RewardConfiguration(options=TermOptions(stars="centred"))
    now = datetime.now(UTC)
    with (
        tempfile.TemporaryDirectory() as scratch,
        running_front(Path(scratch)) as url,
        closing(ClickHouseWarehouse.connect(url, "rewards")) as warehouse,
    ):
        migrate(warehouse)
        for start in range(0, count, 100_000):
            write_signals(warehouse, simulated_signals(start, min(100_000, count - start)), now)
        began = time.perf_counter()
        report = compute_rewards(warehouse, stream=STREAM, first=1, last=count, configuration=configuration, now=now)
        seconds = time.perf_counter() - began
        stored = warehouse.query("SELECT count() AS n FROM rewards FINAL")["n"][0]
    if (report.rewards, stored) != (count, count):
        raise SystemExit(f"{stored} of {count} rewards were stored: the figures would mean nothing")
    print(f"re-score of {count:,} stored trajectories: {seconds:.1f} s{', scaled to 1,000,000' if quick else ''}\n")
    return {"rescore_1m_s": seconds * 1_000_000 / count}


def simulated_signals(start: int, count: int) -> pl.DataFrame:
    """Measured trajectories as the table has them, from a place in the stream on."""
    random = np.random.default_rng(start)
    number = pl.int_range(start + 1, start + count + 1, eager=True).alias("sequence").cast(pl.UInt64)
    turns = pl.Series("turns", random.poisson(6, count) + 1)
    calls = random.poisson(4, count)
    lint = np.where(random.random(count) < 1 / 3, random.random(count) * 10, np.nan)
    stars = pl.Series("rating", random.integers(1, 6, count), dtype=pl.UInt8)
    given = pl.Series(random.random(count) < 0.2)
    none = pl.lit([], pl.List(pl.String))
    frame = pl.DataFrame([number, turns, stars]).select(
        pl.lit(default(kind)).cast(kind).alias(name) if name not in ("sequence", "turns") else pl.col(name).cast(kind)
        for name, kind in SIGNALS.items()
    )
    return frame.with_columns(
        ("trajectory-" + number.cast(pl.String)).alias("trajectory_id"),
        pl.lit(STREAM).alias("stream"),
        (pl.lit(datetime(2026, 1, 1, tzinfo=UTC)) + pl.duration(seconds=number.cast(pl.Int64)))
        .cast(SIGNALS["stream_time"])
        .alias("stream_time"),
        pl.Series("task_type", [f"type-{n}" for n in random.integers(0, TASK_TYPES, count)]),
        pl.lit("coding").alias("domain"),
        pl.Series("status", random.choice(["success", "failed"], count, p=[0.7, 0.3])),
        pl.Series("calls", calls, dtype=pl.UInt32),
        pl.Series("distinct_calls", calls, dtype=pl.UInt32),
        pl.Series("failed_calls", random.binomial(calls, 0.1), dtype=pl.UInt32),
        pl.lit(0.0).alias("subtasks_done"),
        pl.Series("seconds", random.lognormal(3, 1, count)),
        pl.Series("tokens", random.lognormal(7, 1, count).astype(np.uint64)),
        pl.Series("lint_score", lint).fill_nan(None),
        pl.Series("code_snippets", ~np.isnan(lint)).cast(pl.UInt32),
        pl.when(given).then(pl.lit(["stars"])).otherwise(none).alias("feedback_kinds"),
        pl.when(given).then(pl.concat_list(stars)).otherwise(pl.lit([], pl.List(pl.UInt8))).alias("feedback_ratings"),
        pl.when(given).then(pl.lit(["somebody"])).otherwise(none).alias("feedback_users"),
        pl.lit(["main", "helper"]).alias("agents"),
        pl.lit([0.75, 0.25]).alias("credit_shares"),
        pl.lit([0.5, 0.0]).alias("sole_shares"),
        pl.Series("turn_potentials", [[0.5 * n / (n + 1) for n in range(1, m)] + [0.0] for m in turns]),
    )


def default(kind: pl.DataType) -> object:
    """A value that says nothing."""
    if isinstance(kind, pl.List):
        return []
    return "" if kind == pl.String else False if kind == pl.Boolean else None if kind == pl.Float64 else 0


def latency_figures(*, quick: bool) -> dict[str, float]:
    """From a decoded document to its reward."""
    count = 300 if quick else 2_000
    configuration = RewardConfiguration()
    documents = [
        {**one, "task_context": {**one["task_context"], "task_type": "one"}} for one in realistic_trajectories(count, 5)
    ]
    known = simulated_signals(0, 1_000).with_columns(pl.lit("one").alias("task_type"), revision=pl.lit(0, pl.UInt32))
    history = History.empty().extended(known, score(known, History.empty(), configuration), configuration)

    def quantile(checker: CodeChecker | None, some: list[dict[str, Any]]) -> float:
        took = []
        revision = pl.Series("revision", [0], dtype=pl.UInt32)
        for place, document in enumerate(some, start=2_000):
            began = time.perf_counter()
            row = signals_of_one(document, checker, {"sequence": place})
            score(pl.DataFrame([row], SIGNALS).hstack([revision]), history, configuration)
            took.append(time.perf_counter() - began)
        return 1000 * float(np.quantile(took[10:], 0.99))

    plain = quantile(None, documents)
    for number, document in enumerate(documents):
        code = f"def answer_{number}(values):\n    return [value * {number} for value in values]\n"
        document["turns"][-1]["action"] = {
            "type": "tool_call",
            "tool_name": "code_exe",
            "tool_args": {"runtime": "python", "code": code},
        }
    linted = quantile(CodeChecker(), documents[: count // 2])
    print(f"one trajectory, 99 of 100 within: {plain:.1f} ms, with linters on new code {linted:.1f} ms\n")
    return {"p99_ms": plain, "p99_ms_with_linters": linted}


def simulated(count: int) -> Scored:
    """Completion mostly 0 or 1, efficiency around 0.5, code in a third of them, feedback mostly neutral."""
    random = np.random.default_rng(11)
    code = np.where(random.random(count) < 1 / 3, random.random(count), np.nan)
    return Scored(
        random.integers(0, TASK_TYPES, count),
        {
            "code_quality": code,
            "efficiency": np.clip(random.normal(0.5, 0.2, count), 0, 1),
            "task_completion": (random.random(count) < 0.7) * (1 - 0.1 * random.random(count)),
            "user_feedback": np.where(random.random(count) < 0.3, random.integers(0, 6, count) / 5, 0.5),
        },
    )


def rewards_by_the_kernel(scored: Scored) -> Floats:
    """The normalised totals, in stream order; the raw ones are computed too."""
    order = np.argsort(scored.types.astype(np.int16), kind="stable")
    types = scored.types[order]
    starts = np.searchsorted(types, np.arange(TASK_TYPES))[types]
    raw, levels = [], []
    for name, weight in WEIGHTS.items():
        units = scored.units[name][order]
        applies: Flags = ~np.isnan(units)
        fixed = fixed_point(np.where(applies, units, 0.0))
        windows = trailing_windows(fixed, applies, starts, WINDOW)
        raw.append(Part(weight, units, applies))
        levels.append(Part(weight, normalised(fixed, windows, "z-score", LEAST_HISTORY), applies))
    weight_of_rows = applicable_weight(raw, len(order))
    weighted_mean(raw, weight_of_rows)
    totals = np.empty(len(order))
    totals[order] = weighted_mean(levels, weight_of_rows)
    return totals


def rewards_by_python(scored: Scored) -> Floats:
    """z = (score - mean) / std over the trailing window, normalised = (z + 2) / 4, and the weighted sum, row by row."""
    windows = {(t, name): (deque(), [0.0, 0.0]) for t in range(TASK_TYPES) for name in WEIGHTS}
    columns = [scored.units[name].tolist() for name in WEIGHTS]
    totals = []
    for task_type, *scores in zip(scored.types.tolist(), *columns, strict=True):
        total = raw_total = weights = 0.0
        for (name, weight), unit in zip(WEIGHTS.items(), scores, strict=True):
            if math.isnan(unit):
                continue
            window, sums = windows[task_type, name]
            level, count = 0.5, len(window)
            if count >= LEAST_HISTORY:
                mean = sums[0] / count
                variance = sums[1] / count - mean * mean
                # A running sum of floats is never quite 0: a variance below that is none.
                z_score = (unit - mean) / math.sqrt(variance) if variance > 1e-12 else math.copysign(2, unit - mean)
                level = min(1.0, max(0.0, (z_score + 2.0) / 4.0))
            total += weight * level
            raw_total += weight * unit
            weights += weight
            window.append(unit)
            sums[0] += unit
            sums[1] += unit * unit
            if len(window) > WINDOW:
                gone = window.popleft()
                sums[0] -= gone
                sums[1] -= gone * gone
        totals.append(total / weights)
    return np.array(totals)


def rewards_by_clickhouse(scored: Scored) -> Floats:
    """The same in SQL; a score that does not apply is not in a window, so each term has a window of its own rows."""
    import chdb

    table = pa.table({"type": scored.types, "sequence": np.arange(len(scored.types)), **scored.units})  # noqa: F841 (Python() finds it by its name)
    level = f"if(n < {LEAST_HISTORY}, 0.5, greatest(0., least(1., ((score - mean) / std + 2) / 4)))"
    terms = " UNION ALL ".join(
        f"""SELECT sequence, {weight} AS weight, {weight} * {level} AS part, {weight} * score AS raw FROM (
            SELECT sequence, {name} AS score,
                count() OVER w AS n, avg({name}) OVER w AS mean, stddevPop({name}) OVER w AS std
            FROM Python(table) WHERE NOT isNaN({name})
            WINDOW w AS (PARTITION BY type ORDER BY sequence ROWS BETWEEN {WINDOW} PRECEDING AND 1 PRECEDING))"""
        for name, weight in WEIGHTS.items()
    )
    sql = f"""SELECT sequence, sum(part) / sum(weight) AS total, sum(raw) / sum(weight) AS raw_total FROM ({terms})
        GROUP BY sequence ORDER BY sequence SETTINGS max_threads = 1"""
    found = pl.from_arrow(pa.ipc.open_stream(chdb.query(sql, "ArrowStream").bytes()).read_all())
    return found["total"].to_numpy()


def check(name: str, totals: Floats, ours: Floats) -> None:
    """Two implementations that disagree cannot be compared."""
    difference = float(np.abs(totals - ours).max())
    if len(totals) != len(ours) or not difference < 1e-5:
        raise SystemExit(f"{name} gives other rewards ({difference:g} apart): the figures would mean nothing")


def quickest(work: Callable[[], object], rounds: int) -> float:
    """CPU seconds of the quickest of some rounds."""
    seconds = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        seconds.append(time.process_time() - began)
    return min(seconds)


if __name__ == "__main__":
    main()
