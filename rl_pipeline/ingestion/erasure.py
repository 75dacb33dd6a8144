"""Erasing a user: everything that is stored of them, and what comes again of what was stored until now.

The order survives a death at any point, and doing it again finishes it:

1. The tombstones. From now on ingest, archive and restoration keep the user away. The user's sessions at the gateways
   get theirs before what tells of them is deleted.
2. The ledger says `erased` of a sequence before anything of it is deleted, so no gap is ever unexplained; and whatever
   it says that of is deleted everywhere, so a deletion that was broken off is found again.
3. Claim and message, feedback, dead letters, the archive, the outcomes of sessions, memories, and last the rows by
   which all of these and the datasets are found. The table of feedback is the ledger of its stream. Of the published
   rewards those go behind which no row stands any more, whoever lost it and when.
4. What others have published of an erased trajectory is no duplicate of anything any more: ingest judges it anew.
"""

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rl_pipeline.errors import PipelineError
from rl_pipeline.ingestion.archive import ARCHIVED, archived_objects, rewrite_without
from rl_pipeline.ingestion.archive_files import downloaded, read_frames
from rl_pipeline.ingestion.dead_letters import DEAD_LETTER_STREAM, sequence_of_dead_letter
from rl_pipeline.ingestion.erased_marks import UserRows, erased_row
from rl_pipeline.ingestion.erased_memories import erase_memories
from rl_pipeline.ingestion.erased_rows import (
    delete_feedback,
    delete_rewards,
    delete_rows,
    trajectories_to_delete,
)
from rl_pipeline.ingestion.erased_sessions import ErasedSessions, erase_outcomes
from rl_pipeline.ingestion.feedback_rows import erased_feedback, numbered_feedback, write_feedback
from rl_pipeline.ingestion.holding import checkpoints_of, datasets_holding
from rl_pipeline.ingestion.judging import user_placeholders
from rl_pipeline.ingestion.ledger import ERASED_REVISION, forget_orphans, known_rows, write_rows
from rl_pipeline.ingestion.ownership import ClaimUnreadable, MessageOwner, Ownership
from rl_pipeline.ingestion.tombstones import refuse_unfindable, write_tombstones
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.stores.agent_memories import AgentMemories
from rl_pipeline.stores.objects import ObjectMissing, Objects
from rl_pipeline.stores.stream import StoredMessage, Stream, StreamDenied
from rl_pipeline.stores.warehouse import Warehouse

REWARD_STREAM = "RL_REWARDS"
OPTED_OUT_UNTIL = datetime(2199, 12, 31, tzinfo=UTC)

POINTS = (
    "after_tombstone",
    "after_ledger_of_rows",
    "after_ledger",
    "after_claim",
    "after_message",
    "after_feedback",
    "after_dead_letter",
    "after_ledger_of_archive",
    "after_archive",
    "after_outcomes",
    "after_memories",
    "after_feedback_rows",
    "after_reward_rows",
    "after_rewards",
    "after_rows",
)
"""Where `reached` is called, in the order of one erasure."""

_BATCH_MESSAGES = 256
_WHOSE_ROWS = ["stream", "sequence", "stream_time", "trajectory_id", "session_id", "user"]

_log = logging.getLogger(__name__)


class ErasureDenied(PipelineError):
    """The account may not delete messages; nothing was changed."""


class InvalidUser(PipelineError):
    """There can be no such user."""


@dataclass(frozen=True)
class ErasureReport:
    """What was erased by this call, and where the erased data has gone on to."""

    messages: int
    claims: int
    dead_letters: int
    feedback: int
    trajectories: int
    archived: int
    datasets: tuple[str, ...]
    """The datasets that hold trajectories of the user; `curation.forgetting` takes them out."""
    checkpoints: tuple[str, ...]
    """What learnt from those datasets."""
    unreadable_claims: tuple[int, ...]
    """Sequences whose claimed object is damaged, so that nobody can say whose they are."""
    orphans: int
    """Messages of others that repeat an erased trajectory: the next ingest judges them anew."""
    outcomes: int
    """What gateways told of the user's sessions."""
    memories: int
    """What was remembered of them, and what they told; what was made of it is gone too."""


