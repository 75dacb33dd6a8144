"""The process in which a test runs: `python -I -S judge.py <verdict> <reading> <writing> <paths …>`, the task on stdin.

The program under test is in another process, and only what its functions return comes here, as plain values: whatever
it does to its own interpreter, the test that decides about it is out of its reach. The test is walled in too.
"""

import builtins
import json
import os
import sys
from collections.abc import Callable
from typing import Any, BinaryIO


class _Died(BaseException):
    """The program's process ended, or said what cannot be understood; no test takes that for an error it expects."""


class _Unsendable(BaseException):
    """The test calls the program with what is no plain value: the test is at fault."""


def main(verdict: int, reading: int, writing: int, paths: list[str]) -> None:
    """Wait for the program, run its test, and tell how it went."""
    sys.path += paths
    from rl_pipeline.validation.sandbox.walls import put_up, silence

    task = json.load(sys.stdin)
    silence()
    with os.fdopen(reading, "rb") as told, os.fdopen(writing, "wb", buffering=0) as asked:
        try:
            state, reason = _next(told)
            if state == "walled":
                put_up(**task["walls"])
        except OSError as error:
            state, reason = "unavailable", error.strerror
        except _Died:
            state, reason = "unstarted", ""
        if state == "walled":
            os.write(verdict, b"walled\n")
            state, reason = _judged(task, told, asked)
    os.write(verdict, f"{state} {reason}\n".encode())
    os._exit(0)


def _judged(task: dict[str, Any], told: BinaryIO, asked: BinaryIO) -> tuple[str, str]:
    names: dict[str, object] = {"__name__": "test"}
    try:
        exec(compile(task["prelude"], "prelude", "exec"), names)  # noqa: S102 - the suite's own code
        _result(*_next(told))
        if task["entry_point"] is not None:
            names[task["entry_point"]] = _calling(task["entry_point"], told, asked)
        exec(compile(task["test"], "test", "exec"), names)  # noqa: S102 - as above
    except _Unsendable as error:
        return "unusable", str(error)
    except _Died:
        return "failed", "died"
    except BaseException as error:  # noqa: BLE001 - whatever it raises, the program has failed
        return "failed", type(error).__name__[:60]
    return "passed", ""


def _calling(name: str, told: BinaryIO, asked: BinaryIO) -> Callable[..., object]:
    """The program's function of this name, as the test may call it: with plain values, which stay as they are."""
    from rl_pipeline.validation.sandbox.plain_values import NotPlain, to_line

    def call(*positional: object, **named: object) -> object:
        try:
            line = to_line((name, positional, named))
        except NotPlain as error:
            raise _Unsendable(str(error)) from None
        try:
            asked.write(line)
        except OSError:
            raise _Died from None
        return _result(*_next(told))

    return call


def _next(told: BinaryIO) -> tuple[str, Any]:
    from rl_pipeline.validation.sandbox.plain_values import from_line

    line = told.readline()
    try:
        state, content = from_line(line)
    except (ValueError, TypeError, LookupError, RecursionError):
        raise _Died from None
    return str(state), content


def _result(state: str, content: object) -> object:
    """What was returned; an error is raised again by its name, as far as Python itself has it."""
    if state == "returned":
        return content
    if state != "raised" or not str(content).isidentifier():
        raise _Died
    known = getattr(builtins, str(content), None)
    if isinstance(known, type) and issubclass(known, BaseException):
        raise known.__new__(known)
    raise type(str(content), (Exception,), {})


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
