"""Every byte that a stack has on disk, with ClickHouse's compressed columns and SQLite's pages made readable."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import lz4.block
from backports import zstd

_CHECKSUM, _HEADER = 16, 9
_LZ4, _ZSTD, _NONE, _MULTIPLE, _DELTA = 0x82, 0x90, 0x02, 0x91, 0x92


def stored_bytes(directory: Path, without: tuple[str, ...] = ()) -> Iterator[tuple[Path, bytes]]:
    """Each file below the directory, as it is and, where it is compressed or a database, as what it holds."""
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory).as_posix()
        if not path.is_file() or any(part in relative for part in without):
            continue
        data = path.read_bytes()
        yield path, data
        if path.suffix == ".bin":
            yield path, b"".join(_blocks(data))
        elif data.startswith(b"SQLite format 3"):
            with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
                yield path, "\n".join(database.iterdump()).encode(errors="surrogateescape")


def _blocks(data: bytes) -> Iterator[bytes]:
    """The blocks of a column file: checksum, method, two sizes, content. Raises on anything it does not know."""
    start = 0
    while start < len(data):
        header = data[start + _CHECKSUM : start + _CHECKSUM + _HEADER]
        size = int.from_bytes(header[1:5], "little")
        yield _decompressed(data[start + _CHECKSUM : start + _CHECKSUM + size])
        start += _CHECKSUM + size


def _decompressed(block: bytes) -> bytes:
    method, full = block[0], int.from_bytes(block[5:9], "little")
    content = block[_HEADER:]
    if method == _NONE:
        return content
    if method == _LZ4:
        return lz4.block.decompress(content, uncompressed_size=full)
    if method == _ZSTD:
        return zstd.decompress(content)
    if method == _MULTIPLE:  # how many codecs, which, and a block of the outermost
        return _decompressed(content[1 + content[0] :])
    if method == _DELTA:  # numbers
        return content
    raise AssertionError(f"a block of the unknown method {method:#x}")
