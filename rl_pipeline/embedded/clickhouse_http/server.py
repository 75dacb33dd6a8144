"""The HTTP server: a thread per connection, each request on its own chdb connection.

Threads from the standard library, by measurement: with 3 KB texts as Arrow they moved 1.4 times (insert) and 1.8 times
(read) the bytes of an asynchronous server that hands its work to threads, because a thread passes chdb's own memory to
the socket and the socket's bytes to chdb; small queries cost about the same, since the engine's share dominates.
"""

import io
import logging
import socket
import sys
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from socketserver import TCPServer
from threading import Lock
from typing import TYPE_CHECKING, BinaryIO, cast
from uuid import uuid4

from rl_pipeline.embedded.clickhouse_http.engine import Connection, Engine, Outcome, Result, quoted
from rl_pipeline.embedded.clickhouse_http.errors import EngineError
from rl_pipeline.embedded.clickhouse_http.request import Request, read_body, read_request
from rl_pipeline.embedded.clickhouse_http.response import (
    ExceptionBlock,
    can_be_streamed,
    choose_encoding,
    compressed,
    content_type,
    error_text,
    joined,
    status_of,
    summary,
)
from rl_pipeline.embedded.clickhouse_http.statement import Insert, Statement

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_log = logging.getLogger(__name__)

_DEFAULT_FORMAT = "TabSeparated"
_SECONDS_FOR_MORE_OF_A_BODY = 30  # ClickHouse's http_receive_timeout
_SECONDS_TO_TAKE_SOMETHING = 2


class Front(ThreadingHTTPServer):
    """Listens, and on `stop` lets running requests finish before the engine closes."""

    daemon_threads = False
    request_queue_size = 256

    def __init__(self, host: str, port: int) -> None:
        super().__init__((host, port), _Handler, bind_and_activate=False)
        self.engine: Engine
        self.stopping = False
        self._idle: set[socket.socket] = set()
        self._lock = Lock()
        self.server_bind()

    def server_bind(self) -> None:
        # Not HTTPServer's, which asks DNS for a name that nobody needs.
        TCPServer.server_bind(self)
        self.server_port = int(self.socket.getsockname()[1])

    def serve(self, engine: Engine) -> None:
        """Answer until `stop` is called from another thread."""
        self.engine = engine
        self.serve_forever(poll_interval=0.1)

    def stop(self) -> None:
        """Take no more requests, finish those that run, and return when all are answered."""
        self.shutdown()
        with self._lock:
            self.stopping = True
            for connection in self._idle:
                # Ends the wait for a next request; one that has arrived is still read and answered.
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002  # the standard library's
        """Name the error alone: the traceback that would be printed can hold values of a query."""
        _log.error("a request failed with %s", type(sys.exception()).__name__)

    def waits(self, connection: socket.socket) -> None:
        """The connection has no request running: it may be closed at any time."""
        with self._lock:
            self._idle.add(connection)
            if self.stopping:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RD)

    def works(self, connection: socket.socket) -> None:
        with self._lock:
            self._idle.discard(connection)


