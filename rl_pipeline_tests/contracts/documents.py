"""The contracts as they are checked in, and the places inside a message."""

import copy
import json
from collections.abc import Iterator
from typing import Any

from rl_pipeline.contracts import ALL_TOPICS
from rl_pipeline.contracts.schemas import CONTRACTS_DIRECTORY

Place = tuple[str | int, ...]


def schema_of(subject: str) -> dict[str, Any]:
    path = CONTRACTS_DIRECTORY / "schemas" / "agent-rl" / ALL_TOPICS[subject].schema_file
    schema: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return schema


def examples() -> list[tuple[str, dict[str, Any]]]:
    """Every example message of every schema, with its subject."""
    return [(subject, example) for subject in ALL_TOPICS for example in schema_of(subject)["examples"]]


def places(tree: Any, place: Place = ()) -> Iterator[Place]:
    """Every place in a message, the whole of it first."""
    yield place
    if isinstance(tree, dict | list):
        for key, child in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from places(child, (*place, key))


def at(tree: Any, place: Place) -> Any:
    for key in place:
        tree = tree[key]
    return tree


def replaced(tree: Any, place: Place, value: Any) -> Any:
    """A copy of the message with another value in one place."""
    if not place:
        return value
    changed = copy.deepcopy(tree)
    at(changed, place[:-1])[place[-1]] = value
    return changed


def without(tree: Any, place: Place) -> Any:
    """A copy of the message that lacks one place."""
    changed = copy.deepcopy(tree)
    del at(changed, place[:-1])[place[-1]]
    return changed
