"""One trajectory in one file that only grows: what the agent had done is there whenever its process is killed.

A line is a JSON object: `begin`, then `redacted_by`, then a `turn` each, then `end`. The last line may be cut off by a
crash and is then as if it had not been written. Whoever works on the file holds its lock, which ends with its process:
a file that is not locked is either finished or was left by a process that is gone.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

SUFFIX = ".jsonl"
REWRITING_SUFFIX = ".rewriting"


class Journal:
    """The file of a trajectory that is being recorded by this process."""

    def __init__(self, directory: Path, trajectory_id: str) -> None:
        """Make the file and lock it. Raises `OSError`."""
        self.path = directory / f"{trajectory_id}{SUFFIX}"
        self.turns = 0
        self.size = 0
        self._descriptor = _made(self.path)

    def append(self, kind: str, content: dict[str, Any]) -> None:
        """Add a line. Raises `OSError`; the journal is then only good to be discarded."""
        line = json.dumps({kind: content}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        rest = memoryview(line)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]
        self.size += len(line)
        self.turns += kind == "turn"

    def rewrite(self, change: Callable[[str, dict[str, Any]], dict[str, Any]]) -> None:
        """Replace the lines by what `change` makes of each, in one step. Raises `OSError`."""
        lines = read_lines(self.path.read_bytes())
        changed = [{kind: change(kind, content) for kind, content in line.items()} for line in lines]
        if changed == lines:
            return
        new = self.path.with_suffix(REWRITING_SUFFIX)
        former, self._descriptor = self._descriptor, _made(new)
        try:
            self.turns = self.size = 0
            for line in changed:
                for kind, content in line.items():
                    self.append(kind, content)
            new.replace(self.path)
        finally:
            new.unlink(missing_ok=True)
            os.close(former)

    def close(self) -> None:
        """Make everything durable, the file's name included, and let go of it. Raises `OSError`."""
        os.fsync(self._descriptor)
        sync_directory(self.path.parent)
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)  # a fork may have the file open, and would keep the lock
        self.let_go()

    def discard(self) -> None:
        """Remove the file."""
        with contextlib.suppress(OSError):
            self.path.unlink()
        self.let_go()

    def let_go(self) -> None:
        """Close the file."""
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


def _made(path: Path) -> int:
    """A new file, locked."""
    while True:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:
            return descriptor
        os.close(descriptor)  # another process took it for a leftover before it was locked


def sync_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def claimed(path: Path) -> Iterator[bytes | None]:
    """The bytes of a journal while nobody else works on it; None when somebody does, or when it is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    with os.fdopen(descriptor, "rb") as file:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        try:
            yield file.read() if os.fstat(descriptor).st_nlink else None
        finally:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # see `Journal.close`


def is_finished(lines: list[dict[str, Any]]) -> bool:
    """Whether the recording came to its end."""
    return bool(lines) and "end" in lines[-1]


def read_lines(data: bytes) -> list[dict[str, Any]]:
    """The lines up to the first that is cut off or spoilt."""
    lines: list[dict[str, Any]] = []
    for line in data.split(b"\n")[:-1]:
        try:
            record = json.loads(line)
        except ValueError:
            break
        if not isinstance(record, dict):
            break
        lines.append(record)
    return lines


def redacted_by(lines: list[dict[str, Any]]) -> str | None:
    """The revision of the redactor that the lines have been through."""
    return next((line["redacted_by"]["revision"] for line in lines if "redacted_by" in line), None)


def trajectory_of(lines: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The trajectory as its contract has it; None when it has no turn.

    Turns stand in the order in which they began. What has no end was abandoned, when its last turn ended.
    """
    turns = sorted((line["turn"] for line in lines if "turn" in line), key=_began)
    if not turns or "begin" not in lines[0]:
        return None
    begin = lines[0]["begin"]
    end = lines[-1].get("end") or {
        "end_timestamp": max(_ended(turn) for turn in turns).isoformat(),
        "task_context": begin["task_context"] | {"task_status": "abandoned"},
        "metadata": begin["metadata"],
    }
    turns = [turn | {"turn_id": number} for number, turn in enumerate(turns, start=1)]
    whole: dict[str, Any] = begin | end | {"turns": turns, "metadata": _told_by(turns) | end["metadata"]}
    return whole


def _began(turn: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(turn["timestamp"])


def _ended(turn: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(turn["end_timestamp"])


def _told_by(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """What the turns say of the whole: tokens that were used, and the version of the model where there was one only."""
    told: dict[str, Any] = {}
    for name in ("prompt_tokens", "completion_tokens"):
        counts = [turn["usage"][name] for turn in turns if name in turn.get("usage", {})]
        if counts:
            told[name] = sum(counts)
    if told:
        told["total_tokens"] = sum(told.values())
    versions = {turn.get("sampling", {}).get("model_version") for turn in turns} - {None}
    if len(versions) == 1:
        told["model_version"] = versions.pop()
    return told
