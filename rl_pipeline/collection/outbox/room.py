"""How much an outbox may take. What does not fit is dropped and counted: an agent's own work comes first."""

import os
import time
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class OutboxLimits:
    """What is already in the outbox stays; a trajectory that would go beyond a limit is the one that is dropped."""

    max_bytes: int = 1 << 30
    """Of the whole outbox, whatever process wrote it: beyond it, no trajectory is begun."""
    min_free_bytes: int = 64 << 20
    """Of the disk: with less, no trajectory is begun or goes on."""
    max_trajectory_bytes: int = 48 << 20
    """Of one trajectory; a claimed one may have 64 MB when it is read."""
    max_waiting: int = 1000
    """Turns that wait in memory for the disk."""


class Room:
    """Looks at the disk; the sum over the directory is taken at most once a second."""

    def __init__(self, directory: Path, limits: OutboxLimits) -> None:
        self._directory = directory
        self._limits = limits
        self._used = 0
        self._looked: float | None = None

    def lacks_for_more(self) -> str | None:
        """Why a trajectory that is being recorded cannot go on."""
        status = os.statvfs(self._directory)
        if status.f_bavail * status.f_frsize < self._limits.min_free_bytes:
            return "the disk is nearly full"
        return None

    def lacks_for_new(self) -> str | None:
        """Why none can be begun."""
        if self._looked is None or time.monotonic() - self._looked > 1:
            self._used, self._looked = used_bytes(self._directory), time.monotonic()
        return "the outbox is full" if self._used >= self._limits.max_bytes else self.lacks_for_more()


def used_bytes(directory: Path) -> int:
    """What the files of a directory take, of which some may go meanwhile."""
    total = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                total += entry.stat().st_size
            except FileNotFoundError:
                continue
    return total
