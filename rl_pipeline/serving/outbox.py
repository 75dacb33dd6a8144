"""Outcomes on their way to the stream: appended to a file at once, published by a thread whenever NATS answers.

A line is `<message id> TAB <outcome as JSON>`; both name the session by a keyed digest. The files are numbered; the
highest is being written, all lower ones are finished, and a file whose lines are all published is removed. `published`
says how far the publishing came. What was published and not noted before a crash is published again under the same
message ids, which the stream stores once.

Beside them, `begun` and `begun-before` have the sessions of the last minutes that had begun, as lines of the same form:
what nobody knew more of when the process was killed is told by the next one. What was told of them before counts first,
because it has the same message id and the same key in `serving_outcomes`.
"""

import contextlib
import json
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import orjson

from rl_pipeline.deployment.windows import OBSERVED_SECONDS, WINDOW_SECONDS
from rl_pipeline.errors import PipelineError
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.redaction.session_names import stored_name
from rl_pipeline.serving.configuration import Nats
from rl_pipeline.serving.sessions import Session
from rl_pipeline.stores.stream import OutgoingMessage, PublishIncomplete, PublishRefused

SUBJECT = "agent.rl.serving.outcome.v1"
FILE_BYTES = 2**20
MOST_FILES = 64
"""When so many are full, new outcomes are dropped, and counted."""
BATCH_BYTES = 2**16
BEGUN_SECONDS = WINDOW_SECONDS + OBSERVED_SECONDS + 10.0
"""By then a session that has begun was told."""
PAUSE_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 5.0

_log = logging.getLogger(__name__)


