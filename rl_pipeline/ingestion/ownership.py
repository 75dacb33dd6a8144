"""Whose message it is: finds the users that a message names, whatever state it is in, and what one user has in streams.

A valid message names its user in a few places. Whatever else came may be somebody's wherever it says `user_id`: in any
object, in JSON inside a string, or in a text that nobody can parse.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

from rl_pipeline.contracts import CLAIMED_LIMITS, ContractError, parse_message, parse_strict_json
from rl_pipeline.ingestion.excerpts import decoded, lenient_tree, without_escapes
from rl_pipeline.redaction.placeholders import PLACEHOLDER
from rl_pipeline.stores.objects import CorruptObject, InvalidKey, ObjectMissing, Objects

# What may stand beside an id without being part of it: `user-1` is not in `user-12`.
_PART_OF_AN_ID = rb"[A-Za-z0-9_-]"
_ASSIGNED = r"""\\*["']?\s*[:=]\s*"""
# A placeholder; or quoted, also by escaped quotes and without the closing one; or bare.
_USER_ID = re.compile(
    rf"""user_id{_ASSIGNED}(?:({PLACEHOLDER.pattern})|[\[({{\s]*(?:\\*["']([^"'\\]*)|([^"',;&}}\s\\]+)))"""
)
# Also what breaks off: there is no other word that it could have become.
_OPT_OUT = re.compile(rf"""opt_out{_ASSIGNED}\\*["']?(?:tr?u?e?|1)\b""", re.IGNORECASE)
_FIRST_WORD = re.compile(r"[^,}\s]*\w[^,}\s]*")
_WORDS = ("user_id", "opt_out", "\\u")
_NO_IDS = frozenset({"null", "None", "true", "false"})
# JSON inside of strings inside of strings: each level doubles the escapes of the one before.
_LEVELS_OF_ESCAPES = 4


@dataclass(frozen=True)
class Named:
    """The ids of the users that a message names, and whether it says that it must not be collected."""

    users: tuple[str, ...]
    opted_out: bool

    def __or__(self, other: "Named") -> "Named":
        users = tuple(dict.fromkeys((*self.users, *other.users)))
        return Named(users, self.opted_out or other.opted_out)


def users_of(tree: Any) -> tuple[str, ...]:
    """The ids in the places where a valid message names its user, each once, the task's own first."""
    return tuple(dict.fromkeys(user for place in _places(tree) for user in _ids(place.get("user_id"))))


def replace_users(tree: Any, stands_for: Callable[[str], str]) -> None:
    """Put what stands for a user into every place in which `users_of` finds an id."""
    for place in _places(tree):
        if "user_id" in place:
            place["user_id"] = _replaced(place["user_id"], stands_for)


def named_anywhere(data: bytes) -> Named:
    """What something that is no valid message says of users, anywhere and however it is written."""
    try:
        return _in_tree(parse_strict_json(data, CLAIMED_LIMITS))
    except ContractError:
        pass
    named = _in_tree(lenient_tree(data, CLAIMED_LIMITS.max_bytes))
    # A reader that forgives keeps one of two equal keys, and nothing after what it cannot forgive.
    for text in {data.decode("utf-8", "replace"), decoded(data)}:
        named |= _in_text(text)
    return named


class ClaimUnreadable(Exception):
    """The object that a message refers to is not the one that was put there: nobody can say whose it was."""

    def __init__(self, key: str) -> None:
        super().__init__(key)
        self.key = key


@dataclass(frozen=True)
class Ownership:
    """What a message has to do with the user. `claim` is the key of the object that it refers to."""

    is_theirs: bool
    claim: str | None = None


class MessageOwner:
    """A user, under all the names that stand for them: the id itself, and its placeholders.

    A valid message is theirs by the places in which it names its user, any other by every `user_id` in it. What is not
    strict JSON, such as one that was cut off, is theirs when it holds a name anywhere: better one refused message too
    many than one too few.
    """

    def __init__(self, names: Collection[str], claims: Objects) -> None:
        self._names = frozenset(names)
        self._claims = claims
        written = {name.encode() for name in names} | {json.dumps(name)[1:-1].encode() for name in names}
        alternatives = b"|".join(map(re.escape, sorted(written)))
        self._written = re.compile(rb"(?<!%b)(?:%b)(?!%b)" % (_PART_OF_AN_ID, alternatives, _PART_OF_AN_ID))

    def owns(self, subject: str, data: bytes) -> bool:
        """Whether what came on the subject says itself that it is theirs."""
        try:
            tree = parse_strict_json(data, CLAIMED_LIMITS)
        except ContractError:
            return self._written.search(data) is not None or self._is_among(named_anywhere(data).users)
        if self._is_among(users_of(tree)):
            return True
        # Few messages come to be validated: a valid one has seldom the user's id in any other place.
        return self._is_among(_in_tree(tree).users) and not _is_valid(subject, data)

    def ownership(self, subject: str, data: bytes) -> Ownership:
        """Whether the message is theirs, by itself or by the object that it refers to. Raises `ClaimUnreadable`."""
        claim = _claim_key(data)
        is_theirs = self.owns(subject, data)
        if claim is None or is_theirs:
            return Ownership(is_theirs, claim)
        try:
            return Ownership(self.owns(subject, self._claims.get(claim)), claim)
        except (ObjectMissing, InvalidKey):
            return Ownership(False)
        except CorruptObject:
            raise ClaimUnreadable(claim) from None

    def _is_among(self, users: Collection[str]) -> bool:
        return not self._names.isdisjoint(users)


def _is_valid(subject: str, data: bytes) -> bool:
    try:
        parse_message(subject, data, CLAIMED_LIMITS)
    except ContractError:
        return False
    return True


def _claim_key(data: bytes) -> str | None:
    try:
        tree = parse_strict_json(data, CLAIMED_LIMITS)
    except ContractError:
        return None
    for message in (tree, _inside(tree, "payload")):
        key = _inside(_inside(message, "claim_check"), "key")
        if isinstance(key, str):
            return key
    return None


def _inside(tree: Any, name: str) -> Any:
    return tree.get(name) if isinstance(tree, dict) else None


def _places(tree: Any) -> Iterator[dict[str, Any]]:
    """The objects in which a message names users: its own first, then whoever rated it, then whoever spoke in it."""
    for message in (tree, _inside(tree, "payload")):
        metadata = _inside(message, "metadata")
        yield from _objects(_inside(message, "task_context"), metadata, message)
        yield from _objects(*_listed(metadata, "feedback"))
        for turn in _listed(message, "turns"):
            observation = _inside(turn, "observation")
            yield from _objects(turn, observation, _inside(observation, "context"))


def _objects(*found: Any) -> Iterator[dict[str, Any]]:
    return (place for place in found if isinstance(place, dict))


def _listed(tree: Any, name: str) -> list[Any]:
    found = _inside(tree, name)
    return found if isinstance(found, list) else []


def _ids(value: Any) -> Iterator[str]:
    """The ids in what a field `user_id` holds: a text or a number, or several."""
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, dict | list):
            waiting.extend(found.values() if isinstance(found, dict) else found)
        elif _is_id(found):
            yield str(found)


