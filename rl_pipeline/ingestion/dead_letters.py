"""Dead letters: one per refused sequence and revision, in a stream of their own, with reason and redacted excerpt.

The ledger says what is refused now, so a message that was accepted after a replay is no longer listed; its letter stays
in the stream until it ages out. A letter is published on a subject of its own that takes one message only: whatever is
killed when, and however often a sequence is judged under a revision, there is one letter. A newer revision writes its
own, whose excerpt is redacted by its rules; the older one stays until it ages out, for ingest may not delete.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from rl_pipeline.errors import PipelineError
from rl_pipeline.ingestion.judging import Judgement, Refusal
from rl_pipeline.stores.stream import MessageGone, OutgoingMessage, PublishIncomplete, Stream, StreamUnavailable
from rl_pipeline.stores.warehouse import Warehouse

if TYPE_CHECKING:
    import polars as pl

DEAD_LETTER_STREAM = "RL_DLQ"


class NoDeadLetter(PipelineError):
    """There is no letter for this sequence."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """What is kept of a refused message."""

    stream: str
    sequence: int
    subject: str
    message_id: str
    reason: str
    path: str
    advice: str
    stream_time: str
    refused_at: str
    revision: int
    size: int
    sha256: str
    excerpt: str


def publish_dead_letters(
    messages: Stream, stream: str, judgements: Iterable[Judgement], *, revision: int, now: datetime
) -> None:
    """Publish a letter for every refused message; those that have one of this revision already keep it."""
    letters = [
        OutgoingMessage(
            subject=dead_letter_subject(stream, judgement.sequence, revision),
            data=json.dumps(asdict(_letter(stream, judgement, judgement.refusal, revision, now))).encode(),
            message_id=f"{stream}.{judgement.sequence}.{revision}",
            once_per_subject=True,
        )
        for judgement in judgements
        if judgement.refusal is not None
    ]
    try:
        messages.publish_many(letters)
    except PublishIncomplete as incomplete:
        if all(isinstance(failure, StreamUnavailable) for failure in incomplete.failures.values()):
            # Nothing but the server's absence: it may be tried again.
            raise StreamUnavailable(str(incomplete)) from incomplete
        raise


Ledger = Literal["trajectory_ledger", "trajectory_feedback"]
"""A table that has one row for each sequence of its stream."""


def list_dead_letters(
    warehouse: Warehouse,
    stream: str,
    *,
    ledger: Ledger = "trajectory_ledger",
    reason: str | None = None,
    first: int | None = None,
    last: int | None = None,
    limit: int = 100,
) -> "pl.DataFrame":
    """The ledger's rows of the sequences that are refused now, the newest first."""
    return warehouse.query(
        """
        SELECT * FROM {ledger:Identifier} FINAL
        WHERE stream = {stream:String} AND verdict = 'refused' AND (reason = {reason:String} OR {reason:String} = '')
            AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
        ORDER BY sequence DESC LIMIT {limit:UInt64}
        """,
        {
            "ledger": ledger,
            "stream": stream,
            "reason": reason or "",
            "first": first or 0,
            "last": last or 2**63,
            "limit": limit,
        },
    )


def show_dead_letter(messages: Stream, stream: str, sequence: int) -> DeadLetter:
    """The newest letter of a sequence: the ledger's revision wrote it, if it refuses. Raises `NoDeadLetter`."""
    try:
        letter = messages.last_on_subject(DEAD_LETTER_STREAM, dead_letter_subject(stream, sequence, "*"))
    except MessageGone:
        raise NoDeadLetter(
            f"there is no dead letter for {stream} {sequence}: it was not refused, or its letter aged out; "
            "`rl-pipeline dead-letters list` shows what is refused"
        ) from None
    return DeadLetter(**json.loads(letter.data))


def dead_letter_subject(stream: str, sequence: int, revision: int | Literal["*"]) -> str:
    """The subject of a letter, or of a sequence's letters of every revision."""
    return f"agent.rl.dlq.{stream}.{sequence}.{revision}"


def sequence_of_dead_letter(stream: str, subject: str) -> int | None:
    """The sequence whose letter is on this subject; none where it is no letter of this stream."""
    found = re.fullmatch(rf"agent\.rl\.dlq\.{re.escape(stream)}\.(\d+)\.\d+", subject)
    return int(found[1]) if found else None


def _letter(stream: str, judgement: Judgement, refusal: Refusal, revision: int, now: datetime) -> DeadLetter:
    return DeadLetter(
        stream=stream,
        sequence=judgement.sequence,
        subject=refusal.subject,
        message_id=judgement.message_id,
        reason=judgement.reason,
        path=refusal.path,
        advice=refusal.advice,
        stream_time=judgement.stream_time.isoformat(),
        refused_at=now.isoformat(),
        revision=revision,
        size=judgement.size,
        sha256=judgement.sha256,
        excerpt=refusal.excerpt,
    )
