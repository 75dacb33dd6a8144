"""The stream port on NATS JetStream: the synchronous face of one connection. How it is done stands in the modules
`jetstream_publishing`, `jetstream_reading`, `jetstream_api`, `nats_connection` and `nats_login`.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nats.aio.msg import Msg

from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.jetstream_api import JetStreamApi, JetStreamRefused
from rl_pipeline.stores.jetstream_publishing import groups, publish_group
from rl_pipeline.stores.jetstream_reading import (
    delivered,
    missing_ranges,
    pull,
    read_batch,
    sequence_at_leader,
    stream_state,
)
from rl_pipeline.stores.nats_connection import Denied, NatsConnection
from rl_pipeline.stores.nats_login import Login
from rl_pipeline.stores.stream import (
    Delivery,
    MessageGone,
    OutgoingMessage,
    Published,
    PublishIncomplete,
    StoredMessage,
    StreamState,
)

_GROUPS_IN_FLIGHT = 2


@dataclass(frozen=True, slots=True)
class JetStreamDelivery:
    """A delivery that is settled over the connection it came from."""

    message: StoredMessage
    attempt: int
    settlement_subject: str
    settle: Callable[[Sequence[str], bytes], None]

    def ack(self) -> None:
        """Done: never deliver it again."""
        self.settle([self.settlement_subject], b"+ACK")

    def nak(self, delay_seconds: float = 0.0) -> None:
        """Not done: deliver it again, after the delay."""
        # A delay of 0 means the consumer's own backoff to JetStream, no delay at all means at once.
        delay = b" " + json.dumps({"delay": int(delay_seconds * 10**9)}).encode() if delay_seconds else b""
        self.settle([self.settlement_subject], b"-NAK" + delay)

    def term(self) -> None:
        """Hopeless: never deliver it again."""
        self.settle([self.settlement_subject], b"+TERM")


class JetStream:
    """The stream port over one NATS connection. Threads may share it; processes may not.

    `patience_seconds` is how long a call outlasts a restart or a change of leader before it raises.
    """

    def __init__(self, connection: NatsConnection, patience_seconds: float) -> None:
        self._connection = connection
        self._api = JetStreamApi(connection, patience_seconds)

    @classmethod
    def connect(
        cls,
        url: str,
        *,
        user: str | None = None,
        password: str | None = None,
        credentials_file: str | Path | None = None,
        inbox_prefix: str | None = None,
        name: str = "rl-pipeline",
        connect_seconds: float = 5.0,
        patience_seconds: float = 30.0,
    ) -> Self:
        """Connect to a server, or to any of several separated by commas; fails at once when none answers.

        Replies arrive under `inbox_prefix`, by default `_INBOX_<user>` for a user with a password, as `deploy/nats`
        grants it, and `_INBOX` for everybody else.
        """
        prefix = inbox_prefix or (f"_INBOX_{user}" if user else "_INBOX")
        login = Login(user, password, Path(credentials_file) if credentials_file else None)
        connection = NatsConnection(url, login, name=name, inbox_prefix=prefix, connect_seconds=connect_seconds)
        return cls(connection, patience_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Send what is on its way and close the connection. Closing twice is fine."""
        self._connection.close()

    @property
    def server_name(self) -> str:
        """The name of the server that this connection is on."""
        return self._connection.server_name

    def publish(
        self, subject: str, data: bytes, message_id: str, headers: Mapping[str, str] | None = None
    ) -> Published:
        """See `Stream.publish`."""
        message = OutgoingMessage(subject, data, message_id, headers or {})
        (outcome,) = self._connection.run(publish_group(self._api, [message]))
        if isinstance(outcome, PipelineError):
            raise outcome
        return outcome

    def publish_many(self, messages: Iterable[OutgoingMessage]) -> list[Published]:
        """See `Stream.publish_many`."""
        published: list[Published] = []
        failures: dict[str, PipelineError] = {}
        running: deque[tuple[Sequence[OutgoingMessage], Future[list[Published | PipelineError]]]] = deque()

        def collect_oldest() -> None:
            group, outcomes = running.popleft()
            for message, outcome in zip(group, outcomes.result(), strict=True):
                if isinstance(outcome, Published):
                    published.append(outcome)
                else:
                    failures[message.message_id] = outcome

        for group in groups(messages):
            running.append((group, self._connection.submit(publish_group(self._api, group))))
            if len(running) == _GROUPS_IN_FLIGHT:
                collect_oldest()
        while running:
            collect_oldest()
        if failures:
            first, reason = next(iter(failures.items()))
            count = f"{len(failures)} of {len(failures) + len(published)} messages were"
            raise PublishIncomplete(f"{count} not acknowledged; the first: {first}: {reason}", failures)
        return published

    def state(self, stream: str) -> StreamState:
        """See `Stream.state`."""
        return stream_state(self.request(f"STREAM.INFO.{stream}"))

    def read(self, stream: str, first: int, last: int, batch_size: int) -> Iterator[Sequence[StoredMessage]]:
        """See `Stream.read`."""
        first = max(first, 1)
        while first <= last:
            batch = self._connection.run(read_batch(self._api, stream, first, last, batch_size))
            if not batch:
                return
            yield batch
            first = batch[-1].sequence + 1

    def get(self, stream: str, sequence: int) -> StoredMessage:
        """See `Stream.get`."""
        for batch in self.read(stream, sequence, sequence, 1):
            return batch[0]
        raise MessageGone(f"{stream} has no message {sequence} any more: it aged out, was erased or never was")

    def last_on_subject(self, stream: str, subject: str) -> StoredMessage:
        """See `Stream.last_on_subject`."""
        sequence = self._connection.run(sequence_at_leader(self._api, stream, {"last_by_subj": subject}))
        if sequence is None:
            raise MessageGone(f"{stream} has no message on {subject}: it aged out, was erased or never was")
        return self.get(stream, sequence)

    def gaps(self, stream: str, first: int, last: int) -> Sequence[range]:
        """See `Stream.gaps`."""
        return missing_ranges(self.request(f"STREAM.INFO.{stream}", {"deleted_details": True}), first, last)

    def erase(self, stream: str, sequence: int) -> bool:
        """See `Stream.erase`."""
        try:
            self.request(f"STREAM.MSG.DELETE.{stream}", {"seq": sequence})
        except JetStreamRefused:
            # JetStream has several refusals for what is not there; what counts is that it is not.
            if any(True for _ in self.read(stream, sequence, sequence, 1)):
                raise
            return False
        return True

    def fetch(self, stream: str, consumer: str, max_messages: int, wait_seconds: float) -> Sequence[JetStreamDelivery]:
        """See `Stream.fetch`."""
        deliveries = self._connection.run(pull(self._api, stream, consumer, max_messages, wait_seconds))
        return [JetStreamDelivery(*delivered(delivery), delivery.reply, self._settle) for delivery in deliveries]

    def acknowledge(self, deliveries: Iterable[Delivery]) -> None:
        """See `Stream.acknowledge`."""
        subjects = [delivery.settlement_subject for delivery in deliveries if isinstance(delivery, JetStreamDelivery)]
        self._settle(subjects, b"+ACK")

    def request(self, operation: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """A request to JetStream's API, such as `STREAM.INFO.<name>`; for what the port has no word for."""
        return self._connection.run(self._api.request(operation, body))

    def subscribe(self, subject: str, queue_group: str, receive: Callable[[Msg], None]) -> Callable[[], None]:
        """Hear what is published from now on, each message once per queue group; returns what ends it.

        Live only: nothing is kept for whoever is away. `receive` runs on the connection's thread and must not block.
        """

        async def subscribe() -> Callable[[], None]:
            try:
                return await self._connection.subscribe(subject, queue_group, receive)
            except Denied as denied:
                raise self._api.denied(denied) from denied

        return self._connection.run(subscribe())

    def serve(self, subject: str, queue_group: str, answer: Callable[[bytes], Future[bytes]]) -> Callable[[], None]:
        """Answer requests on a subject, each by one member of the queue group; returns what ends it.

        `answer` runs on the connection's thread and must not block: it gives what will hold the answer. A request whose
        answer fails is left without one, and so is a message that asks for none.
        """

        def receive(message: Msg) -> None:
            if message.reply:
                self._connection.reply_later(message, answer(message.data))

        return self.subscribe(subject, queue_group, receive)

    def _settle(self, subjects: Sequence[str], verdict: bytes) -> None:
        self._connection.run(self._settle_all(subjects, verdict))

    async def _settle_all(self, subjects: Sequence[str], verdict: bytes) -> None:
        waiting = list(subjects)

        async def attempt() -> None:
            nonlocal waiting
            answers = await self._api.ask_all([(subject, verdict, None) for subject in waiting])
            failed = {subject: a for subject, a in zip(waiting, answers, strict=True) if isinstance(a, Exception)}
            waiting = list(failed)
            for failure in failed.values():
                raise failure

        await self._api.patiently(attempt)
