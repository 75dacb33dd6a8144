"""Which sequences are ingested next, and when."""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from rl_pipeline.ingestion.planning import (
    BeyondRetention,
    Range,
    Waiting,
    is_due,
    next_range,
    not_before,
    range_of_day,
    refuse_beyond_retention,
    waiting,
)
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.stream import StoredMessage, StreamState

STREAM = "RL_TRAJECTORIES"
MONDAY = datetime(2026, 3, 2, 12, tzinfo=UTC)
NOW = datetime(2026, 3, 5, 9, tzinfo=UTC)


@dataclass
class StreamOfDays:
    """A stream over several days, which a real server's clock cannot give: messages by sequence with their times."""

    times: dict[int, datetime]
    last_sequence: int

    def state(self, stream: str) -> StreamState:
        first = min(self.times, default=self.last_sequence + 1)
        return StreamState(stream, first, self.last_sequence, len(self.times), 0, 0, None, None, 0)

    def read(self, _stream: str, first: int, last: int, _batch_size: int) -> Iterator[Sequence[StoredMessage]]:
        held = sorted(self.times)
        for sequence in held[bisect_left(held, first) :]:
            if sequence <= last:
                yield [StoredMessage(sequence, "agent.rl.trajectory.v1", b"", None, {}, self.times[sequence])]


def stream_of(*counts: int, first: int = 1, missing: Sequence[int] = ()) -> Any:
    """`counts[i]` messages on the i-th day from Monday on."""
    days = [day for day, count in enumerate(counts) for _ in range(count)]
    times = {first + place: MONDAY + timedelta(days=day, seconds=place) for place, day in enumerate(days)}
    last = max(times, default=first - 1)
    return StreamOfDays({sequence: time for sequence, time in times.items() if sequence not in missing}, last)


def next_of(stream: Any, ingested_up_to: int = 0) -> Range | None:
    return next_range(stream, STREAM, ingested_up_to=ingested_up_to, now=NOW)


def test_a_range_ends_at_midnight_utc() -> None:
    stream = stream_of(3, 4, 2)
    assert next_of(stream) == Range(1, 3, date(2026, 3, 2))
    assert next_of(stream, 3) == Range(4, 7, date(2026, 3, 3))
    assert next_of(stream, 5) == Range(6, 7, date(2026, 3, 3))
    assert next_of(stream, 7) == Range(8, 9, date(2026, 3, 4))
    assert next_of(stream, 9) is None


def test_every_sequence_is_in_exactly_one_range_whatever_is_missing() -> None:
    for missing in ([], [1], [3], [4], [3, 4], [9], [1, 2, 3], list(range(1, 10))):
        stream = stream_of(3, 4, 2, missing=missing)
        done, days = 0, []
        while found := next_of(stream, done):
            assert found.first == done + 1
            done, days = found.last, [*days, found.day]
        assert done == 9
        assert days == sorted(set(days)), "one range per day"


def test_what_retention_took_goes_with_the_message_that_follows_it() -> None:
    stream = stream_of(2, 2, first=101)
    assert next_of(stream, 50) == Range(51, 102, date(2026, 3, 2))


def test_what_vanished_without_a_successor_is_written_down_today() -> None:
    stream = StreamOfDays({}, last_sequence=40)
    assert next_range(stream, STREAM, ingested_up_to=10, now=NOW) == Range(11, 40, NOW.date())  # type: ignore[arg-type]


def test_a_day_is_the_sequences_that_the_stream_has_of_it() -> None:
    stream = stream_of(3, 4, 2, missing=[5])
    assert range_of_day(stream, STREAM, date(2026, 3, 3), ingested_up_to=9) == Range(4, 7, date(2026, 3, 3))
    assert range_of_day(stream, STREAM, date(2026, 3, 1), ingested_up_to=9) is None
    assert range_of_day(stream, STREAM, date(2026, 3, 5), ingested_up_to=9) is None


def test_a_day_takes_the_losses_before_it_along_but_no_message_of_another_day() -> None:
    assert range_of_day(stream_of(3, first=7), STREAM, MONDAY.date(), ingested_up_to=0) == Range(1, 9, MONDAY.date())
    stream = stream_of(3, 4)
    assert range_of_day(stream, STREAM, date(2026, 3, 3), ingested_up_to=1) == Range(4, 7, date(2026, 3, 3))


@pytest.mark.parametrize(
    ("seen", "due"),
    [
        (Waiting(0, 0, None), False),
        (Waiting(9, 0, NOW - timedelta(seconds=59)), False),
        (Waiting(10, 0, NOW), True),
        (Waiting(1, 0, NOW - timedelta(seconds=60)), True),
        (Waiting(0, 1, None), True),
    ],
)
def test_enough_pending_or_old_enough_or_lost_is_due(seen: Waiting, due: bool) -> None:
    assert is_due(seen, pending=10, wait=timedelta(seconds=60), now=NOW) is due


def test_a_range_that_keeps_failing_is_tried_ever_more_rarely_but_for_ever() -> None:
    waits = [(not_before(failures, NOW) - NOW).total_seconds() for failures in (1, 2, 3, 6, 1000)]
    assert waits == [20, 40, 80, 600, 600]


def test_a_real_stream_is_waited_for_from_its_first_pending_message(stream: JetStream) -> None:
    for number in range(3):
        stream.publish("agent.rl.trajectory.v1", b"{}", f"message-{number}")
    second = stream.get(STREAM, 2)
    assert waiting(stream, STREAM, ingested_up_to=1, lag=2, lost=0) == Waiting(2, 0, second.time)
    assert waiting(stream, STREAM, ingested_up_to=3, lag=0, lost=0) == Waiting(0, 0, None)
    found = next_range(stream, STREAM, ingested_up_to=0, now=NOW)
    assert found is not None
    assert (found.first, found.day) == (1, stream.get(STREAM, 1).time.date())


def test_a_day_of_older_rows_whose_messages_are_gone_is_refused_and_one_of_this_revision_is_not(
    warehouse: ClickHouseWarehouse,
) -> None:
    row = {"stream": STREAM, "stream_time": MONDAY, "message_id": "", "trajectory_id": "", "publisher": "", "size": 1}
    row |= {"sha256": "", "reason": ""}
    rows = [
        {**row, "sequence": 1, "verdict": "accepted", "revision": 1},
        {**row, "sequence": 2, "verdict": "accepted", "revision": 2},
        {**row, "sequence": 3, "verdict": "lost", "revision": 1},
    ]
    warehouse.insert("trajectory_ledger", pl.DataFrame(rows))
    refuse_beyond_retention(warehouse, STREAM, MONDAY.date(), revision=1)
    with pytest.raises(BeyondRetention, match="1 of its 3 sequences"):
        refuse_beyond_retention(warehouse, STREAM, MONDAY.date(), revision=2)
    refuse_beyond_retention(warehouse, STREAM, date(2026, 3, 4), revision=2)
