"""Keeps an eye on the desired state in NATS, and tells of every newer one. Being without NATS is no trouble."""

import logging
import threading
import time
from collections.abc import Callable

from pydantic import ValidationError

from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.errors import PipelineError
from rl_pipeline.serving.configuration import Nats

POLL_SECONDS = 0.25
STALE_SECONDS = 3.0
"""NATS counts as away when its last answer is older."""

_log = logging.getLogger(__name__)


class StateWatcher(threading.Thread):
    """Polls, because what matters is the newest value alone and a poll cannot miss it. `tell` runs in this thread."""

    def __init__(self, open_nats: Callable[[], Nats], tell: Callable[[DesiredState], None]) -> None:
        super().__init__(name="desired state", daemon=True)
        self.problem: str | None = "not asked yet"
        self._open = open_nats
        self._tell = tell
        self._answered = float("-inf")
        self._seen = b""
        self._invalid: str | None = None
        self._stopping = threading.Event()

    @property
    def is_reachable(self) -> bool:
        """Whether NATS answered just now."""
        return time.monotonic() - self._answered < STALE_SECONDS

    @property
    def silent_seconds(self) -> float | None:
        """How long ago NATS last answered; None for never."""
        return None if self._answered == float("-inf") else time.monotonic() - self._answered

    def stop(self, patience_seconds: float) -> None:
        """End, or at least tell of nothing any more."""
        self._stopping.set()
        self.join(patience_seconds)

    def run(self) -> None:
        """Until stopped."""
        nats: Nats | None = None
        while not self._stopping.wait(POLL_SECONDS):
            try:
                nats = nats or self._open()
                stored = nats.states.read()
            except PipelineError as problem:
                if self.problem is None:
                    _log.warning("the desired state cannot be read, and what was last known holds: %s", problem)
                self.problem = str(problem)
                continue
            self._answered = time.monotonic()
            if stored is not None and stored.data != self._seen and not self._stopping.is_set():
                self._take(stored.data)
            self.problem = self._invalid
        if nats is not None:
            nats.close()

    def _take(self, data: bytes) -> None:
        self._seen = data
        try:
            state = DesiredState.decoded(data)
        except ValidationError as invalid:
            self._invalid = f"the desired state is none ({invalid.error_count()} errors): store a valid one"
            _log.error("%s", self._invalid)
        else:
            self._invalid = None
            self._tell(state)
