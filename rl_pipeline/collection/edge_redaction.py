"""Redaction before publishing: what leaves an agent is already clean, and is redacted once more when it is ingested."""

import json

from rl_pipeline.contracts import CLAIMED_LIMITS, Feedback, Message, Trajectory, parse_message, serialize, subject_of
from rl_pipeline.redaction.redactor import Redactor


def redact_message(message: Message, redactor: Redactor) -> Message:
    """What people or tools wrote in the message, redacted; messages of the pipeline's own making are as they were.

    The user's id stays: opting out and erasure find the user by it, and ingest replaces it. Raises `SensitiveKey` where
    the name of a field is itself a secret, because names are never changed.
    """
    if not isinstance(message, Trajectory | Feedback):
        return message
    tree = json.loads(serialize(message))
    clean = redactor.redact(tree).tree
    places = ((found, clean.get(name)) for name, found in tree.items() if name in ("task_context", "metadata"))
    for original, redacted in ((tree, clean), *places):
        if original and "user_id" in original:
            redacted["user_id"] = original["user_id"]
    return parse_message(subject_of(message), json.dumps(clean, ensure_ascii=False).encode(), CLAIMED_LIMITS)
