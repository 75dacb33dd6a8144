"""Figures of a quiet day, and of days that differ in one thing."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from rl_pipeline.observability.reports.activity import Arrivals, ModelRewards, Rewards, Standing
from rl_pipeline.observability.reports.estimates import Change, Estimate
from rl_pipeline.observability.reports.figures import Figures
from rl_pipeline.observability.reports.outcomes import GOALS, Outcome
from rl_pipeline.observability.reports.periods import Period
from rl_pipeline.observability.reports.storage import Storage, TableSize
from rl_pipeline.observability.reports.trainings import EndedJob, Usage
from rl_pipeline.training.degradation import Sample, ServingModel

END = datetime(2026, 3, 10, 8, tzinfo=UTC)
PERIOD = Period(END - timedelta(days=1), END)
BASE = Period(END - timedelta(days=30), END - timedelta(days=23))


def rewards(mean: float, error: float = 0.005, count: int = 1000) -> Rewards:
    estimate = Estimate(count, mean, error)
    return Rewards(estimate, 0.2, (mean,) * 24, (ModelRewards("v1", estimate, (mean,) * 24),))


def job(state: str = "completed", code: str = "", job_id: str = "job-1") -> EndedJob:
    return EndedJob(job_id, state, "because", "manual", END, code, 1.5, Usage(8.0, 0.0, 16.0))


QUIET = Figures(
    period=PERIOD,
    base=BASE,
    arrivals=Arrivals({"accepted": 1000}, (40,) * 24),
    arrivals_before=1000,
    rewards=rewards(0.7),
    rewards_before=rewards(0.7),
    jobs=(job(),),
    validations=(),
    changes=(),
    post_mortems=(),
    standing=Standing("v1", END - timedelta(days=2), "steady", END - timedelta(days=2), "", {"v1": 1.0}),
    performance=ServingModel("v1", Sample(200, 0.7, 0.04), Sample(1000, 0.7, 0.04)),
    sessions=(),
    outcomes=tuple(Outcome(goal, Change(Estimate(50, 0.5, 0.05), Estimate(50, 0.6, 0.05))) for goal in GOALS),
    storage=Storage(1_000_000, 100, END, (TableSize("trajectories", 300_000, 100),), 1000.0),
)


def day(**changes: Any) -> Figures:
    """The quiet day, but for this."""
    return replace(QUIET, **changes)
