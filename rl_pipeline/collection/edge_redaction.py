"""Redaction before publishing: what leaves an agent is already clean, and is redacted once more when it is ingested."""

import json
from collections.abc import Iterator
from typing import Any

from rl_pipeline.contracts import CLAIMED_LIMITS, Feedback, Message, Trajectory, parse_message, serialize, subject_of
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.redaction.resolution import Knowledge


def redact_message(message: Message, redactor: Redactor) -> Message:
    """What people or tools wrote in the message, redacted; messages of the pipeline's own making are as they were.

    The ids of users stay: opting out and erasure find users by them, and ingest replaces them. Raises `SensitiveKey`
    where the name of a field is itself a secret, because names are never changed.
    """
    if not isinstance(message, Trajectory | Feedback):
        return message
    clean = redact_tree(json.loads(serialize(message)), redactor)
    return parse_message(subject_of(message), json.dumps(clean, ensure_ascii=False).encode(), CLAIMED_LIMITS)


def redact_tree(tree: dict[str, Any], redactor: Redactor, memory: Knowledge | None = None) -> dict[str, Any]:
    """A message, or a part of one at its place in the message, redacted; the ids of users stay.

    The parts of a message share a `memory`, see `Redactor.redact`.
    """
    clean: dict[str, Any] = redactor.redact(tree, memory=memory).tree
    for original, redacted in _places(tree, clean):
        if isinstance(original, dict) and "user_id" in original:
            redacted["user_id"] = original["user_id"]
    return clean


def _places(tree: dict[str, Any], clean: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Where a message names users, before and after redaction: itself, its task, who rated it, who spoke in it."""
    yield tree, clean
    yield tree.get("task_context"), clean.get("task_context")
    metadata, redacted = tree.get("metadata") or {}, clean.get("metadata") or {}
    yield metadata, redacted
    yield from zip(metadata.get("feedback") or [], redacted.get("feedback") or [], strict=True)
    for turn, cleaned in zip(tree.get("turns") or [], clean.get("turns") or [], strict=True):
        yield turn, cleaned
        yield turn["observation"], cleaned["observation"]
        yield turn["observation"].get("context"), cleaned["observation"].get("context")
