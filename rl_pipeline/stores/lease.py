"""The port to leases: who may do what only one may do at a time, and until when if nothing more is heard of them.

A lease ends by itself, by the server's clock: whoever dies holds nothing for longer than the seconds they asked for.
Adapters live beside this file; this file imports none of them.
"""

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rl_pipeline.errors import PipelineError

_log = logging.getLogger(__name__)
_ASK_AGAIN_SECONDS = 0.5


class LeaseHeld(PipelineError):
    """Somebody else holds the lease."""


class LeaseLost(PipelineError):
    """The lease ran out, or somebody else has it by now: what it protected must stop."""


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease as it was last acquired or renewed. `revision` grows with every change of the lease, whoever makes it."""

    name: str
    owner: str
    seconds: int
    revision: int


class Leases(Protocol):
    """Leases by name; a name is an identifier such as `training`.

    Every method raises `StreamUnavailable` when the server does not answer and `StreamDenied` where the account lacks
    the permission. Nothing here waits for a lease to become free.
    """

    def acquire(self, name: str, owner: str, seconds: int) -> Lease | None:
        """The lease, for so many whole seconds; None while another owner holds it.

        An owner that holds it already gets it anew: whoever restarts under the same name goes on at once.
        """

    def renew(self, lease: Lease) -> Lease:
        """The lease for its seconds from now on. Raises `LeaseLost` when it ran out or changed hands."""

    def release(self, lease: Lease) -> None:
        """End the lease. Does nothing when it ran out or changed hands; releasing twice is fine."""

    def holder(self, name: str) -> str | None:
        """Who holds the lease now, or nobody."""


class KeptLease:
    """A lease that is renewed in the background. `lost` is set once somebody else has it."""

    def __init__(self, leases: Leases, lease: Lease) -> None:
        self.lost = threading.Event()
        self._leases = leases
        self._lease = lease
        self._guard = threading.Lock()

    def confirm(self) -> None:
        """Renew it now, as one does before what cannot be undone. Raises `LeaseLost`."""
        with self._guard:
            if self.lost.is_set():
                raise LeaseLost(f"{self._lease.owner} no longer holds the lease {self._lease.name}: stop")
            try:
                self._lease = self._leases.renew(self._lease)
            except LeaseLost:
                # It may only have run out, while the server was away; nobody may have taken it.
                again = self._leases.acquire(self._lease.name, self._lease.owner, self._lease.seconds)
                if again is None:
                    self.lost.set()
                    raise
                self._lease = again

    def release(self) -> None:
        """End it."""
        with self._guard:
            self._leases.release(self._lease)


@contextmanager
def keep(leases: Leases, name: str, owner: str, seconds: int, *, patience_seconds: float = 0.0) -> Iterator[KeptLease]:
    """Hold a lease for the length of the block. Raises `LeaseHeld` when another owner has it, and keeps it so long.

    While the server cannot be reached, or has lost the bucket, the lease counts as kept, although it may run out: a
    training of many hours must outlive a restart of NATS. Whoever is about to do what cannot be undone calls `confirm`,
    which then finds out.
    """
    deadline = time.monotonic() + patience_seconds
    while (lease := leases.acquire(name, owner, seconds)) is None:
        if time.monotonic() >= deadline:
            raise LeaseHeld(f"{leases.holder(name) or 'somebody else'} holds the lease {name}: wait until it ends")
        time.sleep(min(_ASK_AGAIN_SECONDS, patience_seconds))
    kept, ended = KeptLease(leases, lease), threading.Event()
    renewing = threading.Thread(target=_renew, args=(kept, seconds / 3, ended), name=f"lease {name}", daemon=True)
    renewing.start()
    try:
        yield kept
    finally:
        ended.set()
        renewing.join()
        try:
            kept.release()
        except PipelineError as refused:
            _log.warning("the lease %s ends by itself: %s", name, refused)


def _renew(kept: KeptLease, pause_seconds: float, ended: threading.Event) -> None:
    is_away = False
    while not ended.wait(pause_seconds):
        try:
            kept.confirm()
        except LeaseLost as lost:
            _log.error("%s", lost)
            return
        except Exception as failed:  # noqa: BLE001  # whatever it is: if this thread ended, nobody would see the lease lost
            if not is_away:
                _log.warning("a lease could not be renewed: %s", failed)
            is_away = True
        else:
            is_away = False
