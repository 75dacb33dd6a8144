"""The outcomes of sessions as a gateway itself remembers them, for a watchdog that has nothing else to go by.

What belongs into which window, when a window is closed, and what becomes of it after a day, says `deployment.windows`.
"""

from collections import defaultdict, deque
from collections.abc import Sequence
from datetime import UTC, datetime

from rl_pipeline.deployment.windows import WINDOW_SECONDS, Arm, Window, aged_start, window_start
from rl_pipeline.serving.routing import Routing

MOST_COUNTS = 40_000
"""A day of windows with two arms, and the hours of a year before it."""

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

    def add(self, other: "Count") -> None:
        """What another one of the same step and model has counted."""
        self.closes = max(self.closes, other.closes)
        self.sessions += other.sessions
        self.errors += other.errors
        self.rated += other.rated
        self.negative += other.negative

    def add_rating(self, *, is_negative: bool) -> None:
        """A session's user said what they thought."""
        self.rated += 1
        self.negative += is_negative


class Memory:
    """Counts by window and model, of what is older than a day by hours."""

    def __init__(self, observed_seconds: float) -> None:
        self._observed = observed_seconds
        self._counts: deque[Count] = deque(maxlen=MOST_COUNTS)
        self._first_unaged = 0
        """When the first window began that may be joined to its hour next."""
        self._current: dict[str, Count] = {}
        self._current_key: _Key | None = None

    def begin(self, model_id: str, routing: Routing, now: float) -> Count:
        """Count a session that begins."""
        key = (window_start(now), routing.deployment_id, routing.step, routing.candidate_share)
        if key != self._current_key:
            self._current, self._current_key = {}, key
            self._age(now)
        count = self._current.get(model_id)
        if count is None:
            count = self._current[model_id] = self._count(key, model_id)
            if routing.deployment_id is not None:
                self._counts.append(count)
        count.sessions += 1
        return count

    def _age(self, now: float) -> None:
        """Join what is older than a day, an hour at a time. Nothing is added to it any more, so it may be replaced."""
        if not self._counts or aged_start(self._first_unaged, now) is None:
            return
        hours: dict[tuple[_Key, str], Count] = {}
        young: list[Count] = []
        for count in self._counts:
            hour = aged_start(count.key[0], now)
            if hour is None:
                young.append(count)
                continue
            key = (hour, *count.key[1:])
            hours.setdefault((key, count.model_id), Count(key, count.model_id, count.closes)).add(count)
        self._counts = deque([*hours.values(), *young], maxlen=MOST_COUNTS)
        self._first_unaged = young[0].key[0] if young else window_start(now)

    def apart(self, model_id: str, now: float) -> Count:
        """For a session that is evidence of nothing: it is in no window."""
        return self._count((window_start(now), None, None, 0.0), model_id)

    def closed_until(self, now: float) -> int:
        """The end of the last window that is closed, in seconds since 1970."""
        return window_start(now - self._observed)

    def windows(
        self, candidate: str, control: str, now: float, deployment_id: str | None = None, *, since: int = 0
    ) -> list[Window]:
        """The closed windows of a rollout of these two that began at `since` or later, oldest first; by default of
        every rollout of theirs. All of them, where `since` is in the middle of one: what an hour had before it became
        one window, nobody knows any more.

        May be called in another thread than that which counts: what is closed does not change.
        """
        closed = [
            count
            for count in list(self._counts)
            if count.model_id in (candidate, control)
            and (deployment_id is None or count.key[1] == deployment_id)
            and count.is_over(now)
        ]
        if any(count.key[0] < since < count.closes - self._observed for count in closed):
            since = 0
        found: defaultdict[_Key, dict[str, list[Count]]] = defaultdict(lambda: {candidate: [], control: []})
        for count in closed:
            if count.key[0] >= since:
                found[count.key][count.model_id].append(count)
        return [
            Window(
                start=datetime.fromtimestamp(key[0], UTC),
                step=key[2] or 0,
                share=key[3],
                candidate=_arm(of_window[candidate]),
                control=_arm(of_window[control]),
            )
            for key, of_window in sorted(found.items(), key=lambda item: item[0][0])
        ]

    def _count(self, key: _Key, model_id: str) -> Count:
        return Count(key, model_id, key[0] + WINDOW_SECONDS + self._observed)


def _arm(counts: Sequence[Count]) -> Arm:
    return Arm(
        sum(count.sessions for count in counts),
        sum(count.errors for count in counts),
        sum(count.rated for count in counts),
        sum(count.negative for count in counts),
    )