def erase_user(
    user_id: str,
    *,
    messages: Stream,
    warehouse: Warehouse,
    raw_objects: Objects,
    archive_objects: Objects,
    memories: AgentMemories,
    keys: Sequence[RedactionKey],
    session_keys: Sequence[RedactionKey],
    trajectory_stream: str,
    feedback_stream: str,
    serving_stream: str,
    now: datetime,
    opt_out: bool,
    reached: Callable[[str], None] = lambda _: None,
) -> ErasureReport:
    """Erase everything that was stored of the user until now; with `opt_out`, keep what comes later away as well.

    `keys` are the current redaction key and all earlier ones, and those of the edge; `session_keys` those under which
    gateways stored sessions. Raises before anything is changed:
    `ErasureDenied`, unless the account of `messages` may delete; `RedactionKeyLost`, where rows are stored under a key
    that is not among them. `reached` hears the name of each of `POINTS`.
    """
    if not user_id.strip():
        raise InvalidUser("the id of the user is empty: name the user to erase")
    _refuse_lesser_accounts(
        messages, (trajectory_stream, feedback_stream, serving_stream, DEAD_LETTER_STREAM, REWARD_STREAM)
    )
    refuse_unfindable(warehouse, keys, archived_since=now - ARCHIVED)
    placeholders = user_placeholders(user_id, keys)
    owner = MessageOwner({user_id, *placeholders}, raw_objects)
    # The stream's clock may be ahead of ours; the stores keep milliseconds.
    times = [now, *filter(None, (messages.state(name).last_time for name in (trajectory_stream, feedback_stream)))]
    lately = max(times) + timedelta(milliseconds=1)
    until = OPTED_OUT_UNTIL if opt_out else lately
    write_tombstones(warehouse, placeholders, keys, now, until)
    sessions = ErasedSessions(warehouse, session_keys, now, lately)
    sessions.note([user_id], until)
    sessions.note_rows(placeholders, until)
    reached("after_tombstone")

    rows = UserRows(warehouse, placeholders, until, sessions, messages.state(trajectory_stream).first_sequence)
    rows.mark_in_ledger()
    reached("after_ledger_of_rows")
    taken = _erase_trajectory_messages(messages, rows, raw_objects, owner, trajectory_stream, reached=reached)
    feedback = _erase_feedback(messages, rows, owner, feedback_stream, reached)
    dead_letters = _erase_dead_letters(messages, warehouse, ("trajectory_ledger", trajectory_stream), reached)
    dead_letters += _erase_dead_letters(messages, warehouse, ("trajectory_feedback", feedback_stream), reached)
    archived = _erase_archived(archive_objects, rows, reached)
    outcomes = erase_outcomes(messages, warehouse, serving_stream)
    reached("after_outcomes")
    remembered = erase_memories(warehouse, memories, placeholders, until)
    reached("after_memories")
    trajectory_ids = trajectories_to_delete(warehouse, placeholders, until)
    datasets, checkpoints = _learnt_from(warehouse, trajectory_ids)
    # Once the rows are gone nobody can find these again.
    _log.info("The erased data is in the datasets %s and the checkpoints %s.", datasets, checkpoints)
    delete_feedback(warehouse, placeholders, until)
    reached("after_feedback_rows")
    delete_rewards(warehouse, placeholders, until)
    reached("after_reward_rows")
    _withdraw_rewards(messages, warehouse)
    reached("after_rewards")
    delete_rows(warehouse, placeholders, until)
    reached("after_rows")
    orphans = forget_orphans(warehouse, trajectory_stream, messages.state(trajectory_stream).first_sequence)
    return ErasureReport(
        messages=taken.messages,
        claims=taken.claims,
        dead_letters=dead_letters,
        feedback=feedback,
        trajectories=len(trajectory_ids),
        archived=archived,
        datasets=datasets,
        checkpoints=checkpoints,
        unreadable_claims=tuple(taken.unreadable),
        orphans=orphans,
        outcomes=outcomes,
        memories=remembered,
    )


def _refuse_lesser_accounts(messages: Stream, streams: Iterable[str]) -> None:
    for stream in streams:
        try:
            # No stream has a sequence 0, so this asks for the right to erase and nothing else.
            messages.erase(stream, 0)
        except StreamDenied:
            raise ErasureDenied(
                f"this account may not erase messages of {stream}, and nothing was changed: "
                "set NATS_USER and NATS_PASSWORD to those of the admin"
            ) from None


@dataclass
class _Taken:
    """What was taken out of the trajectory stream, and the sequences that could not be judged."""

    messages: int
    claims: int
    unreadable: list[int]


