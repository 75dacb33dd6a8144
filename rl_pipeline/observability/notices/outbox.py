"""Notices in the object store: each is there before anybody tries to deliver it, and until every way out has taken it.

It stands on neither NATS nor ClickHouse, so that their loss can be told. A notice is created once for its id, by
whichever process is first, and stays known when it was delivered: who notices the same thing again adds nothing.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Protocol

from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.objects import ObjectExists, ObjectMissing, Objects

_WAITING, _TOLD = "notices/waiting/", "notices/told/"
_FIRST_WAIT = timedelta(seconds=30)
_LONGEST_WAIT = timedelta(hours=1)
KEPT = timedelta(days=90)
"""So long it is remembered that something was told."""


class NotDelivered(PipelineError):
    """A way out did not take a notice now; it is tried again."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A message and the ways by which it has still to leave."""

    id: str
    subject: str
    """On which it is published, where it is."""
    body: Mapping[str, Any]
    ways: tuple[str, ...]
    created_at: datetime
    attempts: int = 0
    not_before: datetime | None = None
    troubles: Mapping[str, str] = field(default_factory=dict)
    """Why each way that is left did not take it last."""

    def encoded(self) -> bytes:
        """As it is stored."""
        return json.dumps(asdict(self), default=datetime.isoformat).encode()

    @classmethod
    def decoded(cls, data: bytes) -> "Notice":
        """What `encoded` wrote."""
        found = json.loads(data)
        moments = {
            name: datetime.fromisoformat(found[name]) if found[name] else None for name in ("created_at", "not_before")
        }
        return cls(**{**found, **moments, "ways": tuple(found["ways"])})

    def is_due(self, now: datetime) -> bool:
        """Whether it is to be tried now."""
        return self.not_before is None or self.not_before <= now


class Way(Protocol):
    """A way out. Delivering the same notice twice must be harmless: a process may die in between."""

    def __call__(self, notice: Notice) -> None:
        """Deliver it, durably. Raises `NotDelivered`."""


class Outbox:
    """The notices of this deployment."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    def add(self, notice: Notice) -> bool:
        """Keep a notice until it is delivered; False where it was known already."""
        if self._objects.exists(f"{_TOLD}{notice.id}.json"):
            return False
        try:
            self._objects.create(f"{_WAITING}{notice.id}.json", notice.encoded())
        except ObjectExists:
            return False
        return True

    def waiting(self) -> list[Notice]:
        """What has still to leave, the oldest first."""
        found = []
        for stored in self._objects.list(_WAITING):
            try:
                found.append(Notice.decoded(self._objects.get(stored.key)))
            except ObjectMissing:  # another process has delivered it meanwhile
                continue
        return sorted(found, key=lambda notice: (notice.created_at, notice.id))

    def deliver(self, ways: Mapping[str, Way], now: datetime) -> list[Notice]:
        """Try what is due by every way that it has left; returns all notices that still wait, as they stand now.

        A way that is not among `ways` is none of this deployment's any more, and is not waited for.
        """
        left = []
        for notice in self.waiting():
            after = self._delivered(notice, ways, now) if notice.is_due(now) else notice
            if after.ways:
                left.append(after)
        return left

    def forget(self, now: datetime) -> int:
        """Remove what was told long ago; returns how many."""
        old = [stored.key for stored in self._objects.list(_TOLD) if now - stored.modified > KEPT]
        for key in old:
            self._objects.delete(key)
        return len(old)

    def _delivered(self, notice: Notice, ways: Mapping[str, Way], now: datetime) -> Notice:
        troubles = {}
        for name in notice.ways:
            if name in ways:
                try:
                    ways[name](notice)
                except NotDelivered as trouble:
                    troubles[name] = str(trouble)
        after = replace(
            notice,
            ways=tuple(troubles),
            attempts=notice.attempts + 1,
            not_before=now + min(_FIRST_WAIT * 2 ** min(notice.attempts, 10), _LONGEST_WAIT) if troubles else None,
            troubles=troubles,
        )
        if troubles:
            self._objects.put(f"{_WAITING}{notice.id}.json", after.encoded())
        else:
            # Remembered before it is removed: who dies in between tells it once more, and never loses it.
            self._objects.put(f"{_TOLD}{notice.id}.json", after.encoded())
            self._objects.delete(f"{_WAITING}{notice.id}.json")
        return after
