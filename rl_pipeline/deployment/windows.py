"""What both arms of a rollout did in one stretch of time, under one share of the traffic: the grain of all evidence.

Within a window the share is the same and both arms see the same weather. The exposure of an arm is what was observed,
never what was configured.

**A session belongs to the window in which it began**, and is looked at for the same time in both arms: until the window
is closed, which it is `observed_seconds` after its end. Failures are known at once and successes only after a silence:
counted when they are told, failures would outrun successes, and a young candidate would look all bad. So whoever counts
gives a window only once it is closed, and a closed window never changes. What comes of a session later, a failure or a
rating, counts as a session of its own, in the window in which it comes.

**What a session earned is known later than what failed**, and good work often takes longer than bad. So a reward counts
only if it was scored within a maturity of the beginning of its session, and is read somewhat more than that after the
window in which that began, never sooner: as a window of its own, under the step and the share of the beginning. By then
as much is known of a young candidate as of the control. `Clock` has these times.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

WINDOW_SECONDS = 10
"""Windows begin at whole multiples of it since 1970, everywhere alike."""
OBSERVED_SECONDS = 40.0
"""For so long after its end a window is open at most. A watchdog that looks every few seconds has then taken a bad
candidate out within a minute of the window in which the evidence was enough."""
SETTLING_SECONDS = 10.0
"""So long an outcome may be on its way from a gateway into the stream, and so far clocks may differ, at most."""
CLOSED_SECONDS = OBSERVED_SECONDS + 2 * SETTLING_SECONDS
"""So long after its end a window is closed for everybody, the controller too."""
MATURITY_SECONDS = 1800.0
STORING_SECONDS = (5.0, 120.0)
"""So long a scored reward may be on its way into its table, at the least and at most."""
LOOKED_BACK_SECONDS = 1800.0
"""Who was at work in this time before a rollout began is no part of it: sessions stay with the model that they have."""


_HOUR_SECONDS, _AGED_SECONDS = 3600, 86_400


@dataclass(frozen=True, slots=True)
class Clock:
    """How long the controller waits for what it counts. A fast one sees less: what comes later counts in no window."""

    observed_seconds: float = OBSERVED_SECONDS
    settling_seconds: float = SETTLING_SECONDS
    maturity_seconds: float = MATURITY_SECONDS
    """So soon after the beginning of a session a reward has to be scored to count. Work that takes longer is left out
    for both arms; more of it would count with a longer time, and every fall of the rewards would be seen later."""

    @property
    def matured_windows(self) -> int:
        """So many windows after one began the rewards of its sessions are read: by then those scored in time are in
        their table."""
        least, most = STORING_SECONDS
        storing = min(max(self.maturity_seconds / 4, least), most)
        return math.ceil((self.maturity_seconds + storing) / WINDOW_SECONDS)


def observed_seconds(idle_seconds: float) -> float:
    """How long after its end a window is open at a gateway at which sessions end after such a silence."""
    return min(idle_seconds, OBSERVED_SECONDS)


def window_start(seconds: float) -> int:
    """When the window began that a moment is in; both in seconds since 1970."""
    return int(seconds // WINDOW_SECONDS) * WINDOW_SECONDS


@dataclass(frozen=True, slots=True)
class Arm:
    """What one model did in a window."""

    sessions: int = 0
    errors: int = 0
    """Sessions in which anything failed: one session is one error, however often it failed."""
    rated: int = 0
    """Sessions that their users rated."""
    negative: int = 0
    """Those of them that were rated badly."""
    rewards: tuple[float, ...] = ()
    """Raw rewards, from 0 to 1, of sessions that began `Clock.matured_windows` before, in the order of that."""

    def __add__(self, other: "Arm") -> "Arm":
        """What both have seen."""
        return Arm(
            self.sessions + other.sessions,
            self.errors + other.errors,
            self.rated + other.rated,
            self.negative + other.negative,
            self.rewards + other.rewards,
        )


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of `WINDOW_SECONDS`; two steps of a ramp never share one window object."""

    start: datetime
    step: int
    """Of the rollout."""
    share: float
    """Of the candidate, as configured: for the check of the sample ratio alone."""
    candidate: Arm = field(default_factory=Arm)
    control: Arm = field(default_factory=Arm)

    def joined(self, other: "Window") -> "Window":
        """With the sessions of another one of the same step and share."""
        return replace(self, candidate=self.candidate + other.candidate, control=self.control + other.control)


def aged(windows: Sequence[Window], until: float) -> list[Window]:
    """The windows where each hour that was over a day before `until` (in seconds since 1970) is one window a step and
    share, which begins with the hour: what is to be remembered for as long as a rollout lasts has to become less, and
    evidence that lost its first windows would begin anew at every look."""
    kept = []
    hours: dict[tuple[int, int, float], Window] = {}
    for window in windows:
        hour = aged_start(window.start.timestamp(), until)
        if hour is None:
            kept.append(window)
            continue
        key = hour, window.step, window.share
        whole = replace(window, start=datetime.fromtimestamp(hour, UTC))
        hours[key] = hours[key].joined(whole) if key in hours else whole
    return [*(hours[key] for key in sorted(hours)), *kept]


def aged_start(start: float, until: float) -> int | None:
    """When the hour began that a window is remembered by, if that was over a day before; all in seconds since 1970."""
    hour = int(start // _HOUR_SECONDS) * _HOUR_SECONDS
    return hour if hour + _HOUR_SECONDS <= until - _AGED_SECONDS else None
