"""What the warehouse keeps of rewards: signals, the scores that are history, feedback, rewards and configurations.

Everything here is written under a key that repeats: doing it again changes nothing. What was erased while it was being
written is taken back, because an erasure marks the ledger before it deletes: either the mark is seen here, or the
erasure comes to delete what was written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

import polars as pl

from rl_pipeline.stores.warehouse import Warehouse

# What a query names travels in its address, which has a limit.
_IDS_PER_QUERY = 500
_TYPES_PER_QUERY = 50

# What was erased has no content, but it was heard: without it the revisions after it would have other numbers.
_FEEDBACK = """
    SELECT trajectory_id, sequence, heard_at AS stream_time, feedback_id, given_at, kind, rating, user, turn_id
    FROM trajectory_feedback FINAL WHERE verdict IN ('accepted', 'erased') AND trajectory_id != ''
"""
_MEASURED_IDS = """
    SELECT trajectory_id FROM trajectory_signals
    WHERE stream = {stream:String} AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
"""


@dataclass(frozen=True)
class HistoryFrames:
    """What `History.stored` takes, of trajectories before a sequence."""

    scores: pl.DataFrame
    """task_type, sequence, terms, units: of each task type and term the last of the window."""
    signals: pl.DataFrame
    """task_type, sequence, turns, seconds, tokens: of the first trajectories of each task type."""


def write_signals(warehouse: Warehouse, signals: pl.DataFrame, measured_at: datetime) -> None:
    """Store measured signals; every ingest revision of a trajectory has a row of its own, and the first one stays."""
    warehouse.insert("trajectory_signals", signals.with_columns(measured_at=pl.lit(measured_at)))
    for (stream,), of_stream in signals.group_by("stream"):
        _take_back_erased(warehouse, "trajectory_signals", str(stream), of_stream["sequence"])


def read_signals(warehouse: Warehouse, stream: str, first: int, last: int) -> pl.DataFrame:
    """The signals of a range of sequences with all restatements, in the order of the stream and of the revisions.

    Beside the signals: `measured_at`, when they were first stored, and `content_hash`, which is equal where two
    revisions say the same.
    """
    return warehouse.query(
        """
        SELECT *, content_hash FROM trajectory_signals FINAL
        WHERE stream = {stream:String} AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
        ORDER BY sequence, ingest_revision
        """,
        {"stream": stream, "first": first, "last": last},
    )


def unmeasured(warehouse: Warehouse, stream: str, last: int) -> pl.DataFrame:
    """The stored trajectories up to a sequence that have no signals of their ingest revision, in the stream's order.

    Columns: trajectory_id, sequence, stream_time, ingest_revision, is_late. Measure and write them in this order: one
    that was never measured before and has measured ones after it is late. One that was measured keeps its place, also
    where another sequence has brought it since: its rewards are known by it.
    """
    return warehouse.query(
        """
        WITH (SELECT max(sequence) FROM trajectory_signals WHERE stream = {stream:String}) AS measured_up_to
        SELECT
            trajectory_id,
            if(empty(seen), stored_at, place.1) AS sequence,
            if(empty(seen), stored_time, place.2) AS stream_time,
            revision AS ingest_revision,
            if(empty(seen), stored_at <= measured_up_to, place.3) AS is_late
        FROM (
            SELECT trajectory_id, sequence AS stored_at, stream_time AS stored_time, revision FROM trajectories FINAL
            WHERE stream = {stream:String} AND sequence <= {last:UInt64}
        ) AS stored
        LEFT JOIN (
            SELECT
                trajectory_id, groupUniqArray(ingest_revision) AS seen,
                argMin((sequence, stream_time, is_late), (ingest_revision, measured_at)) AS place
            FROM trajectory_signals WHERE stream = {stream:String} GROUP BY trajectory_id
        ) AS measured USING (trajectory_id)
        WHERE NOT has(seen, revision)
        ORDER BY sequence
        """,
        {"stream": stream, "last": last},
    ).with_columns(pl.col("is_late").cast(pl.Boolean))


def documents_of(warehouse: Warehouse, trajectory_ids: Sequence[str]) -> pl.DataFrame:
    """What `signals_of` takes of some hundred trajectories: the redacted documents, and what ingest knows of them.

    Ask for no more at a time than fit into memory.
    """
    return warehouse.query(
        """
        SELECT
            trajectory_id, stream, sequence, stream_time, revision, session_id, agent_id, framework, model,
            model_version, task_id, task_type, domain, user, task_status, started_at, ended_at, total_tokens, document
        FROM trajectories FINAL WHERE trajectory_id IN {ids:Array(String)} ORDER BY sequence
        """,
        {"ids": list(trajectory_ids)},
    )


def write_scores(warehouse: Warehouse, stream: str, scores_hash: str, scores: pl.DataFrame) -> None:
    """Store the scores that are history for later trajectories: of revision 0, of nothing late.

    `scores` may be what `score` returned: its columns task_type, sequence, trajectory_id, terms and units are kept.
    """
    kept = scores.select("task_type", "sequence", "trajectory_id", "terms", "units")
    warehouse.insert("reward_scores", kept.with_columns(stream=pl.lit(stream), scores_hash=pl.lit(scores_hash)))
    _take_back_erased(warehouse, "reward_scores", stream, scores["sequence"])


def scored_sequences(warehouse: Warehouse, stream: str, scores_hash: str, first: int, last: int) -> pl.Series:
    """The sequences of a range whose scores are stored."""
    return warehouse.query(
        """
        SELECT DISTINCT sequence FROM reward_scores
        WHERE scores_hash = {hash:String} AND stream = {stream:String}
            AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
        """,
        {"hash": scores_hash, "stream": stream, "first": first, "last": last},
    )["sequence"]


def first_unscored(warehouse: Warehouse, stream: str, scores_hash: str, before_sequence: int) -> int:
    """The first sequence before another that should be history for later ones and has no scores; else the other."""
    found = warehouse.query(
        """
        SELECT min(sequence) AS first, count() AS count FROM (
            SELECT sequence, argMin(trajectory_signals.is_late, ingest_revision) AS late FROM trajectory_signals
            WHERE stream = {stream:String} AND sequence < {before:UInt64} AND sequence NOT IN (
                SELECT sequence FROM reward_scores
                WHERE scores_hash = {hash:String} AND stream = {stream:String} AND sequence < {before:UInt64}
            )
            GROUP BY sequence
        ) WHERE NOT late
        """,
        {"hash": scores_hash, "stream": stream, "before": before_sequence},
    )
    return int(found["first"][0]) if found["count"][0] else before_sequence


def sequences_of_day(warehouse: Warehouse, stream: str, day: date) -> tuple[int, int] | None:
    """The first and the last measured sequence of a UTC day; None where nothing of it was measured."""
    found = warehouse.query(
        """
        SELECT min(sequence) AS first, max(sequence) AS last, count() AS count FROM trajectory_signals
        WHERE stream = {stream:String} AND toDate(stream_time) = {day:Date}
        """,
        {"stream": stream, "day": day.isoformat()},
    )
    return (int(found["first"][0]), int(found["last"][0])) if found["count"][0] else None


def history_frames(
    warehouse: Warehouse,
    stream: str,
    scores_hash: str,
    task_types: Sequence[str],
    before_sequence: int,
    *,
    window: int = 1_000,
    baseline: int = 200,
) -> HistoryFrames:
    """What trajectories of these task types from a sequence on are compared with."""
    # Each query sorts everything there is, and task types are free text: many are not asked for one part at a time.
    every = len(task_types) > _TYPES_PER_QUERY
    found = _history_frames(
        warehouse,
        {
            "stream": stream,
            "hash": scores_hash,
            "every": every,
            "types": [] if every else list(task_types),
            "before": before_sequence,
            "window": window,
            "baseline": baseline,
        },
    )
    if not every:
        return found
    wanted = pl.DataFrame({"task_type": task_types}, {"task_type": pl.String}).unique()
    return HistoryFrames(
        *(
            frame.join(wanted, on="task_type", how="semi", maintain_order="left")
            for frame in (found.scores, found.signals)
        )
    )


def write_rewards(warehouse: Warehouse, stream: str, rewards: pl.DataFrame, scored_at: datetime) -> None:
    """Store what `score` returned. A reward that is stored and published already stays as it is."""
    warehouse.insert("rewards", rewards.with_columns(stream=pl.lit(stream), scored_at=pl.lit(scored_at)))
    _take_back_erased(warehouse, "rewards", stream, rewards["sequence"])


def reward_ids(warehouse: Warehouse, stream: str, configuration: str, first: int, last: int) -> pl.Series:
    """The ids of the stored rewards of a range of sequences under a configuration."""
    return warehouse.query(
        """
        SELECT reward_id FROM rewards FINAL
        WHERE stream = {stream:String} AND configuration = {configuration:String}
            AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
        """,
        {"stream": stream, "configuration": configuration, "first": first, "last": last},
    )["reward_id"]


def read_rewards(warehouse: Warehouse, stream: str, configuration: str, first: int, last: int) -> pl.DataFrame:
    """Every revision of the rewards of a range of sequences under a configuration (its hash), in the stream's order."""
    return warehouse.query(
        """
        SELECT * FROM rewards FINAL
        WHERE stream = {stream:String} AND configuration = {configuration:String}
            AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
        ORDER BY sequence, trajectory_id, revision
        """,
        {"stream": stream, "configuration": configuration, "first": first, "last": last},
    )


