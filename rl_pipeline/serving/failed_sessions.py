"""Which sessions have failed since it was last drawn who has which model: until the next draw one caller is one error,
however often it comes back.

The controller counts nothing of a session after its first failure at a split, nor in the bake that follows
(`deployment.outcomes`). A gateway that forgot would count an agent with a fixed name again after every silence, and the
watchdog would take a healthy model out for one caller's fault. At the next split all begin anew: an outage would else
leave nobody who could speak against a candidate that fails later. Since each split draws anew who has which model
(`serving.routing`), whoever fails at several of them is as many draws, and evidence stays what it says to be. A bake
has no control, so whoever failed at the split before it is no news there.

They are kept in a file under their keyed names, so a restart forgets none but, if the machine crashes, the last.
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
    """Those of one draw, the one by which sessions are routed now."""

    def __init__(self, file: Path, key: RedactionKey) -> None:
        self._file = file
        self._key = key
        self._draw, self._names = self._read()

    def turn_to(self, draw: str) -> None:
        """Sessions are routed by this draw now; another one begins with nobody."""
        if draw != self._draw:
            self._draw, self._names = draw, set()

    def has(self, session_id: str) -> bool:
        """Whether the session has failed since the present draw."""
        return bool(self._names) and stored_name(self._key, session_id) in self._names

    def add(self, draw: str, session_id: str) -> None:
        """It fails now, with the model that this draw gave it. What the disk does not take is known until a restart."""
        if draw != self._draw or len(self._names) >= MOST_FAILED:
            return
        begins, name = not self._names, stored_name(self._key, session_id)
        if name in self._names:
            return
        self._names.add(name)
        try:
            with self._file.open("w" if begins else "a") as file:
                file.write(f"{draw}\n{name}\n" if begins else f"{name}\n")
        except OSError as error:
            _log.warning("%s cannot be written (%s): a restart forgets who has failed", self._file, error.strerror)

    def _read(self) -> tuple[str | None, set[str]]:
        with contextlib.suppress(OSError, UnicodeDecodeError):
            draw, *names = self._file.read_text().split("\n")
            return draw, {name for name in names if name}
        return None, set()
