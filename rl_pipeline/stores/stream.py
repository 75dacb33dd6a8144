"""The port to the message stream: what the core asks of JetStream, and nothing of how NATS does it.

Everything here is synchronous and works on batches. Adapters live beside this file; this file imports none of them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol

from rl_pipeline.errors import PipelineError


class StreamUnavailable(PipelineError):
    """The server does not answer, or gave no answer in time. Trying again later is safe."""


class StreamMissing(PipelineError):
    """The stream or the durable consumer does not exist."""


class StreamDenied(PipelineError):
    """The account may not do that."""


class PublishRefused(PipelineError):
    """A message that the server will never take as it is: too large, malformed, or not this account's to publish."""


class MessageGone(PipelineError):
    """The stream does not have this sequence: it aged out, was erased, or was never written."""


class PublishIncomplete(PipelineError):
    """Some messages of a batch were not acknowledged; `failures` names each by its message id, with the reason.

    Every other message of the batch is stored. An unacknowledged message may be stored as well: publishing it again
    under the same message id is safe.
    """

    def __init__(self, text: str, failures: Mapping[str, PipelineError]) -> None:
        super().__init__(text)
        self.failures = dict(failures)


@dataclass(frozen=True, slots=True)
class OutgoingMessage:
    """A message to publish; the stream stores one message per `message_id` within its duplicate window.

    `once_per_subject`: nothing is stored while the stream has any message on the subject, however old it is; the
    answer is then that of a duplicate.
    """

    subject: str
    data: bytes
    message_id: str
    headers: Mapping[str, str] = field(default_factory=dict)
    once_per_subject: bool = False


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """A message as the stream holds it. `time` is when the stream stored it, in UTC."""

    sequence: int
    subject: str
    data: bytes
    message_id: str | None
    headers: Mapping[str, str]
    time: datetime


@dataclass(frozen=True, slots=True)
class Published:
    """The server's acknowledgement. A `duplicate` was stored before: `sequence` is then that of the first."""

    sequence: int
    duplicate: bool


@dataclass(frozen=True, slots=True)
class StreamState:
    """What a stream holds now. An empty stream has `first_sequence` = `last_sequence` + 1 and no times."""

    name: str
    first_sequence: int
    last_sequence: int
    messages: int
    bytes: int
    deleted: int
    """Sequences that are missing between the first and the last."""
    first_time: datetime | None
    last_time: datetime | None
    consumers: int


class Delivery(Protocol):
    """A message that a durable consumer handed out, to be settled by `ack`, `nak` or `term`.

    Each of the three is confirmed by the server before it returns, is harmless when repeated, and raises
    `StreamUnavailable` when no confirmation came; the message is then delivered again. A delivery that is never
    settled comes again after the consumer's waiting time, until its limit of deliveries.
    """

    @property
    def message(self) -> StoredMessage:
        """The message."""

    @property
    def attempt(self) -> int:
        """1 for the first delivery, more for a redelivery."""

    def ack(self) -> None:
        """Done: never deliver it again."""

    def nak(self, delay_seconds: float = 0.0) -> None:
        """Not done: deliver it again, after the delay."""

    def term(self) -> None:
        """Hopeless: never deliver it again. Whoever says so has kept the reason."""


class Stream(Protocol):
    """Streams of messages, each message under a sequence that is never used twice.

    Every method raises `StreamUnavailable` when the server does not answer within the adapter's patience (a restart or
    a change of leader is waited for), `StreamMissing` for a stream or consumer that does not exist, and `StreamDenied`
    when the account lacks the permission.
    """

    def publish(
        self, subject: str, data: bytes, message_id: str, headers: Mapping[str, str] | None = None
    ) -> Published:
        """Store one message; it is durable when this returns.

        Idempotent: the same `message_id` within the stream's duplicate window stores once.
        Raises `PublishRefused` for a message that is never taken, `StreamMissing` when no stream takes the subject.
        """

    def publish_many(self, messages: Iterable[OutgoingMessage]) -> list[Published]:
        """Store many messages, with a bounded number in flight; the answers come in the order of the messages.

        Each message is retried under its own message id while the fault is one that passes; after a retry the stored
        order may differ from the given one. One message's failure does not stop the others: what remains
        unacknowledged at the end is raised as `PublishIncomplete`.
        """

    def state(self, stream: str) -> StreamState:
        """What the stream holds now."""

    def read(self, stream: str, first: int, last: int, batch_size: int) -> Iterator[Sequence[StoredMessage]]:
        """The messages from sequence `first` to `last`, both included, in order, in batches of at most `batch_size`.

        Sequences that the stream no longer has are simply missing. Ends at `last`, or at the end of the stream if that
        comes first. Leaves nothing behind on the server. Holds one batch at a time, and cuts batches of large messages.
        """

    def get(self, stream: str, sequence: int) -> StoredMessage:
        """One message. Raises `MessageGone` when the stream does not have it."""

    def last_on_subject(self, stream: str, subject: str) -> StoredMessage:
        """The newest message on a subject. Raises `MessageGone` when the stream has none."""

    def gaps(self, stream: str, first: int, last: int) -> Sequence[range]:
        """The sequences from `first` to `last` that the stream once had and has no more, as ascending ranges.

        Sequences that were never written yet are no gap. Costs one request, whatever the size of the messages.
        """

    def erase(self, stream: str, sequence: int) -> bool:
        """Overwrite and delete one message (the admin's right). False when it was gone already."""

    def fetch(self, stream: str, consumer: str, max_messages: int, wait_seconds: float) -> Sequence[Delivery]:
        """Up to `max_messages` of what a durable consumer has pending.

        Returns at once when there is any; otherwise waits for the first up to `wait_seconds`, and then returns nothing.
        A message may come more than once: settle it only after its effect is stored, and make the effect idempotent.
        """

    def acknowledge(self, deliveries: Iterable[Delivery]) -> None:
        """`ack` all of them in one go."""
