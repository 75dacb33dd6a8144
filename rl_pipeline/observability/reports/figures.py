"""All that a report on a period is made from, read once."""

from dataclasses import dataclass

from rl_pipeline.observability.reports.activity import (
    Arrivals,
    DeploymentChange,
    Rewards,
    Sessions,
    Standing,
    Validation,
    read_arrivals,
    read_changes,
    read_rewards,
    read_sessions,
    read_standing,
    read_validations,
)
from rl_pipeline.observability.reports.estimates import Change
from rl_pipeline.observability.reports.outcomes import Outcome, default_base, read_outcomes
from rl_pipeline.observability.reports.periods import Period
from rl_pipeline.observability.reports.storage import Storage, read_storage
from rl_pipeline.observability.reports.trainings import EndedJob, Usage, read_ended_jobs, usage_together
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.degradation import ServingModel
from rl_pipeline.training.evidence import serving_model


@dataclass(frozen=True, slots=True)
class Recommended:
    """What a post-mortem of the period recommends."""

    model_id: str
    recommendation: str


@dataclass(frozen=True, slots=True)
class Figures:
    """A period in numbers."""

    period: Period
    base: Period | None
    """That outcomes are compared with."""
    arrivals: Arrivals
    arrivals_before: int
    """Accepted in as much time before."""
    rewards: Rewards
    rewards_before: Rewards
    jobs: tuple[EndedJob, ...]
    validations: tuple[Validation, ...]
    changes: tuple[DeploymentChange, ...]
    post_mortems: tuple[Recommended, ...]
    standing: Standing | None
    performance: ServingModel | None
    """Of the model that made most of the last day's trajectories, against its own first ones."""
    sessions: tuple[Sessions, ...]
    outcomes: tuple[Outcome, ...]
    storage: Storage

    @property
    def reward_change(self) -> Change:
        """Against as much time before."""
        return Change(self.rewards_before.estimate, self.rewards.estimate)

    @property
    def usage(self) -> Usage:
        """Of the jobs that ended."""
        return usage_together([job.usage for job in self.jobs])

    def ended(self, state: str) -> int:
        """Jobs that ended so."""
        return sum(job.state == state for job in self.jobs)

    @property
    def opinions(self) -> int:
        """Thumbs and stars."""
        return next(one.change.now.count for one in self.outcomes if one.goal.name == "satisfaction")


def read_figures(warehouse: Warehouse, stream: str, period: Period, base: Period | None) -> Figures:
    """The figures of a period; `base` is what outcomes are compared with, else the first days with trajectories."""
    arrivals = read_arrivals(warehouse, stream, period)
    base = base or default_base(warehouse, stream)
    return Figures(
        period=period,
        base=base,
        arrivals=arrivals,
        arrivals_before=read_arrivals(warehouse, stream, period.before).accepted,
        rewards=read_rewards(warehouse, stream, period),
        rewards_before=read_rewards(warehouse, stream, period.before),
        jobs=tuple(read_ended_jobs(warehouse, period)),
        validations=tuple(read_validations(warehouse, period)),
        changes=tuple(read_changes(warehouse, period)),
        post_mortems=tuple(_recommended(warehouse, period)),
        standing=read_standing(warehouse, period.end),
        performance=serving_model(warehouse, stream, period.end, until=period.end),
        sessions=tuple(read_sessions(warehouse, period)),
        outcomes=tuple(read_outcomes(warehouse, stream, period, base)),
        storage=read_storage(warehouse, stream, period, arrivals.judged),
    )


def _recommended(warehouse: Warehouse, period: Period) -> list[Recommended]:
    found = warehouse.query(
        """
        SELECT model_id, JSONExtractString(report, 'recommendation') AS recommendation FROM post_mortems FINAL
        WHERE held_at >= {start:DateTime64(3, 'UTC')} AND held_at < {end:DateTime64(3, 'UTC')} ORDER BY held_at
        """,
        period.parameters(),
    )
    return [Recommended(**row) for row in found.iter_rows(named=True)]
