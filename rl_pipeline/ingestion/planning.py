"""What to ingest next: which sequences, of which UTC day, and whether it is time. Only single messages are read."""

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta

from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.stream import StoredMessage, Stream, StreamState
from rl_pipeline.stores.warehouse import Warehouse

_LONGEST_WAIT_AFTER_FAILURES = timedelta(minutes=10)
_FIRST_WAIT_AFTER_A_FAILURE = timedelta(seconds=20)


class BeyondRetention(PipelineError):
    """A day that can no longer be read again: its messages have left the stream. Its rows are as they were."""


@dataclass(frozen=True)
class Range:
    """Sequences of one UTC day, both ends included."""

    first: int
    last: int
    day: date


@dataclass(frozen=True)
class Waiting:
    """What has arrived and is not ingested yet."""

    messages: int
    lost: int
    """Sequences that retention took: nothing to read, but the ledger must say so."""
    oldest: datetime | None
    """When the stream stored the first of the messages."""


def is_due(waiting: Waiting, *, pending: int, wait: timedelta, now: datetime) -> bool:
    """Whether enough is waiting, or something has waited long enough; losses are written down at once."""
    if waiting.messages >= pending or waiting.lost:
        return True
    return waiting.oldest is not None and now - waiting.oldest >= wait


def not_before(failures: int, last_failure: datetime) -> datetime:
    """When a range that has failed that often in a row is tried again: the wait doubles, up to ten minutes."""
    doublings: int = 2 ** min(failures - 1, 10)
    wait = _FIRST_WAIT_AFTER_A_FAILURE * doublings
    return last_failure + min(wait, _LONGEST_WAIT_AFTER_FAILURES)


def next_range(messages: Stream, stream: str, *, ingested_up_to: int, now: datetime) -> Range | None:
    """Everything after the watermark that belongs to the day of the first message there; None when nothing is new.

    Sequences that the stream no longer has belong to the day of the message that follows them, and to today when none
    does.
    """
    state = messages.state(stream)
    first = ingested_up_to + 1
    if first > state.last_sequence:
        return None
    following = _message_from(messages, state, max(first, state.first_sequence))
    if following is None:
        return Range(first, state.last_sequence, now.date())
    day = following.time.date()
    return Range(first, _first_sequence_from(messages, state, _midnight_after(day)) - 1, day)


def range_of_day(messages: Stream, stream: str, day: date, *, ingested_up_to: int) -> Range | None:
    """The sequences that the stream still has of a day, or None. Losses before the day's first message go with it."""
    state = messages.state(stream)
    first = _first_sequence_from(messages, state, _midnight(day))
    last = _first_sequence_from(messages, state, _midnight_after(day)) - 1
    if first > last:
        return None
    following = _message_from(messages, state, max(ingested_up_to + 1, state.first_sequence))
    if ingested_up_to < first and following is not None and following.sequence >= first:
        first = ingested_up_to + 1
    return Range(first, last, day)


def from_its_beginning(warehouse: Warehouse, stream: str, planned: Range) -> Range:
    """The range with what the ledger has of its day before it, which the stream no longer has."""
    found = warehouse.query(
        """
        SELECT min(sequence) AS first FROM trajectory_ledger
        WHERE stream = {stream:String} AND toDate(stream_time) = {day:Date} AND sequence < {first:UInt64}
        """,
        parameters={"stream": stream, "day": planned.day.isoformat(), "first": planned.first},
    )
    return replace(planned, first=int(found["first"][0]) or planned.first)


def waiting(messages: Stream, stream: str, *, ingested_up_to: int, lag: int, lost: int) -> Waiting:
    """What waits beyond the watermark, and since when; `lag` and `lost` come from an observation."""
    state = messages.state(stream)
    oldest = _message_from(messages, state, max(ingested_up_to + 1, state.first_sequence)) if lag else None
    return Waiting(lag, lost, oldest.time if oldest else None)


def refuse_beyond_retention(warehouse: Warehouse, stream: str, day: date, revision: int) -> None:
    """Raise `BeyondRetention` when a day of which the stream has nothing more has rows of an older revision.

    Rows of this revision need not be read again, and neither does what was lost or erased.
    """
    found = warehouse.query(
        """
        SELECT count() AS sequences, countIf(revision < {revision:UInt32} AND verdict NOT IN ('lost', 'erased')) AS old
        FROM trajectory_ledger FINAL
        WHERE stream = {stream:String} AND toDate(stream_time) = {day:Date}
        """,
        parameters={"stream": stream, "day": day.isoformat(), "revision": revision},
    )
    sequences, old = int(found["sequences"][0]), int(found["old"][0])
    if old:
        raise BeyondRetention(
            f"the stream {stream} no longer holds the messages of {day}: {old} of its {sequences} sequences have rows "
            "of an older revision, which stay as they are; days within the stream's retention can be read again"
        )


def _first_sequence_from(messages: Stream, state: StreamState, moment: datetime) -> int:
    """The lowest sequence at which everything that follows was stored at `moment` or later."""
    low, high = state.first_sequence, state.last_sequence + 1
    while low < high:
        middle = (low + high) // 2
        found = _message_from(messages, state, middle)
        if found is None or found.time >= moment:
            high = middle
        else:
            low = found.sequence + 1
    return low


def _message_from(messages: Stream, state: StreamState, sequence: int) -> StoredMessage | None:
    """The first message at or after a sequence."""
    return next((batch[0] for batch in messages.read(state.name, sequence, state.last_sequence, 1)), None)


def _midnight(day: date) -> datetime:
    return datetime.combine(day, time(), tzinfo=UTC)


def _midnight_after(day: date) -> datetime:
    return _midnight(day + timedelta(days=1))
