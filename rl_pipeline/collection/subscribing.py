"""Hearing what is published, live. Whoever must not miss a message reads the stream instead."""

import contextlib
import logging
import queue
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nats.aio.msg import Msg

from rl_pipeline.stores.jetstream import JetStream

_log = logging.getLogger(__name__)
_MOST_WAITING = 10_000


@dataclass(frozen=True, slots=True)
class LiveMessage:
    """A message as it was published, before any check."""

    subject: str
    data: bytes
    headers: Mapping[str, str]


class Subscription:
    """The messages that have arrived and wait to be taken."""

    def __init__(self) -> None:
        self._waiting: queue.Queue[LiveMessage] = queue.Queue(_MOST_WAITING)

    def next(self, wait_seconds: float) -> LiveMessage | None:
        """The next message, or nothing when none came in time."""
        try:
            return self._waiting.get(timeout=wait_seconds)
        except queue.Empty:
            return None

    def receive(self, message: Msg) -> None:
        """Called by the connection. What finds the queue full is dropped: the stream still has it."""
        try:
            self._waiting.put_nowait(LiveMessage(message.subject, message.data, message.headers or {}))
        except queue.Full:
            _log.warning("a live message on %s was dropped: %d wait to be taken", message.subject, _MOST_WAITING)


@contextlib.contextmanager
def subscribe_nats(stream: JetStream, subject: str, queue_group: str = "rl-trainers") -> Iterator[Subscription]:
    """Hear a subject for the length of the block; each message goes to one member of every queue group."""
    subscription = Subscription()
    end = stream.subscribe(subject, queue_group, subscription.receive)
    try:
        yield subscription
    finally:
        end()
