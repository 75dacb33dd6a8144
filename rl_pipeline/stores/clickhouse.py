"""The warehouse over `clickhouse-connect`: a server, a cluster or the embedded front by HTTP, or chdb right here."""

import re
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import clickhouse_connect
import polars as pl
import pyarrow as pa
from clickhouse_connect.driver.binding import quote_identifier
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError, Error, ProgrammingError
from clickhouse_connect.driver.httputil import all_managers, get_pool_manager
from urllib3 import PoolManager
from urllib3.exceptions import HTTPError

from rl_pipeline.stores.clickhouse_arrow import ResultSource, arrow_stream, frame
from rl_pipeline.stores.warehouse import WarehouseError, WarehouseUnavailable

T = TypeVar("T")

_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
# A large buffer on loopback lets the two processes wake each other less often: a read takes about a sixth less time.
_NEAR_SOCKET = [(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), (socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)]
_UNKNOWN_COLUMN = 16
_OUT_OF_RANGE = 321

_INSERT = {
    # Stored or refused before it is acknowledged, even if the same rows came before and were deleted since.
    # (From ClickHouse 26 on, `deduplicate_insert` overrides the older setting; older servers do not know it.)
    "async_insert": 0,
    "insert_deduplicate": 0,
    "deduplicate_insert": "disable",
    # One block, and so one part of the table, whatever its size: that is what makes it all or nothing.
    "max_insert_threads": 1,
    "max_insert_block_size": 1 << 40,
    "min_insert_block_size_rows": 1 << 40,
    "min_insert_block_size_bytes": 0,
    # A null is an error where the column takes none, not silently its default.
    "input_format_null_as_default": 0,
}
_RESULT = {"output_format_arrow_string_as_string": 1, "output_format_arrow_fixed_string_as_fixed_byte_array": 0}
_INTEGERS = {
    str(kind): kind for kind in (pl.Int8, pl.Int16, pl.Int32, pl.Int64, pl.UInt8, pl.UInt16, pl.UInt32, pl.UInt64)
}

_ERROR_NAME = re.compile(r"\(([A-Z][A-Z0-9_]*)\)(?: \(version [^()]*(?:\([^()]*\))?\))?(?: \(for url [^()]*\))?\s*$")
_ERROR_CODE = re.compile(r"Code: (\d+)\.")
# Codes whose texts hold names from the statement and nothing from the rows, up to the statement itself.
_NAMES_ONLY = {16, 46, 47, 57, 60, 81, 115}
_NAMES_TEXT = re.compile(
    r"DB::Exception: (?!Code: )(.{1,300}?)(?:\. |[.]? ?[Ii]n scope | \([A-Z0-9_-]+\)|$)", re.DOTALL
)
_ADVICE = {
    60: "create the tables with `rl-pipeline warehouse migrate`",
    81: "create the database with `rl-pipeline warehouse migrate`",
    **dict.fromkeys((192, 193, 194, 516), "check the user and the password"),
    241: "ask for less at once, or give ClickHouse more memory",
}


