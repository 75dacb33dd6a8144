"""How much of chdb's own speed is left behind the HTTP front?

Inserts the same rows (an id, numbers, a time and a text of 3 KB) and reads them back, Polars frame to Polars frame:
bare chdb in this process by its fastest way of those it has (FROM INFILE or Python() in, Arrow without compression
out), our adapter on chdb in this process, and our adapter over the front in its own process. The rounds take turns on
fresh tables, and the quickest of each counts. `insert_of_embedded` and `read_of_embedded` are front ÷ bare chdb.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).parent.parent))  # for its neighbours, when started as a script

from benchmarks.servers import running_front
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse

TABLE = """CREATE TABLE rows (id String, sequence UInt64, turns UInt16, reward Float64, text String,
    stream_time DateTime64(3, 'UTC')) ENGINE = MergeTree ORDER BY id"""
READ = "SELECT * FROM rows"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller inputs, under 60 s")
    quick = parser.parse_args().quick
    rows = realistic_rows(20_000 if quick else 100_000)
    megabytes = rows.estimated_size("mb")
    with tempfile.TemporaryDirectory() as scratch, running_front(Path(scratch, "front")) as url:
        import chdb

        here = Path(scratch, "here")
        bare = chdb.connect(str(here))
        with (
            closing(ClickHouseWarehouse.in_process(here, "adapter")) as inside,
            closing(ClickHouseWarehouse.connect(url, "adapter")) as behind,
        ):
            inside.create_database()
            behind.create_database()
            ways = {
                "bare chdb, FROM INFILE": Bare(bare, Path(scratch, "file.arrow"), by_file=True),
                "bare chdb, Python()": Bare(bare, Path(scratch, "file.arrow"), by_file=False),
                "adapter, in process": Adapter(inside),
                "adapter, over HTTP": Adapter(behind),
            }
            inserts, reads = measure(ways, rows, rounds=5)
            latency = median_milliseconds(lambda: behind.query("SELECT 1 AS one"))
        bare.close()
    report(inserts, reads, latency, megabytes)


class Bare:
    """chdb as its documentation uses it."""

    def __init__(self, connection: object, file: Path, *, by_file: bool) -> None:
        self.connection, self.file, self.by_file = connection, file, by_file

    def execute(self, sql: str) -> None:
        self.connection.query(sql)

    def insert(self, rows: pl.DataFrame) -> None:
        table = rows.to_arrow(compat_level=pl.CompatLevel.oldest())  # Python() finds it by its name
        if not self.by_file:
            self.connection.query("INSERT INTO rows SELECT * FROM Python(table)")
            return
        with pa.OSFile(str(self.file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        self.connection.query(f"INSERT INTO rows FROM INFILE '{self.file}' FORMAT ArrowStream")

    def read(self) -> pl.DataFrame:
        settings = "SETTINGS output_format_arrow_compression_method = 'none'"
        # Kept, because the frame lies in the result's own memory.
        self.result = self.connection.query(f"{READ} {settings}", "ArrowStream")
        return pl.from_arrow(pa.ipc.open_stream(self.result.get_memview().view()).read_all())


class Adapter:
    """The product's own way."""

    def __init__(self, warehouse: ClickHouseWarehouse) -> None:
        self.warehouse = warehouse

    def execute(self, sql: str) -> None:
        self.warehouse.execute(sql)

    def insert(self, rows: pl.DataFrame) -> None:
        self.warehouse.insert("rows", rows)

    def read(self) -> pl.DataFrame:
        return self.warehouse.query(READ)


def measure(
    ways: dict[str, Bare | Adapter], rows: pl.DataFrame, rounds: int
) -> tuple[dict[str, float], dict[str, float]]:
    """The quickest insert and read of each way, in seconds."""
    inserts = dict.fromkeys(ways, float("inf"))
    reads = dict.fromkeys(ways, float("inf"))
    for _ in range(rounds):
        for name, way in ways.items():
            way.execute("DROP TABLE IF EXISTS rows SYNC")
            way.execute(TABLE)
            inserts[name] = min(inserts[name], seconds(lambda way=way: way.insert(rows)))
        for name, way in ways.items():
            for _ in range(4):
                reads[name] = min(reads[name], seconds(lambda way=way: way.read()))
            if way.read().height != rows.height:
                raise SystemExit(f"{name} lost rows: the figures would mean nothing")
    return inserts, reads


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def median_milliseconds(work: Callable[[], object]) -> float:
    return float(np.median([seconds(work) for _ in range(200)])) * 1000


def realistic_rows(count: int) -> pl.DataFrame:
    """Texts of words that repeat as those of agents do: lz4 shortens them by a fifth."""
    chance = np.random.default_rng(7)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(["".join(chance.choice(letters, size)) for size in chance.integers(2, 11, 5000)])
    sentences = [" ".join(words[chance.integers(0, len(words), 40)]) for _ in range(4000)]
    texts = [" ".join(sentences[number] for number in numbers) for numbers in chance.integers(0, 4000, (count, 11))]
    start = datetime(2026, 1, 1, tzinfo=UTC)
    return pl.DataFrame(
        {
            "id": [f"trajectory-{number:08d}" for number in range(count)],
            "sequence": pl.Series(range(count), dtype=pl.UInt64),
            "turns": chance.integers(1, 30, count).astype(np.uint16),
            "reward": chance.random(count),
            "text": texts,
            "stream_time": pl.Series([start + timedelta(seconds=number) for number in range(count)]).dt.cast_time_unit(
                "ms"
            ),
        }
    )


def report(inserts: dict[str, float], reads: dict[str, float], latency: float, megabytes: float) -> None:
    print(f"{megabytes:.0f} MB of rows with 3 KB texts\n\n{'':28}{'insert MB/s':>14}{'read MB/s':>14}")
    for name, insert in inserts.items():
        print(f"{name:28}{megabytes / insert:14.0f}{megabytes / reads[name]:14.0f}")
    print(f"\na SELECT of one row over HTTP: {latency:.1f} ms\n")
    bare = [name for name in inserts if name.startswith("bare")]
    figures = {
        "insert_of_embedded": min(inserts[name] for name in bare) / inserts["adapter, over HTTP"],
        "read_of_embedded": min(reads[name] for name in bare) / reads["adapter, over HTTP"],
        "insert_mb_per_s": megabytes / inserts["adapter, over HTTP"],
        "read_mb_per_s": megabytes / reads["adapter, over HTTP"],
        "small_query_ms": latency,
    }
    print(json.dumps({name: round(value, 3) for name, value in figures.items()}))


if __name__ == "__main__":
    main()
