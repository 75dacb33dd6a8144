"""Hearing what is published, live. Whoever must not miss a message reads the stream instead."""

import contextlib
import logging
import queue
from collections.abc import Callable, Iterator, Mapping
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

    def __init__(self, passes_over: Callable[[LiveMessage], bool]) -> None:
        self._passes_over = passes_over
        self._waiting: queue.Queue[LiveMessage] = queue.Queue(_MOST_WAITING)

    def next(self, wait_seconds: float) -> LiveMessage | None:
        """The next message, or nothing when none came in time."""
        try:
            return self._waiting.get(timeout=wait_seconds)
        except queue.Empty:
            return None

    def receive(self, message: Msg) -> None:
        """Called by the connection. What finds the queue full is dropped: the stream still has it."""
        heard = LiveMessage(message.subject, message.data, message.headers or {})
        if self._passes_over(heard):
            return
        try:
            self._waiting.put_nowait(heard)
        except queue.Full:
            _log.warning("a live message on %s was dropped: %d wait to be taken", message.subject, _MOST_WAITING)


@contextlib.contextmanager
def subscribe_nats(
    stream: JetStream,
    subject: str,
    queue_group: str = "rl-trainers",
    passes_over: Callable[[LiveMessage], bool] = lambda _: False,
) -> Iterator[Subscription]:
    """Hear a subject for the length of the block; each message goes to one member of every queue group.

    What `passes_over` finds is not heard: who publishes on a subject that it hears too must not answer itself.
    """
    subscription = Subscription(passes_over)
    end = stream.subscribe(subject, queue_group, subscription.receive)
    try:
        yield subscription
    finally:
        end()
