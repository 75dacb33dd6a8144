"""From signals to rewards: terms score a batch, and scores are compared with what came before and combined.

Order is the stream's sequence, and only first revisions that were not late are history for others. So a batch may be
any share of the trajectories up to the watermark: as long as `History` has what came before, the bits are the same.
One trajectory must be scored in milliseconds: what is done for each batch is done in numpy, and Polars is asked seldom.
"""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from rl_pipeline.errors import PipelineError
from rl_pipeline.rewards.baselines import Standard, baseline_columns, measured_parts
from rl_pipeline.rewards.configuration import CreditMethod, RewardConfiguration
from rl_pipeline.rewards.normalization import (
    Flags,
    Floats,
    Integers,
    Part,
    Windows,
    applicable_weight,
    fixed_point,
    normalised,
    trailing_windows,
    weighted_mean,
)
from rl_pipeline.rewards.shaping import scaled_lists, shaped_reward_lists
from rl_pipeline.rewards.term import NEUTRAL, Term, TermError, TermOptions, score_of

_REWARD_IDS = uuid.UUID("5a2f7c1e-7d0b-5e7f-9b0a-6f1f4b8f3c11")
_ABSENT = -1
_SHARES: Mapping[CreditMethod, str] = {"shapley": "credit_shares", "difference": "sole_shares"}


class HistoryTooShort(PipelineError):
    """The history begins after what should be scored."""


class RepeatedSequence(PipelineError):
    """Two trajectories of a batch claim the same place in the stream."""


@dataclass(frozen=True)
class Earlier:
    """Unit scores of one task type in fixed point, in stream order; -1 where a term did not apply."""

    sequences: Integers
    units: Mapping[str, Integers]

    @classmethod
    def empty(cls) -> "Earlier":
        """That of a task type that was never scored."""
        return cls(np.zeros(0, np.int64), {})

    def of(self, term: str) -> Integers:
        """The unit scores of one term."""
        return self.units.get(term, np.full(len(self.sequences), _ABSENT))

    def without(self, sequences: Integers) -> "Earlier":
        """What is left when these sequences are taken out."""
        return self.where(~np.isin(self.sequences, sequences))

    def followed_by(self, other: "Earlier", window: int) -> "Earlier":
        """Both together; of each term the last `window` values are kept. The other's count where both have some."""
        before = self.without(other.sequences)
        sequences = np.concatenate([before.sequences, other.sequences])
        order = np.argsort(sequences, kind="stable")
        terms = sorted({*before.units, *other.units})
        units = {term: np.concatenate([before.of(term), other.of(term)])[order] for term in terms}
        needed = np.zeros(len(sequences), bool)
        for values in units.values():
            known = values != _ABSENT
            needed |= known & (np.cumsum(known[::-1])[::-1] <= window)
        return Earlier(sequences[order], units).where(needed)

    def where(self, chosen: Flags) -> "Earlier":
        """The chosen rows."""
        return Earlier(self.sequences[chosen], {term: values[chosen] for term, values in self.units.items()})


@dataclass(frozen=True)
class History:
    """What trajectories are compared with, by task type: earlier unit scores, and the first trajectories."""

    earlier: Mapping[str, Earlier]
    standards: Mapping[str, Standard]
    first: int = 0
    """The smallest sequence whose windows are complete here."""

    @classmethod
    def empty(cls) -> "History":
        """The history of a pipeline that has scored nothing."""
        return cls({}, {})

    @classmethod
    def stored(cls, scores: pl.DataFrame, signals: pl.DataFrame, first: int = 0) -> "History":
        """The history from what the warehouse has of revision 0 and not late, in any order.

        `scores` (from `reward_scores`, of one `scores_hash`): task_type, sequence, terms List(String), units
        List(Int32). Of each task type and term at least the last `window` rows before `first`, and all from there on
        that lie before what is to be scored. `signals` (from `trajectory_signals`): task_type, sequence, turns,
        seconds, tokens, of at least the first `baseline` rows of each task type.
        """
        nothing = Earlier.empty()
        earlier = {name: nothing.followed_by(rows, len(rows.sequences)) for name, rows in _earlier(scores).items()}
        return cls(earlier, _standards({}, signals, signals.height), first)

    def extended(self, batch: pl.DataFrame, scored: pl.DataFrame, configuration: RewardConfiguration) -> "History":
        """The history for what comes after the batch, given what `score` made of it. What is no longer needed goes."""
        enters = pl.Series(_enters(batch))
        entered = batch.filter(enters)
        if entered.is_empty():
            return self
        new = _earlier(scored.filter(enters))
        nothing = Earlier.empty()
        extended = {n: self.earlier.get(n, nothing).followed_by(rows, configuration.window) for n, rows in new.items()}
        return History(
            {**self.earlier, **extended},
            _standards(self.standards, entered, configuration.baseline),
            max(self.first, int(_sequences(entered).max()) + 1),
        )


