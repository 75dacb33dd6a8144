"""The outbox of an agent: trajectories lie in a directory from their first turn until the stream has them.

Any number of processes may share a directory; it must be on a local disk, because locks decide who works on a file.
"""

import atexit
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from rl_pipeline.collection.edge_redaction import redact_message
from rl_pipeline.collection.outbox.counts import Counting, Counts
from rl_pipeline.collection.outbox.journal import sync_directory
from rl_pipeline.collection.outbox.redaction import OutboxRedaction, write_file
from rl_pipeline.collection.outbox.room import OutboxLimits
from rl_pipeline.collection.outbox.sender import LETTER_SUFFIX, Sender
from rl_pipeline.collection.outbox.writer import Part, Writer
from rl_pipeline.collection.publishing import OpenObjects
from rl_pipeline.contracts import Feedback, serialize, subject_of
from rl_pipeline.redaction.policy import RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.stores.jetstream import JetStream

__all__ = ["Counts", "Outbox", "OutboxLimits"]

_PATIENCE_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class _Works:
    """The threads of one process."""

    counting: Counting
    redaction: OutboxRedaction
    writer: Writer
    sender: Sender


class Outbox:
    """Where an agent's recorders write; make one for the process. It works until it is closed or the program ends.

    Nothing that happens here reaches the agent: what goes wrong is logged under `rl_pipeline.collection` and counted.
    """

    def __init__(
        self,
        directory: Path | str,
        nats_url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        credentials_file: Path | str | None = None,
        redaction: RedactionPolicy | None = None,
        open_objects: OpenObjects | None = None,
        limits: OutboxLimits | None = None,
        disk_seconds: float = 5.0,
        exit_seconds: float = 2.0,
    ) -> None:
        """Begin to send what earlier processes left in the directory.

        Without a `redaction` policy the outbox makes a key of its own. `open_objects` opens the store for trajectories
        of more than 512 KB, which are refused without it. A recorder's block waits for the disk at most
        `disk_seconds`; with 0 it does not wait, and a kill may cost the last of its turns. The end of the program waits
        for the stream at most `exit_seconds`, and not at all while it is silent.
        """
        self.directory = Path(directory).absolute()
        self.disk_seconds = disk_seconds
        self.exit_seconds = exit_seconds
        self._redaction = redaction
        self._open_objects = open_objects
        self._limits = limits or OutboxLimits()
        self._open_stream: Callable[[], JetStream] = lambda: JetStream.connect(
            nats_url,
            user=user,
            password=password,
            credentials_file=credentials_file,
            name="rl-pipeline recorder",
            patience_seconds=_PATIENCE_SECONDS,
        )
        self._closed = False
        self._lock = threading.Lock()
        self._works: _Works | None = None
        self._working()
        _OPEN[id(self)] = self

    @property
    def counts(self) -> Counts:
        """What became of the trajectories."""
        return self.counting.snapshot()

    @property
    def counting(self) -> Counting:
        """Where this process counts."""
        return self._working().counting

    def write(self, trajectory_id: str, part: Part, content: dict[str, Any]) -> "Future[None]":
        """Have a part of a trajectory written; returns at once. For recorders."""
        if self._closed:
            if part == "begin":
                self.counting.add("dropped", "the outbox is closed: a trajectory is dropped")
            nothing: Future[None] = Future()
            nothing.set_result(None)
            return nothing
        return self._working().writer.write(trajectory_id, part, content)

    def forget(self, trajectory_id: str) -> None:
        """Remove what was written of a trajectory that is not finished. For recorders."""
        self._working().writer.forget(trajectory_id)

    def post(self, message: Feedback) -> None:
        """Have a message sent that is no trajectory; it is on the disk, redacted, when this returns.

        Unlike a recorder's calls this waits for the disk and raises `OSError`: whoever gave feedback is told.
        """
        works = self._working()
        clean = redact_message(message, works.redaction.redactor())
        letter = {"subject": subject_of(clean), "message": json.loads(serialize(clean))}
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self.directory / f"{uuid4()}{LETTER_SUFFIX}"
        write_file(path, json.dumps(letter, ensure_ascii=False).encode())
        sync_directory(self.directory)
        works.sender.offer(path)

    def redactor(self) -> Redactor:
        """What redacts here, for whoever keeps something beside the outbox; the first call may take seconds."""
        return self._working().redaction.redactor()

    def wait_until_sent(self, seconds: float) -> bool:
        """Whether all that was finished, here or by processes that are gone, was sent in time."""
        works, deadline = self._working(), time.monotonic() + seconds
        works.writer.wait_until_written(seconds)
        return works.sender.wait_until_sent(deadline - time.monotonic())

    def close(self, seconds: float | None = None) -> None:
        """Write what is recorded, send what can be sent in time, and end. The rest waits for the next process.

        Without a time, it is the `exit_seconds`: the end of the program does the same. Closing twice is fine.
        """
        works, seconds = self._works, self.exit_seconds if seconds is None else seconds
        _OPEN.pop(id(self), None)
        if self._closed or works is None:
            return
        self._closed = True
        works.writer.stop(seconds)
        works.sender.wait_until_sent(seconds, even_offline=False)
        works.sender.stop()

    def _working(self) -> _Works:
        """The threads, which begin with the first use in a process."""
        if self._works is None:
            with self._lock:
                if self._works is None:
                    counting = Counting()
                    redaction = OutboxRedaction(self.directory, self._redaction)
                    sender = Sender(self.directory, self._open_stream, self._open_objects, redaction, counting)
                    writer = Writer(self.directory, self._limits, redaction, counting, sender.offer)
                    self._works = _Works(counting, redaction, writer, sender)
        return self._works

    def begin_again(self) -> None:
        """In a fork: threads are not copied, and a lock may have been held by one. The parent's files are its own."""
        if self._works is not None:
            self._works.writer.leave_to_parent()
        self._lock = threading.Lock()
        self._works = None


_OPEN: dict[int, Outbox] = {}
"""Those that nobody has closed: their threads work on when nobody else holds them, and the end waits for them too."""


def _close_all() -> None:
    """At the end of the program. They send at once, so the time of each began with the first."""
    began = time.monotonic()
    for outbox in list(_OPEN.values()):
        outbox.close(max(0.0, outbox.exit_seconds - (time.monotonic() - began)))


def _begin_all_again() -> None:
    for outbox in list(_OPEN.values()):
        outbox.begin_again()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_begin_all_again)
