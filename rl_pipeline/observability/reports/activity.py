"""What happened in a period: what arrived, what it earned, what was validated, released and served."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from rl_pipeline.observability.reports.estimates import Estimate, clustered_estimate
from rl_pipeline.observability.reports.periods import Period
from rl_pipeline.stores.warehouse import Warehouse

CAME_BY_ITSELF = "trajectory_id NOT IN (SELECT trajectory_id FROM imported_trajectories)"
"""What files have brought is no experience of the model in service."""
CLUSTER = "if(session_id = '', trajectory_id, session_id)"
IN_PERIOD = "{column} >= {{start:DateTime64(3, 'UTC')}} AND {column} < {{end:DateTime64(3, 'UTC')}}"
# In milliseconds, as the stream tells time: a period may begin within a second.
_BIN = """
    toUInt32(intDiv(
        toUnixTimestamp64Milli(stream_time) - toUnixTimestamp64Milli({start:DateTime64(3, 'UTC')}), {width:UInt64}
    ))
"""
SUMS = """
    sum(n) AS observations, sum(s) AS total, count() AS clusters, sum(s * s) AS squares, sum(s * n) AS products,
    toFloat64(sum(n * n)) AS squared_sizes
"""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """How the messages of a period fared."""

    verdicts: Mapping[str, int]
    series: tuple[int, ...]
    """Accepted trajectories by the bins of the period."""
    unnamed: int = 0
    """Accepted ones that do not say which version of the model made them."""

    @property
    def accepted(self) -> int:
        """Trajectories that were collected."""
        return self.verdicts.get("accepted", 0)

    @property
    def judged(self) -> int:
        """Messages that arrived; what was lost or erased did not fail by itself."""
        return sum(count for verdict, count in self.verdicts.items() if verdict not in ("lost", "erased"))

    @property
    def refused_share(self) -> float:
        """Of the messages that arrived."""
        return self.verdicts.get("refused", 0) / self.judged if self.judged else 0.0


@dataclass(frozen=True, slots=True)
class Rewards:
    """The raw rewards of a period's trajectories, as each was first scored under the configuration in force."""

    estimate: Estimate = field(default_factory=Estimate)
    deviation: float | None = None
    """The standard deviation of single rewards."""
    series: tuple[float | None, ...] = ()
    """Means by the bins of the period."""
    models: tuple["ModelRewards", ...] = ()


@dataclass(frozen=True, slots=True)
class ModelRewards:
    """What one version of the model earned."""

    model_version: str
    estimate: Estimate
    series: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Sessions:
    """What the gateways served by one model."""

    model_id: str
    sessions: int
    failed: int
    positive: int
    negative: int

    @property
    def error_rate(self) -> float:
        """Failed sessions among all."""
        return self.failed / self.sessions if self.sessions else 0.0


@dataclass(frozen=True, slots=True)
class Validation:
    """What was said of a checkpoint."""

    job_id: str
    decision: str
    reasons: tuple[str, ...]
    improvement: float | None


@dataclass(frozen=True, slots=True)
class DeploymentChange:
    """A generation of what is to be served."""

    generation: int
    at: datetime
    event: str
    model_id: str
    reason: str
    by: str


@dataclass(frozen=True, slots=True)
class Standing:
    """What is to be served at the end of a period."""

    serving: str
    since: datetime
    """From when on it has been the model in service, without a break."""
    phase: str
    phase_since: datetime
    frozen: str
    weights: Mapping[str, float]
    waits_for: str = ""
    """What the rollout waits for a person with, in words."""
    waits_since: datetime | None = None