class Outbox:
    """The writing end. One thread writes; it never waits for anything but the page cache."""

    def __init__(self, directory: Path, gateway: str, session_key: RedactionKey) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.dropped = 0
        self.problem: str | None = None
        """Why the last outcomes were dropped; None when they were not."""
        self.has_more = threading.Event()
        self._gateway = gateway
        self._key = session_key
        self._number = max(numbers(directory), default=0) + 1
        self._file = self._opened(self._number)
        self._size = 0
        self._begun, self._begun_before = directory / "begun", directory / "begun-before"
        self._begun_since = 0.0
        self._tell_what_was_left()

    def tell(self, sessions: Sequence[Session]) -> None:
        """Append the sessions' outcomes; when this returns they outlive the process."""
        lines = b"".join(map(self._line, sessions))
        problem = self._rotate() if self._size + len(lines) > FILE_BYTES else None
        problem = problem or self._append(lines)
        if problem:
            if self.problem is None:
                _log.error("outcomes are dropped: %s", problem)
            self.dropped += len(sessions)
        self.problem = problem
        self.has_more.set()

    def remember(self, sessions: Sequence[Session], now: float) -> None:
        """Keep that the sessions have begun, for the case that this process cannot tell of them any more."""
        # A disk that is full is told of by `tell`; until there is room, a crash loses these as it did before.
        with contextlib.suppress(OSError):
            if now - self._begun_since >= BEGUN_SECONDS:
                if self._begun.exists():
                    self._begun.replace(self._begun_before)
                self._begun_since = now
            with open(self._begun, "ab", opener=lambda path, flags: os.open(path, flags, 0o600)) as lines:
                lines.write(b"".join(map(self._line, sessions)))

    def close(self) -> None:
        """Write no more. All sessions were told."""
        os.close(self._file)
        self._forget_begun()

    def _tell_what_was_left(self) -> None:
        """Tell of the sessions that a killed process had begun."""
        lines = b"".join(_whole_lines(file, 0, None) for file in (self._begun_before, self._begun) if file.exists())
        if lines and self._append(lines) is None:
            self.has_more.set()
            self._forget_begun()

    def _forget_begun(self) -> None:
        for file in (self._begun, self._begun_before):
            file.unlink(missing_ok=True)

    def _line(self, session: Session) -> bytes:
        name = stored_name(self._key, session.session_id)
        message_id, outcome = session.message_id(name, self._gateway), session.outcome(name, self._gateway)
        return b"%s\t%s\n" % (message_id.encode(), orjson.dumps(outcome))

    def _append(self, lines: bytes) -> str | None:
        """What was in the way. Whole or, for the reader, not at all: a full disk may take half a line, and nothing may
        be appended to that."""
        try:
            written, problem = os.write(self._file, lines), "the disk is full"
        except OSError as error:
            written, problem = 0, str(error.strerror)
        if written == len(lines):
            self._size += written
            return None
        self._size = FILE_BYTES
        return f"the outbox cannot be written ({problem}): free the disk"

    def _rotate(self) -> str | None:
        """What was in the way. The old file is given up for a new one, never for none."""
        try:
            if len(numbers(self.directory)) >= MOST_FILES:
                return "the outbox is full: let the gateway reach NATS"
            if os.fstat(self._file).st_size == 0:  # a full disk took nothing, and must not use up the files
                _file(self.directory, self._number).unlink(missing_ok=True)
            following = self._opened(self._number + 1)
        except OSError as error:
            return f"the outbox cannot be written ({error.strerror}): free the disk"
        os.close(self._file)
        self._file, self._number, self._size = following, self._number + 1, 0
        return None

    def _opened(self, number: int) -> int:
        return os.open(_file(self.directory, number), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


class OutcomePublisher(threading.Thread):
    """The publishing end. `problem` is what keeps it from publishing now."""

    def __init__(self, outbox: Outbox, open_nats: Callable[[], Nats]) -> None:
        super().__init__(name="outcomes", daemon=True)
        self.problem: str | None = None
        self._outbox = outbox
        self._open = open_nats
        self._nats: Nats | None = None
        self._position: tuple[int, int] | None = None
        self._noted: tuple[int, int] | None = None
        self._stopping = threading.Event()

    def stop(self, patience_seconds: float) -> None:
        """Publish what there is, if that is possible now, and end."""
        self._stopping.set()
        self._outbox.has_more.set()
        self.join(patience_seconds)

    def run(self) -> None:
        """Until stopped; what cannot be published now is tried again."""
        pause = PAUSE_SECONDS
        while True:
            stopping = self._stopping.is_set()
            self._outbox.has_more.clear()
            try:
                while self._publish_some():
                    pause = PAUSE_SECONDS
                self.problem = None
            except (PipelineError, OSError) as problem:
                if self.problem is None:
                    _log.warning("outcomes wait in the outbox: %s", problem)
                self.problem = str(problem)
                pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
            if stopping:
                break
            if self.problem:
                self._stopping.wait(pause)
            else:
                self._outbox.has_more.wait(PAUSE_SECONDS)
        if self._nats:
            self._nats.close()

    def _publish_some(self) -> bool:
        """Whether there was anything. Raises `PipelineError` and `OSError`.

        A disk that takes no note of the position keeps no outcome back: it is known here, and noted later.
        """
        directory = self._outbox.directory
        known = numbers(directory)
        if not known:
            return False
        if self._position is None:
            self._position = self._noted = self._last_noted()
        number, offset = self._position if self._position[0] in known else (known[0], 0)
        lines = _whole_lines(_file(directory, number), offset)
        if lines:
            self._publish(lines)
            self._position = number, offset + len(lines)
        elif number < known[-1]:
            _file(directory, number).unlink()
            return True
        if self._position != self._noted:
            self._note(*self._position)
            self._noted = self._position
        return bool(lines)

    def _publish(self, lines: bytes) -> None:
        if self._nats is None:
            self._nats = self._open()
        pairs = [line.partition(b"\t") for line in lines.splitlines()]
        messages = [OutgoingMessage(SUBJECT, data, message_id.decode()) for message_id, _, data in pairs]
        try:
            self._nats.stream.publish_many(messages)
        except PublishIncomplete as incomplete:
            for failure in incomplete.failures.values():
                if not isinstance(failure, PublishRefused):
                    raise failure from incomplete
            _log.error("%d outcomes were refused and are dropped: %s", len(incomplete.failures), incomplete)

    def _last_noted(self) -> tuple[int, int]:
        try:
            noted = json.loads((self._outbox.directory / "published").read_text())
            return int(noted["file"]), int(noted["bytes"])
        except (FileNotFoundError, ValueError, KeyError):
            return 0, 0

    def _note(self, number: int, offset: int) -> None:
        noted = self._outbox.directory / "published"
        unfinished = noted.with_suffix(".unfinished")
        unfinished.write_text(json.dumps({"file": number, "bytes": offset}))
        unfinished.replace(noted)


def numbers(directory: Path) -> list[int]:
    """Of the files that are there, in their order."""
    return sorted(int(file.stem) for file in directory.glob("*.lines"))


def waiting_bytes(directory: Path) -> int:
    """What the outbox holds, published or not."""
    total = 0
    for number in numbers(directory):
        with contextlib.suppress(FileNotFoundError):
            total += _file(directory, number).stat().st_size
    return total


def _file(directory: Path, number: int) -> Path:
    return directory / f"{number:012d}.lines"


def _whole_lines(file: Path, offset: int, most: int | None = BATCH_BYTES) -> bytes:
    """Up to a batch of them; a line that a crash cut short stays unread."""
    with file.open("rb") as lines:
        lines.seek(offset)
        data = lines.read(most)
    return data[: data.rfind(b"\n") + 1]
