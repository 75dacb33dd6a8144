"""Counters go on when rows are written again, expire, are erased, come late, and whoever counts them."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rl_pipeline.observability.metric_counts import MOST_AGENT_TYPES, PART_SEQUENCES, MetricCounts, Totals
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline_tests.deployment.validated import a_report, store_validated
from rl_pipeline_tests.training.job_tables import emptied, migrated_database, store_rewards

STREAM = "RL_TRAJECTORIES"


@pytest.fixture(scope="module")
def database(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as made:
        yield made


@pytest.fixture
def warehouse(database: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(database)


def store(
    warehouse: ClickHouseWarehouse, sequences: range, *, verdict: str = "accepted", revision: int = 1, **about: Any
) -> None:
    """What ingest writes of some sequences: the content of those that are accepted, and then the ledger."""
    now = datetime.now(UTC)
    rows = pl.DataFrame({"sequence": list(sequences)}).with_columns(
        trajectory_id=pl.format("trajectory-{}", "sequence"),
        stream=pl.lit(STREAM),
        stream_time=pl.lit(now),
        revision=pl.lit(revision),
    )
    if verdict == "accepted":
        content = {"framework": "agent-zero", "domain": "coding", "task_status": "success", "turns": 4} | about
        version = revision * 2**40 + 2**40 - 1 - pl.col("sequence")
        warehouse.insert(
            "trajectories",
            rows.with_columns(version=version, **{name: pl.lit(value) for name, value in content.items()}),
        )
    warehouse.insert("trajectory_ledger", rows.with_columns(verdict=pl.lit(verdict), size=pl.lit(100)))


def collected(totals: Totals) -> float:
    return sum(totals["trajectories"].values())


def test_what_was_stored_is_counted_by_kind_of_agent_and_domain(warehouse: ClickHouseWarehouse) -> None:
    store(warehouse, range(1, 6))
    store(warehouse, range(6, 9), subordinate_profile="researcher", domain="research", turns=60, task_status="")
    store(warehouse, range(9, 11), verdict="refused")
    totals = MetricCounts(warehouse).totals()
    assert totals["trajectories"] == {("agent-zero", "coding"): 5, ("researcher", "research"): 3}
    assert totals["task_outcomes"] == {("coding", "success"): 5, ("research", "unknown"): 3}
    assert totals["messages"] == {("accepted",): 8, ("refused",): 2}
    assert totals["message_bytes"] == {("",): 1000}
    assert totals["lengths"] == {("3",): 5, ("0",): 3, ("sum",): 5 * 4 + 3 * 60}


def test_rows_that_are_written_again_count_once(warehouse: ClickHouseWarehouse) -> None:
    counts = MetricCounts(warehouse)
    store(warehouse, range(1, 6))
    before = counts.totals()
    store(warehouse, range(1, 6))
    store(warehouse, range(1, 6), revision=2)
    assert counts.totals() == before == MetricCounts(warehouse).totals()


@pytest.mark.parametrize("table", ["trajectories", "trajectory_ledger"])
def test_a_counter_never_falls_when_rows_go(warehouse: ClickHouseWarehouse, table: str) -> None:
    counts = MetricCounts(warehouse)
    store(warehouse, range(1, 6))
    before = counts.totals()
    warehouse.execute(f"ALTER TABLE {table} DELETE WHERE sequence <= 3", settings={"mutations_sync": 2})
    store(warehouse, range(6, 7))
    for after in (counts.totals(), MetricCounts(warehouse).totals()):
        grown = [after[family][labels] - before[family][labels] for family in before for labels in before[family]]
        assert all(each >= 0 for each in grown)
    # Rows that go hide as many that come into their part; those of the next part all count.
    store(warehouse, range(PART_SEQUENCES, PART_SEQUENCES + 4))
    assert collected(counts.totals()) >= collected(before) + 4


def test_what_is_accepted_late_is_counted(warehouse: ClickHouseWarehouse) -> None:
    counts = MetricCounts(warehouse)
    store(warehouse, range(1, 3), verdict="refused")
    store(warehouse, range(PART_SEQUENCES, PART_SEQUENCES + 5))
    assert collected(counts.totals()) == 5
    store(warehouse, range(1, 3))
    assert collected(counts.totals()) == 7


def test_many_who_count_at_once_count_nothing_twice(warehouse: ClickHouseWarehouse) -> None:
    store(warehouse, range(1, 200))
    counters = [MetricCounts(warehouse) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda each: each.totals(), counters))
    assert [collected(each.totals()) for each in counters] == [199] * 4


def test_who_counts_next_looks_only_at_what_has_changed(warehouse: ClickHouseWarehouse) -> None:
    counts = MetricCounts(warehouse)
    store(warehouse, range(1, 6))
    counts.totals()
    written = warehouse.query("SELECT count() AS count FROM metric_counts")["count"][0]
    counts.totals()
    MetricCounts(warehouse).totals()
    assert warehouse.query("SELECT count() AS count FROM metric_counts")["count"][0] == written


def test_labels_stay_few_whatever_publishers_call_themselves(warehouse: ClickHouseWarehouse) -> None:
    counts = MetricCounts(warehouse)
    for number in range(MOST_AGENT_TYPES + 6):
        store(warehouse, range(number + 1, number + 2), framework=f"framework-{number:02}")
        if number == 3:
            counts.totals()
    store(warehouse, range(100, 101), framework="a sentence that somebody wrote")
    store(warehouse, range(101, 102), framework="")
    found = counts.totals()["trajectories"]
    names = {agent_type for agent_type, _ in found}
    assert len(names) <= MOST_AGENT_TYPES + 2
    assert {"framework-00", "framework-03", "other", "unknown"} <= names
    assert "a sentence that somebody wrote" not in names
    assert sum(found.values()) == MOST_AGENT_TYPES + 8
    assert counts.totals()["trajectories"] == found


def test_a_reward_counts_as_it_was_first_scored(warehouse: ClickHouseWarehouse) -> None:
    counts = MetricCounts(warehouse)
    now = datetime.now(UTC)
    store_rewards(warehouse, 4, at=now)
    warehouse.execute("INSERT INTO rewards SELECT * REPLACE (0.9 AS total, 1 AS revision) FROM rewards")
    store_rewards(warehouse, 4, at=now + timedelta(seconds=1), configuration="another")
    first = counts.totals()["rewards"]
    assert first == {("1",): 4}, "the totals of these rows are 0"
    assert MetricCounts(warehouse).totals()["rewards"] == first


def test_each_validation_of_a_job_counts_though_the_last_replaces_the_others(
    warehouse: ClickHouseWarehouse, tmp_path: Path
) -> None:
    counts = MetricCounts(warehouse)
    scores = {"code_generation": (0.8, 0.7)}
    store_validated(warehouse, DiskObjects(tmp_path), "job-1", a_report(scores))
    assert counts.totals()["validations"] == {("deploy",): 1}
    store_validated(warehouse, DiskObjects(tmp_path), "job-1", a_report(scores, outcome="FAIL"))
    warehouse.execute("OPTIMIZE TABLE validation_reports FINAL")
    assert counts.totals()["validations"] == {("deploy",): 1, ("refuse",): 1}


@pytest.mark.soak
def test_a_scrape_reads_little_of_many_rows(
    warehouse: ClickHouseWarehouse, soak_count: Any, record_property: Any
) -> None:
    rows = soak_count(3 * PART_SEQUENCES, 1_000_000)
    for first in range(1, rows, 100_000):
        store(warehouse, range(first, min(first + 100_000, rows + 1)))
    counts = MetricCounts(warehouse)
    assert collected(counts.totals()) == rows
    # All but the last part were ingested long ago.
    warehouse.execute(
        "ALTER TABLE trajectory_ledger UPDATE ingested_at = now64(3) - INTERVAL 1 DAY WHERE sequence < {last:UInt64}",
        {"last": rows - PART_SEQUENCES},
        {"mutations_sync": 2},
    )
    began = datetime.now(UTC)
    store(warehouse, range(rows + 1, rows + 2))
    assert collected(counts.totals()) == rows + 1
    record_property("rows", rows)
    record_property("seconds of one scrape", round((datetime.now(UTC) - began).total_seconds(), 2))
