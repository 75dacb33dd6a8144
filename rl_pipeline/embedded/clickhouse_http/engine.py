"""The engine: one chdb on one directory, its connections, and the sessions that clients keep open.

A request without a session runs on a connection of its own, closed afterwards: that is what keeps settings, the current
database and temporary tables from leaking into the next one (opening one costs 0.3 ms).

What is acknowledged is in the page cache, so it survives the death of this process at any moment. A machine that loses
power can lose the last seconds of tables without `fsync_after_insert` and `fsync_part_directory`.
"""

import re
import tempfile
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from threading import Lock
from typing import Any

import chdb

from rl_pipeline.embedded.clickhouse_http.errors import EngineError
from rl_pipeline.embedded.clickhouse_http.statement import Insert

_SETTING_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")


@contextmanager
def _clickhouse_errors() -> Iterator[None]:
    try:
        yield
    except (chdb.ChdbError, RuntimeError) as error:
        raise EngineError.of(error) from error


@dataclass(frozen=True, slots=True)
class Result:
    """A result in chdb's own memory, not a copy: `view` is valid as long as this object lives, and no longer."""

    view: memoryview
    owner: object

    @classmethod
    def of(cls, chdb_result: Any) -> "Result":
        if chdb_result.size() == 0:
            return cls(memoryview(b""), None)
        owner = chdb_result.get_memview()
        return cls(owner.view(), owner)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one statement did."""

    result: Result
    read_rows: int = 0
    read_bytes: int = 0
    result_rows: int = 0
    written_rows: int = 0
    written_bytes: int = 0
    elapsed: float = 0.0


class Connection:
    """One chdb connection. One thread at a time; `prepare` before each statement."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        with _clickhouse_errors():
            self._connection: Any = chdb.connect(str(directory))  # type: ignore[no-untyped-call]  # chdb ships no types
        self._own_database = self._database = "default"
        self._own_settings: list[bytes] = []
        self._request_settings: dict[str, str | None] = {}

    def prepare(self, database: str | None, settings: Mapping[str, str]) -> None:
        """Make exactly these the request's database and settings, on top of what the session itself has SET."""
        for name in settings:
            if not _SETTING_NAME.fullmatch(name):
                raise EngineError.named("UNKNOWN_SETTING", "Unknown setting: its name is not an identifier")
        dropped = self._request_settings.keys() - settings.keys()
        changed = {name: value for name, value in settings.items() if self._request_settings.get(name) != value}
        changes = [f"{name} = DEFAULT" for name in dropped] + [f"{name} = {quoted(changed[name])}" for name in changed]
        if changes:
            self._run(f"SET {', '.join(changes)}".encode())
        if dropped:
            for statement in self._own_settings:
                self._run(statement)
        self._request_settings = dict(settings)
        wanted = database or self._own_database
        if wanted != self._database:
            self._run(f"USE {quoted(wanted, '`')}".encode())
            self._database = wanted

    def query(self, sql: bytes, output_format: str, parameters: Mapping[str, str]) -> Outcome:
        """Run a statement to its end; its whole result is in memory."""
        with _clickhouse_errors():
            result = self._connection.query(sql, output_format, params=dict(parameters))
        return Outcome(
            result=Result.of(result),
            read_rows=result.storage_rows_read(),
            read_bytes=result.storage_bytes_read(),
            result_rows=result.rows_read(),
            written_rows=result.rows_written(),
            written_bytes=result.bytes_written(),
            elapsed=result.elapsed(),
        )

    def stream(self, sql: bytes, output_format: str, parameters: Mapping[str, str]) -> Generator[Result]:
        """Run a SELECT and yield each block as a self-contained piece in the format; memory stays bounded."""
        with _clickhouse_errors():
            blocks = self._connection.send_query(sql, output_format, params=dict(parameters))
            try:
                for block in blocks:
                    yield Result.of(block)
            finally:
                blocks.close()

    def insert(self, insert: Insert, chunks: Iterable[bytes], parameters: Mapping[str, str]) -> Outcome:
        """Run an INSERT with the data of `chunks`, which are all here, in a nameless file, before it begins.

        Not chdb's `send_insert`: it reports success when the last block fails (a violated constraint, a full disk).
        """
        with tempfile.TemporaryFile(dir=self._directory, buffering=0) as file:
            for chunk in chunks:
                _write(file, chunk)
            file.seek(0)
            source = f" FROM INFILE '/dev/fd/{file.fileno()}' COMPRESSION 'none' ".encode()
            sql = insert.target + source + insert.settings + b" FORMAT " + insert.data_format
            return self.query(sql, "Null", parameters)

    def remember(self, verb: str, sql: bytes) -> None:
        """Keep what a session's own SET or USE said, so that a request's settings can be taken off again."""
        if verb == "SET":
            self._own_settings.append(sql)
            self._request_settings = dict.fromkeys(self._request_settings)
        elif verb == "USE":
            current = self.query(b"SELECT currentDatabase()", "TabSeparatedRaw", {})
            self._own_database = self._database = bytes(current.result.view).decode().rstrip("\n")

    def close(self) -> None:
        self._connection.close()

    def _run(self, sql: bytes) -> None:
        self.query(sql, "Null", {})


