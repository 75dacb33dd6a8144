"""How callers' messages get into the stream: redacted as at an agent's edge, many at once, stored or refused each by
itself. What is acknowledged is durable."""

from collections.abc import Callable, Sequence

from rl_pipeline.collection.publishing import OpenObjects, outgoing_message
from rl_pipeline.contracts import Message
from rl_pipeline.errors import PipelineError
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.service.answers import StoredAnswer
from rl_pipeline.service.connections import ServiceStream
from rl_pipeline.service.gathering import Gathering
from rl_pipeline.stores.stream import OutgoingMessage, PublishIncomplete

_MOST_AT_ONCE = 128


class PublishingDesk:
    """Publishes what comes in while the last was being published, together."""

    def __init__(
        self, stream: Callable[[], ServiceStream], redactor: Callable[[], Redactor | None], open_objects: OpenObjects
    ) -> None:
        """`redactor` is made when it is first needed; `open_objects` opens the store for what is too large."""
        self._stream = stream
        self._make_redactor = redactor
        self._redactor: Redactor | None = None
        self._is_made = False
        self._open_objects = open_objects
        self._publishing = Gathering[Message, StoredAnswer](self._publish, "publishing", _MOST_AT_ONCE)

    async def publish(self, message: Message) -> StoredAnswer:
        """Store a message. Raises what `outgoing_message` and the stream raise."""
        return await self._publishing.ask(message)

    def close(self) -> None:
        """Publish nothing more."""
        self._publishing.close()

    def _publish(self, messages: Sequence[Message]) -> list[StoredAnswer | Exception]:
        stream = self._stream()
        made = [self._outgoing(message) for message in messages]
        try:
            stream.publish_many(one for one in made if isinstance(one, OutgoingMessage))
            failures = {}
        except PublishIncomplete as incomplete:
            failures = incomplete.failures
        return [
            one
            if isinstance(one, Exception)
            else failures.get(one.message_id) or StoredAnswer(id=one.message_id, subject=one.subject)
            for one in made
        ]

    def _outgoing(self, message: Message) -> OutgoingMessage | PipelineError:
        if not self._is_made:
            self._redactor, self._is_made = self._make_redactor(), True
        try:
            return outgoing_message(message, self._open_objects, self._redactor)
        except PipelineError as refused:
            return refused
