"""Rows between Polars and ClickHouse, as Arrow in pieces: sent, received, and broken off underway."""

import io
import re
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any

import polars as pl
import pyarrow as pa
from urllib3 import HTTPResponse
from urllib3.exceptions import HTTPError

from rl_pipeline.stores.warehouse import WarehouseError

_PIECE = 256 << 10
_SENT_PIECE = 2 << 20
_TAIL = 16 << 10
_ERROR_CODE = re.compile(r"Code: (\d+)\.")


def arrow_stream(rows: pl.DataFrame, codec: str | None) -> Generator[bytes]:
    """The rows as one Arrow stream, made piece by piece while it is sent."""
    # Categories would be a dictionary per piece; as text they are the same to ClickHouse.
    rows = rows.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))
    rows_per_piece = max(1, rows.height * _SENT_PIECE // max(1, int(rows.estimated_size())))
    sink = _Sink()
    schema = _arrow(rows.clear()).schema
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        for piece in rows.iter_slices(rows_per_piece):
            writer.write_table(_arrow(piece))
            yield sink.take()
    yield sink.take()


def _arrow(rows: pl.DataFrame) -> pa.Table:
    return rows.to_arrow(compat_level=pl.CompatLevel.oldest())


class _Sink(io.RawIOBase):
    """Where Arrow writes and the transport takes from."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._parts.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        taken, self._parts = b"".join(self._parts), []
        return taken


def frame(table: pa.Table) -> pl.DataFrame:
    """The result as Polars has it; raises `WarehouseError` for a text that is none."""
    try:
        # ClickHouse's String holds any bytes, and Polars crashes the process on a text that is not UTF-8.
        table.validate(full=True)
    except pa.ArrowInvalid as error:
        found = re.match(r"Column (\d+)", str(error))
        name = table.column_names[int(found.group(1))] if found else "a column"
        raise WarehouseError(f"{name} is not UTF-8 text: select it through hex() or base64Encode()") from None
    for number, column in enumerate(table.schema):
        if isinstance(column.type, pa.UuidType):
            table = table.set_column(number, column.name, _uuid_text(table.column(number)))
        elif isinstance(column.type, pa.BaseExtensionType):
            table = table.set_column(number, column.name, table.column(number).cast(column.type.storage_type))
    return pl.DataFrame(pl.from_arrow(table, rechunk=False))


def _uuid_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    digits = pl.Series(column.cast(pa.binary())).bin.encode("hex")
    groups = [digits.str.slice(start, size) for start, size in ((0, 8), (8, 4), (12, 4), (16, 4), (20, 12))]
    joined = pl.select(pl.concat_str(groups, separator="-")).to_series()
    return pa.chunked_array([joined.to_arrow(compat_level=pl.CompatLevel.oldest())])


class ResultSource(io.RawIOBase):
    """A result's bytes; remembers the last of them, where ClickHouse writes what went wrong underway."""

    def __init__(self, response: Any) -> None:
        self._response = response
        # By pieces of the transport: read(n) would drop the end of a response that breaks off.
        by_http = isinstance(response, HTTPResponse)
        self._pieces: Iterator[bytes] = (
            response.stream(_PIECE, decode_content=False) if by_http else iter(lambda: response.read(_PIECE), b"")
        )
        self._rest = memoryview(b"")
        self._tail = b""

    def read(self, size: int = 0) -> Any:
        if size <= len(self._rest):
            taken, self._rest = bytes(self._rest[:size]), self._rest[size:]
            return taken
        # Into memory of Arrow's pool, which is used again: fresh pages would cost as much as all the rest of a read.
        buffer = pa.allocate_buffer(size, resizable=True)
        with memoryview(buffer).cast("B") as target:
            filled = 0
            while filled < size and (self._rest or self._next_piece()):
                part, self._rest = self._rest[: size - filled], self._rest[size - filled :]
                target[filled : filled + len(part)] = part
                filled += len(part)
        if filled < size:
            buffer.resize(filled)
        return buffer

    def _next_piece(self) -> bool:
        piece = next(self._pieces, b"")
        self._rest = memoryview(piece)
        self._tail = (self._tail + piece[-_TAIL:])[-_TAIL:]
        return bool(piece)

    def drain(self) -> None:
        """Read what follows the last batch, so that the connection can be used again."""
        while self._next_piece():
            pass

    def error_code(self) -> int | None:
        """The code of the error that ended the result, if ClickHouse had the time to write it."""
        with suppress(OSError, HTTPError):  # the connection ends after the error
            self.drain()
        tag = getattr(self._response, "headers", {}).get("X-ClickHouse-Exception-Tag")
        reported = self._tail.rpartition(f"__exception__\r\n{tag}".encode())[2] if tag else b""
        found = _ERROR_CODE.search(reported.decode(errors="replace"))
        return int(found.group(1)) if found else None

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self._response.close()
        super().close()
