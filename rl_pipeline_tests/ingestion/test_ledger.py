"""What the ledger holds, and what can be asked of it."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import polars as pl
import pytest

from rl_pipeline.ingestion import ledger
from rl_pipeline.ingestion.ledger import (
    ERASED_REVISION,
    Known,
    LedgerRow,
    Verdict,
    current_revision,
    duplicates_of,
    forget_orphans,
    known_rows,
    last_message,
    ledger_watermark,
    mark_displaced,
    rows_of,
    sequences_done,
    unknown_sequences,
    write_lost,
    write_rows,
)
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline_tests.ingestion.ingesting import OTHER_POLICY, POLICY

STREAM = "RL_TRAJECTORIES"
NOW = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)


def row(sequence: int, verdict: Verdict = "accepted", revision: int = 1) -> LedgerRow:
    return LedgerRow(
        sequence=sequence,
        stream_time=NOW,
        message_id=f"message-{sequence}",
        trajectory_id=f"trajectory-{sequence}",
        publisher="agent",
        size=10,
        sha256="00",
        verdict=verdict,
        reason="",
        revision=revision,
    )


def verdicts(warehouse: Warehouse, first: int = 1, last: int = 10**9) -> dict[int, str]:
    known = known_rows(warehouse, STREAM, first, last)
    return {sequence: known[sequence].verdict for sequence in sorted(known)}


def test_a_row_is_read_back_as_it_was_written(warehouse: Warehouse) -> None:
    write_rows(warehouse, STREAM, [row(7, "refused")])
    written = warehouse.query("SELECT * FROM trajectory_ledger FINAL").row(0, named=True)
    assert (written["stream"], written["sequence"], written["stream_time"]) == (STREAM, 7, NOW)
    assert (written["message_id"], written["trajectory_id"]) == ("message-7", "trajectory-7")
    assert known_rows(warehouse, STREAM, 1, 9) == {7: Known(1, "refused", "trajectory-7", "00")}
    assert known_rows(warehouse, "OTHER", 1, 9) == {}
    assert rows_of(warehouse, STREAM, [6, 7]) == known_rows(warehouse, STREAM, 6, 7)


def test_a_newer_revision_replaces_a_row_an_older_one_does_not_and_of_equal_ones_the_later_counts(
    warehouse: Warehouse,
) -> None:
    write_rows(warehouse, STREAM, [row(1, "refused", 2), row(2, "refused", 2), row(3, "refused", 2)])
    write_rows(warehouse, STREAM, [row(1, "accepted", 1), row(2, "accepted", 3), row(3, "accepted", 2)])
    assert verdicts(warehouse) == {1: "refused", 2: "accepted", 3: "accepted"}


def test_nothing_replaces_what_was_erased(warehouse: Warehouse) -> None:
    write_rows(warehouse, STREAM, [row(1, "erased", ERASED_REVISION)])
    write_rows(warehouse, STREAM, [row(1, "accepted", 10**6)])
    assert verdicts(warehouse) == {1: "erased"}


def test_sequences_are_done_from_their_revision_on(warehouse: Warehouse) -> None:
    write_rows(warehouse, STREAM, [row(1, revision=1), row(2, revision=2), row(9, revision=2)])
    assert [sequences_done(warehouse, STREAM, 1, 5, revision) for revision in (1, 2, 3)] == [2, 1, 0]


def test_lost_sequences_are_written_where_the_ledger_knows_nothing(warehouse: Warehouse) -> None:
    write_rows(warehouse, STREAM, [row(3), row(5, "erased", ERASED_REVISION)])
    gap = range(2, 8)
    assert unknown_sequences(warehouse, STREAM, gap) == 4
    # Whatever zone the time is told in.
    write_lost(warehouse, STREAM, gap, stream_time=NOW.astimezone(timezone(timedelta(hours=5))), revision=1)
    write_lost(warehouse, STREAM, gap, stream_time=NOW + timedelta(hours=1), revision=2)
    assert verdicts(warehouse) == {2: "lost", 3: "accepted", 4: "lost", 5: "erased", 6: "lost", 7: "lost"}
    times = warehouse.query("SELECT DISTINCT stream_time FROM trajectory_ledger FINAL WHERE verdict = 'lost'")
    assert times["stream_time"].to_list() == [NOW]


def test_a_loss_of_millions_is_written_exactly(warehouse: Warehouse) -> None:
    write_lost(warehouse, STREAM, range(1, 2_000_001), stream_time=NOW, revision=1)
    assert sequences_done(warehouse, STREAM, 1, 10**9, 1) == 2_000_000
    assert ledger_watermark(warehouse, STREAM) == 2_000_000


def test_a_displaced_sequence_becomes_a_duplicate_and_keeps_the_rest_of_its_row(warehouse: Warehouse) -> None:
    write_rows(warehouse, STREAM, [row(1), row(2), row(3, "refused")])
    before = warehouse.query("SELECT * FROM trajectory_ledger FINAL WHERE sequence = 2").row(0, named=True)
    mark_displaced(warehouse, STREAM, [2, 3])
    assert verdicts(warehouse) == {1: "accepted", 2: "duplicate", 3: "refused"}
    after = warehouse.query("SELECT * FROM trajectory_ledger FINAL WHERE sequence = 2").row(0, named=True)
    changed = {name for name in before if before[name] != after[name]}
    assert changed <= {"verdict", "reason", "ingested_at"}
    assert after["reason"] == ledger.SAME_TRAJECTORY


def test_the_duplicates_of_a_trajectory_are_found_by_its_id(warehouse: Warehouse) -> None:
    again = [replace(row(number, "duplicate"), trajectory_id="trajectory-1") for number in (2, 4)]
    write_rows(warehouse, STREAM, [row(1), row(3, "duplicate"), *again])
    assert duplicates_of(warehouse, STREAM, ["trajectory-1"]).keys() == {2, 4}
    assert duplicates_of(warehouse, "OTHER", ["trajectory-1"]) == {}


def test_the_last_message_is_the_highest_that_was_seen_and_not_one_that_was_lost(warehouse: Warehouse) -> None:
    assert last_message(warehouse, STREAM) == (0, "")
    write_rows(warehouse, STREAM, [replace(row(number), sha256=f"{number:02}") for number in (1, 12, 7)])
    write_rows(warehouse, "OTHER", [row(99)])
    write_lost(warehouse, STREAM, range(13, 20), stream_time=NOW, revision=1)
    assert last_message(warehouse, STREAM) == (12, "12")


def test_the_same_rules_keep_their_revision_and_others_get_the_next(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = [POLICY, POLICY, OTHER_POLICY, OTHER_POLICY, POLICY]
    assert [current_revision(warehouse, policy) for policy in asked] == [1, 1, 2, 2, 3]
    monkeypatch.setattr(ledger, "ENRICHMENT_VERSION", ledger.ENRICHMENT_VERSION + 1)
    assert [current_revision(warehouse, POLICY), current_revision(warehouse, POLICY)] == [4, 4]


def test_a_duplicate_that_repeats_nothing_accepted_is_forgotten_with_all_its_revisions(warehouse: Warehouse) -> None:
    one, two = "trajectory-1", "trajectory-2"
    rows = [
        replace(row(1, "erased", ERASED_REVISION), trajectory_id=""),
        replace(row(2, "duplicate"), trajectory_id=one),
        row(3),
        replace(row(4, "duplicate"), trajectory_id="trajectory-3"),
        replace(row(5, "duplicate", 2), trajectory_id=two),
        replace(row(6, "refused"), trajectory_id=two),
        replace(row(7, "duplicate"), trajectory_id=one),
    ]
    write_rows(warehouse, STREAM, [replace(row(5), trajectory_id=two)])
    write_rows(warehouse, STREAM, rows)
    write_rows(warehouse, "OTHER", [replace(row(7, "duplicate"), trajectory_id=one)])
    assert forget_orphans(warehouse, STREAM, 3) == 2
    assert sorted(known_rows(warehouse, STREAM, 1, 9)) == [1, 2, 3, 4, 6]
    assert sorted(known_rows(warehouse, "OTHER", 1, 9)) == [7]
    assert forget_orphans(warehouse, STREAM, 3) == 0


@pytest.mark.parametrize(("sequences", "watermark"), [([], 0), ([1, 2, 3], 3), ([1, 2, 4, 5], 2), ([2, 3], 0)])
def test_the_watermark_is_where_the_ledger_has_its_first_hole(
    warehouse: Warehouse, sequences: list[int], watermark: int
) -> None:
    if sequences:
        ledger = pl.DataFrame({"sequence": sequences}).with_columns(
            stream=pl.lit("RL_TRAJECTORIES"), stream_time=pl.lit(NOW), verdict=pl.lit("accepted")
        )
        warehouse.insert("trajectory_ledger", ledger)
    assert ledger_watermark(warehouse, "RL_TRAJECTORIES") == watermark
