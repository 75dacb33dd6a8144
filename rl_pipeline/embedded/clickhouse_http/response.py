"""Answers as ClickHouse gives them: statuses, headers, compression, and pieces that join into one result."""

import json
import secrets
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

import lz4.frame
from backports import zstd

from rl_pipeline.embedded.clickhouse_http.engine import Outcome, Result
from rl_pipeline.embedded.clickhouse_http.errors import EngineError

# exceptionCodeToHTTPStatus.cpp of ClickHouse; every code that is not here is a 500.
_STATUS_OF_CODE = {
    194: 401,
    **dict.fromkeys((192, 193, 497, 512, 516), 403),
    **dict.fromkeys((6, 8, 15, 25, 26, 27, 36, 37, 38, 41, 44, 53, 62, 72, 117, 123, 167, 168, 223, 321, 376), 400),
    **dict.fromkeys((427, 441, 675, 676), 400),
    **dict.fromkeys((46, 47, 50, 56, 60, 63, 73, 78, 81, 115, 152, 336, 511), 404),
    229: 413,
    48: 501,
    **dict.fromkeys((76, 209, 439), 503),
    381: 411,
    159: 408,
}
_CONTENT_TYPES = {
    "CSV": "text/csv; charset=UTF-8; header=absent",
    "CSVWithNames": "text/csv; charset=UTF-8; header=present",
    "CSVWithNamesAndTypes": "text/csv; charset=UTF-8; header=present",
    "JSON": "application/json; charset=UTF-8",
    "JSONCompact": "application/json; charset=UTF-8",
    "JSONEachRow": "application/x-ndjson; charset=UTF-8",
    "JSONCompactEachRow": "application/x-ndjson; charset=UTF-8",
    "TabSeparated": "text/tab-separated-values; charset=UTF-8",
    "TSV": "text/tab-separated-values; charset=UTF-8",
    "TabSeparatedWithNames": "text/tab-separated-values; charset=UTF-8",
    "TSVWithNames": "text/tab-separated-values; charset=UTF-8",
}
_BINARY = ("Native", "Arrow", "ArrowStream", "Parquet", "ORC", "Avro", "RowBinary")

# Formats without a frame around the whole: their blocks, put one after the other, are the result.
_CONCATENATING = {
    "CSV",
    "JSONCompactEachRow",
    "JSONEachRow",
    "Native",
    "RowBinary",
    "TabSeparated",
    "TabSeparatedRaw",
    "TSV",
}
_ARROW_END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"


class _Compressor(Protocol):
    def compress(self, data: memoryview | bytes, /) -> bytes: ...
    def flush(self) -> bytes: ...


class _Lz4(lz4.frame.LZ4FrameCompressor):  # type: ignore[misc]  # lz4 ships no types
    """An LZ4 frame compressor that begins its frame by itself."""

    def compress(self, data: memoryview | bytes, /) -> bytes:
        begin: bytes = b"" if self.started() else self.begin()
        return begin + bytes(super().compress(data))

    def flush(self) -> bytes:
        begin: bytes = b"" if self.started() else self.begin()
        return begin + bytes(super().flush())


# In the order in which ClickHouse prefers them.
_COMPRESSORS: dict[str, Callable[[], _Compressor]] = {
    "lz4": _Lz4,
    "zstd": lambda: zstd.ZstdCompressor(level=1),
    "gzip": lambda: zlib.compressobj(3, wbits=31),
    "deflate": lambda: zlib.compressobj(3),
}


def status_of(error: EngineError) -> int:
    return _STATUS_OF_CODE.get(error.code, 500)


def content_type(output_format: str) -> str:
    binary = output_format.startswith(_BINARY)
    return _CONTENT_TYPES.get(output_format, "application/octet-stream" if binary else "text/plain; charset=UTF-8")


def summary(outcome: Outcome) -> str:
    """The X-ClickHouse-Summary header."""
    figures = {
        "read_rows": outcome.read_rows,
        "read_bytes": outcome.read_bytes,
        "written_rows": outcome.written_rows,
        "written_bytes": outcome.written_bytes,
        "total_rows_to_read": outcome.read_rows,
        "result_rows": outcome.result_rows or outcome.written_rows,
        "result_bytes": len(outcome.result.view) or outcome.written_bytes,
        "elapsed_ns": int(outcome.elapsed * 1e9),
    }
    return json.dumps({name: str(value) for name, value in figures.items()}, separators=(",", ":"))


def choose_encoding(accepted: str, settings: dict[str, str]) -> str | None:
    """The compression to answer with: only what the client accepts, and only when it asks ClickHouse for it."""
    if settings.get("enable_http_compression", "0") in {"0", "false"}:
        return None
    offered = {name.partition(";")[0].strip().lower() for name in accepted.split(",")}
    return next((name for name in _COMPRESSORS if name in offered), None)


def compressed(pieces: Iterable[memoryview | bytes], encoding: str | None) -> Iterator[memoryview | bytes]:
    if encoding is None:
        yield from pieces
        return
    compressor = _COMPRESSORS[encoding]()
    for piece in pieces:
        if out := compressor.compress(piece):
            yield out
    yield compressor.flush()


def can_be_streamed(output_format: str) -> bool:
    return output_format == "ArrowStream" or output_format in _CONCATENATING


def joined(blocks: Iterable[Result], output_format: str) -> Iterator[memoryview | bytes]:
    """Make one result of the self-contained blocks of a stream. A piece is valid until the next is asked for."""
    if output_format != "ArrowStream":
        for block in blocks:
            yield block.view
        return
    for number, block in enumerate(blocks):
        # Each piece is a whole Arrow stream: keep the schema message of the first and the end marker of the last.
        schema_size = 8 + int.from_bytes(block.view[4:8], "little")
        yield block.view[0 if number == 0 else schema_size : -len(_ARROW_END_OF_STREAM)]
    yield _ARROW_END_OF_STREAM


class ExceptionBlock:
    """How ClickHouse reports a failure after the first byte of a result: a block at its end, marked by a secret tag."""

    def __init__(self) -> None:
        self.tag = secrets.token_hex(8)
        self.happened = False

    def at_the_end_of(self, pieces: Iterator[memoryview | bytes], version: str) -> Iterator[memoryview | bytes]:
        """The pieces; if the engine fails while making them, its error as the last one."""
        try:
            yield from pieces
        except EngineError as error:
            self.happened = True
            text = error_text(error, version).decode(errors="replace")
            size = len(text.encode())
            yield f"\r\n__exception__\r\n{self.tag}\r\n{text}{size} {self.tag}\r\n__exception__\r\n".encode()


def error_text(error: EngineError, version: str) -> bytes:
    text = str(error)
    if "(version " not in text:
        text = f"{text} (version {version})"
    return f"{text}\n".encode(errors="surrogateescape")
