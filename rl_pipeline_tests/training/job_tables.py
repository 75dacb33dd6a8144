"""What tests of jobs store and wait for. One migrated database serves a module: to empty tables takes milliseconds, to
make them takes seconds.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from uuid import uuid4

import polars as pl

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.migrate import migrate
from rl_pipeline_tests.fixtures.clickhouse import own_database
from rl_pipeline_tests.waiting import wait_until


@contextmanager
def migrated_database(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    """A database with all tables, dropped at the end."""
    with own_database(ClickHouseWarehouse.connect(clickhouse_url, f"test_{uuid4().hex}")) as client:
        migrate(client)
        yield client


def emptied(warehouse: ClickHouseWarehouse) -> ClickHouseWarehouse:
    """The database with its tables, but without a row."""
    filled = warehouse.query(
        "SELECT name FROM system.tables WHERE database = {database:String} AND total_rows > 0",
        {"database": warehouse.database},
    )["name"]
    for table in filled:
        if not table.startswith("schema"):
            warehouse.execute(f"TRUNCATE TABLE {table}")
    return warehouse


STREAM = "RL_TRAJECTORIES"
CONFIGURATION = "configuration-1"


def store_trajectories(warehouse: ClickHouseWarehouse, count: int, *, scored: int, at: datetime) -> None:
    """Trajectories from sequence 1 on in the ledger and in their table, of which the first few have a reward."""
    sequences = pl.DataFrame({"sequence": range(1, count + 1)}).with_columns(
        trajectory_id=pl.format("trajectory-{}", "sequence"),
        stream=pl.lit(STREAM),
        stream_time=pl.lit(at),
        revision=pl.lit(1),
    )
    warehouse.insert("trajectory_ledger", sequences.with_columns(verdict=pl.lit("accepted")))
    # Held, or they would have expired by the machine's clock.
    warehouse.insert("trajectories", sequences.with_columns(version=2**40 - pl.col("sequence"), held=pl.lit(True)))
    store_rewards(warehouse, scored, at=at)


def store_rewards(
    warehouse: ClickHouseWarehouse,
    count: int,
    *,
    at: datetime,
    first: int = 1,
    every: timedelta = timedelta(),
    totals: Sequence[float] = (0.7,),
    model: str = "model-1",
    revision: int = 0,
    configuration: str = CONFIGURATION,
    session: str = "",
    seconds: float | None = None,
) -> None:
    """Rewards from a sequence on, one at a time; the totals are repeated until there are enough. With `seconds` their
    trajectories are measured too: they took so long."""
    rows = pl.DataFrame(
        {
            "sequence": range(first, first + count),
            "trajectory_id": [f"trajectory-{number}" for number in range(first, first + count)],
            "stream_time": [at + every * number for number in range(count)],
            "raw_total": [float(totals[number % len(totals)]) for number in range(count)],
        },
        schema_overrides={"stream_time": pl.Datetime("ms", "UTC")},
    ).with_columns(
        stream=pl.lit(STREAM),
        configuration=pl.lit(configuration),
        revision=pl.lit(revision),
        model_version=pl.lit(model),
        session_id=pl.lit(session),
        scored_at=pl.lit(at),
    )
    if seconds is not None:
        measured = rows.select("stream", "sequence", "trajectory_id", "stream_time", "session_id", "model_version")
        more = {"ingest_revision": 1, "is_late": False, "seconds": seconds, "measured_at": at}
        warehouse.insert(
            "trajectory_signals", measured.with_columns(**{name: pl.lit(each) for name, each in more.items()})
        )
    warehouse.insert("rewards", rows)


def wait_for_pending(stream: JetStream, consumer: str, count: int) -> None:
    """Until a consumer of the training stream knows of so many messages: it hears of them a moment after the stream."""
    wait_until(lambda: stream.request(f"CONSUMER.INFO.RL_TRAINING.{consumer}")["num_pending"] >= count)
