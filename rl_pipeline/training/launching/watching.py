"""Whether a running training still moves: its progress file read line by line, and the rule for a hang."""

import json
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

# A training that took so many times its usual time for a step has stopped moving.
HANG_FACTOR = 5.0
# Loading a large model, and what is compiled then, shows no progress.
LOADING_FACTOR = 3.0
# Nobody knows yet how long a step takes, and the first one compiles and fills caches as well.
FIRST_STEP_FACTOR = 10.0
_REMEMBERED_INTERVALS = 64


class ProgressFile:
    """The lines that were added to a growing file of JSON objects since the last look, or since this was made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._position = path.stat().st_size if path.exists() else 0

    def new_lines(self) -> list[dict[str, Any]]:
        """Each whole line once. A line that is still being written waits; one that is no JSON object is left out."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._position)
            added = file.read()
        whole, _, _ = added.rpartition(b"\n")
        if whole:
            self._position += len(whole) + 1
        return [line for line in map(_object, whole.splitlines()) if line]


@dataclass
class HangWatch:
    """Decides when a training hangs; all times are given to it, in seconds of one clock.

    A step that is higher than all before is progress, and so is a new phase. In the phases between steps (loading,
    playing, evaluation, saving) every line is progress, and the time they take is no measure of a step. Without any for
    5 x the median of the times of the steps so far, and for `stall_seconds` at least, the training hangs. Before the
    first step it has 3 x `stall_seconds`, and for that step 10 x.
    """

    stall_seconds: float
    moved_at: float
    _step: int | None = None
    _training_since: float = 0.0
    """The last step, or the return to training if that was later."""
    _phase: str | None = None
    _intervals: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_INTERVALS))

    def observe(self, line: dict[str, Any], now: float) -> None:
        """Take note of a line of progress that was seen at `now`."""
        step, phase = line.get("step"), line.get("phase")
        is_next = isinstance(step, int) and (self._step is None or step > self._step)
        if is_next and phase == "training":
            if self._phase == "training":
                self._intervals.append(now - self._training_since)
            self._step = step
        if phase == "training" and (is_next or self._phase != "training"):
            self._training_since = now
        if is_next or phase != self._phase or phase != "training":
            self.moved_at = now
        self._phase = phase

    @property
    def allowed_seconds(self) -> float:
        """How long the training may go on without progress."""
        if self._step is None:
            factor = FIRST_STEP_FACTOR if self._phase == "training" else LOADING_FACTOR
            return factor * self.stall_seconds
        if not self._intervals:
            return self.stall_seconds
        return max(self.stall_seconds, HANG_FACTOR * median(self._intervals))

    def hangs(self, now: float) -> bool:
        """Whether there was no progress for longer than is allowed."""
        return now - self.moved_at > self.allowed_seconds


def _object(line: bytes) -> dict[str, Any] | None:
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None