def current_rewards(
    warehouse: Warehouse, stream: str, first_day: date | None = None, last_day: date | None = None
) -> pl.DataFrame:
    """The newest reward of each trajectory under the configuration in force, of some UTC days or of all."""
    return warehouse.query(
        """
        SELECT * FROM trajectory_rewards
        WHERE stream = {stream:String} AND toDate(stream_time) BETWEEN {first:Date} AND {last:Date}
        ORDER BY sequence, trajectory_id
        """,
        {
            "stream": stream,
            "first": (first_day or date(1970, 1, 1)).isoformat(),
            "last": (last_day or date(2149, 1, 1)).isoformat(),
        },
    )


def mark_published(warehouse: Warehouse, stream: str, rewards: pl.DataFrame) -> None:
    """Store rows that `read_rewards` gave again, now with the `published_sequence` of each."""
    warehouse.insert("rewards", rewards)
    _take_back_erased(warehouse, "rewards", stream, rewards["sequence"])


def remember_configuration(
    warehouse: Warehouse, configuration_hash: str, scores_hash: str, canonical_json: str, now: datetime
) -> None:
    """Make a configuration the one in force, unless it is already: the views show its rewards from now on.

    So remember it when its rewards are stored. A configuration that returns after others is in force again.
    """
    known = warehouse.query(
        "SELECT hash, first_used_at, current_since FROM reward_configurations FINAL ORDER BY current_since DESC, hash"
    )
    if known.height and known["hash"][0] == configuration_hash:
        return
    before = known.filter(pl.col("hash") == configuration_hash)
    # Later than the one before it, whatever the clock says.
    since = max(now, known["current_since"][0] + timedelta(milliseconds=1)) if known.height else now
    row = {
        "hash": configuration_hash,
        "scores_hash": scores_hash,
        "configuration": canonical_json,
        "first_used_at": before["first_used_at"][0] if before.height else now,
        "current_since": since,
    }
    warehouse.insert("reward_configurations", pl.DataFrame([row]))


