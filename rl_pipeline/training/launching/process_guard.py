"""The parent of a training's processes: when they end, or whoever started them, nothing of them is left behind.

Run as `python -m rl_pipeline.training.launching.process_guard <pid of the starter> <command …>`. It ends with the
command's exit code (128 + n after signal n). It ends everything below it, at once and without asking, when the command
has ended, when the starter is gone for whatever reason, and on SIGTERM. Processes that left the group or lost their
parent are below it too: it adopts them.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from types import FrameType

import psutil

POLL_SECONDS = 0.1
# A process in an uninterruptible call cannot be ended; the guard does not wait for it for ever.
PATIENCE_SECONDS = 30.0
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class _Dismissed(BaseException):
    """SIGTERM arrived."""


def guard(starter: int, command: list[str]) -> int:
    """Run the command to its end, or to the starter's; returns the exit code. Leaves no process behind."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Should the guard itself be killed, the command goes with it.
    process = subprocess.Popen(command, preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0))  # noqa: PLW1509, S603 - the guard has one thread, and the command is its caller's own
    signal.signal(signal.SIGTERM, _dismiss)
    try:
        while process.poll() is None and os.getppid() == starter:
            time.sleep(POLL_SECONDS)
    except _Dismissed:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    code = process.poll()
    end_descendants()
    if code is None:
        return 128 + signal.SIGKILL
    return code if code >= 0 else 128 - code


def end_descendants() -> None:
    """Kill every process below this one, and those that they start meanwhile, and wait until they are gone."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while (alive := psutil.Process().children(recursive=True)) and time.monotonic() < deadline:
        for process in alive:
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(alive, timeout=1.0)


def _dismiss(_signal: int, _frame: FrameType | None) -> None:
    raise _Dismissed


if __name__ == "__main__":
    sys.exit(guard(int(sys.argv[1]), sys.argv[2:]))
