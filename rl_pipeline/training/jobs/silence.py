"""Runs of which nothing is heard: Dagster takes them for started, and nobody holds the lease in their name.

Dagster notices a run that ends; one whose process or machine is gone stays as it was. A run holds its lease from soon
after its start on, and takes it again when it ran out while the server was away. So one whose lease stays free,
although the sensor reaches the server and looks again and again, is lost. One that waits in Dagster's queue is not.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

from pydantic import AwareDatetime, BaseModel, ConfigDict, ValidationError

LEASE_SECONDS = 60
"""Of the lease of a run: it outlives a short absence of NATS, and ends soon after a machine that is gone."""
PATIENCE = timedelta(seconds=3 * LEASE_SECONDS)
START_PATIENCE = timedelta(minutes=10)
"""With a run that may not have come to its lease yet: a machine and all that is imported may take minutes to load."""
# What happened between two looks that are further apart is not known.
_LONGEST_GAP = timedelta(seconds=LEASE_SECONDS)


class Silence(BaseModel):
    """What one look at the jobs tells the next: since when nothing is heard of which runs, by their keys."""

    model_config = ConfigDict(frozen=True)

    looked_at: AwareDatetime = datetime.fromtimestamp(0, UTC)
    since: dict[str, AwareDatetime] = {}

    @classmethod
    def from_text(cls, text: str | None) -> "Silence":
        """As `as_text` wrote it; anew where there is none, or another's."""
        try:
            return cls.model_validate_json(text) if text else cls()
        except ValidationError:
            return cls()

    def as_text(self) -> str:
        """For the next look."""
        return self.model_dump_json()

    def at(self, now: datetime, silent: Iterable[str]) -> "Silence":
        """After another look, which heard nothing of these runs."""
        known = self.since if now - self.looked_at <= _LONGEST_GAP else {}
        return Silence(looked_at=now, since={key: known.get(key, now) for key in silent})

    def is_lost(self, key: str, patience: timedelta) -> bool:
        """Whether it has lasted too long."""
        return self.looked_at - self.since.get(key, self.looked_at) >= patience
