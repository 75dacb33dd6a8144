"""A user's sessions at the gateways: what was told of them goes with the user.

An outcome names its session by a keyed digest and its user not at all. Sessions are a user's by what tells so: the
user's own id, which is the session where a request names no other; their trajectories, and what they said of some.
Those are deleted by the same erasure. So the sessions get tombstones first, beside those of users, and whatever has a
tombstone is deleted: a second call finishes what the first did not. An outcome belongs to the time at which its session
began: what a gateway tells later of one that was open meanwhile is kept away as well.
"""

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rl_pipeline.contracts import CLAIMED_LIMITS, ContractError, ServingOutcome, parse_message, parse_strict_json
from rl_pipeline.ingestion.erased_rows import delete_where
from rl_pipeline.ingestion.judging import is_erased
from rl_pipeline.ingestion.tombstones import read_erasures, write_tombstones
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.redaction.session_names import stored_names
from rl_pipeline.stores.stream import StoredMessage, Stream
from rl_pipeline.stores.warehouse import Warehouse

_BATCH_MESSAGES = 256

_ERASED = """
    (session_id, sequence) IN (
        SELECT session_id, sequence FROM serving_outcomes
        INNER JOIN (SELECT user AS session_id, max(covers_until) AS until FROM erasures GROUP BY user) AS erased
            USING (session_id)
        WHERE started_at <= until
    )
"""


@dataclass
class ErasedSessions:
    """The sessions of one user, found one after the other. `keys` are those of the gateways."""

    warehouse: Warehouse
    keys: Sequence[RedactionKey]
    now: datetime
    until: datetime
    """Sessions that began later are not theirs, unless the session is the user: others may use the same names."""
    _noted: set[str] = field(default_factory=set)

    def note(self, names: Iterable[str], until: datetime | None = None) -> None:
        """Write the tombstones of sessions that are the user's, before whatever tells so is deleted."""
        new = {stored for stored in stored_names(self.keys, names) if stored not in self._noted}
        if new:
            write_tombstones(self.warehouse, sorted(new), (), self.now, until or self.until)
            self._noted |= new

    def note_messages(self, messages: Iterable[StoredMessage]) -> None:
        """Note the sessions that messages of the user name."""
        self.note({name for message in messages for name in _names(message.data)})

    def note_rows(self, users: Sequence[str], until: datetime) -> None:
        """Note the sessions of the rows that the warehouse has of the user."""
        found = self.warehouse.query(
            """
            SELECT DISTINCT session_id FROM (
                SELECT session_id, user, stream_time FROM trajectories
                UNION ALL
                SELECT session_id, user, stream_time FROM trajectory_signals
            )
            WHERE user IN {users:Array(String)} AND stream_time <= {until:DateTime64(3, 'UTC')}
            """,
            {"users": list(users), "until": until},
        )
        self.note(found["session_id"])


def erase_outcomes(messages: Stream, warehouse: Warehouse, stream: str) -> int:
    """Erase the outcomes of all sessions that have tombstones, and return how many messages those were."""
    erasures = read_erasures(warehouse)
    erased = 0
    state = messages.state(stream)
    for batch in messages.read(stream, state.first_sequence, state.last_sequence, _BATCH_MESSAGES):
        for message in batch:
            if is_erased(_names(message.data), _began(message), erasures):
                erased += messages.erase(stream, message.sequence)
    delete_where(warehouse, "serving_outcomes", _ERASED)
    return erased


def _began(message: StoredMessage) -> datetime:
    try:
        outcome = parse_message(message.subject, message.data)
    except ContractError:
        return message.time
    return outcome.started_at if isinstance(outcome, ServingOutcome) else message.time


def _names(data: bytes) -> set[str]:
    """How a message calls its session, by itself and in an envelope; one that nobody can read calls it nothing."""
    with contextlib.suppress(ContractError):
        tree: Any = parse_strict_json(data, CLAIMED_LIMITS)
        places = [tree, tree.get("payload")] if isinstance(tree, dict) else []
        found = [place.get("session_id") for place in places if isinstance(place, dict)]
        return {name for name in found if isinstance(name, str) and name}
    return set()
