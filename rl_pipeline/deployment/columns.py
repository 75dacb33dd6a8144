"""The windows of a rollout as arrays with one entry a window: what the arithmetic of evidence works on."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from operator import attrgetter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rl_pipeline.deployment.windows import Arm, Window

Floats: TypeAlias = NDArray[np.float64]
Integers: TypeAlias = NDArray[np.int64]
Flags: TypeAlias = NDArray[np.bool_]

# A judgement is mostly spent on reading windows: these read them without a step of the interpreter for each.
_COUNTS = attrgetter("sessions", "errors", "rated", "negative")
_REWARDS = attrgetter("rewards")


def sums_by(group: Integers, values: NDArray[Any], groups: int) -> Floats:
    """The sum of each group's values; `group` has the group of each value, from 0."""
    return np.asarray(np.bincount(group, values, minlength=groups), np.float64)


@dataclass(frozen=True, slots=True)
class ArmColumns:
    """One arm, window by window."""

    sessions: Integers
    errors: Integers
    rated: Integers
    negative: Integers
    rewarded: Integers
    """How many rewards each window has."""
    rewards: Floats
    """Those of all windows, one after the other, clipped to [0, 1]."""

    @classmethod
    def of(cls, arms: Sequence[Arm]) -> "ArmColumns":
        """The arms, in their order."""
        counts = np.fromiter(chain.from_iterable(map(_COUNTS, arms)), np.int64, 4 * len(arms)).reshape(-1, 4)
        rewarded = np.fromiter(map(len, map(_REWARDS, arms)), np.int64, len(arms))
        rewards = np.fromiter(chain.from_iterable(map(_REWARDS, arms)), np.float64, rewarded.sum())
        return cls(counts[:, 0], counts[:, 1], counts[:, 2], counts[:, 3], rewarded, rewards.clip(0, 1))

    def where(self, chosen: Flags) -> "ArmColumns":
        """The chosen windows alone."""
        return ArmColumns(
            self.sessions[chosen],
            self.errors[chosen],
            self.rated[chosen],
            self.negative[chosen],
            self.rewarded[chosen],
            self.rewards[np.repeat(chosen, self.rewarded)],
        )

    @property
    def reward_sums(self) -> Floats:
        """Sum of each window's rewards."""
        windows = np.repeat(np.arange(len(self.rewarded)), self.rewarded)
        return sums_by(windows, self.rewards, len(self.rewarded))


@dataclass(frozen=True, slots=True)
class Columns:
    """Both arms, window by window, oldest first."""

    start: Floats
    """Seconds since 1970."""
    step: Integers
    share: Floats
    candidate: ArmColumns
    control: ArmColumns

    @classmethod
    def of(cls, windows: Sequence[Window]) -> "Columns":
        """The windows, in their order."""
        return cls(
            np.fromiter(map(datetime.timestamp, map(attrgetter("start"), windows)), np.float64, len(windows)),
            np.fromiter(map(attrgetter("step"), windows), np.int64, len(windows)),
            np.fromiter(map(attrgetter("share"), windows), np.float64, len(windows)),
            ArmColumns.of([window.candidate for window in windows]),
            ArmColumns.of([window.control for window in windows]),
        )

    def __len__(self) -> int:
        return len(self.start)

    def where(self, chosen: Flags) -> "Columns":
        """The chosen windows alone."""
        return Columns(
            self.start[chosen],
            self.step[chosen],
            self.share[chosen],
            self.candidate.where(chosen),
            self.control.where(chosen),
        )

    @property
    def sessions(self) -> Integers:
        """Of both arms together."""
        return self.candidate.sessions + self.control.sessions

    @property
    def is_split(self) -> Flags:
        """Whether both arms were given traffic: only there can they be compared."""
        split: Flags = (self.share > 0) & (self.share < 1)
        return split