class ClickHouseWarehouse:
    """A `Warehouse` on ClickHouse; the same client, whether the engine is far, near or in this process."""

    def __init__(
        self, client: Client, database: str, address: str, *, near: bool, pool: PoolManager | None = None
    ) -> None:
        # Set late, since the client would refuse to start on a database that migrations have yet to create.
        client.database = database
        self._client = client
        self._database = database
        self._address = address
        self._pool = pool
        self._insert_settings = {name: value for name, value in _INSERT.items() if name in client.server_settings}
        # Across a network Arrow's own compression saves bytes; within the machine it only costs time.
        self._codec = None if near else "lz4"
        self._result_settings = _RESULT | {"output_format_arrow_compression_method": "none" if near else "lz4_frame"}

    @classmethod
    def connect(
        cls, url: str, database: str, user: str = "default", password: str = "", *, answer_seconds: int = 300
    ) -> "ClickHouseWarehouse":
        """Connect to ClickHouse's HTTP interface at `url`. The database need not exist yet.

        A server that is silent for `answer_seconds` counts as away.

        No session: ClickHouse runs the queries of one session one after the other.
        """
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme not in {"http", "https"} or not host:
            raise WarehouseUnavailable("the warehouse's address is not http(s)://host:port: correct CLICKHOUSE_URL")
        near = host in _LOOPBACK
        address = f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "") + parts.path
        # Our own pool within the machine, since the client's would obey a proxy that the environment names.
        pool = get_pool_manager(socket_options=_NEAR_SOCKET) if near else None
        client = _ask(
            address,
            "the connection",
            lambda: clickhouse_connect.get_client(
                interface=parts.scheme,
                host=host,
                port=parts.port or (443 if parts.scheme == "https" else 8123),
                proxy_path=parts.path,
                username=user,
                password=password,
                compress=False,
                send_receive_timeout=answer_seconds,
                autogenerate_session_id=False,
                pool_mgr=pool,
                dedicated_pool=not near,
            ),
        )
        return cls(client, database, address, near=near, pool=pool)

    @classmethod
    def in_process(cls, directory: Path, database: str = "rl_pipeline") -> "ClickHouseWarehouse":
        """Open chdb on the directory, which no other process may have open. Spawn children, never fork them."""
        address = f"chdb in {directory}"
        try:
            client = clickhouse_connect.get_client(interface="chdb", path=str(directory))
        except ClickHouseError:
            raise WarehouseUnavailable(
                f"the engine cannot open {directory}: stop the process that holds it, or make it writable"
            ) from None
        return cls(client, database, address, near=True)

    @property
    def database(self) -> str:
        return self._database

    def create_database(self, cluster: str | None = None) -> None:
        on_cluster = f" ON CLUSTER {quote_identifier(cluster)}" if cluster else ""
        sql = f"CREATE DATABASE IF NOT EXISTS {quote_identifier(self._database)}{on_cluster}"
        _ask(self._address, "a statement", lambda: self._client.command(sql, use_database=False))

    def execute(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        _ask(
            self._address,
            "a statement",
            lambda: self._client.command(sql, parameters=dict(parameters or {}), settings=dict(settings or {})),
        )

    def query(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> pl.DataFrame:
        with self._result(sql, parameters, settings) as reader:
            table = reader.read_all()
        return frame(table)

    def stream(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> Iterator[pl.DataFrame]:
        with self._result(sql, parameters, settings) as reader:
            for batch in reader:
                if batch.num_rows:
                    yield frame(pa.Table.from_batches([batch]))

    @contextmanager
    def _result(
        self, sql: str, parameters: Mapping[str, Any] | None, settings: Mapping[str, Any] | None
    ) -> Iterator[pa.RecordBatchReader]:
        response = _ask(
            self._address,
            "a query",
            lambda: self._client.raw_stream(
                sql, dict(parameters or {}), self._result_settings | dict(settings or {}), fmt="ArrowStream"
            ),
        )
        source = ResultSource(response)
        try:
            yield pa.ipc.open_stream(source)
            source.drain()
        except (pa.ArrowException, OSError, HTTPError):
            raise _broken_result(source, self._address) from None
        finally:
            source.close()

    def insert(self, table: str, rows: pl.DataFrame) -> int:
        if rows.is_empty():
            return 0
        described = self.query(f"DESCRIBE TABLE {quote_identifier(table)}")
        kinds = dict(zip(described["name"], described["type"], strict=True))
        content = arrow_stream(_fitted(table, rows, kinds), self._codec)
        _ask(
            self._address,
            f"the insert into {table}",
            lambda: self._client.raw_insert(
                quote_identifier(table),
                rows.columns,
                # A generator, which the driver cannot send twice by itself: after a broken connection nobody knows
                # whether the rows are stored, and a second copy of them would be a lie.
                content,
                settings=self._insert_settings,
                fmt="ArrowStream",
            ),
            rows.columns,
        )
        return rows.height

    def close(self) -> None:
        self._client.close()
        if self._pool is not None:
            self._pool.clear()
            # The driver keeps a list of all pools, and would keep this one for ever.
            all_managers.pop(self._pool, None)


def _fitted(table: str, rows: pl.DataFrame, kinds: Mapping[str, str]) -> pl.DataFrame:
    """The rows with integers in the table's own types: ClickHouse itself would wrap 300 into a UInt8 as 44."""
    if unknown := [name for name in rows.columns if name not in kinds]:
        raise WarehouseError(f"{table} has no column {', '.join(unknown)}: correct its name", _UNKNOWN_COLUMN)
    fitted = {}
    for name, kind in rows.schema.items():
        target = _INTEGERS.get(re.sub(r"Nullable\((.*)\)|LowCardinality\((.*)\)", r"\1\2", kinds[name]))
        if target is None or kind == target:
            continue
        if kind.is_float() or kind.is_decimal():
            raise WarehouseError(f"{table}.{name} is {kinds[name]}, not {kind}: round the values first", _OUT_OF_RANGE)
        if kind.is_integer():
            fitted[name] = rows[name].cast(target, strict=False)
            if fitted[name].null_count() > rows[name].null_count():
                raise WarehouseError(
                    f"{table}.{name} is {kinds[name]}, which cannot hold every value: correct the rows", _OUT_OF_RANGE
                )
    return rows.with_columns(**fitted)


def _broken_result(source: ResultSource, address: str) -> WarehouseError | WarehouseUnavailable:
    code = source.error_code()
    if code is None:
        return WarehouseUnavailable(f"the result from {address} broke off: see that ClickHouse runs, and ask again")
    return WarehouseError(f"ClickHouse failed with code {code} in the middle of a result: correct the query", code)


def _ask(address: str, what: str, call: Callable[[], T], columns: Collection[str] = ()) -> T:
    """Call the driver. Its errors quote values, so they are not even kept as the context of ours."""
    try:
        return call()
    except ClickHouseError as error:
        failure = _failure(address, what, error, columns)
    except (HTTPError, OSError):
        failure = _unavailable(address)
    raise failure


def _unavailable(address: str) -> WarehouseUnavailable:
    return WarehouseUnavailable(f"ClickHouse does not answer at {address}: start it, or correct CLICKHOUSE_URL")


def _failure(
    address: str, what: str, error: ClickHouseError, columns: Collection[str]
) -> WarehouseError | WarehouseUnavailable:
    text = str(error)
    code = error.code if isinstance(error, Error) else None
    if code is None and (found := _ERROR_CODE.search(text)):
        code = int(found.group(1))
    if code is None and isinstance(error, ProgrammingError):
        known = re.match(r"Setting \w+ is unknown or readonly", text)
        return WarehouseError(f"{what} was refused before it was sent: {known.group() if known else 'correct it'}")
    if code is None:
        return _unavailable(address)
    found = _ERROR_NAME.search(text)
    name = found.group(1) if found else "an error"
    detail = _detail(code, text, columns)
    advice = _ADVICE.get(code, "correct the rows or the table" if columns else "correct the statement")
    return WarehouseError(f"ClickHouse refused {what} with {name} ({code}){detail}: {advice}", code)


def _detail(code: int, text: str, columns: Collection[str]) -> str:
    """What may be told of an error's text: names and positions, and nothing that could be a value."""
    if code in _NAMES_ONLY and (found := _NAMES_TEXT.search(text)):
        return f", {found.group(1)}"
    if code == 62 and (found := re.search(r"failed at position \d+", text)):
        return f", it {found.group()}"
    if code == 469 and (found := re.search(r"DB::Exception: Constraint `(\w+)`", text)):
        return f", constraint {found.group(1)}"
    named = [name for name in columns if f"while converting column `{name}`" in text]
    return f", column {named[0]}" if len(named) == 1 else ""
