"""Whose message it is: recognises what one user has in the streams, by content and whatever state it is in."""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from rl_pipeline.contracts import CLAIMED_LIMITS, ContractError, parse_strict_json
from rl_pipeline.stores.objects import CorruptObject, InvalidKey, ObjectMissing, Objects

# What may stand beside an id without being part of it: `user-1` is not in `user-12`.
_PART_OF_AN_ID = rb"[A-Za-z0-9_-]"


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

    A message is theirs by the fields that name its user, bare or in an envelope. What is not strict JSON, such as one
    that was cut off, is theirs when it holds a name anywhere: better one refused message too many than one too few.
    """

    def __init__(self, names: Collection[str], claims: Objects) -> None:
        self._names = frozenset(names)
        self._claims = claims
        written = {name.encode() for name in names} | {json.dumps(name)[1:-1].encode() for name in names}
        alternatives = b"|".join(map(re.escape, sorted(written)))
        self._written = re.compile(rb"(?<!%b)(?:%b)(?!%b)" % (_PART_OF_AN_ID, alternatives, _PART_OF_AN_ID))

    def owns(self, data: bytes) -> bool:
        """Whether the content itself says that it is theirs."""
        return self._owns(_read(data), data)

    def ownership(self, data: bytes) -> Ownership:
        """Whether the message is theirs, by itself or by the object that it refers to. Raises `ClaimUnreadable`."""
        tree = _read(data)
        claim = _claim_key(tree)
        if claim is None or self._owns(tree, data):
            return Ownership(self._owns(tree, data), claim)
        try:
            return Ownership(self.owns(self._claims.get(claim)), claim)
        except (ObjectMissing, InvalidKey):
            return Ownership(False)
        except CorruptObject:
            raise ClaimUnreadable(claim) from None

    def _owns(self, tree: Any, data: bytes) -> bool:
        if tree is None:
            return self._written.search(data) is not None
        messages = (tree, _inside(tree, "payload"))
        places = [
            place
            for message in messages
            for place in (message, _inside(message, "task_context"), _inside(message, "metadata"))
        ]
        found = [_inside(place, "user_id") for place in places]
        return any(isinstance(user, str | int) and str(user) in self._names for user in found)


def _read(data: bytes) -> Any:
    """The value of strict JSON; None for anything else."""
    try:
        return parse_strict_json(data, CLAIMED_LIMITS)
    except ContractError:
        return None


def _claim_key(tree: Any) -> str | None:
    for message in (tree, _inside(tree, "payload")):
        key = _inside(_inside(message, "claim_check"), "key")
        if isinstance(key, str):
            return key
    return None


def _inside(tree: Any, name: str) -> Any:
    return tree.get(name) if isinstance(tree, dict) else None
