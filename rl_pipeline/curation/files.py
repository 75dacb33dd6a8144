"""The files of a dataset: Parquet, the same bytes for the same rows, written and read in bounded memory."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from hashlib import file_digest
from pathlib import Path
from typing import Any, Final

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

CONVERSATIONS: Final = "conversations.parquet"
PAIRS: Final = "pairs.parquet"
PROMPTS: Final = "prompts.parquet"

_TEXT, _NUMBER = pa.string(), pa.float64()
SCHEMAS: Final[Mapping[str, pa.Schema]] = {
    CONVERSATIONS: pa.schema(
        {
            **dict.fromkeys(("trajectory_id", "split", "role", "task", "task_type", "domain"), _TEXT),
            "reward": _NUMBER,
            **dict.fromkeys(("messages", "environment", "environment_task"), _TEXT),
        }
    ),
    PAIRS: pa.schema(
        {
            **dict.fromkeys(("pair_id", "split", "task", "prompt", "chosen", "rejected"), _TEXT),
            **dict.fromkeys(("chosen_id", "rejected_id"), _TEXT),
            "margin": _NUMBER,
            "across_requests": pa.bool_(),
        }
    ),
    PROMPTS: pa.schema(
        {
            **dict.fromkeys(("task", "split", "messages", "environment", "environment_task"), _TEXT),
            "attempts": pa.uint32(),
            "mean_reward": _NUMBER,
            "reward_std": _NUMBER,
            "trajectory_id": _TEXT,
        }
    ),
}
"""Of each file. Messages are JSON; `trajectory_id` of a prompt is the one whose opening it shows. Pairs across requests
have no message in their prompt, and whole conversations on both sides."""

# A row group, and so what is in memory at a time.
_GROUP_ROWS = 1_000
_GROUP_CHARACTERS = 16 << 20

Row = Mapping[str, Any]


@dataclass(frozen=True)
class WrittenFile:
    """A file as the manifest lists it."""

    name: str
    rows: int
    size: int
    sha256: str

    def listed(self) -> dict[str, Any]:
        """The file's entry in the manifest."""
        return asdict(self)


def write_rows(path: Path, rows: Iterable[Row]) -> WrittenFile:
    """Write the rows of one of the files, which `path` names."""
    schema = SCHEMAS[path.name]
    count = 0
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        for group in _groups(rows):
            writer.write_table(pa.Table.from_pylist(group, schema))
            count += len(group)
    return WrittenFile(path.name, count, path.stat().st_size, sha256_of(path))


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a file, a row group in memory at a time."""
    with pq.ParquetFile(path) as file:
        for number in range(file.num_row_groups):
            yield from pl.DataFrame(pl.from_arrow(file.read_row_group(number))).iter_rows(named=True)


def sha256_of(path: Path) -> str:
    """The sha256 of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def _groups(rows: Iterable[Row]) -> Iterator[list[Row]]:
    group: list[Row] = []
    size = 0
    for row in rows:
        group.append(row)
        size += sum(len(value) for value in row.values() if isinstance(value, str))
        if len(group) >= _GROUP_ROWS or size >= _GROUP_CHARACTERS:
            yield group
            group, size = [], 0
    if group:
        yield group
