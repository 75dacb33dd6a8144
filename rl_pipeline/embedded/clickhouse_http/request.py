"""One HTTP request as ClickHouse's protocol means it: parameters apart from settings, the body decoded."""

import re
import zlib
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from email.message import Message
from itertools import chain
from typing import BinaryIO, Protocol
from urllib.parse import unquote_to_bytes

import lz4.frame
from backports import zstd

from rl_pipeline.embedded.clickhouse_http.errors import EngineError
from rl_pipeline.embedded.clickhouse_http.statement import Statement, read_statement

_CHUNK = 1 << 20
_HEAD = 256 << 10
_MAX_STATEMENT = 64 << 20
_MAX_SESSION_SECONDS = 3600
# What has no meaning here is left alone: progress, quotas, and the protocol version, whose effect a client must probe.
_NOT_SETTINGS = {
    *("query", "query_id", "database", "default_format", "wait_end_of_query", "buffer_size", "stacktrace"),
    *("session_id", "session_check", "session_timeout", "close_session"),
    *("user", "password", "quota_key", "role", "compress", "decompress", "client_protocol_version"),
}
_BOUNDARY = re.compile(r'boundary="?([^";]+)"?', re.IGNORECASE)
_PART_NAME = re.compile(rb'[;\s]name="([^"]*)"', re.IGNORECASE)
_PART_FILE = re.compile(rb"[;\s]filename\*?=", re.IGNORECASE)


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes | None: ...
    def decompress(self, data: bytes, /) -> bytes: ...


_DECOMPRESSORS: dict[str, Callable[[], _Decompressor]] = {
    "gzip": lambda: zlib.decompressobj(31),
    "deflate": lambda: zlib.decompressobj(15),
    "lz4": lz4.frame.LZ4FrameDecompressor,
    "zstd": zstd.ZstdDecompressor,
}


@dataclass(frozen=True, slots=True)
class ExternalTable:
    """A table that a request brings along for its one query."""

    name: str
    structure: str
    data_format: str
    data: bytes


@dataclass
class Request:
    """What a client asks, apart from the transport. `body` yields what is left to read, decompressed."""

    path: str
    query: bytes
    body: Iterator[bytes]
    database: str | None
    default_format: str | None
    query_id: str | None
    session_id: str | None
    session_timeout: float
    session_must_exist: bool
    wait_end_of_query: bool
    settings: dict[str, str]
    parameters: dict[str, str]
    external_tables: list[ExternalTable] = field(default_factory=list)

    def statement(self) -> Statement:
        """Read as far as the statement goes. Where data follow it, they stay in `body`, from their first byte."""
        head = self.query + self._read(_HEAD)
        statement = None
        with suppress(EngineError):  # an error may only mean that the statement is longer than its head
            statement = read_statement(head)
        if statement is None or statement.insert is None:
            head += self._read(_MAX_STATEMENT)
            if next(self.body, None) is not None:
                raise EngineError.named("QUERY_IS_TOO_LARGE", f"The query is larger than {_MAX_STATEMENT} bytes")
            statement = read_statement(head)
        if statement.insert is not None:
            self.body = chain([head[statement.insert.data_offset :]], self.body)
        return statement

    def _read(self, size: int) -> bytes:
        """At least `size` bytes of the body, or what there is."""
        parts = []
        while size > 0 and (chunk := next(self.body, None)) is not None:
            parts.append(chunk)
            size -= len(chunk)
        return b"".join(parts)


