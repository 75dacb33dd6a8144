"""The directory of one embedded stack: who holds it, where its servers listen, what an earlier one left behind."""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psutil

from rl_pipeline.errors import PipelineError


class HomeUnusable(PipelineError):
    """The directory cannot hold a stack: not writable, or held by another."""


@dataclass(frozen=True)
class ChildProcess:
    """A process of the stack. Its creation time tells it from a later process with the same id."""

    pid: int
    created: float


@dataclass(frozen=True)
class StackRecord:
    """What `rl-pipeline up` writes down, so that other commands find its servers and a later `up` its leftovers."""

    pid: int
    started: str
    urls: dict[str, str] = field(default_factory=dict)
    processes: dict[str, ChildProcess] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "StackRecord":
        """The inverse of `text`."""
        values = json.loads(text)
        processes = {name: ChildProcess(**child) for name, child in values.pop("processes").items()}
        return cls(**values, processes=processes)

    def text(self) -> str:
        """The record as JSON, for people and for `parse`."""
        return json.dumps(asdict(self), indent=2)


class Home:
    """A stack's directory, held by this process until `hold` is left."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def subdirectory(self, name: str) -> Path:
        """A directory of one component, made when it is missing."""
        path = self.directory / name
        path.mkdir(parents=True, exist_ok=True)
        return path

    def write_record(self, urls: dict[str, str], processes: dict[str, int]) -> None:
        """Say where the servers listen and which processes belong to the stack; readers never see half of it."""
        children = {name: ChildProcess(pid, psutil.Process(pid).create_time()) for name, pid in processes.items()}
        started = datetime.fromtimestamp(psutil.Process().create_time(), tz=UTC).isoformat(timespec="seconds")
        target = self.directory / "stack.json"
        temporary = target.with_suffix(".tmp")
        temporary.write_text(StackRecord(os.getpid(), started, urls, children).text())
        temporary.replace(target)

    def end_leftovers(self) -> list[str]:
        """Stop the processes that a killed `up` left behind, and name them."""
        record = _read_record(self.directory)
        ended = []
        for name, child in (record.processes if record else {}).items():
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(child.pid)
                if process.create_time() == child.created:
                    _end_tree(process)
                    ended.append(name)
        return ended


@contextlib.contextmanager
def hold(directory: Path) -> Iterator[Home]:
    """Hold the directory as the only stack in it; raises `HomeUnusable` when that cannot be."""
    directory = directory.resolve()
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "lock").open("w")
    except OSError as refused:
        raise HomeUnusable(
            f"{directory} cannot be written ({refused.strerror}): set RL_PIPELINE_HOME to a directory that can"
        ) from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HomeUnusable(_held_by(directory)) from None
        home = Home(directory)
        try:
            yield home
        finally:
            (directory / "stack.json").unlink(missing_ok=True)


def find_running_stack(directory: Path) -> StackRecord | None:
    """The stack that holds the directory now, or None."""
    with contextlib.suppress(OSError), (directory / "lock").open("r") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _read_record(directory)
    return None


def _read_record(directory: Path) -> StackRecord | None:
    try:
        return StackRecord.parse((directory / "stack.json").read_text())
    except FileNotFoundError:
        return None


def _held_by(directory: Path) -> str:
    record = _read_record(directory)
    holder = (
        f"process {record.pid}, started {record.started}" if record else "another `rl-pipeline up` that is starting"
    )
    return f"{directory} is held by {holder}: stop that one, or set RL_PIPELINE_HOME to another directory"


def _end_tree(process: psutil.Process) -> None:
    tree = [process, *process.children(recursive=True)]
    for member in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.terminate()
    _, stubborn = psutil.wait_procs(tree, timeout=10)
    for member in stubborn:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