def _write(file: FileIO, chunk: bytes) -> None:
    rest = memoryview(chunk)
    try:
        while rest:
            rest = rest[file.write(rest) :]
    except OSError as error:
        raise EngineError.named("NOT_ENOUGH_SPACE", f"Cannot keep the data to insert: {error.strerror}") from error


def quoted(text: str, quote: str = "'") -> str:
    """A ClickHouse string literal, or an identifier with "`" as the quote."""
    return quote + text.replace("\\", "\\\\").replace(quote, "\\" + quote) + quote


@dataclass
class _Session:
    connection: Connection
    expires_at: float = 0.0
    in_use: bool = True


@dataclass
class Engine:
    """The engine on its directory. `connection()` is safe from any thread."""

    directory: Path
    now: Callable[[], float] = time.monotonic
    version: str = field(init=False)
    timezone: str = field(init=False)
    _sessions: dict[str, _Session] = field(init=False, default_factory=dict)
    _lock: Lock = field(init=False, default_factory=Lock)

    def __post_init__(self) -> None:
        # This connection stays: chdb shuts the engine down when the last one closes.
        self._keeper = Connection(self.directory)
        facts = self._keeper.query(b"SELECT version(), timezone()", "TabSeparatedRaw", {})
        self.version, self.timezone = bytes(facts.result.view).decode().split()

    @contextmanager
    def connection(self, session_id: str | None, timeout: float, *, must_exist: bool) -> Iterator[Connection]:
        """The session's connection, for one request at a time; without a session, a fresh one."""
        if session_id is None:
            connection = Connection(self.directory)
            try:
                yield connection
            finally:
                connection.close()
            return
        session = self._enter(session_id, must_exist=must_exist)
        try:
            yield session.connection
        finally:
            session.expires_at = self.now() + timeout
            session.in_use = False

    def _enter(self, session_id: str, *, must_exist: bool) -> _Session:
        with self._lock:
            self._close_expired()
            session = self._sessions.get(session_id)
            if session is None:
                if must_exist:
                    raise EngineError.named("SESSION_NOT_FOUND", "Session not found")
                session = self._sessions[session_id] = _Session(Connection(self.directory))
            elif session.in_use:
                raise EngineError.named("SESSION_IS_LOCKED", "Session is locked by a concurrent client")
            session.in_use = True
            return session

    def _close_expired(self) -> None:
        now = self.now()
        for session_id in [key for key, one in self._sessions.items() if not one.in_use and one.expires_at <= now]:
            self._sessions.pop(session_id).connection.close()

    def close(self) -> None:
        """Close every connection, and with the last one the engine. No request may be running."""
        with self._lock:
            for session in self._sessions.values():
                session.connection.close()
            self._sessions.clear()
        with suppress(RuntimeError):
            self._keeper.close()
