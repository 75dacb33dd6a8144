"""One message and its fate, as a pure function of the message, the rules and what is known of its user.

Whatever leaves this module was redacted here: rows, identifiers, reasons and excerpts. Headers can be written by
anyone, so they too are kept only where nothing in them is sensitive.

A user's id is replaced wherever a message names its users. In the texts of a trajectory it is replaced where it is the
whole text, and within texts only if it is distinctive: one of fewer than eight characters, an ordinary word or a short
number stays there, because it mostly means something else; and one that is also a word of the contract, such as
`success`, stays everywhere but in the fields of users. In excerpts it is replaced however short it is.
"""

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
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
from rl_pipeline.contracts.registry import CONTRACT_NAMES, validated
from rl_pipeline.ingestion.enrichment import Enrichment, enrich
from rl_pipeline.ingestion.excerpts import excerpt_of, lenient_tree, without_known
from rl_pipeline.ingestion.ledger import Verdict
from rl_pipeline.ingestion.ownership import Named, named_anywhere, replace_users, users_of
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
    """A message's fate. `users` are the placeholders of its users under the current and the earlier keys."""

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
        named = named_anywhere(message.data)
        if unreadable.content is not message.data:
            named |= named_anywhere(unreadable.content)
        gone = _of_nobody(message, keys, erasures, named)
        return gone or _refused(message, redactor, keys, unreadable.error, named.users)
    tree = trajectory.model_dump(mode="json")
    users = users_of(tree)
    gone = _of_nobody(message, keys, erasures, Named(users, trajectory.opted_out))
    if gone:
        return gone
    try:
        stored = _stored(trajectory, tree, users, redactor, keys[0])
    except SensitiveKey:
        return _refused(message, redactor, keys, sensitive_key(), users)
    except ContractError as broken:
        advice = "leave out what had to be replaced by a placeholder there"
        error = ContractError("redaction_broke_contract", broken.path, broken.value_type, advice)
        return _refused(message, redactor, keys, error, users)
    return Judgement(
        **_seen(message),
        verdict="accepted",
        message_id=_kept(message.message_id, redactor, users, trajectory.trajectory_id),
        trajectory_id=trajectory.trajectory_id,
        publisher=_kept(message.headers.get(PUBLISHER_HEADER), redactor, users),
        users=_placeholders(users, keys),
        trajectory=stored,
    )


def sensitive_key() -> ContractError:
    """Why something is refused that cannot be redacted."""
    advice = "name fields for what they hold: a field's name is kept as it is, and this one holds something sensitive"
    return ContractError("sensitive_key", "$", "object", advice)


def user_placeholders(user_id: str, keys: Sequence[RedactionKey]) -> tuple[str, ...]:
    """What stands for a user under each of the keys; an id that the edge has replaced already stands for itself."""
    if PLACEHOLDER.fullmatch(user_id):
        return (user_id,)
    return tuple(placeholder(key, "USER", user_id.encode("utf-8", "surrogatepass")) for key in keys)


def is_erased(users: Iterable[str], stream_time: datetime, erasures: Erasures) -> bool:
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


def _stored(
    trajectory: Trajectory, tree: dict[str, Any], users: Sequence[str], redactor: Redactor, key: RedactionKey
) -> StoredTrajectory:
    """What is stored of the trajectory, which `tree` is too; `users` are all that it names, its own first."""
    replace_users(tree, lambda user_id: user_placeholders(user_id, [key])[0])
    known = {user_id: kind for user_id, kind in _known(users).items() if user_id not in _contract_words()}
    redacted = redactor.redact(tree, known=known)
    if redacted.counts or users:
        trajectory = validated(Trajectory, redacted.tree)
    document = trajectory.model_dump_json()
    counts = sorted(redacted.counts.items())
    return StoredTrajectory(
        user=user_placeholders(users[0], [key])[0] if users else "",
        enrichment=enrich(trajectory, len(document)),
        document=document,
        rules=tuple(rule for rule, _ in counts),
        counts=tuple(count for _, count in counts),
    )


def _known(users: Sequence[str]) -> dict[str, str]:
    return {user_id: "USER" for user_id in users if not PLACEHOLDER.fullmatch(user_id)}


def _placeholders(users: Sequence[str], keys: Sequence[RedactionKey]) -> tuple[str, ...]:
    return tuple(found for user_id in users for found in user_placeholders(user_id, keys))


@cache
def _contract_words() -> frozenset[str]:
    """The names and the values that the contract itself writes: a trajectory without them would be refused."""
    words = set(CONTRACT_NAMES)
    waiting: list[Any] = [Trajectory.model_json_schema()]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict):
            words.update(value for value in (*found.get("enum", ()), found.get("const")) if isinstance(value, str))
            waiting.extend(found.values())
        elif isinstance(found, list):
            waiting.extend(found)
    return frozenset(words)


def _of_nobody(
    message: StoredMessage, keys: Sequence[RedactionKey], erasures: Erasures, named: Named
) -> Judgement | None:
    """The judgement on a message of which nothing may be kept, if it is one."""
    if is_erased(_placeholders(named.users, keys), message.time, erasures):
        return Judgement(**_seen(message), verdict="erased", reason="user_erased")
    if named.opted_out:
        return Judgement(**_seen(message), verdict="opted_out", reason="user_opted_out")
    return None


def _refused(
    message: StoredMessage,
    redactor: Redactor,
    keys: Sequence[RedactionKey],
    error: ContractError,
    users: Sequence[str],
) -> Judgement:
    # A valid trajectory may name others than its own users, and an excerpt shows nobody.
    known = _known((*users, *named_anywhere(message.data).users))
    subject = message.subject
    if subject not in ALL_TOPICS:
        subject = without_known(redactor.redact_text(subject).text, redactor, known)
    return Judgement(
        **_seen(message),
        verdict="refused",
        reason=error.limit,
        message_id=_kept(message.message_id, redactor, tuple(known)),
        trajectory_id=_lenient_trajectory_id(message.data, known),
        publisher=_kept(message.headers.get(PUBLISHER_HEADER), redactor, tuple(known)),
        users=_placeholders(users, keys),
        refusal=Refusal(subject, error.path, error.advice, excerpt_of(message.data, redactor, known)),
    )


def _seen(message: StoredMessage) -> dict[str, Any]:
    return {
        "sequence": message.sequence,
        "stream_time": message.time,
        "size": len(message.data),
        "sha256": sha256(message.data).hexdigest(),
    }


def _kept(value: str | None, redactor: Redactor, users: Sequence[str], trajectory_id: str | None = None) -> str:
    """A header's value, if it is an identifier in which nothing is sensitive and that reads like words, else nothing.

    A secret that stands alone has no form: what reads as if it was drawn at random is kept only where it is a UUID.
    """
    if value is None or not _IDENTIFIER.fullmatch(value) or any(user_id in value for user_id in users):
        return ""
    if value == trajectory_id:
        return value
    words = _UUID_ANYWHERE.sub("", value)
    return value if surprise(words.encode()) < _READS_LIKE_WORDS and redactor.redact_text(value).text == value else ""


def _lenient_trajectory_id(data: bytes, users: Collection[str]) -> str:
    tree = lenient_tree(data, CLAIMED_LIMITS.max_bytes)
    if isinstance(tree, dict) and isinstance(tree.get("payload"), dict):
        tree = tree["payload"]
    found = tree.get("trajectory_id") if isinstance(tree, dict) else None
    return found.lower() if isinstance(found, str) and _UUID.fullmatch(found) and found not in users else ""
