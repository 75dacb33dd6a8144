"""How a message leaves an agent: checked against its contract, under an id that makes repeating it harmless.

A payload of more than 512 KB goes to the object store, and its message carries a claim check instead.
"""

import re
from collections.abc import Callable
from datetime import UTC
from hashlib import sha256
from typing import Any

from pydantic_core import PydanticSerializationError, to_json

from rl_pipeline.collection.edge_redaction import redact_message
from rl_pipeline.contracts import (
    CLAIMED_LIMITS,
    ContractError,
    Feedback,
    Message,
    Reward,
    TrainingRequest,
    Trajectory,
    TrajectoryReference,
    parse_message,
    parse_strict_json,
    serialize,
    subject_of,
)
from rl_pipeline.contracts.fields import IDENTIFIER_PATTERN
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.stores.objects import Objects
from rl_pipeline.stores.stream import OutgoingMessage, Published, PublishRefused, Stream

CLAIM_CHECK_ABOVE_BYTES = 512 * 1024

PUBLISHER_HEADER = "Publisher"

OpenObjects = Callable[[], Objects]

_IDENTIFIER = re.compile(IDENTIFIER_PATTERN)


def publish_trajectory(
    stream: Stream,
    trajectory: Trajectory,
    open_objects: OpenObjects | None = None,
    redactor: Redactor | None = None,
) -> Published:
    """Publish a finished trajectory; publishing it again within the stream's duplicate window changes nothing.

    `open_objects` opens the store for a payload that is too large for a message; without it that is refused. With a
    `redactor`, secrets and personal data do not leave the agent.
    """
    message = outgoing_message(trajectory, open_objects, redactor)
    return stream.publish(message.subject, message.data, message.message_id, message.headers)


def publish_nats(
    stream: Stream,
    subject: str,
    payload: Message | dict[str, Any] | str | bytes,
    schema_validate: bool = True,
    *,
    open_objects: OpenObjects | None = None,
    redactor: Redactor | None = None,
) -> Published:
    """Publish a message, a JSON object or JSON text on a subject, under an id that makes repeating it harmless.

    Raises `UnknownSubject` or `ContractError` when it breaks the subject's contract. With `schema_validate` off it only
    has to be strict JSON.
    """
    data = _json(payload)
    if schema_validate:
        message = outgoing_message(parse_message(subject, data, CLAIMED_LIMITS), open_objects, redactor)
    else:
        parse_strict_json(data)
        message = OutgoingMessage(subject, data, f"sha256:{sha256(data).hexdigest()}")
        _refuse_large(message)
    return stream.publish(message.subject, message.data, message.message_id, message.headers)


def outgoing_message(
    message: Message, open_objects: OpenObjects | None = None, redactor: Redactor | None = None
) -> OutgoingMessage:
    """The message as it travels: its subject, its bytes, and the id under which it is stored once.

    A trajectory that is too large is put into the object store; what remains too large raises `PublishRefused`.
    """
    if redactor is not None:
        message = redact_message(message, redactor)
    data = serialize(message)
    if len(data) > CLAIM_CHECK_ABOVE_BYTES and isinstance(message, Trajectory) and open_objects is not None:
        message = _deposit(message, data, open_objects())
        data = serialize(message)
    outgoing = OutgoingMessage(subject_of(message), data, _message_id(message, data), _headers(message))
    _refuse_large(outgoing)
    return outgoing


def _headers(message: Message) -> dict[str, str]:
    """Who publishes, for the ledger; only what can stand in a header."""
    agent = message.agent_id if isinstance(message, Trajectory | TrajectoryReference) else ""
    return {PUBLISHER_HEADER: agent} if _IDENTIFIER.fullmatch(agent) else {}


def _deposit(trajectory: Trajectory, data: bytes, objects: Objects) -> TrajectoryReference:
    # The content is part of the key: another trajectory under the same id must not replace what was claimed.
    day = trajectory.start_timestamp.astimezone(UTC).date().isoformat()
    key = f"{day}/{trajectory.trajectory_id}-{sha256(data).hexdigest()[:16]}.json"
    objects.put(key, data)
    return TrajectoryReference.of(trajectory, key, data)


def _message_id(message: Message, data: bytes) -> str:
    match message:
        case Trajectory() | TrajectoryReference():
            return message.trajectory_id
        case Reward():
            return message.reward_id
        case TrainingRequest():
            return message.training_job_id
        case Feedback():
            return message.feedback_id
        case _:
            # One job has many states, one deployment many events: only the content tells them apart.
            return f"sha256:{sha256(data).hexdigest()}"


def _refuse_large(message: OutgoingMessage) -> None:
    if len(message.data) > CLAIM_CHECK_ABOVE_BYTES:
        raise PublishRefused(
            f"{message.message_id}: {len(message.data)} bytes are more than a message's {CLAIM_CHECK_ABOVE_BYTES}; "
            "larger trajectories travel by claim check: pass an object store"
        )


def _json(payload: Message | dict[str, Any] | str | bytes) -> bytes:
    if isinstance(payload, bytes):
        return payload
    try:
        return payload.encode() if isinstance(payload, str) else to_json(payload, inf_nan_mode="constants")
    except (PydanticSerializationError, UnicodeEncodeError):
        pass
    # Raised out here, because the original shows the payload.
    raise ContractError("not_json_value", "$", "object", "put only JSON values into a message")
