"""Rows of the table of trajectories as ingest would have written them, for tests that need days of the past."""

import json
from datetime import UTC, datetime
from random import Random
from uuid import UUID

import polars as pl

from rl_pipeline.stores.warehouse import Warehouse

# ClickHouse goes by its own clock when it lets rows expire.
NOW = datetime.now(UTC).replace(microsecond=0)


def rows(
    count: int, time: datetime, *, user: str = "", first: int = 1, revision: int = 1, bytes_each: int = 200
) -> pl.DataFrame:
    """Trajectories that the stream stored at `time`, from the sequence `first` on; equal arguments, equal rows."""
    sequences = range(first, first + count)
    return pl.DataFrame(
        {
            "trajectory_id": [str(UUID(int=Random(number).getrandbits(128))) for number in sequences],
            "sequence": sequences,
            "version": [revision * 2**40 + 2**40 - 1 - number for number in sequences],
            "document": [
                json.dumps({"number": number, "text": Random(number).randbytes(bytes_each // 2).hex()})
                for number in sequences
            ],
        }
    ).with_columns(
        stream=pl.lit("RL_TRAJECTORIES"),
        stream_time=pl.lit(time),
        revision=pl.lit(revision),
        user=pl.lit(user),
        agent_id=pl.lit("agent-zero"),
        started_at=pl.lit(time),
        ended_at=pl.lit(time),
        tools=pl.lit(["browser", "code_exe"]),
        total_cost_usd=pl.lit(0.25),
        redaction_rules=pl.lit(["email-address"]),
        redaction_counts=pl.lit([2], pl.List(pl.UInt32)),
    )


def stored(warehouse: Warehouse, *without: str) -> pl.DataFrame:
    """The table as it is read, without some columns."""
    return warehouse.query("SELECT * FROM trajectories FINAL ORDER BY sequence").drop(without)


def expire(warehouse: Warehouse, sequences: list[int]) -> None:
    """Let the time of these rows be over, and have ClickHouse look."""
    warehouse.execute(
        "ALTER TABLE trajectories UPDATE expires_at = '2020-01-01 00:00:00' WHERE sequence IN {some:Array(UInt64)}",
        {"some": sequences},
        {"mutations_sync": 2},
    )
    warehouse.execute("OPTIMIZE TABLE trajectories FINAL")