@dataclass(frozen=True)
class _Judged:
    """What one term said of each row of a batch."""

    name: str
    weight: float
    scores: Floats
    evidence: pa.Array
    applies: Flags
    units: Floats
    fixed: Integers
    broken: Flags
    """Of a constraint: where it takes the whole reward."""


def score(batch: pl.DataFrame, history: History, configuration: RewardConfiguration) -> pl.DataFrame:
    """The reward of each row of the batch, in its order.

    `batch`: signals, the column `revision`, and in the feedback columns what was in force for that revision (see
    `revisions`). `total` is the weighted mean of the normalised terms, `raw_total` that of the unit scores; terms that
    do not apply leave their weight to the others, and where none applies both are 0.5 with a confidence of 0. Where a
    constraint is broken both are 0, and with them credits and turns; it has no part in anything else.
    `cold_start`: a term had fewer than `least_history` earlier values, and counts as 0.5.
    """
    sequences, enters, rows_of_types = _sequences(batch), _enters(batch), _rows_of_types(batch["task_type"])
    _check(sequences, enters, history)
    entering = batch if enters.all() else batch.filter(pl.Series(enters))
    standards = _standards(history.standards, entering, configuration.baseline)
    standards = {name: standards.get(name, Standard.empty()) for name in rows_of_types}
    usual = baseline_columns(sequences, rows_of_types, standards, configuration.least_history)
    measured = batch.hstack(usual)
    judged = [_judge(t, configuration.weights[t.name], measured, configuration.options) for t in configuration.terms]
    judged += [_judge(t, None, measured, configuration.options) for t in configuration.vetoes]
    windows = _windows(sequences, enters, rows_of_types, history, judged, window=configuration.window)
    return _rewards(batch, judged, windows, configuration)


def reward_id(trajectory_id: str, configuration: str, revision: int) -> str:
    """The id of a reward: the same for the same trajectory, configuration and revision."""
    return str(uuid.uuid5(_REWARD_IDS, f"{trajectory_id}|{configuration}|{revision}"))


def _enters(batch: pl.DataFrame) -> Flags:
    """Whether each row is history for others."""
    enters: Flags = (batch["revision"].to_numpy() == 0) & ~batch["is_late"].to_numpy()
    return enters


def _sequences(rows: pl.DataFrame) -> Integers:
    return rows["sequence"].to_numpy().astype(np.int64)


def _rows_of_types(task_types: pl.Series) -> dict[str, Integers]:
    """The places of the rows of each task type."""
    if len(task_types) <= 1:
        return {name: np.zeros(1, np.int64) for name in task_types}
    codes = task_types.rank("dense").to_numpy()
    order = np.argsort(codes, kind="stable")
    begins = np.flatnonzero(np.diff(codes[order], prepend=0))
    names = task_types.gather(order[begins])
    return dict(zip(names, np.split(order, begins[1:]), strict=True))


def _standards(before: Mapping[str, Standard], entered: pl.DataFrame, size: int) -> dict[str, Standard]:
    """The standards after these trajectories of revision 0."""
    parts, sequences = measured_parts(entered), _sequences(entered)
    after = dict(before)
    for name, rows in _rows_of_types(entered["task_type"]).items():
        new = {part: values[rows] for part, values in parts.items()}
        after[name] = before.get(name, Standard.empty()).joined_by(sequences[rows], new, size)
    return after


