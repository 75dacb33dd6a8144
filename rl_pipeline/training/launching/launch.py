"""Starts the training program, under DeepSpeed's launcher where the plan says so, and sees it to its end.

Whatever happens, to the program or to whoever launched it, no process of it is left behind (`process_guard.py`).
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from rl_pipeline.training.launching.command import (
    program_command,
    program_environment,
    program_variables,
    variables_for_other_nodes,
    without_addresses,
)
from rl_pipeline.training.launching.exits import (
    LOG_FILE,
    PROGRESS_FILE,
    FailureRecord,
    forget_ending,
    has_result,
    read_failures,
)
from rl_pipeline.training.launching.nodes import Orders
from rl_pipeline.training.launching.operators import needed_operators, operators_directory, operators_ready
from rl_pipeline.training.launching.watching import HangWatch, ProgressFile
from rl_pipeline.training.plans.plan import DistributionPlan

POLL_SECONDS = 0.2
# The guard has a patience of its own, and is killed only when that was not enough.
END_PATIENCE_SECONDS = 40.0
# For the processes on other nodes to be gone by themselves; and for DeepSpeed's runner, which then ends them by ssh.
NODES_PATIENCE_SECONDS = 60.0
# A program that is asked to stop ends the step that it is in, and then saves.
GRACE_STEPS = 3.0
MOST_GRACE_SECONDS = 3600.0
# For a program that hangs to write down where each of its threads is.
LAST_WORDS_SECONDS = 1.0
_LOG_TAIL_BYTES = 16_384
# Of control groups of both versions, by their controllers as /proc names them.
_KILL_COUNTERS = {
    "": (Path("/sys/fs/cgroup"), "memory.events"),
    "memory": (Path("/sys/fs/cgroup/memory"), "memory.oom_control"),
}
_NODE_VARIABLES_FILE = "node-variables"

Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class LaunchOutcome:
    """How the program ended; `failures.py` says what that means."""

    exit_code: int
    records: tuple[FailureRecord, ...] = ()
    hung: bool = False
    """It did not move any more, and was killed."""
    stopped: bool = False
    """It was asked to stop."""
    has_result: bool = False
    memory_kills: int = 0
    """Processes that the kernel killed meanwhile because memory had run out; where control groups do not count them,
    those of anybody on this machine."""
    log_tail: str = ""


def launch(
    distribution: DistributionPlan,
    program: Sequence[str],
    attempt: Path,
    *,
    environment: Mapping[str, str],
    operators_cache: Path,
    stall_seconds: float,
    grace_seconds: float = 120.0,
    on_progress: Callable[[dict[str, Any]], None] = lambda _: None,
    stop_requested: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.monotonic,
) -> LaunchOutcome:
    """Run the program to its end and say how it ended.

    `program` is what follows `python`: a script, or `-m` and a module, with arguments. Its output goes to the log in
    the directory `attempt`, in which it leaves its progress and its failure records. When `stop_requested`, asked five
    times a second, says so, it has `grace_seconds`, or three times as long as a step takes, to save its state and
    end. It has them too when this call is interrupted, by whatever exception, which goes on its way afterwards. Raises
    `OperatorsNotCompiled`.
    """
    operators = operators_directory(operators_cache)
    variables = program_environment(distribution, environment, operators)
    orders = Orders(attempt, environment) if distribution.nodes > 1 else None
    if orders is not None:
        shared = variables_for_other_nodes(program_variables(distribution, environment, operators))
        (attempt / _NODE_VARIABLES_FILE).write_text(shared)
        variables = without_addresses(variables) | {"DS_ENV_FILE": str((attempt / _NODE_VARIABLES_FILE).absolute())}
        program = orders.command(program)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    command = program_command(distribution, program, port=_free_port(), visible_devices=visible)
    forget_ending(attempt)
    progress = ProgressFile(attempt / PROGRESS_FILE)
    counters = _kill_counters()
    kills_before = memory_kills(counters)
    pace = _Pace(grace_seconds)
    with (
        operators_ready(operators, needed_operators(distribution), variables),
        orders.beating() if orders else contextlib.nullcontext(),
    ):
        process = _start(command, variables, attempt / LOG_FILE)
        ranks = _Ranks(process, distribution, orders)
        try:
            watch = HangWatch(stall_seconds, moved_at=clock())
            ending = _follow(process, progress, on_progress, stop_requested, watch=watch, pace=pace, clock=clock)
            if ending == "stopped":
                ranks.let_them_save(pace.grace_seconds)
            elif ending == "hung":
                ranks.signal(signal.SIGUSR1)
                time.sleep(LAST_WORDS_SECONDS if orders is None else 5 * LAST_WORDS_SECONDS)
        except BaseException:
            ranks.let_them_save(pace.grace_seconds)
            raise
        finally:
            ranks.end_on_other_nodes()
            _end(process)
    for line in progress.new_lines():
        on_progress(line)
    return LaunchOutcome(
        exit_code=process.returncode,
        records=read_failures(attempt),
        hung=ending == "hung",
        stopped=ending == "stopped",
        has_result=has_result(attempt),
        memory_kills=memory_kills(counters) - kills_before,
        log_tail=_tail(attempt / LOG_FILE),
    )


def _start(command: Sequence[str], variables: Mapping[str, str], log: Path) -> Process:
    guard = [sys.executable, "-m", "rl_pipeline.training.launching.process_guard", str(os.getpid())]
    with log.open("ab") as output:
        return subprocess.Popen(  # noqa: S603 - the commands are our own
            [*guard, *command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=variables,
            # A session of its own: Ctrl-C reaches the launching process alone, which then lets the program save.
            start_new_session=True,
        )


def _follow(
    process: Process,
    progress: ProgressFile,
    on_progress: Callable[[dict[str, Any]], None],
    stop_requested: Callable[[], bool],
    *,
    watch: HangWatch,
    pace: "_Pace",
    clock: Callable[[], float],
) -> Literal["ended", "stopped", "hung"]:
    while process.poll() is None:
        for line in progress.new_lines():
            watch.observe(line, clock())
            pace.observe(line, clock())
            on_progress(line)
        if stop_requested():
            return "stopped"
        if watch.hangs(clock()):
            return "hung"
        time.sleep(POLL_SECONDS)
    return "ended"


class _Pace:
    """How long a program may take that was asked to stop: by its last steps, with all that lies between them."""

    def __init__(self, least_seconds: float) -> None:
        self._least_seconds = least_seconds
        self._last: tuple[int, float] | None = None
        self._steps: deque[float] = deque(maxlen=16)

    def observe(self, line: dict[str, Any], now: float) -> None:
        step = line.get("step")
        if isinstance(step, int) and (self._last is None or step > self._last[0]):
            if self._last is not None:
                self._steps.append(now - self._last[1])
            self._last = (step, now)

    @property
    def grace_seconds(self) -> float:
        needed = min(GRACE_STEPS * max(self._steps, default=0.0), MOST_GRACE_SECONDS)
        return max(self._least_seconds, needed)


@dataclass(frozen=True)
class _Ranks:
    """The processes that train, in place of their launcher: told to end, it kills what is still saving, and its exit
    code then says nothing."""

    guard: Process
    distribution: DistributionPlan
    orders: Orders | None
    """How those on other nodes are reached."""

    def signal(self, number: signal.Signals) -> None:
        if self.orders is not None:
            self.orders.send(number)
            return
        below_guard = self._below_guard()
        with contextlib.suppress(psutil.NoSuchProcess):
            under_launcher = [rank for launcher in below_guard for rank in launcher.children()]
            _send(under_launcher if self.distribution.deepspeed else below_guard, number)

    def let_them_save(self, seconds: float) -> None:
        self.signal(signal.SIGTERM)
        self._wait(seconds)

    def end_on_other_nodes(self) -> None:
        """Before the runner is killed: it is the only way to a node whose processes stand still."""
        if self.orders is None:
            return
        self.orders.send(signal.SIGKILL)
        self._wait(NODES_PATIENCE_SECONDS)
        _send(self._below_guard(), signal.SIGTERM)
        self._wait(NODES_PATIENCE_SECONDS)

    def _below_guard(self) -> list[psutil.Process]:
        children: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(self.guard.pid).children()
        return children

    def _wait(self, seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.guard.wait(seconds)


def _send(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def _end(guard: Process) -> None:
    """End whatever is left of the program. The guard ends all that is below it; the group is for a guard that died."""
    guard.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        guard.wait(END_PATIENCE_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(guard.pid, signal.SIGKILL)
    guard.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def memory_kills(counters: Sequence[Path]) -> int:
    """How many processes the kernel has killed for want of memory, by the first counter that says so; else 0."""
    for counter in counters:
        with contextlib.suppress(OSError):
            found = [line.split() for line in counter.read_text().splitlines() if line.startswith("oom_kill ")]
            if found:
                return int(found[0][1])
    return 0


def _kill_counters() -> list[Path]:
    """Of our own control group, where it counts; only else of the whole machine, which others use too."""
    groups = Path("/proc/self/cgroup")
    counters = []
    for line in groups.read_text().splitlines() if groups.is_file() else []:
        _, controllers, path = line.split(":", 2)
        if controllers in _KILL_COUNTERS:
            top, name = _KILL_COUNTERS[controllers]
            # Inside a container its own group may be mounted as if it was the topmost one.
            counters += [top / path.strip("/") / name, top / name]
    return [*counters, Path("/proc/vmstat")]


def _tail(log: Path) -> str:
    with log.open("rb") as content:
        content.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        return content.read().decode(errors="replace")