def _is_id(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool) and value != ""


def _replaced(value: Any, stands_for: Callable[[str], str]) -> Any:
    if isinstance(value, dict):
        return {key: _replaced(child, stands_for) for key, child in value.items()}
    if isinstance(value, list):
        return [_replaced(child, stands_for) for child in value]
    return stands_for(str(value)) if _is_id(value) else value


def _in_tree(tree: Any) -> Named:
    """What a tree of any shape says; not recursive, because it may be deeper than the contract allows."""
    users: dict[str, None] = {}
    opted_out = False
    waiting = [tree]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str) and any(word in value for word in _WORDS):
            written = _in_text(value)
            users |= dict.fromkeys(written.users)
            opted_out |= written.opted_out
            waiting.extend(_json_inside(value))
        elif isinstance(value, dict):
            users |= dict.fromkeys(_ids(value.get("user_id")))
            opted_out |= bool(value.get("opt_out"))
            waiting.extend(value.values())
        elif isinstance(value, list):
            waiting.extend(value)
    return Named(tuple(users), opted_out)


def _json_inside(text: str) -> Iterator[Any]:
    """The value of a string that holds JSON; it is always smaller than the string, so this comes to an end."""
    if text.lstrip("\ufeff \t\r\n")[:1] in ("{", "[", '"'):
        yield lenient_tree(text.encode("utf-8", "replace"), CLAIMED_LIMITS.max_bytes)


def _in_text(text: str) -> Named:
    """What a text says that is no JSON, or that is and was spoilt."""
    users: dict[str, None] = {}
    opted_out = False
    for _ in range(_LEVELS_OF_ESCAPES):
        for found in _USER_ID.finditer(text):
            users |= dict.fromkeys(_written_ids(found))
        opted_out = opted_out or _OPT_OUT.search(text) is not None
        plain = without_escapes(text)
        if plain == text:
            break
        text = plain
    return Named(tuple(users), opted_out)


def _written_ids(found: re.Match[str]) -> Iterator[str]:
    """The id as it is written, and its first word, because its end may have been lost."""
    stands, quoted, bare = found.groups()
    if stands or quoted:
        yield stands or quoted
    word = _FIRST_WORD.search(quoted or (bare.rstrip(")].:") if bare not in (None, *_NO_IDS) else ""))
    if word:
        yield word[0]