def _earlier(scores: pl.DataFrame) -> dict[str, Earlier]:
    """The unit scores by task type, from rows with the lists `terms` and `units`."""
    names = sorted(scores["terms"].explode().unique().drop_nulls())
    at = {name: pl.col("terms").list.eval(pl.element() == name).list.arg_max() for name in names}
    unit = {name: pl.col("units").list.get(at[name], null_on_oob=True) for name in names}
    columns = scores.select(
        pl.when(pl.col("terms").list.contains(name)).then(unit[name]).cast(pl.Int64).fill_null(_ABSENT).alias(name)
        for name in names
    )
    sequences, units = _sequences(scores), {name: columns[name].to_numpy() for name in names}
    return {
        task_type: Earlier(sequences[rows], {name: values[rows] for name, values in units.items()})
        for task_type, rows in _rows_of_types(scores["task_type"]).items()
    }


def _check(sequences: Integers, enters: Flags, history: History) -> None:
    if len(sequences) and sequences.min() < history.first:
        raise HistoryTooShort(
            f"sequence {sequences.min()} cannot be scored with a history that begins at {history.first}: "
            f"load the history of what came before it"
        )
    places = sequences[enters]
    if len(np.unique(places)) < len(places):
        raise RepeatedSequence("a batch has two first revisions of one sequence: read trajectories with FINAL")


def _judge(term: Term, weight: float | None, batch: pl.DataFrame, options: TermOptions) -> _Judged:
    said = score_of(term, batch, options)
    scores = said["score"].to_numpy()  # null is NaN here, which no term may give
    applies = ~np.isnan(scores)
    with np.errstate(all="ignore"):
        units = (np.where(applies, scores, term.low) - term.low) / (term.high - term.low)
    if not np.isfinite(units).all():
        raise TermError(
            f"scores of the reward term {term.name!r} have no place in its range [{term.low}, {term.high}]: "
            "give it a low below its high, less far apart"
        )
    evidence = said["evidence"].rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    if evidence.null_count:
        evidence = pc.fill_null(evidence, "")
    broken = applies & (units <= 0) if weight is None else np.zeros(len(applies), bool)
    return _Judged(term.name, weight or 0.0, scores, evidence, applies, units, fixed_point(units), broken)


def _windows(
    sequences: Integers,
    enters: Flags,
    rows_of_types: Mapping[str, Integers],
    history: History,
    judged: Sequence[_Judged],
    *,
    window: int,
) -> list[Windows]:
    """The window of each row of the batch for each term.

    Everything stands in one row: one task type after the other, each with its history and its rows of the batch by
    sequence. A row that does not enter goes before the one of the same sequence that does.
    """
    places = np.zeros(len(sequences), np.int64)
    entering, starts, units = [], [], [[] for _ in judged]  # type: ignore[var-annotated]
    begin = 0
    for task_type, rows in rows_of_types.items():
        # A row that is scored again is no history to itself.
        before = history.earlier.get(task_type, Earlier.empty()).without(sequences[rows][enters[rows]])
        known = len(before.sequences)
        flags = np.concatenate([np.ones(known, bool), enters[rows]])
        order = np.lexsort((flags, np.concatenate([before.sequences, sequences[rows]])))
        sorted_places = np.empty_like(order)
        sorted_places[order] = np.arange(begin, begin + len(order))
        places[rows] = sorted_places[known:]
        entering.append(flags[order])
        starts.append(np.full(len(order), begin))
        for j, values in zip(judged, units, strict=True):
            own = np.where(j.applies[rows], j.fixed[rows], _ABSENT)
            values.append(np.concatenate([before.of(j.name), own])[order])
        begin += len(order)
    if not begin:
        return [Windows(places, places, places) for _ in judged]
    all_entering, all_starts = np.concatenate(entering), np.concatenate(starts)
    found = []
    for values in units:
        of_term = np.concatenate(values)
        every = trailing_windows(of_term, all_entering & (of_term != _ABSENT), all_starts, window)
        found.append(Windows(every.values, every.first[places], every.end[places]))
    return found


