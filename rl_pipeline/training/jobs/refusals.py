"""What becomes of a message on the training stream that cannot be followed: a dead letter, as ingest writes them."""

import re
from collections.abc import Callable
from datetime import datetime
from hashlib import sha256

from rl_pipeline.contracts import DEFAULT_LIMITS, ContractError
from rl_pipeline.contracts.fields import IDENTIFIER_PATTERN
from rl_pipeline.ingestion.dead_letters import publish_dead_letters
from rl_pipeline.ingestion.excerpts import excerpt_of, lenient_tree
from rl_pipeline.ingestion.judging import Judgement, Refusal
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.stores.stream import StoredMessage, Stream

TRAINING_STREAM = "RL_TRAINING"

OpenRedactor = Callable[[], Redactor]
"""Makes the redactor, whose rules take a second to compile: mostly nothing is refused."""

_IDENTIFIER = re.compile(IDENTIFIER_PATTERN)
# Letters on trajectories count the revisions of the redaction's rules; those on training are written once.
_REVISION = 0


def dead_letter(
    messages: Stream, message: StoredMessage, error: ContractError, redactor: OpenRedactor, now: datetime
) -> None:
    """Keep why a message was refused, with a redacted excerpt. Again is harmless: there is one letter per message."""
    judgement = Judgement(
        sequence=message.sequence,
        stream_time=message.time,
        size=len(message.data),
        sha256=sha256(message.data).hexdigest(),
        verdict="refused",
        reason=error.limit,
        message_id=named_job(message.data) or "",
        refusal=Refusal(message.subject, error.path, error.advice, excerpt_of(message.data, redactor(), {})),
    )
    publish_dead_letters(messages, TRAINING_STREAM, [judgement], revision=_REVISION, now=now)


def named_job(data: bytes) -> str | None:
    """The job that a message names, however broken the rest of it is."""
    tree = lenient_tree(data, DEFAULT_LIMITS.max_bytes)
    if isinstance(tree, dict) and isinstance(tree.get("payload"), dict):
        tree = tree["payload"]
    found = tree.get("training_job_id") if isinstance(tree, dict) else None
    return found if isinstance(found, str) and _IDENTIFIER.fullmatch(found) else None
