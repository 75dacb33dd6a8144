"""The desired state in a NATS key-value bucket: one key, changed only by compare-and-swap, with its last values."""

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256

from rl_pipeline.stores.desired_state import StoredState
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_api import JetStreamRefused
from rl_pipeline.stores.stream import PublishRefused
from rl_pipeline.stores.topology import DEPLOYMENT

KEY = DEPLOYMENT.key("state")

_NO_MESSAGE = 10037


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the key holds, and the id under which it was written."""

    state: StoredState
    headers: str


class JetStreamDesiredStates:
    """The port of the desired state over the connection of a stream."""

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream

    def read(self) -> StoredState | None:
        """See `DesiredStates.read`."""
        entry = self._read()
        return entry.state if entry else None

    def swap(self, data: bytes, expected_revision: int) -> int | None:
        """See `DesiredStates.swap`."""
        # Of the content, so that a swap that is repeated after its answer was lost is the same message.
        message_id = f"state/{expected_revision}/{sha256(data).hexdigest()}"
        expected = {"Nats-Expected-Last-Subject-Sequence": str(expected_revision)}
        try:
            return self._jetstream.publish(KEY, data, message_id, expected).sequence
        except PublishRefused:
            # It was refused for its revision: unless it is ours, stored by a try whose answer was lost.
            entry = self._read()
            if entry is not None and message_id in entry.headers:
                return entry.state.revision
            if (entry.state.revision if entry else 0) == expected_revision:
                raise
            return None

    def history(self) -> Sequence[StoredState]:
        """See `DesiredStates.history`."""
        held = self._jetstream.state(DEPLOYMENT.name)
        batches = self._jetstream.read(DEPLOYMENT.name, held.first_sequence, held.last_sequence, DEPLOYMENT.history)
        return [StoredState(message.data, message.sequence) for batch in batches for message in batch]

    def _read(self) -> _Entry | None:
        """At the leader: a replica may be behind."""
        try:
            answer = self._jetstream.request(f"STREAM.MSG.GET.{DEPLOYMENT.name}", {"last_by_subj": KEY})
        except JetStreamRefused as refused:
            if refused.code == _NO_MESSAGE:
                return None
            raise
        message = answer["message"]
        state = StoredState(base64.b64decode(message.get("data", "")), int(message["seq"]))
        return _Entry(state, base64.b64decode(message.get("hdrs", "")).decode())
