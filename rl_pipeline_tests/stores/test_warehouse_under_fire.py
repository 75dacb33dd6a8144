"""Many processes at once, and the engine killed while they write."""

import multiprocessing
import random
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import polars as pl
import pytest

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.warehouse import WarehouseUnavailable
from rl_pipeline_tests.fixtures.clickhouse import ClickHouseFront, running_front

PROCESSES = 8
ROWS = 10_000
BATCH_ROWS = 2_000


def write_and_read_back(url: str, database: str, writer: int, start: "multiprocessing.synchronize.Barrier") -> None:
    """What each process does; an error ends it with a non-zero exit code."""
    with closing(ClickHouseWarehouse.connect(url, database)) as client:
        start.wait()
        for first in range(0, ROWS, ROWS // 10):
            numbers = range(first, first + ROWS // 10)
            client.insert("written", pl.DataFrame({"number": numbers}).with_columns(writer=writer))
        mine = client.query("SELECT number FROM written WHERE writer = {writer:UInt8}", {"writer": writer})
        assert sorted(mine["number"]) == list(range(ROWS))


def test_eight_processes_insert_at_once_and_every_row_is_there_once(
    warehouse: ClickHouseWarehouse, clickhouse_url: str
) -> None:
    warehouse.execute("CREATE TABLE written (writer UInt8, number UInt32) ENGINE = MergeTree ORDER BY (writer, number)")
    spawn = multiprocessing.get_context("spawn")
    start = spawn.Barrier(PROCESSES)
    processes = [
        spawn.Process(target=write_and_read_back, args=(clickhouse_url, warehouse.database, writer, start))
        for writer in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * PROCESSES
    counts = warehouse.query("SELECT count() AS rows, uniqExact(writer, number) AS different FROM written")
    assert counts.rows() == [(PROCESSES * ROWS, PROCESSES * ROWS)]


@pytest.mark.soak
def test_killing_the_engine_while_it_inserts_loses_no_acknowledged_row(
    tmp_path: Path, soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    kills = soak_count(3, 20)
    chance = random.Random(20260102)
    begun: list[int] = []
    acknowledged: list[int] = []
    batches: set[int] = set()
    rounds = 0
    # A kill may come between an insert's storing and its answer: a few more kills, until the control can show.
    while rounds < kills or (set(begun) <= batches and rounds < 10 * kills):
        rounds += 1
        with running_front(tmp_path) as front:
            write_until_killed(front, chance.uniform(0.05, 0.4), begun, acknowledged)
        with running_front(tmp_path) as front, closing(ClickHouseWarehouse.connect(front.url, "fire")) as client:
            stored = client.query("SELECT batch, count() AS rows, uniqExact(number) AS different FROM t GROUP BY batch")
        batches = set(stored["batch"])
    record_property("kills", rounds)
    record_property("acknowledged inserts", len(acknowledged))
    assert len(acknowledged) > rounds
    assert set(acknowledged) <= batches
    # A batch that nobody acknowledged may be there or not, but never in part, and none is there twice.
    assert set(stored["rows"]) == set(stored["different"]) == {BATCH_ROWS}
    # The control: had inserts been counted when they were begun, the kills would have lost rows.
    assert not set(begun) <= batches


def write_until_killed(front: ClickHouseFront, seconds: float, begun: list[int], acknowledged: list[int]) -> None:
    """Insert batch after batch until kill -9 interrupts one of them."""
    with closing(ClickHouseWarehouse.connect(front.url, "fire")) as client:
        client.create_database()
        client.execute(
            "CREATE TABLE IF NOT EXISTS t (batch UInt32, number UInt32, text String) ENGINE = MergeTree ORDER BY batch"
        )
        rows = pl.DataFrame({"number": range(BATCH_ROWS)}).with_columns(text=pl.lit("x" * 1000))
        killer = threading.Timer(seconds, front.process.kill)
        killer.start()
        try:
            while True:
                begun.append(len(begun))
                client.insert("t", rows.with_columns(batch=begun[-1]))
                acknowledged.append(begun[-1])
        except WarehouseUnavailable:
            pass  # the kill, in the middle of an insert
        finally:
            killer.join()
