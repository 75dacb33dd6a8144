"""How a candidate is let in: the strategy by how much better it is, and the steps of its way.

Improvement is in absolute points of the benchmark mean. The specification's last case ("worse") cannot be reached as it
is written; here it is the first one: a candidate that is surely worse is not let in at all.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from rl_pipeline.contracts import model_deployed
from rl_pipeline.deployment.state import RampStep, Rollout, Strategy

CAUTIOUS_SHARE = 0.05
"""Where a canary starts that is hardly better, ordinarily."""
BLUE_GREEN_SHARE = 0.90
"""The rest is held back as the control: without one, nobody can tell a bad model from a bad day."""
SAMPLES = (50, 100, 150)
"""Sessions of the candidate that each step of a canary needs."""

_LATER_STEPS = ((0.25, 0.25), (0.50, 0.50))
"""After which part of the whole time a canary goes on to which share."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do with a candidate, and the share that it starts with."""

    strategy: Strategy | Literal["abort"]
    initial: float
    reason: str


def choose(improvement: float, upper_bound: float, initial: float, cautious: float = CAUTIOUS_SHARE) -> Choice:
    """The strategy for a candidate that is so much better, by its mean and by the upper bound of its interval.

    `initial` is the share from which a canary starts, `cautious` that of one which is hardly better.
    """
    found = f"{improvement:+.3f} on the benchmarks, at most {upper_bound:+.3f}"
    if upper_bound < 0:
        return Choice("abort", 0.0, f"worse than the model in service: {found}")
    if improvement < 0.05:
        return Choice("canary", min(cautious, initial), f"hardly better: {found}")
    if improvement < 0.15:
        return Choice("canary", initial, f"better: {found}")
    return Choice("blue_green", BLUE_GREEN_SHARE, f"much better: {found}")


def ramp(
    strategy: Strategy, initial: float, hours: float, samples: tuple[int, int, int] = SAMPLES
) -> tuple[RampStep, ...]:
    """The steps before the candidate has all the traffic, which takes `hours` at least.

    A canary goes from `initial` to 25 % after a quarter of the time and to 50 % after half of it, unless it has as much
    already. Blue-green has one step, of 90 %, an A/B test one of `initial`, and an immediate rollout one of everything,
    which it leaves after its bake, with as many sessions as the last step of a canary needs.
    """
    seconds = hours * 3600
    if strategy == "immediate":
        return (RampStep(share=1.0, min_seconds=0, min_samples=samples[-1]),)
    if strategy != "canary":
        share = BLUE_GREEN_SHARE if strategy == "blue_green" else initial
        return (RampStep(share=share, min_seconds=seconds, min_samples=samples[-1]),)
    starts = [(0.0, initial, samples[0])]
    starts += [(at, share, n) for (at, share), n in zip(_LATER_STEPS, samples[1:], strict=True) if share > initial]
    ends = [at for at, _, _ in starts[1:]] + [1.0]
    return tuple(
        RampStep(share=share, min_seconds=(end - at) * seconds, min_samples=n)
        for (at, share, n), end in zip(starts, ends, strict=True)
    )


def ramp_schedule(rollout: Rollout) -> list[model_deployed.RampStep]:
    """The steps from the present one on, each at the earliest time that it can be reached; an A/B test has no end."""
    at, schedule = rollout.step_since, []
    for step in rollout.steps[rollout.step :]:
        schedule.append(model_deployed.RampStep(timestamp=at, percentage=round(100 * step.share, 6)))
        at += timedelta(seconds=step.min_seconds)
    if rollout.strategy != "ab_test" and not (schedule and schedule[-1].percentage == 100):
        schedule.append(model_deployed.RampStep(timestamp=at, percentage=100))
    return schedule
