"""Whether a running training still moves: its progress file read line by line, and the rule for a hang."""

import json
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

# A training that took so many times its usual time for a step has stopped moving.
HANG_FACTOR = 5.0
# Loading a large model, and what is compiled then, shows no progress; it takes longer than the slowest step.
LOADING_FACTOR = 3.0
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
    evaluation, saving) every line is progress. Without any for 5 x the median of the times between steps so far, and
    for `stall_seconds` at least, the training hangs. Before the first step it has 3 x `stall_seconds`.
    """

    stall_seconds: float
    moved_at: float
    _step: int | None = None
    _step_at: float = 0.0
    _phase: str | None = None
    _intervals: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED_INTERVALS))

    def observe(self, line: dict[str, Any], now: float) -> None:
        """Take note of a line of progress that was seen at `now`."""
        step, phase = line.get("step"), line.get("phase")
        is_next = isinstance(step, int) and (self._step is None or step > self._step)
        if is_next and phase == "training":
            # What lies between two steps, an evaluation for instance, is no measure of a step.
            if self._phase == "training" and self._step is not None:
                self._intervals.append(now - self._step_at)
            self._step, self._step_at = step, now
        if is_next or phase != self._phase or phase != "training":
            self.moved_at = now
        self._phase = phase

    @property
    def allowed_seconds(self) -> float:
        """How long the training may go on without progress."""
        if self._step is None:
            return LOADING_FACTOR * self.stall_seconds
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
