"""What a demo came to, and whether that is enough."""

import json
from dataclasses import asdict, dataclass, field
from itertools import pairwise

from rl_pipeline.demo.cycle import Promotion
from rl_pipeline.demo.population import Measured
from rl_pipeline.demo.profile import DemoFailed, DemoProfile
from rl_pipeline.demo.sabotage import TakenBack

_TWO_ERRORS = 2.0
_CYCLES_COUNTED = 3
"""More cycles need not bring more: a model cannot get better without end."""


@dataclass(frozen=True, slots=True)
class Cycle:
    """A model that came into service, and what it can do."""

    promotion: Promotion
    measured: Measured


@dataclass(slots=True)
class Outcome:
    """The figures of a run."""

    base: Measured
    cycles: list[Cycle] = field(default_factory=list)
    taken_back: TakenBack | None = None
    seconds: float = 0.0

    @property
    def gain(self) -> float:
        """Of the last model over the base, in points of success."""
        return (self.cycles[-1].measured.rate if self.cycles else self.base.rate) - self.base.rate

    @property
    def time_saved(self) -> float | None:
        """By the last model over the base: the share of the turns that a solved task costs; None where none was."""
        before = self.base.turns_to_solve
        after = self.cycles[-1].measured.turns_to_solve if self.cycles else before
        return 1 - after / before if before and after else None

    def as_json(self) -> str:
        """The figures, for whoever compares runs."""
        return json.dumps(asdict(self) | {"gain": self.gain, "time_saved": self.time_saved}, indent=2)


def check(outcome: Outcome, profile: DemoProfile) -> None:
    """A demo in which too little is learnt, a cycle makes it worse beyond the error bars, or what is bad stays, has
    failed."""
    wanted = profile.least_gain * min(profile.cycles, _CYCLES_COUNTED)
    if outcome.gain < wanted:
        raise DemoFailed(f"the last model gained {outcome.gain:+.1%} over the base, and {wanted:.0%} was the least")
    for before, after in pairwise([outcome.base, *(cycle.measured for cycle in outcome.cycles)]):
        spread = _TWO_ERRORS * (before.error**2 + after.error**2) ** 0.5
        if after.rate < before.rate - spread:
            raise DemoFailed(f"{after.model} is worse than {before.model}: {after.rate:.1%} after {before.rate:.1%}")
    if profile.sabotage and outcome.taken_back is None:
        raise DemoFailed("no sabotaged model was taken back")
