"""What an observation of the stream says."""

from datetime import UTC, datetime

import pytest

from rl_pipeline.ingestion.ledger import StreamRecreated
from rl_pipeline.ingestion.observation import StreamObservation, observe, record
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.stream import OutgoingMessage
from rl_pipeline.stores.warehouse import Warehouse

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
STREAM = "RL_TRAJECTORIES"
RETAINED = 7


def publish(stream: JetStream, count: int) -> None:
    stream.publish_many(
        OutgoingMessage("agent.rl.trajectory.v1", b"{}", f"message-{number}") for number in range(count)
    )


def seen_at(stream: JetStream, ingested_up_to: int) -> StreamObservation:
    return observe(stream, STREAM, ingested_up_to=ingested_up_to, now=NOW)


def test_an_empty_stream_has_nothing_to_tell(stream: JetStream) -> None:
    seen = seen_at(stream, 0)
    assert (seen.last_sequence, seen.messages, seen.lag, seen.erased, seen.overrun) == (0, 0, 0, 0, 0)


@pytest.mark.parametrize(("ingested_up_to", "lag"), [(0, 10), (7, 3), (10, 0)])
def test_the_lag_is_what_waits_to_be_ingested(stream: JetStream, ingested_up_to: int, lag: int) -> None:
    publish(stream, 10)
    assert seen_at(stream, ingested_up_to).lag == lag


@pytest.mark.parametrize(("ingested_up_to", "lag"), [(0, 8), (5, 3), (6, 3), (8, 2)])
def test_what_was_erased_waits_for_nobody(stream: JetStream, ingested_up_to: int, lag: int) -> None:
    publish(stream, 10)
    for sequence in (6, 7):
        stream.erase(STREAM, sequence)
    seen = seen_at(stream, ingested_up_to)
    assert (seen.lag, seen.erased, seen.overrun) == (lag, 2, 0)


@pytest.mark.parametrize(("ingested_up_to", "lag", "overrun"), [(1, 7, 2), (3, 7, 0), (5, 5, 0)])
def test_what_retention_took_before_it_was_ingested_is_lost(
    stream: JetStream, ingested_up_to: int, lag: int, overrun: int
) -> None:
    publish(stream, 10)
    stream.request(f"STREAM.PURGE.{STREAM}", {"keep": RETAINED})
    seen = seen_at(stream, ingested_up_to)
    assert (seen.messages, seen.lag, seen.erased, seen.overrun) == (RETAINED, lag, 0, overrun)


def test_a_stream_of_which_everything_aged_out_still_tells_what_was_lost(stream: JetStream) -> None:
    publish(stream, 10)
    stream.request(f"STREAM.PURGE.{STREAM}")
    seen = seen_at(stream, 4)
    assert (seen.messages, seen.lag, seen.overrun) == (0, 0, 6)


@pytest.mark.parametrize("count", [0, 4])
def test_a_stream_that_ends_before_what_was_ingested_was_created_again(stream: JetStream, count: int) -> None:
    publish(stream, count)
    with pytest.raises(StreamRecreated, match=rf"{STREAM} was deleted .* it ends at {count}, and 5 is ingested .* set"):
        seen_at(stream, 5)


def test_two_observations_of_the_same_state_share_a_cursor_and_any_movement_changes_it(stream: JetStream) -> None:
    publish(stream, 3)
    cursor = seen_at(stream, 0).cursor
    assert observe(stream, STREAM, ingested_up_to=0, now=datetime.now(UTC)).cursor == cursor
    assert seen_at(stream, 1).cursor != cursor
    stream.erase(STREAM, 2)
    erased = seen_at(stream, 0).cursor
    assert erased != cursor
    publish(stream, 4)
    assert seen_at(stream, 0).cursor not in {cursor, erased}


def test_an_observation_recorded_twice_is_kept_once(warehouse: Warehouse, stream: JetStream) -> None:
    publish(stream, 2)
    seen = seen_at(stream, 0)
    record(warehouse, seen)
    record(warehouse, seen)
    kept = warehouse.query("SELECT * FROM stream_observations FINAL")
    assert kept.select(list(seen.row())).row(0, named=True) == seen.row()
    assert kept.height == 1
