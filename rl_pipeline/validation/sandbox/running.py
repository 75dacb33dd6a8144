"""Runs a program and its test, each in a child of its own behind walls, and ends them whatever they do."""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rl_pipeline.errors import PipelineError
from rl_pipeline.validation.sandbox import child, judge

_PACKAGE = Path(__file__).parents[2]
# Those of the project and of installed packages, without what else a start of Python looks for.
_PATHS = (str(_PACKAGE.parent), sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache", "/usr/share/zoneinfo")
# What a prelude may import of this package: the worlds, which hold no answers.
_WORLDS = tuple(_PACKAGE / name for name in ("__init__.py", "errors.py", "environments"))
_MOST_OF_RESULT = 4096


class SandboxUnavailable(PipelineError):
    """This machine cannot keep a program in."""


class UnusableTest(PipelineError):
    """A test that cannot judge any program."""


@dataclass(frozen=True)
class Limits:
    """What a program may use."""

    wall_seconds: float = 30.0
    cpu_seconds: int = 5
    memory_bytes: int = 1 << 30
    file_bytes: int = 64 << 20
    """Of all its files together."""
    namespaces: bool = True
    """Whether to use them where they are to be had; without them a program can write no file."""


@dataclass(frozen=True)
class Ending:
    """How a program ended."""

    passed: bool
    reason: str
    """`passed`, `timeout`, the type of its error, or `died` when it told nothing."""


def run_program(
    program: str,
    test: str,
    limits: Limits = Limits(),  # noqa: B008 - frozen
    *,
    prelude: str = "",
    entry_point: str | None = None,
) -> Ending:
    """Run `program`, and then `test` in another process, which can call the program's function `entry_point`.

    It has passed if `test` came to its end without an error. What a program returns reaches the test as plain values
    (numbers, text, and collections of them), and so do the arguments of its calls, which are copies. `prelude` is code
    that the test may use; it is no part of the program. Both processes have no environment and an empty directory, and
    are killed when the time is over. Raises `SandboxUnavailable` where the walls cannot be put up, and `UnusableTest`
    for one that calls the program with anything else.
    """
    with tempfile.TemporaryDirectory(prefix="rl_pipeline_sandbox_") as directory:
        walls = {
            "directory": directory,
            "readable": _readable(),
            "cpu_seconds": limits.cpu_seconds,
            "memory_bytes": limits.memory_bytes,
            "file_bytes": limits.file_bytes,
            "namespaces": limits.namespaces,
        }
        judge_walls = {**walls, "readable": [*_readable(), *map(str, _WORLDS)]}
        judging = {"walls": judge_walls, "prelude": prelude, "test": test, "entry_point": entry_point}
        told, in_time = _run_both({"walls": walls, "program": program}, judging, directory, limits.wall_seconds)
    return _ending(told, in_time=in_time)


@cache
def _readable() -> list[str]:
    """Python, its packages and the libraries that they need: nothing of the machine or of its users, and nothing of
    this package, which has the suites and their answers."""
    python = (*(sysconfig.get_path(name) for name in ("stdlib", "platstdlib")), f"{sys.base_prefix}/lib")
    there = {Path(path) for path in (*python, *_PATHS[1:], *_LIBRARIES) if Path(path).exists()}
    outermost = [path for path in there if not there.intersection(path.parents)]
    return sorted(str(path) for each in outermost for path in _without(_PACKAGE, each))


def _without(hidden: Path, path: Path) -> list[Path]:
    """What has to be shown in place of `path` so that nothing of `hidden` is: all that lies beside the way to it."""
    inside, hidden = path.resolve(), hidden.resolve()
    if not hidden.is_relative_to(inside):
        return [path] if path.exists() else []
    # A link back to where the way leads along would be followed for ever; whatever is there is shown in its own place.
    beside = (entry for entry in path.iterdir() if not (entry.is_symlink() and hidden.is_relative_to(entry.resolve())))
    return [] if inside == hidden else [shown for entry in beside for shown in _without(hidden, entry)]


def _run_both(
    running: Mapping[str, Any], judging: Mapping[str, Any], directory: str, wall_seconds: float
) -> tuple[list[str], bool]:
    """What the judge told, and whether it ended by itself."""
    with ExitStack() as kept:
        verdict, telling = os.pipe()
        kept.callback(os.close, verdict)
        with ExitStack() as theirs:
            (asked, asking), (heard, answering) = os.pipe(), os.pipe()
            for descriptor in (telling, asked, asking, heard, answering):
                theirs.callback(os.close, descriptor)
            _start(kept, child.__file__, running, (asked, answering), directory)
            process = _start(kept, judge.__file__, judging, (telling, heard, asking), directory)
        in_time = True
        try:
            process.wait(wall_seconds)
        except subprocess.TimeoutExpired:
            in_time = False
        os.set_blocking(verdict, False)
        try:
            return os.read(verdict, _MOST_OF_RESULT).decode(errors="replace").splitlines(), in_time
        except BlockingIOError:
            return [], in_time


def _start(
    kept: ExitStack, script: str, task: Mapping[str, Any], descriptors: Sequence[int], directory: str
) -> "subprocess.Popen[bytes]":
    """A process that has its task and these descriptors, and that ends with `kept`."""
    with tempfile.TemporaryFile() as file:
        file.write(json.dumps(task).encode())
        file.seek(0)
        process = subprocess.Popen(  # noqa: S603 - our own program; what it runs is data to it
            [sys.executable, "-I", "-S", script, *map(str, descriptors), *_PATHS],
            cwd=directory,
            env={},
            stdin=file.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=descriptors,
            start_new_session=True,
        )
    kept.callback(_kill, process)
    return process


def _kill(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.kill()
    process.wait()


def _ending(told: Sequence[str], *, in_time: bool) -> Ending:
    state, _, reason = told[-1].partition(" ") if told else ("unstarted", "", "")
    if state == "unavailable":
        raise SandboxUnavailable(
            f"programs cannot be walled in here ({reason}): use Linux on x86_64 or aarch64 with user namespaces or "
            "Landlock"
        )
    if state == "unusable":
        raise UnusableTest(f"the test calls the program with what cannot be sent to it ({reason}): correct the suite")
    if not in_time:
        return Ending(passed=False, reason="timeout")
    if state == "unstarted":
        raise SandboxUnavailable("the sandboxed child did not start: is the Python installation readable?")
    if state == "passed":
        return Ending(passed=True, reason="passed")
    return Ending(passed=False, reason=reason if state == "failed" and reason.isidentifier() else "died")