def bins_of(period: Period) -> tuple[timedelta, int]:
    """How a period is cut for plots: a day by the hour, anything longer by the day."""
    width = timedelta(hours=1) if period.length <= timedelta(days=1) else timedelta(days=1)
    return width, -(-period.length // width)


def read_arrivals(warehouse: Warehouse, stream: str, period: Period) -> Arrivals:
    """What the ledger says of the period."""
    width, bins = bins_of(period)
    known = {"stream": stream, "width": width // timedelta(milliseconds=1), **period.parameters()}
    within = IN_PERIOD.format(column="stream_time")
    found = warehouse.query(
        f"""
        SELECT verdict, {_BIN} AS bin, count() AS sequences
        FROM trajectory_ledger FINAL WHERE stream = {{stream:String}} AND {within} GROUP BY verdict, bin
        """,  # noqa: S608  # all of it is ours
        known,
    )
    unnamed = warehouse.query(
        f"""
        SELECT count() AS count FROM trajectories FINAL
        WHERE stream = {{stream:String}} AND model_version = '' AND {within}
        """,  # noqa: S608  # all of it is ours
        known,
    )
    verdicts: dict[str, int] = {}
    series = [0] * bins
    for verdict, place, count in found.iter_rows():
        verdicts[verdict] = verdicts.get(verdict, 0) + count
        if verdict == "accepted":
            series[place] += count
    return Arrivals(dict(sorted(verdicts.items())), tuple(series), int(unnamed["count"][0]))


def read_rewards(warehouse: Warehouse, stream: str, period: Period) -> Rewards:
    """Rewards under the configuration in force; none where nothing was scored."""
    width, bins = bins_of(period)
    current = warehouse.query("SELECT hash FROM reward_configurations FINAL ORDER BY current_since DESC LIMIT 1")
    if current.is_empty():
        return Rewards(series=(None,) * bins)
    known = {
        "stream": stream,
        "configuration": current["hash"][0],
        "width": width // timedelta(milliseconds=1),
        **period.parameters(),
    }
    first = f"""
        SELECT {CLUSTER} AS cluster, model_version, raw_total, {_BIN} AS bin
        FROM rewards FINAL
        WHERE stream = {{stream:String}} AND configuration = {{configuration:String}} AND revision = 0
            AND {IN_PERIOD.format(column="stream_time")} AND {CAME_BY_ITSELF}
    """  # noqa: S608  # all of it is ours
    sums = warehouse.query(
        f"""
        SELECT model, {SUMS} FROM (
            SELECT model, cluster, count() AS n, sum(raw_total) AS s
            FROM ({first}) ARRAY JOIN [model_version, '*'] AS model GROUP BY model, cluster
        ) GROUP BY model ORDER BY model
        """,  # noqa: S608  # put together from the texts above
        known,
    )
    means = warehouse.query(
        f"""
        SELECT model, bin, avg(raw_total) AS mean FROM ({first})
        ARRAY JOIN [model_version, '*'] AS model GROUP BY model, bin
        """,  # noqa: S608  # put together from the texts above
        known,
    )
    spread = warehouse.query(
        f"SELECT stddevSamp(raw_total) AS deviation, count() AS count FROM ({first})",  # noqa: S608  # from above
        known,
    )
    series: dict[str, list[float | None]] = {}
    for model, place, mean in means.iter_rows():
        series.setdefault(model, [None] * bins)[place] = mean
    estimates = {row.pop("model"): clustered_estimate(**row) for row in sums.iter_rows(named=True)}
    return Rewards(
        estimates.get("*", Estimate()),
        float(spread["deviation"][0]) if spread["count"][0] > 1 else None,
        tuple(series.get("*", [None] * bins)),
        tuple(
            ModelRewards(model or "not said", estimate, tuple(series[model]))
            for model, estimate in estimates.items()
            if model != "*"
        ),
    )


def read_sessions(warehouse: Warehouse, period: Period) -> list[Sessions]:
    """What the gateways told, by model."""
    found = warehouse.query(
        f"""
        SELECT model_id, uniqExact(session_id) AS sessions, uniqExactIf(session_id, failed) AS failed,
            uniqExactIf(session_id, feedback = 'positive') AS positive,
            uniqExactIf(session_id, feedback = 'negative') AS negative
        FROM serving_outcomes FINAL WHERE {IN_PERIOD.format(column="started_at")}
        GROUP BY model_id ORDER BY model_id
        """,  # noqa: S608  # all of it is ours
        period.parameters(),
    )
    return [Sessions(**row) for row in found.iter_rows(named=True)]


def read_validations(warehouse: Warehouse, period: Period) -> list[Validation]:
    """Verdicts of the period, shadow jobs' too, in their order."""
    found = warehouse.query(
        f"""
        SELECT job_id, decision, reasons, improvement FROM validation_reports FINAL
        WHERE {IN_PERIOD.format(column="validated_at")} ORDER BY validated_at, job_id
        """,  # noqa: S608  # all of it is ours
        period.parameters(),
    )
    return [
        Validation(row["job_id"], row["decision"], tuple(row["reasons"]), row["improvement"]) for row in _named(found)
    ]


def read_changes(warehouse: Warehouse, period: Period) -> list[DeploymentChange]:
    """What changed in what is to be served, in order."""
    found = warehouse.query(
        f"""
        SELECT generation, at, event, model_id, reason, by FROM deployment_audit FINAL
        WHERE {IN_PERIOD.format(column="at")} ORDER BY generation, at
        """,  # noqa: S608  # all of it is ours
        period.parameters(),
    )
    return [DeploymentChange(**row) for row in _named(found)]


_WAITS = """
    SELECT concat(model_id, ' (', reason, '): ', explanation) AS text, since FROM rollout_holds FINAL
    WHERE since <= {at:DateTime64(3, 'UTC')} AND coalesce(ended_at > {at:DateTime64(3, 'UTC')}, true) ORDER BY since
"""


def read_standing(warehouse: Warehouse, at: datetime) -> Standing | None:
    """What was to be served then; None where nothing ever was."""
    rows = _named(
        warehouse.query(
            """
            SELECT at, phase, JSONExtractString(state, 'serving') AS serving,
                JSONExtractString(state, 'frozen') AS frozen, JSONExtractRaw(state, 'weights') AS weights
            FROM deployment_audit FINAL WHERE at <= {at:DateTime64(3, 'UTC')} ORDER BY generation, at
            """,
            {"at": at.replace(tzinfo=None)},
        )
    )
    if not rows:
        return None
    last = rows[-1]
    waits = _named(warehouse.query(_WAITS, {"at": at.replace(tzinfo=None)}))
    return Standing(
        last["serving"],
        _since(rows, "serving"),
        last["phase"],
        _since(rows, "phase"),
        last["frozen"],
        json.loads(last["weights"]),
        *((waits[-1]["text"], waits[-1]["since"]) if waits else ()),
    )


def _since(rows: Sequence[Mapping[str, Any]], column: str) -> datetime:
    """When the last value began to hold."""
    since: datetime = rows[-1]["at"]
    for row in reversed(rows):
        if row[column] != rows[-1][column]:
            break
        since = row["at"]
    return since


def _named(frame: Any) -> list[dict[str, Any]]:
    return list(frame.iter_rows(named=True))