def _rewards(
    batch: pl.DataFrame, judged: Sequence[_Judged], windows: Sequence[Windows], configuration: RewardConfiguration
) -> pl.DataFrame:
    levels = [_levels(j, w, configuration) for j, w in zip(judged, windows, strict=True)]
    units = [Part(j.weight, j.units, j.applies) for j in judged]
    weight = applicable_weight(units, batch.height)
    raw = weighted_mean(units, weight)
    total = weighted_mean([Part(j.weight, v, j.applies) for j, v in zip(judged, levels, strict=True)], weight)
    for constraint in judged:
        raw, total = np.where(constraint.broken, 0.0, raw), np.where(constraint.broken, 0.0, total)
    weighing = [(j, w) for j, w in zip(judged, windows, strict=True) if j.weight > 0]
    pairs = zip(batch["trajectory_id"], batch["revision"], strict=True)
    ids = [reward_id(trajectory, configuration.hash, revision) for trajectory, revision in pairs]
    kept = ("trajectory_id", "sequence", "stream_time", "session_id", "task_id", "task_type", "model_version")
    named = {"method": configuration.method, "configuration": configuration.hash}
    return pl.DataFrame(
        [
            *(batch[name] for name in kept),
            batch["revision"].cast(pl.UInt32),
            *_lists(judged, windows, levels, weight),
            pl.Series("raw_total", raw),
            pl.Series("total", total),
            pl.Series("confidence", _confidence(weighing, configuration)),
            pl.Series("cold_start", _cold_start(weighing, configuration)),
            *(pl.Series(name, [value]).new_from_index(0, batch.height) for name, value in named.items()),
            pl.Series("reward_id", ids, dtype=pl.String),
            batch["agents"],
            scaled_lists(batch[_SHARES[configuration.credit]], raw).alias("credits"),
            batch["turn_agents"],
            shaped_reward_lists(batch["turn_potentials"], pl.Series(raw), configuration.gamma).alias("turn_rewards"),
        ]
    )


def _levels(judged: _Judged, windows: Windows, configuration: RewardConfiguration) -> Floats:
    if configuration.method == "none":
        return judged.units
    return normalised(judged.fixed, windows, configuration.method, configuration.least_history)


def _lists(
    judged: Sequence[_Judged], windows: Sequence[Windows], levels: Sequence[Floats], weight: Floats
) -> list[pl.Series]:
    """For each row, what is known of the terms that apply to it, in the order of their names."""
    applies = np.stack([j.applies for j in judged], axis=1)
    rows, terms = np.nonzero(applies)
    ends = pa.array(np.concatenate([[0], np.cumsum(applies.sum(axis=1))]))
    some = np.where(weight > 0, weight, 1.0)
    numbers: dict[str, tuple[type[np.generic], Iterable[Integers | Floats]]] = {
        "scores": (np.float64, (j.scores for j in judged)),
        "units": (np.int32, (j.fixed for j in judged)),
        "weights": (np.float64, (j.weight / some for j in judged)),
        "normalised": (np.float64, levels),
        "means": (np.float64, (w.means for w in windows)),
        "stds": (np.float64, (w.deviations for w in windows)),
        "counts": (np.uint32, (w.counts for w in windows)),
    }
    values: dict[str, pa.Array] = {
        "terms": pa.array([j.name for j in judged]).take(pa.array(terms)),
        **{name: np.stack([*of], axis=1)[applies].astype(kind) for name, (kind, of) in numbers.items()},
        "evidences": pa.concat_arrays([j.evidence for j in judged]).take(pa.array(terms * len(weight) + rows)),
    }
    return [pl.Series(name, pa.LargeListArray.from_arrays(ends, column)) for name, column in values.items()]


def _confidence(weighing: Sequence[tuple[_Judged, Windows]], configuration: RewardConfiguration) -> Floats:
    """Half for the share of the weight that knew something, half for how full the windows of what applies are."""
    rows = len(weighing[0][0].applies)
    informed, full, applicable = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    for j, w in weighing:
        neutral = pc.starts_with(j.evidence, NEUTRAL).to_numpy(zero_copy_only=False)
        informed += j.weight * (j.applies & ~neutral)
        full += j.applies * (w.counts / configuration.window)
        applicable += j.applies
    return 0.5 * np.minimum(informed, 1.0) + 0.5 * (full / np.maximum(applicable, 1.0))


def _cold_start(weighing: Sequence[tuple[_Judged, Windows]], configuration: RewardConfiguration) -> Flags:
    cold = np.zeros(len(weighing[0][0].applies), bool)
    if configuration.method != "none":
        for j, w in weighing:
            cold |= j.applies & (w.counts < configuration.least_history)
    return cold
