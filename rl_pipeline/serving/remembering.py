"""The outcomes of sessions as a gateway itself remembers them, for a watchdog that has nothing else to go by.

What belongs into which window, and when a window is closed, says `deployment.windows`.
"""

from collections import defaultdict, deque
from datetime import UTC, datetime

from rl_pipeline.deployment.windows import WINDOW_SECONDS, Arm, Window, window_start
from rl_pipeline.serving.routing import Routing

MOST_COUNTS = 20_000
"""More than a day of windows with two arms."""

_Key = tuple[int, str | None, int | None, float]


class Count:
    """What the sessions of one model did that began in one window."""

    __slots__ = ("closes", "errors", "key", "model_id", "negative", "rated", "sessions")

    def __init__(self, key: _Key, model_id: str, closes: float) -> None:
        self.key = key
        self.model_id = model_id
        self.closes = closes
        self.sessions = self.errors = self.rated = self.negative = 0

    def is_over(self, now: float) -> bool:
        """Whether nothing may be added any more."""
        return now >= self.closes

    def add_rating(self, *, is_negative: bool) -> None:
        """A session's user said what they thought."""
        self.rated += 1
        self.negative += is_negative


class Memory:
    """Counts by window and model; the oldest are forgotten."""

    def __init__(self, observed_seconds: float) -> None:
        self._observed = observed_seconds
        self._counts: deque[Count] = deque(maxlen=MOST_COUNTS)
        self._current: dict[str, Count] = {}
        self._current_key: _Key | None = None

    def begin(self, model_id: str, routing: Routing, now: float) -> Count:
        """Count a session that begins."""
        key = (window_start(now), routing.deployment_id, routing.step, routing.candidate_share)
        if key != self._current_key:
            self._current, self._current_key = {}, key
        count = self._current.get(model_id)
        if count is None:
            count = self._current[model_id] = self._count(key, model_id)
            if routing.deployment_id is not None:
                self._counts.append(count)
        count.sessions += 1
        return count

    def apart(self, model_id: str, now: float) -> Count:
        """For a session that is evidence of nothing: it is in no window."""
        return self._count((window_start(now), None, None, 0.0), model_id)

    def closed_until(self, now: float) -> int:
        """The end of the last window that is closed, in seconds since 1970."""
        return window_start(now - self._observed)

    def windows(self, candidate: str, control: str, now: float, deployment_id: str | None = None) -> list[Window]:
        """The closed windows of a rollout of these two, oldest first; by default of every rollout of theirs."""
        arms: defaultdict[_Key, dict[str, Arm]] = defaultdict(dict)
        for count in self._counts:
            wanted = deployment_id is None or count.key[1] == deployment_id
            if wanted and count.model_id in (candidate, control) and count.is_over(now):
                of_window = arms[count.key]
                of_window[count.model_id] = _sum(of_window.get(count.model_id, Arm()), count)
        return [
            Window(
                start=datetime.fromtimestamp(key[0], UTC),
                step=key[2] or 0,
                share=key[3],
                candidate=of_window.get(candidate, Arm()),
                control=of_window.get(control, Arm()),
            )
            for key, of_window in sorted(arms.items(), key=lambda item: item[0][0])
        ]

    def _count(self, key: _Key, model_id: str) -> Count:
        return Count(key, model_id, key[0] + WINDOW_SECONDS + self._observed)


def _sum(arm: Arm, count: Count) -> Arm:
    return Arm(
        arm.sessions + count.sessions,
        arm.errors + count.errors,
        arm.rated + count.rated,
        arm.negative + count.negative,
    )