def feedback_on(warehouse: Warehouse, stream: str, first: int, last: int) -> pl.DataFrame:
    """The feedback on the measured trajectories of a range of sequences, accepted or erased since, in its order."""
    return warehouse.query(
        "\n".join((_FEEDBACK, "AND trajectory_id IN (", _MEASURED_IDS, ") ORDER BY sequence")),
        {"stream": stream, "first": first, "last": last},
    )


def _history_frames(warehouse: Warehouse, parameters: dict[str, object]) -> HistoryFrames:
    scores = warehouse.query(
        """
        SELECT task_type, sequence, groupArray(term) AS terms, groupArray(unit) AS units
        FROM (
            SELECT task_type, sequence, term, unit FROM reward_scores FINAL ARRAY JOIN terms AS term, units AS unit
            WHERE scores_hash = {hash:String} AND stream = {stream:String}
                AND ({every:Bool} OR task_type IN {types:Array(String)}) AND sequence < {before:UInt64}
            ORDER BY sequence DESC LIMIT {window:UInt32} BY task_type, term
        )
        GROUP BY task_type, sequence ORDER BY task_type, sequence
        """,
        parameters,
    )
    # The first signals of each trajectory: what was restated is no history.
    signals = warehouse.query(
        """
        SELECT task_type, sequence, turns, seconds, tokens
        FROM (
            SELECT task_type, sequence, turns, seconds, tokens, is_late FROM trajectory_signals
            WHERE stream = {stream:String} AND sequence < {before:UInt64}
            ORDER BY sequence, ingest_revision LIMIT 1 BY sequence
        )
        WHERE NOT is_late AND ({every:Bool} OR task_type IN {types:Array(String)})
        ORDER BY sequence LIMIT {baseline:UInt32} BY task_type
        """,
        parameters,
    ).sort("task_type", "sequence")
    return HistoryFrames(scores, signals)


def _take_back_erased(warehouse: Warehouse, table: str, stream: str, sequences: pl.Series) -> None:
    """Delete those of the rows that were just written whose sequences the ledger says are erased."""
    found = warehouse.query(
        """
        SELECT DISTINCT sequence FROM {table:Identifier}
        WHERE stream = {stream:String} AND sequence BETWEEN {first:UInt64} AND {last:UInt64} AND sequence IN (
            SELECT sequence FROM trajectory_ledger FINAL
            WHERE stream = {stream:String} AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
                AND verdict = 'erased'
        )
        """,
        {"table": table, "stream": stream, "first": sequences.min() or 0, "last": sequences.max() or 0},
    )
    erased = found["sequence"].to_list()
    for start in range(0, len(erased), _IDS_PER_QUERY):
        warehouse.execute(
            "ALTER TABLE {table:Identifier} DELETE WHERE stream = {stream:String} AND sequence IN {some:Array(UInt64)}",
            {"table": table, "stream": stream, "some": erased[start : start + _IDS_PER_QUERY]},
            {"mutations_sync": 2},
        )
