"""From the feedback stream into its table: one row per sequence, whatever became of the message.

The row is the content, so one insert per batch is the whole deed: whoever dies leaves a batch done or not done, and
doing it again changes nothing. It goes on from the table's own watermark. Feedback is judged as trajectories are: read
strictly, users replaced, texts redacted, what is invalid dead-lettered, and nothing kept of whoever was erased or opted
out.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256

from rl_pipeline.contracts import ContractError, Feedback, parse_message
from rl_pipeline.ingestion.dead_letters import publish_dead_letters
from rl_pipeline.ingestion.draining import Replayed
from rl_pipeline.ingestion.feedback_rows import (
    FeedbackRow,
    erase_feedback_of_the_erased,
    erased_feedback,
    feedback_sequences,
    feedback_watermark,
    last_feedback,
    lowest_accepted,
    refused_among,
    write_feedback,
    write_lost_feedback,
)
from rl_pipeline.ingestion.judging import Erasures, Judgement, is_erased, judge, user_placeholders
from rl_pipeline.ingestion.ledger import StreamRecreated, current_revision
from rl_pipeline.ingestion.ownership import users_of
from rl_pipeline.ingestion.patience import Patience
from rl_pipeline.ingestion.reports import DrainReport
from rl_pipeline.ingestion.tombstones import read_erasures, refuse_unrecognizable
from rl_pipeline.redaction.placeholders import PLACEHOLDER
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.stores.stream import MessageGone, StoredMessage, Stream
from rl_pipeline.stores.warehouse import Warehouse

POINTS = ("after_read", "after_dead_letters", "after_rows")
"""Where `reached` is called, in the order of one batch."""

SAME_FEEDBACK = "same_feedback_id"
"""The reason of a duplicate: another sequence has brought the feedback."""

_SUBJECT = "agent.rl.feedback.v1"
_BATCH_MESSAGES = 500


@dataclass(frozen=True)
class FeedbackReport:
    """What was done with the sequences from `first` to `last`."""

    first: int
    last: int
    lost: int = 0
    """Sequences that the stream no longer has and that nobody had read."""
    verdicts: Mapping[str, int] = field(default_factory=dict)
    reasons: Mapping[str, int] = field(default_factory=dict)
    """Why messages were refused."""


def drain_feedback(
    messages: Stream,
    warehouse: Warehouse,
    *,
    stream: str,
    policy: RedactionPolicy,
    previous_keys: Sequence[RedactionKey] = (),
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] = time.sleep,
    reached: Callable[[str], None] = lambda _: None,
) -> FeedbackReport:
    """Store what the feedback stream has beyond the table's watermark, up to the stream's head.

    Trouble with a store is waited out three times and then raised; draining again resumes it. `reached` hears the name
    of each of `POINTS`. Raises `StreamRecreated` where the stream is not the one that the table knows, and
    `RedactionKeyLost` where users were erased whom these keys do not recognize.
    """
    intake = _Intake(messages, warehouse, stream, policy, previous_keys, clock=clock, sleep=sleep, reached=reached)
    patiently = intake.patiently
    first = patiently(partial(feedback_watermark, warehouse, stream)) + 1
    last = patiently(partial(_head, messages, warehouse, stream))
    lost, expected = 0, first
    while expected <= last:
        batch = patiently(partial(_next, messages, stream, expected, last))
        reached("after_read")
        for gap, following in _gaps(batch, expected, last, clock):
            lost += patiently(
                partial(write_lost_feedback, warehouse, stream, gap, stream_time=following, revision=intake.revision)
            )
        intake.store(patiently(partial(intake.without_rows, batch)))
        expected = batch[-1].sequence + 1 if batch else last + 1
    # An erasure writes its tombstone before it deletes: what was stored meanwhile is found here, or by the erasure.
    patiently(partial(erase_feedback_of_the_erased, warehouse))
    return FeedbackReport(first, last, lost, dict(intake.verdicts), dict(intake.reasons))


def replay_feedback(
    messages: Stream,
    warehouse: Warehouse,
    *,
    stream: str,
    sequences: Iterable[int],
    policy: RedactionPolicy,
    previous_keys: Sequence[RedactionKey] = (),
    clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    sleep: Callable[[float], None] = time.sleep,
) -> Replayed:
    """Judge refused sequences again, though they have their rows: what is accepted now is stored, once.

    Sequences that are not refused, or no longer in the stream, are left as they are. Raises as `drain_feedback` does.
    """
    began = clock()
    intake = _Intake(messages, warehouse, stream, policy, previous_keys, clock=clock, sleep=sleep)
    intake.patiently(partial(_head, messages, warehouse, stream))
    wanted = sorted(set(sequences))
    gone: list[int] = []
    for start in range(0, len(wanted), _BATCH_MESSAGES):
        some = wanted[start : start + _BATCH_MESSAGES]
        found: list[StoredMessage] = []
        for sequence in intake.patiently(partial(refused_among, warehouse, stream, some)):
            try:
                found.append(intake.patiently(partial(messages.get, stream, sequence)))
            except MessageGone:
                gone.append(sequence)
        intake.store(found, heard_at=clock())
    intake.patiently(partial(erase_feedback_of_the_erased, warehouse))
    judged = intake.verdicts.total()
    report = DrainReport(
        *(wanted[0], wanted[-1]) if wanted else (1, 0),
        judged=judged,
        unchanged=len(wanted) - judged,
        seconds=(clock() - began).total_seconds(),
        verdicts=dict(intake.verdicts),
        reasons=dict(intake.reasons),
    )
    return Replayed(report, tuple(gone))


def judge_feedback(
    message: StoredMessage, redactor: Redactor, keys: Sequence[RedactionKey], erasures: Erasures, revision: int
) -> tuple[FeedbackRow, Judgement | None]:
    """The row of a message, and where it is refused the judgement that tells why. `keys`: the current and older ones.

    Whatever lies in the stream has to be feedback, on whichever subject it came.
    """
    message = replace(message, subject=_SUBJECT)
    try:
        given = parse_message(_SUBJECT, message.data)
    except ContractError:
        given = None
    if isinstance(given, Feedback):
        users = users_of(given.model_dump(mode="json"))
        if is_erased([name for user in users for name in user_placeholders(user, keys)], message.time, erasures):
            return erased_feedback(message.sequence, message.time), None
        if (given.metadata.model_extra or {}).get("opt_out"):
            return FeedbackRow(message.sequence, message.time, "opted_out", revision, "user_opted_out"), None
        return replace(_accepted(message, given, users, redactor, keys[0]), revision=revision), None
    # Feedback claims no objects, so nothing is fetched.
    judgement = judge(message, redactor, keys, erasures, lambda _: b"")
    if judgement.verdict == "erased":
        return erased_feedback(message.sequence, message.time), None
    row = FeedbackRow(message.sequence, message.time, judgement.verdict, revision, judgement.reason)
    return (row, None) if judgement.refusal is None else (replace(row, sha256=judgement.sha256), judgement)


class _Intake:
    """How the messages of a stream become rows, under one revision of the rules, and how many of each verdict did."""

    def __init__(
        self,
        messages: Stream,
        warehouse: Warehouse,
        stream: str,
        policy: RedactionPolicy,
        previous_keys: Sequence[RedactionKey],
        *,
        clock: Callable[[], datetime],
        sleep: Callable[[float], None],
        reached: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.patiently = Patience(sleep)
        self.verdicts, self.reasons = Counter[str](), Counter[str]()
        self._messages = messages
        self._warehouse = warehouse
        self._stream = stream
        self._policy = policy
        self._keys = (policy.key, *previous_keys)
        self._clock = clock
        self._reached = reached
        self._redactor: Redactor | None = None
        self.patiently(partial(refuse_unrecognizable, warehouse, self._keys))
        self.revision = self.patiently(partial(current_revision, warehouse, policy))

    def without_rows(self, batch: Sequence[StoredMessage]) -> Sequence[StoredMessage]:
        """The messages that have no row yet."""
        if not batch:
            return []
        known = feedback_sequences(self._warehouse, self._stream, batch[0].sequence, batch[-1].sequence)
        return [message for message in batch if message.sequence not in known]

    def store(self, batch: Sequence[StoredMessage], heard_at: datetime | None = None) -> None:
        """Judge messages, dead-letter what is refused, and write their rows.

        What a replay accepts counts from `heard_at` on: rewards before that were computed without it.
        """
        judged = self.patiently(partial(self._judge, batch))
        letters = [judgement for _, judgement in judged if judgement is not None]
        if letters:
            where, revision, now = (self._messages, self._stream), self.revision, self._clock()
            self.patiently(partial(publish_dead_letters, *where, letters, revision=revision, now=now))
        self._reached("after_dead_letters")
        rows = self.patiently(partial(self._without_repetitions, [row for row, _ in judged]))
        rows = [replace(row, heard_at=heard_at) if row.verdict == "accepted" else row for row in rows]
        self.patiently(partial(write_feedback, self._warehouse, self._stream, rows))
        self._reached("after_rows")
        self.verdicts.update(row.verdict for row in rows)
        self.reasons.update(row.reason for row in rows if row.verdict == "refused")

    def _judge(self, batch: Sequence[StoredMessage]) -> list[tuple[FeedbackRow, Judgement | None]]:
        if not batch:
            return []
        erasures = read_erasures(self._warehouse)
        # The rules take a second to compile, and mostly nothing has come.
        self._redactor = self._redactor or Redactor(self._policy)
        return [judge_feedback(message, self._redactor, self._keys, erasures, self.revision) for message in batch]

    def _without_repetitions(self, rows: Sequence[FeedbackRow]) -> list[FeedbackRow]:
        """The rows, of which those become duplicates whose feedback is stored, or comes with a lower sequence.

        What is stored stays, even if a replay accepts a lower sequence: rewards have been computed with it.
        """
        accepted = [row for row in rows if row.verdict == "accepted"]
        ids = sorted({row.feedback_id for row in accepted})
        bringer = lowest_accepted(self._warehouse, self._stream, ids) if ids else {}
        for row in accepted:
            bringer.setdefault(row.feedback_id, row.sequence)
        return [
            replace(row, verdict="duplicate", reason=SAME_FEEDBACK, text="")
            if row.verdict == "accepted" and row.sequence != bringer[row.feedback_id]
            else row
            for row in rows
        ]


def _accepted(
    message: StoredMessage, given: Feedback, users: Sequence[str], redactor: Redactor, key: RedactionKey
) -> FeedbackRow:
    texts = {"feedback_id": given.feedback_id, "text": given.text or "", "channel": given.metadata.channel or ""}
    known = {user: "USER" for user in users if not PLACEHOLDER.fullmatch(user)}
    redacted: dict[str, str] = redactor.redact(texts, known=known).tree
    return FeedbackRow(
        sequence=message.sequence,
        stream_time=message.time,
        verdict="accepted",
        revision=0,
        sha256=sha256(message.data).hexdigest(),
        trajectory_id=given.trajectory_id,
        given_at=given.timestamp,
        kind=given.kind,
        rating=given.rating or 0,
        user=user_placeholders(users[0], [key])[0] if users else "",
        turn_id=given.turn_id or 0,
        feedback_id=redacted["feedback_id"],
        text=redacted["text"],
        channel=redacted["channel"],
    )


def _gaps(
    batch: Sequence[StoredMessage], expected: int, last: int, clock: Callable[[], datetime]
) -> list[tuple[range, datetime]]:
    """The sequences that the stream no longer has before each message, with the time of what follows them."""
    gaps: list[tuple[range, datetime]] = []
    for message in batch:
        gaps.append((range(expected, message.sequence), message.time))
        expected = message.sequence + 1
    if not batch:
        gaps.append((range(expected, last + 1), clock()))
    return [(gap, following) for gap, following in gaps if gap]


def _head(messages: Stream, warehouse: Warehouse, stream: str) -> int:
    """The stream's last sequence, if it is the stream that the table knows; else raises `StreamRecreated`."""
    sequence, digest = last_feedback(warehouse, stream)
    last = messages.state(stream).last_sequence
    if last < sequence:
        raise StreamRecreated(stream, f"it ends at {last}, and {sequence} is ingested already")
    if sequence:
        try:
            message = messages.get(stream, sequence)
        except MessageGone:
            return last
        if sha256(message.data).hexdigest() != digest:
            raise StreamRecreated(stream, f"{sequence} is not the message that was ingested")
    return last


def _next(messages: Stream, stream: str, first: int, last: int) -> Sequence[StoredMessage]:
    # Each attempt reads anew: one that failed would end a reading as if nothing more was there.
    return next(messages.read(stream, first, last, _BATCH_MESSAGES), ())