def read_request(target: str, headers: "Message[str, str]", raw_body: Iterator[bytes]) -> Request:
    """Sort out a request. Raises `EngineError` for what this front does not do, rather than doing something else."""
    path, _, query_string = target.partition("?")
    arguments = {_text(name): _text(value) for name, value in _arguments(query_string)}
    _refuse_what_is_not_done(arguments)
    _authenticate(arguments, headers)
    query_id = arguments.get("query_id") or None
    if query_id and not re.fullmatch(r"[!-~]{1,200}", query_id):
        raise EngineError.named("BAD_ARGUMENTS", "A query_id is up to 200 printable ASCII characters")
    body = decompressed(raw_body, headers.get("Content-Encoding", ""))
    tables: list[ExternalTable] = []
    if headers.get_content_type() == "multipart/form-data":
        fields, files = _multipart(b"".join(body), headers.get("Content-Type", ""))
        arguments |= fields
        tables = [_external_table(name, data, arguments) for name, data in files.items()]
        body = iter(())
    query = arguments.get("query", "").encode()
    return Request(
        path=path,
        # ClickHouse reads the parameter and the body as one text with a line break between.
        query=query + b"\n" if query else b"",
        body=body,
        database=arguments.get("database") or headers.get("X-ClickHouse-Database"),
        default_format=headers.get("X-ClickHouse-Format") or arguments.get("default_format"),
        query_id=query_id,
        session_id=arguments.get("session_id") or None,
        session_timeout=_session_timeout(arguments),
        session_must_exist=arguments.get("session_check") == "1",
        wait_end_of_query=arguments.get("wait_end_of_query") == "1",
        settings=_settings(arguments, tables),
        parameters={name[6:]: value for name, value in arguments.items() if name.startswith("param_")},
        external_tables=tables,
    )


def _arguments(query_string: str) -> Iterator[tuple[bytes, bytes]]:
    for argument in filter(None, query_string.replace("+", " ").split("&")):
        name, _, value = argument.partition("=")
        yield unquote_to_bytes(name), unquote_to_bytes(value)


def _text(content: bytes) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise EngineError.named("BAD_ARGUMENTS", "An argument is not UTF-8") from error


def _settings(arguments: Mapping[str, str], tables: list[ExternalTable]) -> dict[str, str]:
    of_tables = {f"{table.name}_{part}" for table in tables for part in ("format", "structure", "types")}
    return {
        name: value
        for name, value in arguments.items()
        if name not in _NOT_SETTINGS and name not in of_tables and not name.startswith("param_")
    }


def _refuse_what_is_not_done(arguments: Mapping[str, str]) -> None:
    for name in ("compress", "decompress"):
        if arguments.get(name, "0") != "0":
            raise EngineError.named(
                "NOT_IMPLEMENTED", f"The embedded engine does not do {name}=1: use HTTP compression instead"
            )
    if "role" in arguments:
        raise EngineError.named("NOT_IMPLEMENTED", "The embedded engine has no roles")


def _authenticate(arguments: Mapping[str, str], headers: "Message[str, str]") -> None:
    """The engine has the user `default` without a password, and no other; web pages are nobody's client."""
    if "Origin" in headers or headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"}:
        raise EngineError.named("ACCESS_DENIED", "Requests from web pages are not served")
    user = headers.get("X-ClickHouse-User") or arguments.get("user") or "default"
    password = headers.get("X-ClickHouse-Key") or arguments.get("password") or ""
    scheme, _, credentials = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "basic":
        try:
            user, _, password = b64decode(credentials, validate=True).decode().partition(":")
        except (Base64Error, UnicodeDecodeError):
            user = ""
    elif scheme:
        user = ""
    if user != "default" or password:
        raise EngineError.named(
            "AUTHENTICATION_FAILED",
            "Authentication failed: the embedded engine knows the user default without a password, and no other",
        )


def _session_timeout(arguments: Mapping[str, str]) -> float:
    given = "0" if arguments.get("close_session") == "1" else arguments.get("session_timeout", "60")
    if not given.isdecimal() or int(given) > _MAX_SESSION_SECONDS:
        raise EngineError.named(
            "INVALID_SESSION_TIMEOUT", f"Invalid session timeout: at most {_MAX_SESSION_SECONDS} seconds"
        )
    return float(given)


def read_body(source: BinaryIO, headers: "Message[str, str]") -> Iterator[bytes]:
    """The request's body in pieces, by its length or its chunks; raises `EngineError` where it breaks off."""
    if headers.get("Transfer-Encoding", "").lower() == "chunked":
        while size := _size(_line(source).partition(b";")[0].decode(errors="replace"), 16):
            yield from _exactly(source, size)
            _line(source)
        while _line(source) != b"\r\n":
            pass
    else:
        yield from _exactly(source, _size(headers.get("Content-Length") or "0", 10))


