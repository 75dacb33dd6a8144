"""Starts processes in order, watches them, restarts what dies, stops all of it. Knows nothing of what they are."""

import contextlib
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import IO

from rl_pipeline.errors import PipelineError

FIRST_BACKOFF_SECONDS = 1.0
LONGEST_BACKOFF_SECONDS = 30.0
# A child that served this long was well: its next death starts again at the first backoff.
STEADY_SECONDS = 60.0
STOP_PATIENCE_SECONDS = 20.0
POLL_SECONDS = 0.1


class ComponentFailed(PipelineError):
    """A component ended before it was ever ready; the text carries its last words and the log's place."""


@dataclass(frozen=True)
class Component:
    """One process of a stack: how to start it, and how to know that it serves.

    `is_ready(pid)` says whether this very process serves: a stranger on its port answers just as well.
    """

    name: str
    command: list[str]
    is_ready: Callable[[int], bool]
    log: Path
    environment: Mapping[str, str] | None = None
    address: str = ""
    ready_within_seconds: float = 120.0


@dataclass
class _Child:
    component: Component
    process: subprocess.Popen[bytes]
    log: IO[bytes]
    started: float
    ready: bool = False

    def is_ready(self) -> bool:
        return self.component.is_ready(self.process.pid)


@dataclass
class _Pending:
    """A dead component that waits for its next start."""

    component: Component
    not_before: float


@dataclass
class Supervisor:
    """Keeps a list of components running. All of its work happens in the calling thread.

    `report(component, state)` is called at every change of state with a sentence for people;
    `on_change(pids)` with the process id of each component, None for one that waits for its restart.
    """

    report: Callable[[Component, str], None]
    on_change: Callable[[dict[str, int | None]], None] = lambda _: None
    clock: Callable[[], float] = time.monotonic
    stop_requested: Event = field(default_factory=Event)
    _children: dict[str, _Child] = field(default_factory=dict)
    _pending: dict[str, _Pending] = field(default_factory=dict)
    _backoff: dict[str, float] = field(default_factory=dict)

    def start(self, components: Iterable[Component]) -> None:
        """Start the components at once and return when all are ready, or when a stop was requested.

        Raises `ComponentFailed` when one ends, or is not ready in time; the caller then calls `stop`.
        """
        started = [self._spawn(component) for component in components]
        while any(not child.ready for child in started):
            starting = [child for child in started if not child.ready]
            for child in starting:
                self._await_readiness(child)
            self.tick(beside=starting)
            if self.stop_requested.wait(POLL_SECONDS):
                return

    def watch(self) -> None:
        """Restart what dies, until a stop is requested."""
        while not self.stop_requested.wait(POLL_SECONDS):
            self.tick()

    def tick(self, beside: Collection[_Child] = ()) -> None:
        """One look at every component, beside those that are in their first start."""
        for child in [child for child in self._children.values() if child not in beside]:
            if child.process.poll() is not None:
                self._bury(child)
            elif not child.ready and child.is_ready():
                self._mark_ready(child)
        for pending in list(self._pending.values()):
            if self.clock() >= pending.not_before:
                del self._pending[pending.component.name]
                self._spawn(pending.component)

    def stop(self) -> None:
        """Stop everything, the last started first; each is asked, and killed only when it does not listen."""
        self._pending.clear()
        children, self._children = self._children, {}
        # The stack of callbacks runs to its end even when a report fails, as it does once the terminal is gone.
        with contextlib.ExitStack() as latest_first:
            for child in children.values():
                latest_first.callback(self._stop, child)

    def _stop(self, child: _Child) -> None:
        _signal_group(child.process, signal.SIGTERM)
        state = "stopped"
        try:
            child.process.wait(STOP_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            state = f"did not stop in {STOP_PATIENCE_SECONDS:.0f} s and was killed"
        # The group may hold grandchildren that outlived their parent.
        _signal_group(child.process, signal.SIGKILL)
        child.process.wait()
        child.log.close()
        self.report(child.component, state)

    def _spawn(self, component: Component) -> _Child:
        component.log.parent.mkdir(parents=True, exist_ok=True)
        log = component.log.open("ab")
        process = subprocess.Popen(  # noqa: S603 - the commands are our own
            component.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=component.environment,
            # A group of its own: Ctrl-C reaches the supervisor alone, and a stop reaches grandchildren too.
            start_new_session=True,
        )
        child = _Child(component, process, log, started=self.clock())
        self._children[component.name] = child
        self._tell_change()
        return child

    def _await_readiness(self, child: _Child) -> None:
        component = child.component
        if child.process.poll() is not None:
            raise ComponentFailed(f"{component.name} {_ending(child.process)}: {last_words(component.log)}")
        if child.is_ready():
            self._mark_ready(child)
        elif self.clock() - child.started > component.ready_within_seconds:
            raise ComponentFailed(
                f"{component.name} was not ready after {component.ready_within_seconds:.0f} s: "
                f"{last_words(component.log)}"
            )

    def _mark_ready(self, child: _Child) -> None:
        child.ready = True
        self.report(child.component, "ready")

    def _bury(self, child: _Child) -> None:
        component = child.component
        # Grandchildren may still hold the port or the directory that the next start needs.
        _signal_group(child.process, signal.SIGKILL)
        child.log.close()
        del self._children[component.name]
        if self.clock() - child.started >= STEADY_SECONDS:
            self._backoff.pop(component.name, None)
        backoff = self._backoff.get(component.name, FIRST_BACKOFF_SECONDS)
        self._backoff[component.name] = min(2 * backoff, LONGEST_BACKOFF_SECONDS)
        self._pending[component.name] = _Pending(component, self.clock() + backoff)
        self.report(component, f"{_ending(child.process)}; restarting in {backoff:.0f} s; log: {component.log}")
        self._tell_change()

    def _tell_change(self) -> None:
        running = {name: child.process.pid for name, child in self._children.items()}
        self.on_change({**dict.fromkeys(self._pending), **running})


def last_words(log: Path) -> str:
    """The last line that a component wrote, and where the rest is."""
    with log.open("rb") as lines:
        tail = deque((line for line in lines if line.strip()), maxlen=1)
    words = tail[0].decode(errors="replace").strip() if tail else "it wrote nothing"
    return f"{words} (log: {log})"


def _ending(process: subprocess.Popen[bytes]) -> str:
    if process.returncode < 0:
        return f"was ended by {signal.Signals(-process.returncode).name}"
    return f"ended with exit code {process.returncode}"


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
