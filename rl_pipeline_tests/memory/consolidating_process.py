"""Consolidates, and dies by kill -9 where it is told to: `python -m … URL DATABASE STORE DAY POINT`."""

import os
import signal
import sys
from datetime import UTC, date, datetime
from pathlib import Path

from rl_pipeline.memory.consolidating import consolidate
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.sqlite_memories import SqliteMemories


def main() -> None:
    url, database, store, day, point = sys.argv[1:]

    def reached(name: str) -> None:
        if name == point:
            os.kill(os.getpid(), signal.SIGKILL)

    warehouse = ClickHouseWarehouse.connect(url, database)
    memories = SqliteMemories(Path(store))
    now = datetime.now(UTC)
    consolidate(warehouse, memories, "procedural", day=date.fromisoformat(day), now=now, reached=reached)


if __name__ == "__main__":
    main()
