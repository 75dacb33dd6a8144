"""An ingest in a process of its own, for tests that kill it.

Prints READY when it is about to drain (a kill during imports would prove nothing), `AT <point>` before it waits to be
killed at a named point, and DONE at the end. `--ledger-first` is the control: it writes the ledger before the content.
"""

import argparse
import sys
import time
from contextlib import closing
from typing import Any

import polars as pl

from rl_pipeline.ingestion import draining, workers
from rl_pipeline.ingestion.draining import drain
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.object_addresses import ObjectsAddress
from rl_pipeline_tests.ingestion.ingesting import POLICY, STREAM

BETWEEN_LEDGER_AND_CONTENT = "between_ledger_and_content"


class LedgerFirst:
    """A warehouse that keeps trajectories back until the ledger has their sequences."""

    def __init__(self, warehouse: ClickHouseWarehouse, wait_at: str | None) -> None:
        self._warehouse = warehouse
        self._wait_at = wait_at
        self._kept_back: list[pl.DataFrame] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._warehouse, name)

    def insert(self, table: str, rows: pl.DataFrame) -> int:
        if table == "trajectories":
            self._kept_back.append(rows)
            return rows.height
        count = self._warehouse.insert(table, rows)
        wait_to_be_killed(BETWEEN_LEDGER_AND_CONTENT, self._wait_at)
        while self._kept_back:
            self._warehouse.insert("trajectories", self._kept_back.pop())
        return count


def wait_to_be_killed(point: str, wanted: str | None) -> None:
    if point == wanted:
        tell(f"AT {point}")
        time.sleep(600)


def tell(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--nats", required=True)
    parser.add_argument("--clickhouse", required=True)
    parser.add_argument("--database", required=True)
    parser.add_argument("--raw", required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--wait-at")
    parser.add_argument("--ledger-first", action="store_true")
    given = parser.parse_args()
    draining._BATCH_MESSAGES = given.batch
    draining._FEW_MESSAGES = 1
    workers._redactor_of(POLICY)
    with (
        JetStream.connect(given.nats) as stream,
        closing(ClickHouseWarehouse.connect(given.clickhouse, given.database)) as warehouse,
    ):
        tables: Any = LedgerFirst(warehouse, given.wait_at) if given.ledger_first else warehouse
        last = stream.state(STREAM).last_sequence
        tell("READY")
        drain(
            stream,
            tables,
            stream=STREAM,
            first=1,
            last=last,
            policy=POLICY,
            open_raw_objects=ObjectsAddress(given.raw).open,
            workers=given.workers,
            reached=lambda point: wait_to_be_killed(point, given.wait_at),
        )
        tell("DONE")


if __name__ == "__main__":
    main()
