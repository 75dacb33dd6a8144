"""What is stored of a day's rewards, for checks and for people; and which days have something left to score."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date

import polars as pl

from rl_pipeline.stores.warehouse import Warehouse

_BINS = 20
_EXAMPLES = 3

_NEWEST = """
    SELECT * FROM rewards FINAL
    WHERE stream = {stream:String} AND configuration = {configuration:String} AND toDate(stream_time) = {day:Date}
    ORDER BY revision DESC LIMIT 1 BY trajectory_id
"""


@dataclass(frozen=True)
class DayOfRewards:
    """The rewards of one day under one configuration, as they stand."""

    trajectories: int
    revised: int
    """Trajectories whose reward is not their first."""
    cold_starts: int
    out_of_bounds: int
    """Rewards whose totals are no numbers from 0 to 1."""
    unbalanced: int
    """Rewards whose effective weights do not sum to 1."""
    raw_mean: float | None
    mean: float | None
    raw_histogram: tuple[int, ...]
    """How many raw totals lie in each twentieth from 0 to 1."""
    components: pl.DataFrame
    """term, count, mean_score, mean_normalised, mean_weight."""
    models: pl.DataFrame
    """model_version, trajectories, raw_mean."""
    best: tuple[str, ...]
    worst: tuple[str, ...]


def day_of_rewards(warehouse: Warehouse, stream: str, day: date, configuration: str) -> DayOfRewards:
    """What is stored of a UTC day."""
    asked = {"stream": stream, "configuration": configuration, "day": day.isoformat()}
    [totals] = warehouse.query(
        _newest("""
            count() AS trajectories, countIf(revision > 0) AS revised, countIf(cold_start) AS cold_starts,
            countIf(NOT (raw_total BETWEEN 0 AND 1 AND total BETWEEN 0 AND 1)) AS out_of_bounds,
            countIf(notEmpty(weights) AND abs(arraySum(weights) - 1) > 1e-9) AS unbalanced,
            if(count() = 0, NULL, avg(raw_total)) AS raw_mean, if(count() = 0, NULL, avg(total)) AS mean
        """),
        asked,
    ).iter_rows(named=True)
    bins = warehouse.query(
        _newest(
            f"toUInt8(least({_BINS - 1}, greatest(0, floor(raw_total * {_BINS})))) AS bin, count() AS count",
            "GROUP BY bin",
        ),
        asked,
    )
    counts = dict(bins.iter_rows())
    return DayOfRewards(
        **totals,
        raw_histogram=tuple(counts.get(place, 0) for place in range(_BINS)),
        components=warehouse.query(
            _newest(
                "term, count() AS count, avg(score) AS mean_score, avg(level) AS mean_normalised, "
                "avg(weight) AS mean_weight",
                "ARRAY JOIN terms AS term, scores AS score, normalised AS level, weights AS weight "
                "GROUP BY term ORDER BY term",
            ),
            asked,
        ),
        models=warehouse.query(
            _newest(
                "model_version, count() AS trajectories, avg(raw_total) AS raw_mean",
                "GROUP BY model_version ORDER BY trajectories DESC, model_version LIMIT 20",
            ),
            asked,
        ),
        best=_examples(warehouse, asked, "DESC"),
        worst=_examples(warehouse, asked, "ASC"),
    )


def unrewarded(warehouse: Warehouse, stream: str, day: date, configuration: str, last: int) -> int:
    """How many stored trajectories of a day, up to a sequence, have no reward under the configuration.

    The reward may lie on another day: a trajectory keeps the place at which it was measured first.
    """
    found = warehouse.query(
        """
        SELECT count() AS count FROM trajectories FINAL
        WHERE stream = {stream:String} AND toDate(stream_time) = {day:Date} AND sequence <= {last:UInt64}
            AND trajectory_id NOT IN (
                SELECT trajectory_id FROM rewards
                WHERE stream = {stream:String} AND configuration = {configuration:String}
            )
        """,
        {"stream": stream, "day": day.isoformat(), "configuration": configuration, "last": last},
    )
    return int(found["count"][0])


def days_to_score(warehouse: Warehouse, stream: str, last: int) -> list[date]:
    """The UTC days, oldest first, that have trajectories up to a sequence without a reward, or news of one that has.

    News are feedback that came after the trajectory, and signals that say something else than before. A reward under
    any configuration counts: to score anew under another one is for people to decide.
    """
    found = warehouse.query(
        """
        SELECT toDate(stream_time) AS day FROM trajectories FINAL
        WHERE stream = {stream:String} AND sequence <= {last:UInt64} AND trajectory_id NOT IN (
            SELECT trajectory_id FROM rewards WHERE stream = {stream:String}
        )
        UNION DISTINCT
        SELECT toDate(measured.began) AS day
        FROM (
            SELECT
                trajectory_id, min(stream_time) AS began, max(is_late) AS late,
                arraySort(groupUniqArray((ingest_revision, content_hash))) AS revisions,
                1 + arrayCount((one, next) -> one.2 != next.2, arrayPopBack(revisions), arrayPopFront(revisions))
                    AS statements
            FROM (
                SELECT trajectory_id, stream_time, is_late, ingest_revision, content_hash FROM trajectory_signals FINAL
                WHERE stream = {stream:String} AND sequence <= {last:UInt64}
            )
            WHERE trajectory_id IN (
                SELECT trajectory_id FROM trajectory_feedback FINAL
                WHERE trajectory_id != '' AND verdict IN ('accepted', 'erased')
                UNION DISTINCT
                SELECT trajectory_id FROM trajectory_signals WHERE stream = {stream:String}
                GROUP BY trajectory_id HAVING min(ingest_revision) < max(ingest_revision)
            )
            GROUP BY trajectory_id
        ) AS measured
        LEFT JOIN (
            SELECT trajectory_id, groupArray((if(feedback_id = '', toString(sequence), feedback_id), heard_at)) AS told
            FROM trajectory_feedback FINAL
            WHERE trajectory_id != '' AND verdict IN ('accepted', 'erased') GROUP BY trajectory_id
        ) AS feedback USING (trajectory_id)
        INNER JOIN (
            SELECT trajectory_id, max(revision) AS revision FROM rewards WHERE stream = {stream:String}
            GROUP BY trajectory_id
        ) AS scored USING (trajectory_id)
        WHERE scored.revision + 1
            < measured.statements + measured.late
                + length(arrayDistinct(arrayFilter(one -> one.2 > measured.began, feedback.told).1))
        ORDER BY day
        """,
        {"stream": stream, "last": last},
    )
    return [day for (day,) in found.iter_rows()]


def what_scoring_reads(warehouse: Warehouse) -> str:
    """A text that changes when trajectories are stored, measured or commented on: cheap, where searching is not."""
    found = warehouse.query(
        """
        SELECT
            (SELECT max(ingested_at) FROM trajectories) AS stored,
            (SELECT max(measured_at) FROM trajectory_signals) AS measured,
            (SELECT max(drained_at) FROM trajectory_feedback) AS told
        """
    )
    return " ".join(moment.isoformat() if moment else "never" for moment in found.row(0))


def raw_totals(warehouse: Warehouse, stream: str, configuration: str, first: int, last: int) -> pl.Series:
    """The raw totals of first revisions in a range of sequences, in the stream's order."""
    return warehouse.query(
        """
        SELECT raw_total FROM rewards FINAL
        WHERE stream = {stream:String} AND configuration = {configuration:String} AND revision = 0
            AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
        ORDER BY sequence
        """,
        {"stream": stream, "configuration": configuration, "first": first, "last": last},
    )["raw_total"]


def raw_totals_before(warehouse: Warehouse, stream: str, configuration: str, sequence: int, count: int) -> pl.Series:
    """The last raw totals of first revisions before a sequence, in the stream's order."""
    return warehouse.query(
        """
        SELECT raw_total FROM (
            SELECT sequence, raw_total FROM rewards FINAL
            WHERE stream = {stream:String} AND configuration = {configuration:String} AND revision = 0
                AND sequence < {sequence:UInt64}
            ORDER BY sequence DESC LIMIT {count:UInt32}
        ) ORDER BY sequence
        """,
        {"stream": stream, "configuration": configuration, "sequence": sequence, "count": count},
    )["raw_total"]


def _examples(warehouse: Warehouse, asked: Mapping[str, str], order: str) -> tuple[str, ...]:
    found = warehouse.query(
        _newest("trajectory_id", f"ORDER BY raw_total {order}, trajectory_id LIMIT {_EXAMPLES}"), asked
    )
    return tuple(found["trajectory_id"].to_list())


def _newest(columns: str, rest: str = "") -> str:
    """A query of the newest revisions of a day's rewards."""
    return " ".join(("SELECT", columns, "FROM (", _NEWEST, ")", rest))
