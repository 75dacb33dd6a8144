"""A candidate that has all the traffic: when it is suspected, and what the splits that followed have shown.

In the bake there is no control, so no test can tell a bad model from a bad day, and nothing is taken back for good.
A suspicion brings the last split back, where the control serves beside the candidate and the comparison decides.

- **Suspected** is a candidate that fails more often than a limit: the configured one, or twice as often as the control
  did at the last split where that is more (a site that fails for everybody is no news). A minute is worth at most half
  of the evidence that it takes, so a burst is none. Where more than half of all sessions fail, minutes do not matter.
- **A split after a suspicion explains it** if the control failed beyond the configured limit there as well: the site is
  at fault, and the bake goes on from where that began. One at which neither fails leaves it open whether the trouble
  has passed or comes only with the full load; after `MOST_UNEXPLAINED` of them a person is asked.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_pipeline.deployment.columns import ArmColumns, Columns
from rl_pipeline.deployment.comparison import begin_of, figures, now_and_highest, reached
from rl_pipeline.deployment.evidence import EvidencePath, lasting_limit_path, limit_path
from rl_pipeline.deployment.limits import Limits
from rl_pipeline.deployment.state import Rollout

NEARLY_ALL = 0.50
"""More failed sessions than this are a suspicion without any wait."""
TOLERATED = 2.0
"""How many times as often as the control did at the last split the candidate may fail."""
MOST_UNEXPLAINED = 2
"""After so many suspicions that no split has explained, the next one ends at the split, and a person decides."""


@dataclass(frozen=True, slots=True)
class Bake:
    """What the sessions of a candidate that has all the traffic say."""

    columns: Columns
    limit: float
    path: EvidencePath
    nearly_all: EvidencePath

    @classmethod
    def of(cls, columns: Columns, limit: float) -> "Bake":
        """The windows of one bake, against a limit."""
        arm = columns.candidate
        return cls(
            columns,
            limit,
            lasting_limit_path(columns.start, arm.errors, arm.sessions, limit),
            limit_path(arm.errors, arm.sessions, NEARLY_ALL),
        )

    @property
    def fails_nearly_always(self) -> bool:
        """Whether that is proven."""
        return reached(self.nearly_all) is not None

    @property
    def suspected(self) -> tuple[int, int] | None:
        """The places of the windows at which a suspicion was proven first, and since which it is."""
        places = [(reached(path), path) for path in (self.path, self.nearly_all)]
        return min(((place, int(path.since[place])) for place, path in places if place is not None), default=None)

    def evidence(self) -> dict[str, Any]:
        """All of it in numbers, for a record."""
        since = begin_of(self.columns, self.suspected[1]).isoformat() if self.suspected else None
        return figures(self.columns.candidate) | {
            "limit": self.limit,
            "e_value": now_and_highest(self.path.values),
            "fails_nearly_always": self.fails_nearly_always,
            "since": since,
        }


def limit_of(rollout: Rollout, columns: Columns, least: float) -> float:
    """How often the candidate may fail without a control, at least as often as `least`."""
    splits = [place for place, step in enumerate(rollout.steps[: rollout.step + 1]) if step.share < 1]
    if not splits:
        return least
    last = columns.where((columns.step == splits[-1]) & columns.is_split)
    return min(max(least, TOLERATED * _usual_rate(last.control)), max(NEARLY_ALL, least))


def unexplained_rechecks(rollout: Rollout, columns: Columns, limits: Limits) -> tuple[int, int]:
    """How many splits followed a bake, up to the present step: all of them, and those that have explained nothing."""
    steps = rollout.steps[: rollout.step + 1]
    rechecks = [place for place in range(1, len(steps)) if steps[place].share < 1 <= steps[place - 1].share]
    return len(rechecks), sum(not _is_explained(columns.where(columns.step == place), limits) for place in rechecks)


def _is_explained(split: Columns, limits: Limits) -> bool:
    control = split.control
    path = lasting_limit_path(split.start, control.errors, control.sessions, limits.error_rate)
    return reached(path) is not None


def _usual_rate(arm: ArmColumns) -> float:
    """How often sessions failed in the first and in the second half of them, whichever is less: an outage is over.

    Where all of them are in one window by now, there are no halves: then it is how often they failed at all.
    """
    before = np.cumsum(arm.sessions) - arm.sessions
    is_first = before < arm.sessions.sum() / 2
    halves = [(float(arm.errors[part].sum()), int(arm.sessions[part].sum())) for part in (is_first, ~is_first)]
    return min((errors / sessions for errors, sessions in halves if sessions), default=0.0)
