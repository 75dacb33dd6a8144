"""One message and its fate, as a pure function of the message, the rules and what is known of its user.

Whatever leaves this module was redacted here: rows, identifiers, reasons and excerpts. Headers can be written by
anyone, so they too are kept only where nothing in them is sensitive.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from rl_pipeline.collection.publishing import PUBLISHER_HEADER
from rl_pipeline.contracts import (
    ALL_TOPICS,
    CLAIMED_LIMITS,
    ClaimCheck,
    ContractError,
    Trajectory,
    TrajectoryReference,
    parse_message,
    read_claimed_trajectory,
)
from rl_pipeline.contracts.fields import IDENTIFIER_PATTERN, UUID_PATTERN
from rl_pipeline.contracts.registry import validated
from rl_pipeline.ingestion.enrichment import Enrichment, enrich
from rl_pipeline.ingestion.excerpts import excerpt_of, lenient_tree
from rl_pipeline.ingestion.ledger import Verdict
from rl_pipeline.redaction.placeholders import PLACEHOLDER, placeholder
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.redaction.randomness import surprise
from rl_pipeline.redaction.redactor import Redactor, SensitiveKey
from rl_pipeline.stores.stream import StoredMessage

_IDENTIFIER = re.compile(IDENTIFIER_PATTERN)
_UUID = re.compile(UUID_PATTERN)
_UUID_ANYWHERE = re.compile(UUID_PATTERN.strip("^$"))
_READS_LIKE_WORDS = 0.25

FetchClaim = Callable[[ClaimCheck], bytes]
Erasures = Mapping[str, datetime]
"""Placeholders of users, and up to when what the stream stored of them is erased."""


@dataclass(frozen=True, slots=True)
class StoredTrajectory:
    """What is stored of an accepted message, beside what the ledger says of it."""

    user: str
    enrichment: Enrichment
    document: str
    rules: tuple[str, ...]
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a message was refused, and what may be shown of it."""

    subject: str
    path: str
    advice: str
    excerpt: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """A message's fate. `users` are the placeholders of its user under the current and the earlier keys."""

    sequence: int
    stream_time: datetime
    size: int
    sha256: str
    verdict: Verdict
    reason: str = ""
    message_id: str = ""
    trajectory_id: str = ""
    publisher: str = ""
    users: tuple[str, ...] = ()
    trajectory: StoredTrajectory | None = None
    refusal: Refusal | None = None


def judge(
    message: StoredMessage,
    redactor: Redactor,
    keys: Sequence[RedactionKey],
    erasures: Erasures,
    fetch_claim: FetchClaim,
) -> Judgement:
    """What becomes of the message: accepted, refused, opted out or erased. `keys` are the current key and older ones.

    Of somebody who opted out or was erased nothing is kept, not even ids, and not even where the message is invalid.
    """
    try:
        trajectory = _read(message, fetch_claim)
    except _Unreadable as unreadable:
        user_id, opted_out = _lenient_user(unreadable.content)
        gone = _of_nobody(message, keys, erasures, user_id, opted_out)
        return gone or _refused(message, redactor, keys, unreadable.error, user_id)
    user_id = _user_of(trajectory)
    gone = _of_nobody(message, keys, erasures, user_id, trajectory.opted_out)
    if gone:
        return gone
    try:
        stored = _stored(trajectory, redactor, keys[0])
    except SensitiveKey:
        advice = (
            "name fields for what they hold: a field's name is kept as it is, and this one holds something sensitive"
        )
        error = ContractError("sensitive_key", "$", "object", advice)
        return _refused(message, redactor, keys, error, user_id)
    except ContractError as broken:
        advice = "leave out what had to be replaced by a placeholder there"
        error = ContractError("redaction_broke_contract", broken.path, broken.value_type, advice)
        return _refused(message, redactor, keys, error, user_id)
    return Judgement(
        **_seen(message),
        verdict="accepted",
        message_id=_kept(message.message_id, redactor, user_id, trajectory.trajectory_id),
        trajectory_id=trajectory.trajectory_id,
        publisher=_kept(message.headers.get(PUBLISHER_HEADER), redactor, user_id),
        users=user_placeholders(user_id, keys),
        trajectory=stored,
    )


def user_placeholders(user_id: str | None, keys: Sequence[RedactionKey]) -> tuple[str, ...]:
    """What stands for a user under each of the keys; an id that the edge has replaced already stands for itself."""
    if user_id is None:
        return ()
    if PLACEHOLDER.fullmatch(user_id):
        return (user_id,)
    return tuple(placeholder(key, "USER", user_id.encode()) for key in keys)


def is_erased(users: Sequence[str], stream_time: datetime, erasures: Erasures) -> bool:
    """Whether a message that the stream stored then belongs to a user who was erased."""
    return any(user in erasures and stream_time <= erasures[user] for user in users)


class _Unreadable(Exception):
    """A message that is no trajectory, and the content in which that was found."""

    def __init__(self, error: ContractError, content: bytes) -> None:
        super().__init__(error.limit)
        self.error = error
        self.content = content


