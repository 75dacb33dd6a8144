"""How the training is doing: lines of `progress.jsonl`, and everyone else who wants to hear them.

The file is the truth and is written at once. Listeners (NATS, MLflow, Dagster) are told afterwards and in their own
time: whatever happens to them, the training goes on. Only rank 0 reports.
"""

import json
import logging
import math
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Protocol

import psutil

from rl_pipeline.stores.tracker import RunOutcome

Phase = Literal["loading", "base_evaluation", "training", "playing", "evaluation", "saving"]
PASSING_PHASES = frozenset({"playing", "saving"})
"""They come and go between steps: for whoever watches a hang, and no news to anybody else."""
Line = Mapping[str, Any]

FIGURES = ("loss", "reward_mean", "reward_std", "policy_entropy", "kl_divergence", "learning_rate")
# What TRL calls some of them.
_OTHER_NAMES = {"entropy": "policy_entropy"}
_HEARTBEAT_SECONDS = 1.0
# More than our own lines and logs, less than any disk takes in a second.
_BYTES_THAT_TELL = 1_000_000

_log = logging.getLogger(__name__)


class Listener(Protocol):
    """Somebody who hears how it goes, and returns at once. One that raises hears no more."""

    def hear(self, line: Line, metrics: Mapping[str, float]) -> None:
        """One line of progress, and all figures behind it where there are any."""

    def close(self, outcome: RunOutcome) -> None:
        """Nothing more will come: tell what is untold, within reason."""


class Reporter:
    """Writes the lines and passes them on. Without a file it does nothing: so it is on all ranks but the first."""

    def __init__(
        self,
        file: Path | None,
        listeners: Sequence[Listener] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file.open("a", buffering=1) if file else None
        self._listeners = list(listeners) if file else []
        self._clock = clock
        self._phase: Phase = "loading"
        self._place: dict[str, Any] = {}
        self._first: tuple[int, float] | None = None
        self._last_line = -math.inf
        self._tokens: tuple[int, float] | None = None

    @property
    def step_reached(self) -> int:
        """The last step that was done."""
        step: int = self._place.get("step", 0)
        return step

    def phase(self, phase: Phase) -> None:
        """Something else begins."""
        if phase != self._phase or not self._place:
            self._phase = phase
            self._write({})

    def step(self, step: int, total_steps: int, epoch: float | None, total_epochs: float) -> None:
        """A step is done. Nobody shall take silence for a hang."""
        now = self._clock()
        self._first = self._first or (step - 1, now)
        epochs = max(1, math.ceil(total_epochs))
        current = min(epochs, math.ceil(epoch) if epoch else 0)
        self._place = {"step": step, "total_steps": total_steps, "epoch": current, "total_epochs": epochs}
        if step > self._first[0] + 1:
            self._place["eta_seconds"] = round(
                (total_steps - step) * (now - self._first[1]) / (step - self._first[0] - 1), 1
            )
        self.heartbeat()

    def heartbeat(self) -> None:
        """Something goes on, if no line has said so for a second."""
        if self._clock() - self._last_line >= _HEARTBEAT_SECONDS:
            self._write({})

    @contextmanager
    def while_bytes_move(self, directory: Path) -> Iterator[None]:
        """Heartbeats as long as this process reads and writes, or others write below `directory`.

        For what takes minutes with large files and calls nobody back. A disk that has stopped moves no bytes.
        """
        if self._file is None:
            yield
            return
        done = threading.Event()
        thread = threading.Thread(
            target=beat_while_bytes_move, args=(self.heartbeat, directory, done.wait), daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def log(self, logs: Mapping[str, float]) -> None:
        """The figures since the last time."""
        metrics = {_OTHER_NAMES.get(name, name): float(value) for name, value in logs.items() if _is_finite(value)}
        now = self._clock()
        if "tokens" in metrics:
            if self._tokens is not None and now > self._tokens[1]:
                metrics["tokens_per_second"] = (metrics["tokens"] - self._tokens[0]) / (now - self._tokens[1])
            self._tokens = (int(metrics["tokens"]), now)
        metrics["peak_memory_gb"] = peak_memory_gb()
        shown = (*FIGURES, "tokens_per_second", "peak_memory_gb")
        self._write({name: round(metrics[name], 9) for name in shown if name in metrics}, metrics)

    def measured(self, when: Literal["base", "final"], measures: Mapping[str, float]) -> None:
        """What the model can do before or after the training."""
        self._write({}, {f"{when}/{name}": value for name, value in measures.items()})

    def note(self, note: str) -> None:
        """Something that people should know of this attempt."""
        self._write({"note": note})

    def close(self, outcome: RunOutcome) -> None:
        """Tell the listeners that this was all, and how it ended."""
        if self._file is None:
            return
        with closing(self._file):
            self._tell(lambda listener: listener.close(outcome))

    def _write(self, more: Line, metrics: Mapping[str, float] | None = None) -> None:
        if self._file is None:
            return
        self._last_line = self._clock()
        line = {"time": datetime.now(UTC).isoformat(), "phase": self._phase, **self._place, **more}
        self._file.write(json.dumps(line) + "\n")
        self._tell(lambda listener: listener.hear(line, metrics or {}))

    def _tell(self, what: Callable[[Listener], None]) -> None:
        for listener in list(self._listeners):
            try:
                what(listener)
            except Exception:  # noqa: BLE001  whatever it is, the training must not notice
                _log.exception("%s hears no more of this training", type(listener).__name__)
                self._listeners.remove(listener)


def beat_while_bytes_move(beat: Callable[[], None], directory: Path, done_after: Callable[[float], bool]) -> None:
    """`beat` as `Reporter.while_bytes_move` says, until it is done, which is waited for."""
    before = _bytes_moved(directory)
    while not done_after(_HEARTBEAT_SECONDS):
        moved = _bytes_moved(directory)
        if abs(moved - before) >= _BYTES_THAT_TELL:
            before = moved
            beat()


def _bytes_moved(directory: Path) -> int:
    """A number that changes as files are read or written: by this process, and by any below `directory`."""
    counted = psutil.Process().io_counters()
    below = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):  # it was renamed meanwhile
                below += Path(place, name).stat().st_size
    return below + int(counted.read_chars + counted.write_chars + counted.read_bytes + counted.write_bytes)


def peak_memory_gb() -> float:
    """The most that this process has held, on its GPU if it has one."""
    import torch

    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated() / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def _is_finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