def _size(digits: str, base: int) -> int:
    if not re.fullmatch(r"[0-9A-Fa-f]+", digits.strip()) or (base == 10 and not digits.strip().isdecimal()):
        raise EngineError.named("BAD_ARGUMENTS", "The request's body has no readable length")
    return int(digits, base)


def _line(source: BinaryIO) -> bytes:
    line = _read(source.readline, 65536)
    if not line.endswith(b"\n"):
        raise _broken_off()
    return line


def _exactly(source: BinaryIO, size: int) -> Iterator[bytes]:
    while size:
        piece = _read(source.read, min(size, _CHUNK))
        if not piece:
            raise _broken_off()
        size -= len(piece)
        yield piece


def _read(read: Callable[[int], bytes], size: int) -> bytes:
    try:
        return read(size)
    except TimeoutError as error:
        raise _broken_off() from error


def _broken_off() -> EngineError:
    return EngineError.named("CANNOT_READ_ALL_DATA", "The request's body broke off")


def decompressed(chunks: Iterator[bytes], encoding: str) -> Iterator[bytes]:
    """Decompress what Content-Encoding names, in bounded memory, frame after frame."""
    encoding = encoding.strip().lower()
    if encoding in {"", "identity"}:
        return chunks
    if encoding not in _DECOMPRESSORS:
        raise EngineError.named(
            "UNKNOWN_COMPRESSION_METHOD", "Unknown Content-Encoding: use lz4, zstd, gzip or deflate"
        )
    return _frames(chunks, _DECOMPRESSORS[encoding])


def _frames(chunks: Iterator[bytes], decompressor: Callable[[], _Decompressor]) -> Iterator[bytes]:
    frame = decompressor()
    started = False
    for chunk in chunks:
        rest = chunk
        while rest:
            if frame.eof:
                frame, started = decompressor(), False
            try:
                piece = frame.decompress(rest)
            except (zlib.error, RuntimeError, zstd.ZstdError) as error:
                raise EngineError.named("CANNOT_READ_ALL_DATA", "The body is not what its encoding says") from error
            started = True
            rest = (frame.unused_data or b"") if frame.eof else b""
            if piece:
                yield piece
    if started and not frame.eof:
        raise _broken_off()


def _multipart(body: bytes, content_type: str) -> tuple[dict[str, str], dict[str, bytes]]:
    """A form's plain fields and its files."""
    boundary = _BOUNDARY.search(content_type)
    if boundary is None:
        raise EngineError.named("BAD_ARGUMENTS", "multipart/form-data without a boundary")
    fields: dict[str, str] = {}
    files: dict[str, bytes] = {}
    for part in (b"\r\n" + body).split(b"\r\n--" + boundary.group(1).encode())[1:-1]:
        head, _, data = part.partition(b"\r\n\r\n")
        name = _PART_NAME.search(head)
        if name is None:
            raise EngineError.named("BAD_ARGUMENTS", "A part of the form has no name")
        if _PART_FILE.search(head):
            files[_text(name.group(1))] = data
        else:
            fields[_text(name.group(1))] = _text(data)
    return fields, files


def _external_table(name: str, data: bytes, arguments: Mapping[str, str]) -> ExternalTable:
    structure = arguments.get(f"{name}_structure")
    if not structure:
        types = arguments.get(f"{name}_types")
        if not types:
            raise EngineError.named("BAD_ARGUMENTS", "An external table needs its _structure or its _types")
        structure = ", ".join(f"_{number} {kind}" for number, kind in enumerate(_split_types(types), start=1))
    return ExternalTable(name, structure, arguments.get(f"{name}_format") or "TabSeparated", data)


def _split_types(types: str) -> list[str]:
    """Split at the commas outside parentheses."""
    parts, depth = [""], 0
    for character in types:
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts
