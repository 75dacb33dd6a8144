"""Leases in a NATS key-value bucket: a key per lease, changed only by compare-and-swap, removed by the server in time.

The value is the owner; the message's own time to live (`Nats-TTL`) ends the lease, so no clock but the server's counts.
"""

import base64
import uuid
from dataclasses import dataclass

from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_api import JetStreamRefused
from rl_pipeline.stores.lease import Lease, LeaseLost
from rl_pipeline.stores.stream import PublishRefused
from rl_pipeline.stores.topology import LEASES

_NO_MESSAGE = 10037
# What a released lease leaves in its key is gone soon after.
_RELEASED = {"KV-Operation": "DEL", "Nats-TTL": "60s"}


@dataclass(frozen=True, slots=True)
class _Entry:
    """What the key holds: 0 and no owner where it holds nothing, no owner where the lease was released."""

    revision: int = 0
    owner: str | None = None
    headers: str = ""


class JetStreamLeases:
    """The port of leases over the connection of a stream."""

    def __init__(self, jetstream: JetStream) -> None:
        self._jetstream = jetstream

    def acquire(self, name: str, owner: str, seconds: int) -> Lease | None:
        """See `Leases.acquire`."""
        while True:
            entry = self._read(name)
            if entry.owner not in (None, owner):
                return None
            revision = self._swap(name, owner, entry.revision, {"Nats-TTL": f"{seconds}s"})
            if revision:
                return Lease(name, owner, seconds, revision)

    def renew(self, lease: Lease) -> Lease:
        """See `Leases.renew`."""
        revision = self._swap(lease.name, lease.owner, lease.revision, {"Nats-TTL": f"{lease.seconds}s"})
        if revision is None:
            raise LeaseLost(f"{lease.owner} no longer holds the lease {lease.name}: stop")
        return Lease(lease.name, lease.owner, lease.seconds, revision)

    def release(self, lease: Lease) -> None:
        """See `Leases.release`."""
        self._swap(lease.name, "", lease.revision, _RELEASED)

    def holder(self, name: str) -> str | None:
        """See `Leases.holder`."""
        return self._read(name).owner

    def _read(self, name: str) -> _Entry:
        """At the leader: a replica may be behind."""
        try:
            request = {"last_by_subj": LEASES.key(name)}
            message = self._jetstream.request(f"STREAM.MSG.GET.{LEASES.name}", request)["message"]
        except JetStreamRefused as refused:
            if refused.code == _NO_MESSAGE:
                return _Entry()
            raise
        owner = base64.b64decode(message.get("data", "")).decode()
        return _Entry(int(message["seq"]), owner or None, base64.b64decode(message.get("hdrs", "")).decode())

    def _swap(self, name: str, owner: str, revision: int, headers: dict[str, str]) -> int | None:
        """The key's new revision, if its revision was this one; None if it has another by now."""
        expected = {"Nats-Expected-Last-Subject-Sequence": str(revision)}
        message_id = f"lease/{uuid.uuid4()}"
        try:
            return self._jetstream.publish(LEASES.key(name), owner.encode(), message_id, headers | expected).sequence
        except PublishRefused:
            # It was refused for its revision: unless it is ours, stored by a try whose answer was lost.
            entry = self._read(name)
            if message_id in entry.headers:
                return entry.revision
            if entry.revision == revision:
                raise
            return None
