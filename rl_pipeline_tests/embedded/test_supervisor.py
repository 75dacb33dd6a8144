"""What the supervisor promises, with real child processes."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl_pipeline.embedded.supervisor import Component, ComponentFailed, Supervisor
from rl_pipeline_tests.waiting import wait_until

# Says that it serves, then waits; with a grandchild, whose id it writes down.
SERVE = """
import pathlib, subprocess, sys, signal
grandchild = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"])
directory = pathlib.Path(sys.argv[1])
(directory / "grandchild").write_text(str(grandchild.pid))
(directory / "ready").write_text("")
signal.pause()
"""
IGNORE_TERM = """
import pathlib, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(pathlib.Path(sys.argv[1]) / "ready").write_text("")
while True: time.sleep(1)
"""


def component(directory: Path, program: str, name: str = "server") -> Component:
    directory.mkdir(exist_ok=True)
    return Component(
        name=name,
        command=[sys.executable, "-c", program, str(directory)],
        is_ready=lambda _: (directory / "ready").exists(),
        log=directory / "log",
    )


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


class Watched:
    """A supervisor with a clock that the test moves, and what it said."""

    def __init__(self) -> None:
        self.now = 0.0
        self.said: list[str] = []
        self.pids: dict[str, Any] = {}
        self.supervisor = Supervisor(
            report=lambda child, state: self.said.append(f"{child.name} {state}"),
            on_change=self.pids_changed,
            clock=lambda: self.now,
        )

    def pids_changed(self, pids: dict[str, Any]) -> None:
        self.pids = pids


@pytest.fixture
def watched() -> Iterator[Watched]:
    watched = Watched()
    yield watched
    watched.supervisor.stop()


def test_start_returns_when_every_component_is_ready(watched: Watched, tmp_path: Path) -> None:
    components = [component(tmp_path / name, SERVE, name) for name in ("one", "two")]
    watched.supervisor.start(components)
    assert all((tmp_path / name / "ready").exists() for name in ("one", "two"))
    assert sorted(watched.said) == ["one ready", "two ready"]
    assert sorted(watched.pids) == ["one", "two"]


def test_a_killed_child_is_reported_and_started_again_after_its_backoff(watched: Watched, tmp_path: Path) -> None:
    child = component(tmp_path, SERVE)
    watched.supervisor.start([child])
    first = watched.pids["server"]
    (tmp_path / "ready").unlink()
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not is_alive(first))

    watched.supervisor.tick()
    assert watched.said[-1].startswith("server was ended by SIGKILL; restarting in 1 s")
    assert watched.pids == {"server": None}, "a dead child must not be recorded as running"
    watched.supervisor.tick()
    assert watched.pids == {"server": None}, "it must wait for the backoff"

    watched.now += 1.0
    watched.supervisor.tick()
    assert watched.pids["server"] not in (None, first)
    wait_until((tmp_path / "ready").exists)
    watched.supervisor.tick()
    assert watched.said[-1] == "server ready"


def test_the_grandchildren_of_a_dead_child_do_not_outlive_it(watched: Watched, tmp_path: Path) -> None:
    watched.supervisor.start([component(tmp_path, SERVE)])
    grandchild = int((tmp_path / "grandchild").read_text())
    os.kill(watched.pids["server"], signal.SIGKILL)
    wait_until(lambda: not is_alive(watched.pids["server"]))
    assert is_alive(grandchild), "the test needs a grandchild that outlives its parent"
    watched.supervisor.tick()
    wait_until(lambda: not is_alive(grandchild))


def test_the_backoff_doubles_up_to_its_limit_and_starts_anew_after_a_steady_time(
    watched: Watched, tmp_path: Path
) -> None:
    watched.supervisor.start([component(tmp_path, SERVE)])

    def kill_and_read_backoff() -> str:
        pid = watched.pids["server"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not is_alive(pid))
        watched.supervisor.tick()
        backoff = watched.said[-1].split("restarting in ")[1].split(" s;")[0]
        watched.now += float(backoff)
        watched.supervisor.tick()
        return backoff

    assert [kill_and_read_backoff() for _ in range(7)] == ["1", "2", "4", "8", "16", "30", "30"]
    watched.now += 60
    assert kill_and_read_backoff() == "1"


def test_a_component_that_ends_before_it_is_ready_fails_the_start_with_its_last_words(
    watched: Watched, tmp_path: Path
) -> None:
    with pytest.raises(ComponentFailed, match=r"server ended with exit code 3: the port is taken \(log: .*log\)"):
        watched.supervisor.start([component(tmp_path, "print('the port is taken'); raise SystemExit(3)")])


def test_a_component_that_is_never_ready_fails_the_start(watched: Watched, tmp_path: Path) -> None:
    watched.supervisor.report = lambda *_: None
    silent = component(tmp_path, "import signal; signal.pause()")
    watched.supervisor.clock = lambda: time.monotonic() * 1000  # a second passes in a millisecond
    with pytest.raises(ComponentFailed, match="server was not ready after 120 s: it wrote nothing"):
        watched.supervisor.start([silent])


def test_stop_ends_children_and_grandchildren_and_closes_the_latest_first(watched: Watched, tmp_path: Path) -> None:
    watched.supervisor.start([component(tmp_path / "one", SERVE, "one")])
    watched.supervisor.start([component(tmp_path / "two", SERVE, "two")])
    family = [*watched.pids.values(), *(int((tmp_path / name / "grandchild").read_text()) for name in ("one", "two"))]
    watched.supervisor.stop()
    wait_until(lambda: not any(is_alive(pid) for pid in family))
    assert watched.said[-2:] == ["two stopped", "one stopped"]


def test_stop_ends_everything_even_when_nobody_can_be_told(watched: Watched, tmp_path: Path) -> None:
    watched.supervisor.start([component(tmp_path / name, SERVE, name) for name in ("one", "two")])
    pids = list(watched.pids.values())

    def terminal_is_gone(_child: Component, _state: str) -> None:
        raise BrokenPipeError

    watched.supervisor.report = terminal_is_gone
    with pytest.raises(BrokenPipeError):
        watched.supervisor.stop()
    assert not any(is_alive(pid) for pid in pids)


def test_a_child_that_does_not_listen_is_killed_and_said_so(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_pipeline.embedded.supervisor.STOP_PATIENCE_SECONDS", 0.2)
    watched.supervisor.start([component(tmp_path, IGNORE_TERM)])
    pid = watched.pids["server"]
    watched.supervisor.stop()
    assert not is_alive(pid)
    assert "killed" in watched.said[-1]


def test_watch_returns_when_a_stop_is_requested(watched: Watched, tmp_path: Path) -> None:
    watched.supervisor.start([component(tmp_path, SERVE)])
    watched.supervisor.stop_requested.set()
    watched.supervisor.watch()
    assert is_alive(watched.pids["server"]), "watching ends; stopping is the caller's next step"
