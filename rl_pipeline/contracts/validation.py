"""Checks that a caller runs by hand: on a trajectory in whatever form it has, and on one fetched by claim check."""

from hashlib import sha256
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from rl_pipeline.contracts.claim_check import TrajectoryReference
from rl_pipeline.contracts.errors import ContractError
from rl_pipeline.contracts.registry import CONTRACT_NAMES, validated
from rl_pipeline.contracts.strict_json import DEFAULT_LIMITS, ParseLimits, find_offence, parse_strict_json
from rl_pipeline.contracts.trajectory import Trajectory

TRAJECTORY_SCHEMA = "trajectory.v1.schema.json"
CLAIMED_LIMITS = ParseLimits(max_bytes=64 * 1024 * 1024)
"""For trajectories that were fetched from the object store."""


def validate_trajectory(
    trajectory_data: dict[str, Any] | str | bytes,
    schema: str = TRAJECTORY_SCHEMA,
    limits: ParseLimits = DEFAULT_LIMITS,
) -> Trajectory:
    """The trajectory in `trajectory_data`, JSON text or the object it stands for; `ContractError` if it is none."""
    if schema != TRAJECTORY_SCHEMA:
        raise ContractError("unknown_schema", "$", "string", f"validate trajectories against {TRAJECTORY_SCHEMA}")
    tree = parse_strict_json(_as_bytes(trajectory_data), limits, CONTRACT_NAMES)
    return validated(Trajectory, tree)


def read_claimed_trajectory(
    reference: TrajectoryReference, stored: bytes, limits: ParseLimits = CLAIMED_LIMITS
) -> Trajectory:
    """The trajectory that `reference` stands for, from the bytes that were fetched, if they are the claimed ones."""
    ticket = reference.claim_check
    if len(stored) != ticket.size_bytes or sha256(stored).hexdigest() != ticket.sha256:
        raise ContractError(
            "claim_check", "claim_check.sha256", "bytes", "publish it again: the stored object is not the claimed one"
        )
    trajectory = validate_trajectory(stored, limits=limits)
    for name in type(reference).model_fields:
        if name != "claim_check" and getattr(reference, name) != getattr(trajectory, name):
            raise ContractError("claim_check", name, "string", "publish it again: message and stored object disagree")
    return trajectory


def _as_bytes(data: dict[str, Any] | str | bytes) -> bytes:
    if isinstance(data, bytes):
        return data
    try:
        return data.encode() if isinstance(data, str) else to_json(data, inf_nan_mode="constants")
    except (UnicodeEncodeError, PydanticSerializationError):
        pass
    raise find_offence(data, DEFAULT_LIMITS, CONTRACT_NAMES) or ContractError(
        "not_json_value", "$", "object", "put only JSON values into a message"
    )
