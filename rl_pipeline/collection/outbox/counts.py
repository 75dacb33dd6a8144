"""What became of what an agent recorded: numbers for whoever watches it, since the agent itself is never told."""

import logging
import threading
from collections import Counter
from dataclasses import dataclass

_log = logging.getLogger("rl_pipeline.collection")


@dataclass(frozen=True, slots=True)
class Counts:
    """What this process's recorders did since it began. Whole trajectories, unless said otherwise."""

    begun: int = 0
    finished: int = 0
    """Complete on the disk."""
    sent: int = 0
    """Acknowledged by the stream; also what other processes left behind."""
    recovered: int = 0
    """Of these, what a killed process had not finished: sent as abandoned, with the turns that it had."""
    empty: int = 0
    """Without a turn: there is nothing to send."""
    dropped: int = 0
    """Lost by rule: no room in the outbox or on the disk, or more than the disk can keep up with."""
    refused: int = 0
    """Breaks the contract, or too large to send: the log says where."""
    posted: int = 0
    """Messages of another kind, such as feedback, that the stream has acknowledged."""
    opted_out: int = 0
    discarded: int = 0
    """Taken back by whoever recorded them."""
    late: int = 0
    """Blocks that ended before their trajectory was on the disk."""
    failures: int = 0
    """Faults that nobody expected, and tries at sending that failed."""


class Counting:
    """Counts from any thread, and logs the 1st, 2nd, 4th, 8th … of each kind, so that a fault never floods a log."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counter: Counter[str] = Counter()

    def add(self, kind: str, reason: str | None = None) -> None:
        """One more; with a `reason`, which holds no content, it is worth a warning."""
        with self._lock:
            self._counter[kind] += 1
            number = self._counter[kind]
        if reason is not None and number & (number - 1) == 0:
            _log.warning("recorder: %s (%d %s so far)", reason, number, kind)

    def failed(self, what: str, error: BaseException) -> None:
        """Something went wrong that must not reach the agent; only its kind is told, the text may hold content."""
        self.add("failures", f"{what} failed ({type(error).__name__})")
        _log.debug("recorder: %s failed", what, exc_info=error)

    def snapshot(self) -> Counts:
        """The numbers now."""
        with self._lock:
            return Counts(**self._counter)
