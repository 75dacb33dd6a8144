"""The port to the desired state: one value that is read by many and changed by compare-and-swap only.

The value is opaque bytes here; what they mean is `rl_pipeline.deployment.state`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class StoredState:
    """A value, and the revision under which the store has it. Revisions grow; they are no generations."""

    data: bytes
    revision: int


class DesiredStates(Protocol):
    """One value with its history. Every method raises `StreamUnavailable` when the store does not answer and
    `StreamDenied` where the account lacks the permission."""

    def read(self) -> StoredState | None:
        """The newest value, as the leader has it; None where there was never one, or the store was lost."""

    def swap(self, data: bytes, expected_revision: int) -> int | None:
        """Store `data` if the newest value still has `expected_revision` (0: if there is none); returns its revision.

        None when somebody else was faster. A swap whose answer was lost and that is repeated finds itself.
        """

    def history(self) -> Sequence[StoredState]:
        """The values that the store still has, oldest first: at least the last 64."""
