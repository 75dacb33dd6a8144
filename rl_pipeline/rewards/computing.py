"""From stored trajectories to stored rewards: measure what is new, and score a range of the stream.

A reward depends on what lies before it in the stream and never on when it is computed, so everything here may be done
again, in parts, or after a kill at any point: what is there already is left alone.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

import polars as pl

from rl_pipeline.rewards.configuration import RewardConfiguration
from rl_pipeline.rewards.linting import CodeChecker
from rl_pipeline.rewards.revisions import revisions
from rl_pipeline.rewards.scoring import History, score
from rl_pipeline.rewards.signals import signals_of
from rl_pipeline.rewards.storing import (
    documents_of,
    feedback_on,
    first_unscored,
    history_frames,
    read_signals,
    reward_ids,
    scored_sequences,
    unmeasured,
    write_rewards,
    write_scores,
    write_signals,
)
from rl_pipeline.stores.warehouse import Warehouse

POINTS = ("after_signals", "after_scores", "after_rewards")
"""Where `reached` is called, after a batch was written."""

# Documents of some ten kilobytes each are in memory at a time, and so many rows of numbers.
_BATCH_DOCUMENTS = 400
_BATCH_SEQUENCES = 50_000


@dataclass(frozen=True)
class Measured:
    """How many trajectories were measured."""

    trajectories: int
    unreadable: int
    """Of them, those in which nothing but status and turns could be measured; the log says which, and why."""


@dataclass(frozen=True)
class ComputeReport:
    """What was computed of a range."""

    rewards: int = 0
    """Rewards that were written now, of all revisions."""
    unchanged: int = 0
    """Rewards that were there already."""
    scored_before: int = 0
    """Trajectories before the range that had no scores under this configuration and were scored as its history."""


def measure(
    warehouse: Warehouse,
    *,
    stream: str,
    last: int,
    checker: CodeChecker | None,
    now: datetime,
    reached: Callable[[str], None] = lambda _: None,
) -> Measured:
    """Measure the trajectories up to a sequence that were not, or not as they are now.

    `last` must not lie beyond the ledger's watermark: what comes before a measured trajectory later counts as late.
    """
    waiting, unreadable = unmeasured(warehouse, stream, last), Counter[str]()
    for start in range(0, waiting.height, _BATCH_DOCUMENTS):
        some = waiting[start : start + _BATCH_DOCUMENTS]
        documents = documents_of(warehouse, some["trajectory_id"].to_list())
        # What was erased or judged anew meanwhile is not what was asked for.
        signals = signals_of(documents, checker, unreadable).drop("sequence", "stream_time", "is_late")
        signals = signals.join(some, on=["trajectory_id", "ingest_revision"], maintain_order="left")
        if signals.height:
            write_signals(warehouse, signals, now)
        reached("after_signals")
    return Measured(waiting.height, unreadable.total())


def compute_rewards(
    warehouse: Warehouse,
    *,
    stream: str,
    first: int,
    last: int,
    configuration: RewardConfiguration,
    now: datetime,
    reached: Callable[[str], None] = lambda _: None,
) -> ComputeReport:
    """Compute and store the rewards of the measured trajectories from `first` to `last`, in all their revisions."""
    written = unchanged = before = 0
    for batch, scored in _scored(warehouse, stream, first, last, configuration):
        enters = (batch["revision"] == 0) & ~batch["is_late"]
        low, high = int(batch["sequence"].min()), int(batch["sequence"].max())  # type: ignore[arg-type]
        known_scores = scored_sequences(warehouse, stream, configuration.scores_hash, low, high)
        new_scores = scored.filter(enters & ~pl.Series(batch["sequence"].is_in(known_scores.implode())))
        if new_scores.height:
            write_scores(warehouse, stream, configuration.scores_hash, new_scores)
        reached("after_scores")
        before += new_scores.filter(pl.col("sequence") < first).height
        wanted = scored.filter(pl.col("sequence") >= first)
        known = reward_ids(warehouse, stream, configuration.hash, low, high)
        new = wanted.filter(~pl.col("reward_id").is_in(known.implode()))
        if new.height:
            write_rewards(warehouse, stream, new, now)
        reached("after_rewards")
        written += new.height
        unchanged += wanted.height - new.height
    return ComputeReport(written, unchanged, before)


def rewards_under(
    warehouse: Warehouse, *, stream: str, first: int, last: int, configuration: RewardConfiguration
) -> pl.DataFrame:
    """What `compute_rewards` would store, as `score` gives it; nothing is written."""
    found = [
        scored.filter(pl.col("sequence") >= first)
        for _, scored in _scored(warehouse, stream, first, last, configuration)
    ]
    return pl.concat(found) if found else pl.DataFrame()


def _scored(
    warehouse: Warehouse, stream: str, first: int, last: int, configuration: RewardConfiguration
) -> Iterator[tuple[pl.DataFrame, pl.DataFrame]]:
    """Batches of revisions in the stream's order and their rewards, from where the stored scores end or from `first`.

    A change of the terms leaves nothing to compare with: then everything before the range is scored too.
    """
    begin = min(first, first_unscored(warehouse, stream, configuration.scores_hash, first))
    history = History({}, {}, begin)
    for low in range(begin, last + 1, _BATCH_SEQUENCES):
        high = min(low + _BATCH_SEQUENCES - 1, last)
        signals = read_signals(warehouse, stream, low, high)
        if signals.is_empty():
            continue
        batch = revisions(signals.drop("content_hash"), feedback_on(warehouse, stream, low, high))
        history = _with_task_types(
            history, batch["task_type"], begin, partial(_stored, warehouse, stream, configuration)
        )
        scored = score(batch, history, configuration)
        history = history.extended(batch, scored, configuration)
        yield batch, scored


def _with_task_types(
    history: History, task_types: pl.Series, begin: int, stored: Callable[[Sequence[str], int], History]
) -> History:
    """The history with what the warehouse has, before `begin`, of task types that were not met before."""
    unmet = [name for name in task_types.unique(maintain_order=True) if name not in history.standards]
    if not unmet:
        return history
    more = stored(unmet, begin)
    return History({**history.earlier, **more.earlier}, {**history.standards, **more.standards}, history.first)


def _stored(
    warehouse: Warehouse, stream: str, configuration: RewardConfiguration, task_types: Sequence[str], before: int
) -> History:
    frames = history_frames(
        *(warehouse, stream, configuration.scores_hash, task_types, before),
        window=configuration.window,
        baseline=configuration.baseline,
    )
    return History.stored(frames.scores, frames.signals, before)
