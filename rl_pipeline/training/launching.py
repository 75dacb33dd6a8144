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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from rl_pipeline.training.exits import (
    LOG_FILE,
    PROGRESS_FILE,
    FailureRecord,
    forget_ending,
    has_result,
    read_failures,
)
from rl_pipeline.training.launch_command import (
    program_command,
    program_environment,
    program_variables,
    variables_for_other_nodes,
)
from rl_pipeline.training.operators import needed_operators, operators_directory, operators_ready
from rl_pipeline.training.plan import DistributionPlan
from rl_pipeline.training.watching import HangWatch, ProgressFile

POLL_SECONDS = 0.2
# The guard has a patience of its own, and is killed only when that was not enough.
END_PATIENCE_SECONDS = 40.0
# For a program that hangs to write down where each of its threads is.
LAST_WORDS_SECONDS = 1.0
_LOG_TAIL_BYTES = 16_384
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
    """Processes of this machine that the kernel killed meanwhile because memory had run out."""
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
    times a second, says so, it has `grace_seconds` to save its state and end. It has them too when this call is
    interrupted, by whatever exception, which goes on its way afterwards. Raises `OperatorsNotCompiled`.
    """
    operators = operators_directory(operators_cache)
    variables = program_environment(distribution, environment, operators)
    if distribution.nodes > 1:
        shared = variables_for_other_nodes(program_variables(distribution, environment, operators))
        (attempt / _NODE_VARIABLES_FILE).write_text(shared)
        variables["DS_ENV_FILE"] = str((attempt / _NODE_VARIABLES_FILE).absolute())
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    command = program_command(distribution, program, port=_free_port(), visible_devices=visible)
    forget_ending(attempt)
    progress = ProgressFile(attempt / PROGRESS_FILE)
    kills_before = _memory_kills()
    with operators_ready(operators, needed_operators(distribution), variables):
        process = _start(command, variables, attempt / LOG_FILE)
        try:
            ending = _follow(
                process, progress, on_progress, stop_requested, HangWatch(stall_seconds, moved_at=clock()), clock=clock
            )
            if ending == "stopped":
                _let_it_save(process, distribution, grace_seconds)
            elif ending == "hung":
                _signal_ranks(process, distribution, signal.SIGUSR1)
                time.sleep(LAST_WORDS_SECONDS)
        except BaseException:
            _let_it_save(process, distribution, grace_seconds)
            raise
        finally:
            _end(process)
    for line in progress.new_lines():
        on_progress(line)
    return LaunchOutcome(
        exit_code=process.returncode,
        records=read_failures(attempt),
        hung=ending == "hung",
        stopped=ending == "stopped",
        has_result=has_result(attempt),
        memory_kills=_memory_kills() - kills_before,
        log_tail=_tail(attempt / LOG_FILE),
    )


def _start(command: Sequence[str], variables: Mapping[str, str], log: Path) -> Process:
    guard = [sys.executable, "-m", "rl_pipeline.training.process_guard", str(os.getpid())]
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
    watch: HangWatch,
    *,
    clock: Callable[[], float],
) -> Literal["ended", "stopped", "hung"]:
    while process.poll() is None:
        for line in progress.new_lines():
            watch.observe(line, clock())
            on_progress(line)
        if stop_requested():
            return "stopped"
        if watch.hangs(clock()):
            return "hung"
        time.sleep(POLL_SECONDS)
    return "ended"


def _let_it_save(process: Process, distribution: DistributionPlan, grace_seconds: float) -> None:
    _signal_ranks(process, distribution, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(grace_seconds)


def _signal_ranks(guard: Process, distribution: DistributionPlan, number: signal.Signals) -> None:
    """Signal the processes that train, and not their launcher: told to end, it kills what is still saving, and its
    exit code then says nothing. On other nodes the launcher alone can reach them."""
    with contextlib.suppress(psutil.NoSuchProcess):
        below_guard = psutil.Process(guard.pid).children()
        under_launcher = distribution.deepspeed and distribution.nodes == 1
        ranks = [rank for launcher in below_guard for rank in launcher.children()] if under_launcher else below_guard
        for rank in ranks:
            with contextlib.suppress(psutil.NoSuchProcess):
                rank.send_signal(number)


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


def _memory_kills() -> int:
    """How many processes the kernel has killed for want of memory since it started; 0 where it does not say."""
    statistics = Path("/proc/vmstat")
    lines = statistics.read_text().splitlines() if statistics.is_file() else []
    return sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))


def _tail(log: Path) -> str:
    with log.open("rb") as content:
        content.seek(max(0, log.stat().st_size - _LOG_TAIL_BYTES))
        return content.read().decode(errors="replace")