def _read(message: StoredMessage, fetch_claim: FetchClaim) -> Trajectory:
    content = message.data
    try:
        found = parse_message(message.subject, message.data)
        if isinstance(found, Trajectory):
            return found
        if isinstance(found, TrajectoryReference):
            content = fetch_claim(found.claim_check)
            return read_claimed_trajectory(found, content)
    except ContractError as error:
        refused = error
    else:
        refused = ContractError("not_a_trajectory", "$", "object", "publish it on the stream of its own subject")
    raise _Unreadable(refused, content)


def _stored(trajectory: Trajectory, redactor: Redactor, key: RedactionKey) -> StoredTrajectory:
    user_id = _user_of(trajectory)
    users = user_placeholders(user_id, [key])
    tree = trajectory.model_dump(mode="json")
    for part in (tree["task_context"], tree["metadata"]):
        if user_id is not None and part.get("user_id") == user_id:
            part["user_id"] = users[0]
    redacted = redactor.redact(tree, known=_known(user_id))
    if redacted.counts or users:
        trajectory = validated(Trajectory, redacted.tree)
    document = trajectory.model_dump_json()
    counts = sorted(redacted.counts.items())
    return StoredTrajectory(
        user=users[0] if users else "",
        enrichment=enrich(trajectory, len(document)),
        document=document,
        rules=tuple(rule for rule, _ in counts),
        counts=tuple(count for _, count in counts),
    )


def _known(user_id: str | None) -> dict[str, str]:
    return {} if user_id is None or PLACEHOLDER.fullmatch(user_id) else {user_id: "USER"}


def _of_nobody(
    message: StoredMessage, keys: Sequence[RedactionKey], erasures: Erasures, user_id: str | None, opted_out: bool
) -> Judgement | None:
    """The judgement on a message of which nothing may be kept, if it is one."""
    if is_erased(user_placeholders(user_id, keys), message.time, erasures):
        return Judgement(**_seen(message), verdict="erased", reason="user_erased")
    if opted_out:
        return Judgement(**_seen(message), verdict="opted_out", reason="user_opted_out")
    return None


def _refused(
    message: StoredMessage,
    redactor: Redactor,
    keys: Sequence[RedactionKey],
    error: ContractError,
    user_id: str | None,
) -> Judgement:
    subject = message.subject if message.subject in ALL_TOPICS else redactor.redact_text(message.subject).text
    return Judgement(
        **_seen(message),
        verdict="refused",
        reason=error.limit,
        message_id=_kept(message.message_id, redactor, user_id),
        trajectory_id=_lenient_trajectory_id(message.data),
        publisher=_kept(message.headers.get(PUBLISHER_HEADER), redactor, user_id),
        users=user_placeholders(user_id, keys),
        refusal=Refusal(subject, error.path, error.advice, excerpt_of(message.data, redactor, _known(user_id))),
    )


def _seen(message: StoredMessage) -> dict[str, Any]:
    return {
        "sequence": message.sequence,
        "stream_time": message.time,
        "size": len(message.data),
        "sha256": sha256(message.data).hexdigest(),
    }


def _kept(value: str | None, redactor: Redactor, user_id: str | None, trajectory_id: str | None = None) -> str:
    """A header's value, if it is an identifier in which nothing is sensitive and that reads like words, else nothing.

    A secret that stands alone has no form: what reads as if it was drawn at random is kept only where it is a UUID.
    """
    if value is None or not _IDENTIFIER.fullmatch(value) or (user_id is not None and user_id in value):
        return ""
    if value == trajectory_id:
        return value
    words = _UUID_ANYWHERE.sub("", value)
    return value if surprise(words.encode()) < _READS_LIKE_WORDS and redactor.redact_text(value).text == value else ""


def _user_of(trajectory: Trajectory) -> str | None:
    """Whose trajectory it is, wherever the publisher said so."""
    elsewhere = (trajectory.metadata.model_extra or {}).get("user_id")
    return trajectory.task_context.user_id or (elsewhere if isinstance(elsewhere, str) and elsewhere else None)


def _lenient_payload(data: bytes) -> Mapping[str, Any]:
    tree = lenient_tree(data, CLAIMED_LIMITS.max_bytes)
    if isinstance(tree, dict) and isinstance(tree.get("payload"), dict):
        tree = tree["payload"]
    return tree if isinstance(tree, dict) else {}


def _lenient_trajectory_id(data: bytes) -> str:
    found = _lenient_payload(data).get("trajectory_id")
    return found.lower() if isinstance(found, str) and _UUID.fullmatch(found) else ""


def _lenient_user(data: bytes) -> tuple[str | None, bool]:
    """The user of a message that is no trajectory, and whether it says that it must not be collected."""
    payload = _lenient_payload(data)
    parts = [part for part in (payload.get("task_context"), payload.get("metadata")) if isinstance(part, dict)]
    user_id = next((part["user_id"] for part in parts if isinstance(part.get("user_id"), str)), None)
    return user_id or None, any(part.get("opt_out") for part in parts)
