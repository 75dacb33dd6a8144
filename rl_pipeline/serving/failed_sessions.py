"""Which sessions have failed in the rollout that is going on: one caller is one error, however often it comes back.

The controller counts nothing of a session after its first failure within a rollout (`deployment.outcomes`). A gateway
that forgot would count an agent with a fixed name again after every silence, and the watchdog would take a healthy
model out for one caller's fault. They are kept in a file under their keyed names, so a restart forgets none but, if the
machine crashes, the last.
"""

import contextlib
import logging
from pathlib import Path

from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.redaction.session_names import stored_name

MOST_FAILED = 200_000
"""So many are known; with more, further ones count whenever they come."""

_log = logging.getLogger(__name__)


class FailedSessions:
    """Those of one rollout: another one begins with none."""

    def __init__(self, file: Path, key: RedactionKey) -> None:
        self._file = file
        self._key = key
        self._deployment, self._names = self._read()

    def has(self, deployment_id: str, session_id: str) -> bool:
        """Whether the session has failed in this rollout before."""
        is_it = deployment_id == self._deployment and bool(self._names)
        return is_it and stored_name(self._key, session_id) in self._names

    def add(self, deployment_id: str, session_id: str) -> None:
        """It fails now. What the disk does not take is known until a restart."""
        name, begins = stored_name(self._key, session_id), deployment_id != self._deployment
        if begins:
            self._deployment, self._names = deployment_id, set()
        if name in self._names or len(self._names) >= MOST_FAILED:
            return
        self._names.add(name)
        try:
            with self._file.open("w" if begins else "a") as file:
                file.write(f"{deployment_id}\n{name}\n" if begins else f"{name}\n")
        except OSError as error:
            _log.warning("%s cannot be written (%s): a restart forgets who has failed", self._file, error.strerror)

    def _read(self) -> tuple[str | None, set[str]]:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            deployment, *names = self._file.read_text().split("\n")
            return deployment, {name for name in names if name}
        return None, set()
