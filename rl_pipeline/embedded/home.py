"""Holding the directory of an embedded stack, and ending what an earlier one left behind in it."""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import psutil

from rl_pipeline.embedded.record import ChildProcess, StackRecord, read_record
from rl_pipeline.errors import PipelineError


class HomeUnusable(PipelineError):
    """The directory cannot hold a stack: not writable, or held by another."""


class Home:
    """A stack's directory, held by this process until `hold` is left."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def subdirectory(self, name: str) -> Path:
        """A directory of one component, made when it is missing."""
        path = self.directory / name
        with writing(path):
            path.mkdir(exist_ok=True)
        return path

    def log(self, component: str) -> Path:
        """The file that a component's output goes to, known to be writable."""
        path = self.subdirectory("logs") / f"{component}.log"
        with writing(path):
            path.open("ab").close()
        return path

    def write_record(self, urls: dict[str, str], pids: Mapping[str, int | None]) -> None:
        """Say where the servers listen and which processes belong to the stack; readers never see half of it."""
        processes = {
            name: ChildProcess(pid, psutil.Process(pid).create_time()) if pid else None for name, pid in pids.items()
        }
        started = datetime.fromtimestamp(psutil.Process().create_time(), tz=UTC).isoformat(timespec="seconds")
        target = self.directory / "stack.json"
        temporary = target.with_suffix(".tmp")
        with writing(target):
            temporary.write_text(StackRecord(os.getpid(), started, urls, processes).text())
            temporary.replace(target)

    def end_leftovers(self) -> list[str]:
        """Stop the processes that a killed `up` left behind, and name them."""
        record = read_record(self.directory)
        alive = {name: process for name, process in processes_of(record).items() if process} if record else {}
        for process in alive.values():
            _end_tree(process)
        return list(alive)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """What cannot be written in the block is said in one line."""
    try:
        yield
    except OSError as refused:
        raise HomeUnusable(
            f"{path} cannot be written ({refused.strerror}): set RL_PIPELINE_HOME to a directory that can"
        ) from None


@contextlib.contextmanager
def hold(directory: Path) -> Iterator[Home]:
    """Hold the directory as the only stack in it; raises `HomeUnusable` when that cannot be."""
    directory = directory.resolve()
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        lock = (directory / "lock").open("w")
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HomeUnusable(_held_by(directory)) from None
        home = Home(directory)
        try:
            yield home
        finally:
            # Where it cannot be removed it could not be written: nobody will take it for a running stack's.
            with contextlib.suppress(OSError):
                (directory / "stack.json").unlink()


def processes_of(record: StackRecord) -> dict[str, psutil.Process | None]:
    """The components that a record names, each with its process, or None when that has ended."""
    return {name: _process(child) if child else None for name, child in record.processes.items()}


def _process(child: ChildProcess) -> psutil.Process | None:
    try:
        process = psutil.Process(child.pid)
        same = process.create_time() == child.created and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return None
    return process if same else None


def _held_by(directory: Path) -> str:
    record = read_record(directory)
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
