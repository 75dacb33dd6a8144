"""The archive's Parquet files: how frames become one and are read from it, a row group at a time.

Any reader of Parquet can read them; nothing in them is ours alone.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.objects import Objects

if TYPE_CHECKING:
    import polars as pl

# A row group, and so what is in memory at a time; also what one insert brings back.
_GROUP_BYTES = 32 << 20


class ArchiveUnreadable(PipelineError):
    """An object of the archive is no Parquet file, or a broken one."""

    def __init__(self, url: str) -> None:
        super().__init__(
            f"{url} is no whole Parquet file: put a copy of it back, or delete it and run `rl-pipeline archive write`"
        )


@contextmanager
def temporary_file() -> Iterator[Path]:
    """A path for a file that is gone at the end."""
    with TemporaryDirectory(prefix="rl-archive-") as directory:
        yield Path(directory) / "day.parquet"


@contextmanager
def downloaded(objects: Objects, key: str) -> Iterator[Path]:
    """The object as a local file. Raises `ObjectMissing`, `CorruptObject`."""
    with temporary_file() as path:
        objects.download(key, path)
        yield path


def write_frames(frames: "Iterable[pl.DataFrame]", path: Path) -> int:
    """Write the frames as one file and return how many rows it has; nothing where there is no frame."""
    import polars as pl
    import pyarrow.parquet as pq

    rows = 0
    writer = None
    try:
        for group in _groups(frames):
            table = group.to_arrow(compat_level=pl.CompatLevel.oldest())
            writer = writer or pq.ParquetWriter(path, table.schema, compression="zstd")
            writer.write_table(table)
            rows += group.height
    finally:
        if writer is not None:
            writer.close()
    return rows


def read_frames(path: Path, url: str, columns: Sequence[str] | None = None) -> "Iterator[pl.DataFrame]":
    """The file's row groups, all columns or some. Raises `ArchiveUnreadable`, which names the object by its `url`."""
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError):
        raise ArchiveUnreadable(url) from None
    with file:
        for number in range(file.num_row_groups):
            try:
                table = file.read_row_group(number, columns=columns)
            except (pa.ArrowException, OSError):
                raise ArchiveUnreadable(url) from None
            yield pl.DataFrame(pl.from_arrow(table))


def _groups(frames: "Iterable[pl.DataFrame]") -> "Iterator[pl.DataFrame]":
    import polars as pl

    waiting: list[pl.DataFrame] = []
    size = 0
    for frame in frames:
        waiting.append(frame)
        size += int(frame.estimated_size())
        if size >= _GROUP_BYTES:
            yield pl.concat(waiting)
            waiting, size = [], 0
    if waiting:
        yield pl.concat(waiting)
