"""OTLP over HTTP, in JSON or protobuf: `POST /v1/traces`, answered as its specification says."""

import json
import logging
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

from rl_pipeline.collection.formats.format import NotOfFormat
from rl_pipeline.collection.formats.mending import load_mended
from rl_pipeline.collection.otlp.receiver import NoRoomForSpans, OtlpReceiver

PATH = "/v1/traces"

_JSON, _PROTOBUF = "application/json", "application/x-protobuf"
_CLIENT_SECONDS = 30
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,8})[ \t]*(?:;.*)?\r?\n")
_LONGEST_LINE, _MOST_TRAILERS = 1024, 100
_RETRY_SECONDS = "10"
_INVALID, _TOO_LARGE, _UNAVAILABLE = 3, 11, 14
"""Codes of `google.rpc.Status`."""

_log = logging.getLogger("rl_pipeline.collection")


class Refused(Exception):
    """An answer other than 200."""

    def __init__(self, status: HTTPStatus, message: str, code: int = _INVALID) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def answer(
    receiver: OtlpReceiver, body: bytes, content_type: str, content_encoding: str
) -> tuple[HTTPStatus, dict[str, Any]]:
    """What a request is answered with, for whatever server it came to; the body's length is the server's to limit."""
    try:
        plain = _unpacked(content_encoding, body, receiver.limits.max_request_bytes)
        rejected = receiver.take(_read(content_type, plain))
    except Refused as refused:
        return refused.status, {"code": refused.code, "message": str(refused)}
    except NotOfFormat as error:
        return HTTPStatus.BAD_REQUEST, {"code": _INVALID, "message": str(error)}
    except NoRoomForSpans:
        return HTTPStatus.SERVICE_UNAVAILABLE, {"code": _UNAVAILABLE, "message": "too much waits: send it again later"}
    except OSError as error:
        _log.warning("otlp: spans cannot be kept (%s)", error.strerror)
        return HTTPStatus.SERVICE_UNAVAILABLE, {"code": _UNAVAILABLE, "message": "spans cannot be kept now"}
    if not rejected.spans:
        return HTTPStatus.OK, {}
    told = {"rejectedSpans": str(rejected.spans), "errorMessage": rejected.reason}
    return HTTPStatus.OK, {"partialSuccess": told}


def _read(content_type: str, body: bytes) -> Any:
    kind = _kind(content_type)
    try:
        if kind == _JSON:
            return load_mended(body)[0]
        if kind == _PROTOBUF:
            from rl_pipeline.collection.otlp.protobuf import request_of_protobuf

            return request_of_protobuf(body)
    except ImportError:
        instead = "protobuf is taken once this is installed: pip install 'rl-pipeline[otlp]'; or send application/json"
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, instead) from None
    except (ValueError, RecursionError):
        raise Refused(HTTPStatus.BAD_REQUEST, f"the body is no {kind}") from None
    raise Refused(
        HTTPStatus.UNSUPPORTED_MEDIA_TYPE, f"{kind[:64] or 'no type'} is not taken: send {_JSON} or {_PROTOBUF}"
    )


def _kind(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _unpacked(encoding: str, body: bytes, largest: int) -> bytes:
    if encoding.strip().lower() in ("", "identity"):
        return body
    if encoding.strip().lower() != "gzip":
        raise Refused(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "only gzip is taken as Content-Encoding")
    unpacking = zlib.decompressobj(wbits=31)
    try:
        plain = unpacking.decompress(body, largest + 1)
    except zlib.error:
        raise Refused(HTTPStatus.BAD_REQUEST, "the body is no gzip") from None
    if len(plain) > largest:
        raise _too_large(largest)
    if not unpacking.eof:
        raise Refused(HTTPStatus.BAD_REQUEST, "the gzip is broken off")
    return plain


def _too_large(largest: int) -> Refused:
    message = f"a request may have {largest} bytes: send smaller batches"
    return Refused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message, _TOO_LARGE)


@contextmanager
def serving(receiver: OtlpReceiver, port: int) -> Iterator[int]:
    """Listen on this machine alone, for the length of a block; the port is told, which matters where 0 chose it."""

    class Handler(_Handler):
        taking = receiver

    with ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, name="otlp http", daemon=True)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _CLIENT_SECONDS
    taking: OtlpReceiver

    def do_POST(self) -> None:
        """A request with spans."""
        try:
            told_of_body = (self.headers.get(name, "") for name in ("Content-Type", "Content-Encoding"))
            status, told = answer(self.taking, self._body(), *told_of_body)
        except Refused as refused:
            status, told = refused.status, {"code": refused.code, "message": str(refused)}
            self.close_connection = True  # the body was not read
        self._answer(status, told)

    def do_GET(self) -> None:
        """Nothing is to be read here."""
        self._answer(HTTPStatus.METHOD_NOT_ALLOWED, {"code": _INVALID, "message": "POST is expected"})

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is http.server's
        """Requests are not logged one by one."""

    def _body(self) -> bytes:
        if self.path.partition("?")[0] != PATH:
            raise Refused(HTTPStatus.NOT_FOUND, f"only {PATH} is served here")
        largest = self.taking.limits.max_request_bytes
        if self.headers.get("Transfer-Encoding", "").strip().lower() == "chunked":
            return self._chunks(largest)
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise Refused(HTTPStatus.LENGTH_REQUIRED, "a Content-Length or chunks are expected")
        if int(length) > largest:
            raise _too_large(largest)
        return self._exactly(int(length))

    def _chunks(self, largest: int) -> bytes:
        """A body of which only the sizes of its parts are known beforehand."""
        body = bytearray()
        while size := self._chunk_size():
            if len(body) + size > largest:
                raise _too_large(largest)
            body += self._exactly(size)
            self._expect_end_of_line()
        for _ in range(_MOST_TRAILERS):
            if self.rfile.readline(_LONGEST_LINE) in (b"\r\n", b"\n"):
                return bytes(body)
        raise Refused(HTTPStatus.BAD_REQUEST, "the chunks have no end")

    def _chunk_size(self) -> int:
        line = _CHUNK_SIZE.fullmatch(self.rfile.readline(_LONGEST_LINE))
        if line is None:
            raise Refused(HTTPStatus.BAD_REQUEST, "the size of a chunk is none")
        return int(line[1], 16)

    def _expect_end_of_line(self) -> None:
        if self.rfile.readline(2) not in (b"\r\n", b"\n"):
            raise Refused(HTTPStatus.BAD_REQUEST, "a chunk is longer than it says")

    def _exactly(self, length: int) -> bytes:
        body = self.rfile.read(length)
        if len(body) < length:
            raise Refused(HTTPStatus.BAD_REQUEST, "the body is broken off")
        return body

    def _answer(self, status: HTTPStatus, told: dict[str, Any]) -> None:
        kind, body = _JSON, json.dumps(told).encode()
        if status == HTTPStatus.OK and _kind(self.headers.get("Content-Type", "")) == _PROTOBUF:
            # Errors are told in JSON all the same: exporters only log them, for people.
            from rl_pipeline.collection.otlp.protobuf import response_as_protobuf

            kind, body = _PROTOBUF, response_as_protobuf(told)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", _RETRY_SECONDS)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            self.send_header("Allow", "POST")
        self.end_headers()
        self.wfile.write(body)
