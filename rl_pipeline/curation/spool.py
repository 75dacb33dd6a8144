"""Conversations on disk between being read and being written: memory does not grow with the dataset."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple

import orjson

from rl_pipeline.curation.conversations import Message


class _Entry(NamedTuple):
    start: int
    length: int
    facts: Mapping[str, str | None]


class Spool:
    """Conversations by trajectory id in a temporary file, with a few facts on each in memory."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._entries: dict[str, _Entry] = {}

    def __contains__(self, trajectory_id: str) -> bool:
        return trajectory_id in self._entries

    def add(self, trajectory_id: str, messages: str, facts: Mapping[str, str | None]) -> None:
        """Keep a conversation, its messages as JSON."""
        data = messages.encode()
        self._entries[trajectory_id] = _Entry(self._file.seek(0, 2), len(data), facts)
        self._file.write(data)

    def text(self, trajectory_id: str) -> str:
        """The messages as JSON."""
        entry = self._entries[trajectory_id]
        self._file.seek(entry.start)
        return self._file.read(entry.length).decode()

    def messages(self, trajectory_id: str) -> Sequence[Message]:
        """The messages."""
        found: list[Any] = orjson.loads(self.text(trajectory_id))
        return found

    def facts(self, trajectory_id: str) -> Mapping[str, str | None]:
        """The facts that were kept with it."""
        return self._entries[trajectory_id].facts


@contextmanager
def spooling(directory: Path) -> Iterator[Spool]:
    """A spool in the directory that is gone at the end."""
    with TemporaryFile(dir=directory) as file:
        yield Spool(file)
