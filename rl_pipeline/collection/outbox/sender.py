"""The thread that sends what lies in the outbox, oldest first: what this process finished, and what others left.

A file goes when the stream has acknowledged its message, under the trajectory's id as message id. A process that is
killed in between leaves the file, and the next one sends it again: within the stream's hour of remembering ids it is
then stored once, and ingest takes the first of an id whatever the time.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rl_pipeline.collection.outbox.counts import Counting
from rl_pipeline.collection.outbox.journal import (
    REWRITING_SUFFIX,
    SUFFIX,
    claimed,
    is_finished,
    read_lines,
    redacted_by,
    trajectory_of,
)
from rl_pipeline.collection.outbox.redaction import OutboxRedaction
from rl_pipeline.collection.publishing import OpenObjects, outgoing_message
from rl_pipeline.contracts import CLAIMED_LIMITS, parse_message
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.objects import ObjectsUnavailable
from rl_pipeline.stores.stream import OutgoingMessage, PublishRefused, StreamDenied, StreamMissing, StreamUnavailable

SUBJECT = "agent.rl.trajectory.v1"
LETTER_SUFFIX = ".letter"
"""A whole message of another subject, redacted: `{"subject": …, "message": …}`."""
REFUSED_SUFFIX = ".refused"

_LOOK_SECONDS = 15.0
_PAUSES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
_REFUSED_KEPT = 20
_FAULTS_THAT_PASS = (StreamUnavailable, StreamMissing, StreamDenied, ObjectsUnavailable)


class Sender:
    """Sends by itself from its construction until it is stopped."""

    def __init__(
        self,
        directory: Path,
        open_stream: Callable[[], JetStream],
        open_objects: OpenObjects | None,
        redaction: OutboxRedaction,
        counting: Counting,
    ) -> None:
        self._directory = directory
        self._open_stream = open_stream
        self._open_objects = open_objects
        self._redaction = redaction
        self._counting = counting
        self._stream: JetStream | None = None
        self._changed = threading.Condition()
        self._waiting: dict[Path, None] = {}
        self._sending = True
        self._offline = False
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="recorder sends", daemon=True)
        self._thread.start()

    def offer(self, path: Path) -> None:
        """A file is whole: a trajectory or a letter."""
        with self._changed:
            self._waiting[path] = None
            self._changed.notify_all()

    def wait_until_sent(self, seconds: float, *, even_offline: bool = True) -> bool:
        """Whether everything that was found or offered was sent in time; without `even_offline`, the stream's silence
        is waited for no longer than it takes to notice."""

        def settled() -> bool:
            return self._is_idle() or (self._offline and not even_offline)

        with self._changed:
            self._changed.wait_for(settled, seconds)
            return self._is_idle()

    def stop(self) -> None:
        """Send nothing more. What is on its way is left to finish by itself."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(1)

    def _is_idle(self) -> bool:
        return not self._waiting and not self._sending

    def _run(self) -> None:
        next_look, failed = time.monotonic(), 0
        while not self._stopping:
            if time.monotonic() >= next_look:
                try:
                    self._look()
                except OSError as error:
                    self._counting.failed("looking into the outbox", error)
                next_look = time.monotonic() + _LOOK_SECONDS
            path = self._next(next_look)
            if path is None:
                continue
            try:
                self._send(path)
                failed = 0
            except _FAULTS_THAT_PASS as error:
                self._counting.add("failures", f"trajectories wait in the outbox: {error}")
                self._pause(path, _PAUSES[min(failed, len(_PAUSES) - 1)])
                failed += 1
            except PublishRefused as error:
                self._counting.add("failures", f"{path.name} waits, the server refuses it: {error}")
            except Exception as error:  # noqa: BLE001 - it stays until the next look; the others must go
                self._counting.failed("sending a trajectory", error)
        with contextlib.suppress(Exception):
            if self._stream is not None:
                self._stream.close()

    def _look(self) -> None:
        """Find what others left. What is locked is being recorded, or sent by somebody else."""
        found = sorted((*self._directory.glob(f"*{SUFFIX}"), *self._directory.glob(f"*{LETTER_SUFFIX}")), key=_age)
        for path in self._directory.glob(f"*{REWRITING_SUFFIX}"):
            with claimed(path) as data:
                if data is not None:
                    path.unlink()
        with self._changed:
            self._waiting |= dict.fromkeys(path for path in found if path not in self._waiting)

    def _next(self, until: float) -> Path | None:
        with self._changed:
            self._sending = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._waiting or self._stopping, max(0.0, until - time.monotonic()))
            if not self._waiting or self._stopping:
                return None
            self._sending = True
            path = next(iter(self._waiting))
            del self._waiting[path]
            return path

    def _pause(self, path: Path, seconds: float) -> None:
        with self._changed:
            self._waiting = {path: None, **self._waiting}
            self._offline = True
            self._sending = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopping, seconds)

    def _send(self, path: Path) -> None:
        with claimed(path) as data:
            if data is None:
                return
            is_letter, lines = path.suffix == LETTER_SUFFIX, read_lines(data)
            try:
                message = _letter(data) if is_letter else self._message(lines)
            except _FAULTS_THAT_PASS:
                raise
            except Exception as error:  # noqa: BLE001 - a file that cannot be understood must not come again for ever
                self._set_aside(path, error)
                return
            if message is not None:
                self._publish(message)
            path.unlink()
        if message is None:
            self._counting.add("empty")
            return
        self._counting.add("posted" if is_letter else "sent")
        if not (is_letter or is_finished(lines)):
            self._counting.add("recovered")

    def _message(self, lines: list[dict[str, Any]]) -> OutgoingMessage | None:
        """The message of a trajectory; None if it has no turn. What went through another redactor goes through ours."""
        tree = trajectory_of(lines)
        if tree is None:
            return None
        trajectory = parse_message(SUBJECT, json.dumps(tree, ensure_ascii=False).encode(), CLAIMED_LIMITS)
        redactor = self._redaction.redactor()
        return outgoing_message(
            trajectory, self._open_objects, None if redacted_by(lines) == redactor.revision else redactor
        )

    def _publish(self, message: OutgoingMessage) -> None:
        if self._stream is None:
            self._stream = self._open_stream()
        self._stream.publish(message.subject, message.data, message.message_id, message.headers)
        self._offline = False

    def _set_aside(self, path: Path, error: Exception) -> None:
        """Keep the newest of those that will never be taken, for whoever wants to know why."""
        # The texts of our own errors hold no content; of others, nobody knows.
        reason = error if isinstance(error, PipelineError) else type(error).__name__
        self._counting.add("refused", f"{path.name} is set aside: {reason}")
        path.rename(path.with_suffix(REFUSED_SUFFIX))
        for old in sorted(self._directory.glob(f"*{REFUSED_SUFFIX}"), key=_age)[:-_REFUSED_KEPT]:
            old.unlink(missing_ok=True)


def _letter(data: bytes) -> OutgoingMessage:
    letter = json.loads(data)
    return outgoing_message(parse_message(letter["subject"], json.dumps(letter["message"]).encode()))


def _age(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0
