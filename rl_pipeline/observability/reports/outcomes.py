"""What the loop is for: how agents do against the base period, with error bars, beside what is hoped for.

- completion: tasks that ended in success, of those whose agent knew how they ended.
- satisfaction: what people said outright, from 0 to 1: thumbs, and stars by (stars - 1) / 4.
- turns: of tasks that succeeded; one that is given up early is no efficiency.
- linter: scores of the code that trajectories contain.
- tickets: nothing here knows of support tickets.

Nothing is adjusted for a change in the mix of work: a week of harder tasks looks like a week of worse agents.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, time, timedelta
from typing import Literal

from rl_pipeline.observability.reports.activity import CAME_BY_ITSELF, CLUSTER, IN_PERIOD, SUMS
from rl_pipeline.observability.reports.estimates import Change, Estimate, clustered_estimate
from rl_pipeline.observability.reports.periods import Period
from rl_pipeline.stores.warehouse import Warehouse

BASE_DAYS = 7
"""Unless a base period is set, it is the first so many days with trajectories."""

Verdict = Literal["reached", "not reached", "not decided", "not known"]


@dataclass(frozen=True, slots=True)
class Goal:
    """A relative change that is hoped for; a negative one is a reduction."""

    name: str
    title: str
    hoped: float
    unknown: str
    """Why there may be no figure."""


GOALS = (
    Goal("completion", "task completion rate", 0.10, "no trajectory says how its task ended"),
    Goal("satisfaction", "user satisfaction", 0.20, "nobody gave thumbs or stars"),
    Goal("turns", "turns of a successful task", -0.15, "no trajectory says that its task succeeded"),
    Goal("linter", "linter score", 0.10, "no trajectory contains code that was linted"),
    Goal("tickets", "support tickets", -0.25, "no source of support tickets is connected"),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A goal, and how far it is."""

    goal: Goal
    change: Change
    note: str = ""
    """Why there is nothing to compare."""

    @property
    def verdict(self) -> Verdict:
        """Decided by the whole 95 % interval: what it does not exclude is not decided."""
        interval = self.change.relative_interval
        if self.note or self.change.relative is None:
            return "not known"
        if interval is None:
            return "not decided"
        low, high = interval if self.goal.hoped > 0 else (-interval[1], -interval[0])
        hoped = abs(self.goal.hoped)
        return "reached" if low >= hoped else "not reached" if high < hoped else "not decided"


def default_base(warehouse: Warehouse, stream: str) -> Period | None:
    """The first days with trajectories; None before there are any."""
    found = warehouse.query(
        "SELECT count() AS count, min(stream_time) AS first FROM trajectory_signals WHERE stream = {stream:String}",
        {"stream": stream},
    )
    if not found["count"][0]:
        return None
    start = datetime.combine(found["first"][0].date(), time(tzinfo=UTC))
    return Period(start, start + timedelta(days=BASE_DAYS))


def read_outcomes(warehouse: Warehouse, stream: str, period: Period, base: Period | None) -> list[Outcome]:
    """Every goal, in the specification's order."""
    now = read_estimates(warehouse, stream, period)
    before = read_estimates(warehouse, stream, base) if base else {}
    # What came before its base, or within it, cannot have become better than it.
    is_over = base is not None and base.end <= period.start
    outcomes = []
    for goal in GOALS:
        change = Change(before.get(goal.name, Estimate()), now.get(goal.name, Estimate()))
        if change.now.mean is None or change.base.mean is None:
            which = "in this period" if change.now.mean is None else "in the base period"
            note = goal.unknown if goal.name == "tickets" else f"{goal.unknown} {which}"
        else:
            note = "" if is_over else "the base period is not over"
        outcomes.append(Outcome(goal, change, note))
    return outcomes


def read_estimates(warehouse: Warehouse, stream: str, period: Period) -> Mapping[str, Estimate]:
    """The means of a period, by the names of the goals."""
    found = warehouse.query(
        f"""
        SELECT metric, {SUMS} FROM (
            SELECT metric, cluster, count(value) AS n, sum(value) AS s FROM (
                SELECT {CLUSTER} AS cluster, measured.1 AS metric, measured.2 AS value
                FROM (
                    SELECT * FROM trajectory_signals
                    WHERE stream = {{stream:String}} AND {IN_PERIOD.format(column="stream_time")} AND {CAME_BY_ITSELF}
                    ORDER BY ingest_revision DESC, earliness DESC LIMIT 1 BY trajectory_id
                )
                ARRAY JOIN [
                    ('completion', if(status = '', NULL, toNullable(toFloat64(status = 'success')))),
                    ('turns', if(status = 'success', toNullable(toFloat64(turns)), NULL)),
                    ('linter', lint_score)
                ] AS measured
                UNION ALL
                SELECT if(user = '', trajectory_id, user) AS cluster, 'satisfaction' AS metric,
                    multiIf(kind = 'thumbs_up', 1., kind = 'thumbs_down', 0., (toFloat64(rating) - 1) / 4) AS value
                FROM (
                    SELECT trajectory_id, user, toString(kind) AS kind, rating FROM trajectory_feedback FINAL
                    WHERE verdict = 'accepted' AND {IN_PERIOD.format(column="heard_at")}
                    UNION ALL
                    SELECT trajectory_id, said.1 AS user, toString(said.2) AS kind, said.3 AS rating FROM (
                        SELECT * FROM trajectory_signals
                        WHERE stream = {{stream:String}} AND {IN_PERIOD.format(column="stream_time")}
                            AND {CAME_BY_ITSELF}
                        ORDER BY ingest_revision DESC, earliness DESC LIMIT 1 BY trajectory_id
                    )
                    ARRAY JOIN arrayZip(feedback_users, feedback_kinds, feedback_ratings) AS said
                )
                WHERE kind IN ('thumbs_up', 'thumbs_down', 'stars')
            )
            GROUP BY metric, cluster HAVING n > 0
        )
        GROUP BY metric
        """,  # noqa: S608  # all of it is ours
        {"stream": stream, **period.parameters()},
    )
    return {row.pop("metric"): clustered_estimate(**row) for row in found.iter_rows(named=True)}
