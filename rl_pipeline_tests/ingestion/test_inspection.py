"""What is asked of an ingest afterwards: it must tell of every hole."""

from datetime import timedelta

import polars as pl

from rl_pipeline.ingestion.inspection import missing_contents, unaccounted_sequences
from rl_pipeline.ingestion.planning import Range
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline_tests.ingestion.ingesting import OTHER_POLICY, STREAM, Ingesting, document, documents
from rl_pipeline_tests.ingestion.stored_rows import NOW, rows


def between(first: int, last: int) -> Range:
    return Range(first, last, NOW.date())


def test_a_sequence_without_its_row_in_the_ledger_is_unaccounted(ingesting: Ingesting) -> None:
    ingesting.publish(*documents(5), b"{}")
    ingesting.drain(1, 2)
    ingesting.drain(5, 6)
    ingesting.drain(5, 6, policy=OTHER_POLICY)
    counts = {
        (first, last): unaccounted_sequences(ingesting.warehouse, STREAM, between(first, last))
        for first, last in ((1, 6), (3, 4), (2, 3), (5, 6), (6, 8))
    }
    assert counts == {(1, 6): 2, (3, 4): 2, (2, 3): 1, (5, 6): 0, (6, 8): 2}
    ingesting.drain()
    assert unaccounted_sequences(ingesting.warehouse, STREAM, between(1, 6)) == 0
    assert unaccounted_sequences(ingesting.warehouse, "OTHER", between(1, 6)) == 6


def test_an_accepted_sequence_without_its_trajectory_is_missing(ingesting: Ingesting) -> None:
    ingesting.publish(*documents(4), document(), b"{}")
    ingesting.drain()
    assert missing_contents(ingesting.warehouse, STREAM, between(1, 6)) == 0
    ingesting.warehouse.execute("ALTER TABLE trajectories DELETE WHERE sequence IN (2, 3)", {}, {"mutations_sync": 2})
    counts = [
        missing_contents(ingesting.warehouse, STREAM, between(first, last)) for first, last in ((1, 6), (3, 6), (4, 6))
    ]
    assert counts == [2, 1, 0]


def test_a_trajectory_that_may_have_expired_is_not_missing(warehouse: Warehouse) -> None:
    for first, age in ((1, timedelta(days=30, minutes=1)), (2, timedelta(days=29, hours=23))):
        ledger = rows(1, NOW - age, first=first).select(
            "stream", "sequence", "stream_time", "trajectory_id", "revision"
        )
        warehouse.insert("trajectory_ledger", ledger.with_columns(verdict=pl.lit("accepted")))
    assert missing_contents(warehouse, STREAM, between(1, 1)) == 0
    assert missing_contents(warehouse, STREAM, between(1, 2)) == 1


def test_a_trajectory_that_another_sequence_has_taken_is_missing(warehouse: Warehouse, ingesting: Ingesting) -> None:
    ingesting.publish(document())
    ingesting.drain()
    identity = ingesting.ledger(1)["trajectory_id"]
    newer = rows(1, NOW, first=9, revision=2).with_columns(trajectory_id=pl.lit(identity))
    warehouse.insert("trajectories", newer)
    assert missing_contents(warehouse, STREAM, between(1, 1)) == 1