def _erase_trajectory_messages(
    messages: Stream,
    rows: UserRows,
    claims: Objects,
    owner: MessageOwner,
    stream: str,
    *,
    reached: Callable[[str], None],
) -> _Taken:
    taken = _Taken(0, 0, [])
    state = messages.state(stream)
    for batch in messages.read(stream, state.first_sequence, state.last_sequence, _BATCH_MESSAGES):
        known = known_rows(rows.warehouse, stream, batch[0].sequence, batch[-1].sequence)
        theirs: list[tuple[StoredMessage, str | None]] = []
        for message in batch:
            is_marked = message.sequence in known and known[message.sequence].revision == ERASED_REVISION
            try:
                found = owner.ownership(message.subject, message.data)
            except ClaimUnreadable as unreadable:
                taken.unreadable += [] if is_marked else [message.sequence]
                found = Ownership(False, unreadable.key)
            if found.is_theirs or is_marked:
                theirs.append((message, found.claim))
        rows.sessions.note_messages(message for message, _ in theirs)
        write_rows(rows.warehouse, stream, [erased_row(message.sequence, message.time) for message, _ in theirs])
        if theirs:
            reached("after_ledger")
        for message, claim in theirs:
            if claim is not None and claims.exists(claim):
                claims.delete(claim)
                taken.claims += 1
                reached("after_claim")
            taken.messages += messages.erase(stream, message.sequence)
            reached("after_message")
    return taken


def _erase_dead_letters(
    messages: Stream, warehouse: Warehouse, ledger: tuple[str, str], reached: Callable[[str], None]
) -> int:
    """Erase the letters of whatever a ledger says is erased: also those that ingest wrote meanwhile.

    `ledger` is the table that has a row for each sequence, and the stream.
    """
    table, stream = ledger
    erased = 0
    state = messages.state(DEAD_LETTER_STREAM)
    for batch in messages.read(DEAD_LETTER_STREAM, state.first_sequence, state.last_sequence, _BATCH_MESSAGES):
        letters = [(sequence_of_dead_letter(stream, letter.subject), letter) for letter in batch]
        gone = warehouse.query(
            """
            SELECT DISTINCT sequence FROM {table:Identifier} FINAL
            WHERE stream = {stream:String} AND sequence IN {sequences:Array(UInt64)}
                AND verdict = 'erased' AND revision = {revision:UInt32}
            """,
            {
                "table": table,
                "stream": stream,
                "sequences": sorted({sequence for sequence, _ in letters if sequence is not None}),
                "revision": ERASED_REVISION,
            },
        )
        sequences = set(gone["sequence"])
        for letter in (letter for sequence, letter in letters if sequence in sequences):
            erased += messages.erase(DEAD_LETTER_STREAM, letter.sequence)
            reached("after_dead_letter")
    return erased


def _erase_feedback(
    messages: Stream, rows: UserRows, owner: MessageOwner, stream: str, reached: Callable[[str], None]
) -> int:
    erased = 0
    state = messages.state(stream)
    for batch in messages.read(stream, state.first_sequence, state.last_sequence, _BATCH_MESSAGES):
        theirs = [message for message in batch if owner.owns(message.subject, message.data)]
        rows.sessions.note_messages(theirs)
        numbered = numbered_feedback(rows.warehouse, stream, [message.sequence for message in theirs])
        said = [erased_feedback(each.sequence, each.time, *numbered.get(each.sequence, ())) for each in theirs]
        write_feedback(rows.warehouse, stream, said)
        for message in theirs:
            erased += messages.erase(stream, message.sequence)
            reached("after_feedback")
    return erased


def _withdraw_rewards(messages: Stream, warehouse: Warehouse) -> None:
    """Erase the messages that tell rewards which are not stored any more, however they came to be in the stream."""
    from rl_pipeline.rewards.publishing import unfounded_messages

    for sequence in unfounded_messages(messages, warehouse, REWARD_STREAM):
        messages.erase(REWARD_STREAM, sequence)


def _erase_archived(archive: Objects, rows: UserRows, reached: Callable[[str], None]) -> int:
    """Rewrite the archive's objects that hold erased rows, and return how many rows those were."""
    import polars as pl

    count = 0
    for day, key in list(archived_objects(archive)):
        try:
            with downloaded(archive, key) as path:
                frames = [frame for frame in read_frames(path, archive.url(key), _WHOSE_ROWS) if frame.height]
                if not frames:
                    continue
                stored = pl.concat(frames)
                rows.mark_archived(stored)
                reached("after_ledger_of_archive")
                erased = rows.erased_sequences(stored)
                if erased.height:
                    rewrite_without(archive, day, key, path, erased)
                    count += erased.height
                    reached("after_archive")
        except ObjectMissing:
            continue  # the archive was written anew meanwhile, without the user
    return count


def _learnt_from(warehouse: Warehouse, trajectory_ids: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The datasets that hold any of the trajectories, and the checkpoints that learnt from those."""
    holding = datasets_holding(warehouse, trajectory_ids)
    datasets = sorted({dataset for found in holding.values() for dataset in found})
    return tuple(datasets), checkpoints_of(warehouse, datasets)
