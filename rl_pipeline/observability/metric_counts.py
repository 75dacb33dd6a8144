"""Counters and histograms over rows that come in numbers, expire and are erased: what was ever counted stays counted.

A counter that is read off a table falls when rows go, and Prometheus takes any fall for a restart and counts the whole
of it again. So the figures of each part of a stream (`PART_SEQUENCES` sequences) are kept in `metric_counts`, where the
largest that was ever found stands: whoever counts, however often and at once with others, the sum over the parts never
falls and nothing is in it twice. Only parts in which something has changed are counted again.

Two things can still be told apart only in the tables themselves: a trajectory that a new enrichment puts into another
domain is counted in both, and one that is accepted in the place of an erased one of the same part is not counted.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rl_pipeline.stores.warehouse import Warehouse

PART_SEQUENCES = 10_000
MOST_AGENT_TYPES = 24
"""Frameworks that come later than so many are counted as `other`, for ever: labels must stay few."""
REWARD_BOUNDS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
LENGTH_BOUNDS = (1.0, 3.0, 5.0, 10.0, 20.0, 50.0)
SUM = "sum"
"""The label under which a histogram keeps its sum. Those of its buckets are 1 for the first, 0 for beyond the last."""

# Writers' clocks differ, and a row is visible some time after the moment that it carries.
_SLACK = timedelta(minutes=10)
_SMALLEST_GAIN = 1e-9
# Whoever publishes chooses these names: what does not look like one is no label.
NAME_PATTERN = "^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,63}$"
_PART = f"concat(stream, '/', leftPad(toString(intDiv(sequence, {PART_SEQUENCES})), 10, '0'))"
_IN_PARTS = f"stream = {{stream:String}} AND intDiv(sequence, {PART_SEQUENCES}) IN {{numbers:Array(UInt64)}}"

Totals = Mapping[str, Mapping[tuple[str, ...], float]]
"""By family and labels."""


def _bucket(value: str, bounds: Sequence[float]) -> str:
    return f"toString(arrayFirstIndex(bound -> {value} <= bound, {list(bounds)}))"


def _changed_since(table: str, moment: str) -> str:
    return f"""
        SELECT stream, intDiv(sequence, {PART_SEQUENCES}) AS number FROM {table}
        WHERE {moment} > {{since:DateTime64(3, 'UTC')}} GROUP BY stream, number
    """  # noqa: S608  # names of ours


@dataclass(frozen=True, slots=True)
class _Source:
    """Rows that are counted together: which parts have changed `since`, and what one row adds to which figures."""

    families: tuple[str, ...]
    changed: str
    added: str
    """A query of `part` and `figures`, an array of (family, labels, amount)."""


# A trajectory counts once its ledger row says that it was accepted; its content was written before.
_ACCEPTED = f"""
    SELECT sequence FROM trajectory_ledger FINAL WHERE {_IN_PARTS} AND verdict = 'accepted'
"""  # noqa: S608  # as all below: put together from texts of ours
_ADMITTED = f"""
    SELECT name FROM (
        SELECT labels[1] AS name, 0 AS is_new FROM metric_counts WHERE family = 'trajectories'
        UNION ALL
        SELECT framework, 1 FROM trajectories WHERE {_IN_PARTS} AND match(framework, '{NAME_PATTERN}')
    ) GROUP BY name ORDER BY min(is_new), name LIMIT {MOST_AGENT_TYPES}
"""  # noqa: S608
_TRAJECTORIES = f"""
    SELECT {_PART} AS part, [
        ('trajectories', [agent_type, domain], 1.),
        ('task_outcomes', [domain, if(status = '', 'unknown', status)], 1.),
        ('lengths', [{_bucket("turns", LENGTH_BOUNDS)}], 1.),
        ('lengths', ['{SUM}'], toFloat64(turns))
    ] AS figures
    FROM (
        SELECT stream, sequence, argMax(trajectories.domain, version) AS domain,
            argMax(task_status, version) AS status, argMax(trajectories.turns, version) AS turns,
            argMax(subordinate_profile, version) AS profile, argMax(trajectories.framework, version) AS framework,
            multiIf(
                profile != '', profile, framework = '', 'unknown',
                match(framework, '{NAME_PATTERN}') AND framework IN ({_ADMITTED}), framework, 'other'
            ) AS agent_type
        FROM trajectories WHERE {_IN_PARTS} AND sequence IN ({_ACCEPTED}) GROUP BY stream, sequence
    )
"""  # noqa: S608
_MESSAGES = f"""
    SELECT {_PART} AS part, [('messages', [toString(verdict)], 1.), ('message_bytes', [''], toFloat64(size))] AS figures
    FROM trajectory_ledger FINAL WHERE {_IN_PARTS}
"""  # noqa: S608
# As it was first scored: another configuration or later feedback is another reward of the same trajectory.
_REWARDS = f"""
    SELECT {_PART} AS part, [
        ('rewards', [{_bucket("reward", REWARD_BOUNDS)}], 1.), ('rewards', ['{SUM}'], reward)
    ] AS figures
    FROM (
        SELECT stream, sequence, argMin(total, (scored_at, configuration)) AS reward FROM rewards
        WHERE {_IN_PARTS} AND revision = 0 GROUP BY stream, sequence, trajectory_id
    )