class _Output(io.BufferedIOBase):
    """Waits for a client that takes its time, but does not keep the front from stopping for one that takes nothing."""

    def __init__(self, connection: socket.socket, front: Front) -> None:
        self._connection = connection
        self._front = front

    def writable(self) -> bool:
        return True

    def write(self, data: "ReadableBuffer") -> int:
        rest = memoryview(data)
        size = len(rest)
        before = self._connection.gettimeout()
        self._connection.settimeout(_SECONDS_TO_TAKE_SOMETHING)
        while rest:
            try:
                rest = rest[self._connection.send(rest[: 1 << 20]) :]
            except TimeoutError:
                if self._front.stopping:
                    raise ConnectionAbortedError from None
        self._connection.settimeout(before)
        return size


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "ClickHouse-embedded"
    disable_nagle_algorithm = True
    rbufsize = 1 << 18
    server: Front

    def setup(self) -> None:
        # Large results: fewer turns between the two processes.
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 << 20)
        super().setup()
        self.wfile = _Output(self.connection, self.server)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the signature of the standard library
        """Nothing: a request line can hold a query's values."""

    def handle_one_request(self) -> None:
        self.server.waits(self.connection)
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def finish(self) -> None:
        self.server.works(self.connection)
        with suppress(OSError):
            super().finish()

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.server.works(self.connection)
        self._answering = self._body_is_read = False
        body = self._body()
        try:
            self._route(read_request(self.path, self.headers, body))
        except EngineError as error:
            self._send_error(error)
        # What is left of the body would be taken for the next request.
        with suppress(EngineError):
            for _ in body:
                pass
        if self.server.stopping or not self._body_is_read:
            self.close_connection = True

    def _body(self) -> Iterator[bytes]:
        self.connection.settimeout(_SECONDS_FOR_MORE_OF_A_BODY)
        yield from read_body(cast("BinaryIO", self.rfile), self.headers)
        self._body_is_read = True
        self.connection.settimeout(None)

    def _route(self, request: Request) -> None:
        if request.path in {"/ping", "/replicas_status"} or self.command == "HEAD":
            self._send(200, [b"Ok.\n"], {"Content-Type": "text/html; charset=UTF-8"})
        elif request.path != "/":
            text = f"There is no handle {request.path}. Use / or /ping for health checks.\n"
            self._send(404, [text.encode(errors="replace")], {"Content-Type": "text/plain; charset=UTF-8"})
        elif self.command == "GET" and not request.query:
            self._send(200, [b"Ok.\n"], {"Content-Type": "text/html; charset=UTF-8"})
        else:
            session = self.server.engine.connection(
                request.session_id, request.session_timeout, must_exist=request.session_must_exist
            )
            with session as connection:
                finish = self._execute(request, connection)
            # Only now, since a client that has its whole answer may at once use the session again.
            finish()

    def _execute(self, request: Request, connection: Connection) -> Callable[[], None]:
        """Run the request's statement; returns what completes the answer."""
        statement = request.statement()
        if self.command == "GET" and not statement.only_reads:
            raise EngineError.named(
                "READONLY", "Cannot execute query in readonly mode: method GET implies readonly, use POST to modify"
            )
        finish: Callable[[], None]
        with _external_tables(request, connection):
            connection.prepare(request.database, request.settings)
            if statement.insert is not None:
                outcome = connection.insert(statement.insert, request.body, request.parameters)
                finish = partial(self._send_outcome, request, outcome, None)
            else:
                finish = self._run(request, connection, statement)
        connection.remember(statement.verb, statement.sql)
        return finish

    def _run(self, request: Request, connection: Connection, statement: Statement) -> Callable[[], None]:
        output_format = statement.output_format or request.default_format or _DEFAULT_FORMAT
        whole = request.wait_end_of_query or statement.has_totals or "extremes" in request.settings
        if statement.is_select and can_be_streamed(output_format) and not whole:
            with closing(connection.stream(statement.sql, output_format, request.parameters)) as blocks:
                # The first block comes before the headers, so that an early failure has its own status.
                first = next(blocks, None)
                if first is not None:
                    with closing(_one_ahead(blocks)) as rest:
                        return self._send_stream(request, joined(chain([first], rest), output_format), output_format)
            # chdb streams nothing at all of an empty result, not even its columns: only a whole query has them.
        outcome = connection.query(statement.sql, output_format, request.parameters)
        has_result = statement.only_reads or len(outcome.result.view) > 0
        return partial(self._send_outcome, request, outcome, output_format if has_result else None)

    def _send_outcome(self, request: Request, outcome: Outcome, output_format: str | None) -> None:
        encoding = choose_encoding(self.headers.get("Accept-Encoding", ""), request.settings) if output_format else None
        pieces = list(compressed([outcome.result.view], encoding))
        headers = self._headers(request, output_format, encoding) | {"X-ClickHouse-Summary": summary(outcome)}
        self._send(200, pieces, headers)

    def _send_stream(
        self, request: Request, pieces: Iterator[memoryview | bytes], output_format: str
    ) -> Callable[[], None]:
        encoding = choose_encoding(self.headers.get("Accept-Encoding", ""), request.settings)
        failure = ExceptionBlock()
        headers = self._headers(request, output_format, encoding)
        self._begin(200, headers | {"Transfer-Encoding": "chunked", "X-ClickHouse-Exception-Tag": failure.tag})
        for piece in compressed(failure.at_the_end_of(pieces, self.server.engine.version), encoding):
            self.wfile.write(b"%x\r\n" % len(piece))
            self.wfile.write(piece)
            self.wfile.write(b"\r\n")
        return partial(self._end_stream, failure)

    def _end_stream(self, failure: ExceptionBlock) -> None:
        # Without the last chunk, no client can take the part for the whole.
        if failure.happened:
            self.close_connection = True
        else:
            self.wfile.write(b"0\r\n\r\n")

    def _send_error(self, error: EngineError) -> None:
        if self._answering:
            self.close_connection = True
            return
        headers = {"Content-Type": "text/plain; charset=UTF-8", "X-ClickHouse-Exception-Code": str(error.code)}
        self._send(status_of(error), [error_text(error, self.server.engine.version)], headers)

    def _headers(self, request: Request, output_format: str | None, encoding: str | None) -> dict[str, str]:
        headers = {"X-ClickHouse-Query-Id": request.query_id or str(uuid4())}
        if output_format:
            headers |= {"X-ClickHouse-Format": output_format, "Content-Type": content_type(output_format)}
        if encoding:
            headers["Content-Encoding"] = encoding
        return headers

    def _send(self, status: int, pieces: list[memoryview | bytes], headers: dict[str, str]) -> None:
        self._begin(status, headers | {"Content-Length": str(sum(map(len, pieces)))})
        if self.command != "HEAD":
            for piece in pieces:
                self.wfile.write(piece)

    def _begin(self, status: int, headers: dict[str, str]) -> None:
        self._answering = True
        self.send_response(status)
        self.send_header("X-ClickHouse-Server-Display-Name", "embedded")
        self.send_header("X-ClickHouse-Timezone", self.server.engine.timezone)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()


def _one_ahead(blocks: Iterator[Result]) -> Generator[Result]:
    """The same blocks; while one is sent, the engine makes the next."""
    with ThreadPoolExecutor(1) as worker:
        coming = worker.submit(next, blocks, None)
        while (block := coming.result()) is not None:
            coming = worker.submit(next, blocks, None)
            yield block


@contextmanager
def _external_tables(request: Request, connection: Connection) -> Iterator[None]:
    """The request's own tables, as temporary ones for as long as it runs."""
    for table in request.external_tables:
        name = quoted(table.name, "`")
        connection.query(f"CREATE TEMPORARY TABLE {name} ({table.structure})".encode(), "Null", {})
        insert = Insert(f"INSERT INTO {name}".encode(), b"", table.data_format.encode(), 0)
        connection.insert(insert, [table.data], {})
    try:
        yield
    finally:
        for table in request.external_tables:
            connection.query(f"DROP TEMPORARY TABLE {quoted(table.name, '`')}".encode(), "Null", {})
