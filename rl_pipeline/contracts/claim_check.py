"""A trajectory that is too large for a message: it lies in the object store, and the message says where.

The object holds exactly the bytes of the `Trajectory` message that would have been published. Fetching it is the
reader's work; `validation.read_claimed_trajectory` checks what was fetched.
"""

from hashlib import sha256
from typing import Annotated, Self

from pydantic import Field

from rl_pipeline.contracts.fields import OpenObject, PositiveInteger
from rl_pipeline.contracts.trajectory import Trajectory, TrajectoryIdentity

# Every segment starts with a letter or digit: no `..`, no absolute path, no other bucket.
_KEY_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:=-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._:=-]{0,127}){0,15}$"

_CLAIM_CHECK_EXAMPLE = {
    "key": "2025-12-08/3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f.json",
    "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    "size_bytes": 734003,
}


class ClaimCheck(OpenObject, json_schema_extra={"examples": [_CLAIM_CHECK_EXAMPLE]}):
    """Where the trajectory is, and how to know that it is the one that was put there."""

    key: Annotated[str, Field(pattern=_KEY_PATTERN)] = Field(
        description="Object key below the raw prefix that the pipeline is set up with; never a path of its own."
    )
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] = Field(
        description="SHA-256 of the object, lower-case hex."
    )
    size_bytes: PositiveInteger = Field(description="Size of the object in bytes.")


class TrajectoryReference(
    TrajectoryIdentity,
    json_schema_extra={
        "examples": [
            {
                "trajectory_id": "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f",
                "session_id": "session-7",
                "agent_id": "agent-zero-main",
                "start_timestamp": "2025-12-08T12:00:00Z",
                "end_timestamp": "2025-12-08T12:05:30Z",
                "claim_check": _CLAIM_CHECK_EXAMPLE,
            }
        ]
    },
):
    """A trajectory by reference, on the trajectory subject: who and when, and the claim check for the rest."""

    claim_check: ClaimCheck = Field(description="Where the whole trajectory lies.")

    @classmethod
    def of(cls, trajectory: Trajectory, key: str, stored: bytes) -> Self:
        """The reference to `trajectory`, whose message `stored` was put under `key`."""
        identity = {name: getattr(trajectory, name) for name in TrajectoryIdentity.model_fields}
        ticket = ClaimCheck(key=key, sha256=sha256(stored).hexdigest(), size_bytes=len(stored))
        return cls(**identity, claim_check=ticket)