"""  # noqa: S608
_FEEDBACK = f"""
    SELECT {_PART} AS part, [('feedback', [toString(kind)], 1.)] AS figures
    FROM trajectory_feedback FINAL WHERE {_IN_PARTS} AND verdict = 'accepted'
"""  # noqa: S608
# Outcomes do not say when they were stored, and come within hours of their place in the stream: the newest parts are
# counted each time, and whatever was never counted.
_CHANGED_SESSIONS = f"""
    WITH (SELECT intDiv(max(sequence), {PART_SEQUENCES}) FROM serving_outcomes) AS newest
    SELECT 'RL_SERVING' AS stream, intDiv(sequence, {PART_SEQUENCES}) AS number FROM serving_outcomes
    GROUP BY number
    HAVING number + 2 > newest OR {_PART.replace(f"intDiv(sequence, {PART_SEQUENCES})", "number")} NOT IN (
        SELECT part FROM metric_counts WHERE family = 'sessions'
    )
"""  # noqa: S608
_SESSIONS = f"""
    SELECT {_PART} AS part, [
        ('sessions', [toString(model_id), multiIf(failed, 'failed', 'answered')], 1.),
        ('session_feedback', [toString(model_id), toString(feedback)], toFloat64(feedback != ''))
    ] AS figures
    FROM (SELECT *, 'RL_SERVING' AS stream FROM serving_outcomes FINAL) WHERE {_IN_PARTS}
"""  # noqa: S608
# A report replaces the one before it on the same job: each was one validation, and is a part of its own.
_VALIDATIONS = """
    SELECT concat(job_id, '@', toString(toUnixTimestamp64Milli(validated_at))) AS part,
        [('validations', [toString(decision)], 1.)] AS figures
    FROM validation_reports
"""

_SOURCES = (
    _Source(
        ("trajectories", "task_outcomes", "lengths", "messages", "message_bytes"),
        _changed_since("trajectory_ledger", "ingested_at"),
        f"{_TRAJECTORIES} UNION ALL {_MESSAGES}",
    ),
    _Source(("rewards",), _changed_since("rewards", "scored_at"), _REWARDS),
    _Source(("feedback",), _changed_since("trajectory_feedback", "drained_at"), _FEEDBACK),
    _Source(("sessions", "session_feedback"), _CHANGED_SESSIONS, _SESSIONS),
    _Source(("validations",), "SELECT '' AS stream, toUInt64(0) AS number", _VALIDATIONS),
)


class MetricCounts:
    """What was ever counted, brought up to date whenever it is read. One for each process; any number at once."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse
        self._since: dict[_Source, datetime] = {}

    def totals(self) -> Totals:
        """Count what has changed, keep it, and return the sums over all parts. Raises what a `Warehouse` raises."""
        for source in _SOURCES:
            self._count(source)
        found = self._warehouse.query(
            """
            SELECT family, labels, sum(part_value) AS total FROM (
                SELECT family, part, labels, max(value) AS part_value FROM metric_counts GROUP BY family, part, labels
            ) GROUP BY family, labels ORDER BY family, max(part) DESC, labels
            """
        )
        totals: dict[str, dict[tuple[str, ...], float]] = defaultdict(dict)
        for family, labels, total in found.iter_rows():
            totals[family][tuple(labels)] = total
        return totals

    def _count(self, source: _Source) -> None:
        since = self._since.get(source) or self._last_counted(source)
        changed = self._warehouse.query(
            f"""
            SELECT stream, groupArray(number) AS numbers, now64(3, 'UTC') AS now FROM ({source.changed})
            GROUP BY stream
            """,  # noqa: S608  # put together from the texts above
            {"since": (since - _SLACK).replace(tzinfo=None)},
        )
        for stream, numbers, _ in changed.iter_rows():
            self._warehouse.execute(
                _counting(source), {"stream": stream, "numbers": numbers, "families": list(source.families)}
            )
        if changed.height:
            self._since[source] = changed["now"][0]

    def _last_counted(self, source: _Source) -> datetime:
        found = self._warehouse.query(
            "SELECT max(counted_at) AS counted_at FROM metric_counts WHERE family IN {families:Array(String)}",
            {"families": list(source.families)},
        )
        last: datetime = found["counted_at"][0]
        return max(last, datetime.fromtimestamp(0, UTC) + _SLACK)


def _counting(source: _Source) -> str:
    """Write the figures that have grown; those that have not would only be more rows."""
    return f"""
        INSERT INTO metric_counts (family, part, labels, value)
        SELECT family, part, labels, counted FROM (
            SELECT figure.1 AS family, part, figure.2 AS labels, sum(figure.3) AS counted
            FROM ({source.added}) ARRAY JOIN figures AS figure GROUP BY family, part, labels
        ) AS fresh
        LEFT JOIN (
            SELECT family, part, labels, max(value) AS known FROM metric_counts
            WHERE family IN {{families:Array(String)}} GROUP BY family, part, labels
        ) AS kept USING (family, part, labels)
        WHERE counted > known + {_SMALLEST_GAIN}
    """  # noqa: S608
