"""What the S3 adapter does beyond the conformance suite: servers that refuse, are absent, or lose an answer."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.stores.object_addresses import open_objects
from rl_pipeline.stores.objects import InvalidKey, ObjectExists, Objects, ObjectsUnavailable
from rl_pipeline.stores.s3 import S3Objects
from rl_pipeline.stores.s3 import s3_client as build_client
from rl_pipeline_tests.fixtures.s3 import S3Server


def _calls(objects: Objects, directory: Path) -> list[Callable[[], object]]:
    (directory / "file").write_bytes(b"1")
    return [
        lambda: objects.put("a", b"1"),
        lambda: objects.create("a", b"1"),
        lambda: objects.get("a"),
        lambda: objects.upload("a", directory / "file"),
        lambda: objects.download("a", directory / "new"),
        lambda: objects.stat("a"),
        lambda: objects.exists("a"),
        lambda: list(objects.list()),
        lambda: objects.delete("a"),
    ]


def _assert_all_unavailable(objects: Objects, directory: Path, pattern: str) -> None:
    for call in _calls(objects, directory):
        with pytest.raises(ObjectsUnavailable) as caught:
            call()
        assert re.fullmatch(pattern, str(caught.value)), str(caught.value)
    assert not (directory / "new").exists()


def test_a_missing_bucket_is_named_by_every_method(s3_client: Any, s3_server: S3Server, tmp_path: Path) -> None:
    pattern = f"There is no bucket no-such-bucket at {s3_server.endpoint_url}: create it, or correct the address."
    _assert_all_unavailable(S3Objects(s3_client, "no-such-bucket"), tmp_path, pattern)


@pytest.mark.parametrize("wrong", ["access_key", "secret_key"])
def test_wrong_credentials_are_refused_by_every_method_without_being_told(
    s3_server: S3Server, s3_bucket: str, tmp_path: Path, wrong: str
) -> None:
    keys = {"access_key": s3_server.access_key, "secret_key": s3_server.secret_key} | {wrong: "hunter2"}
    objects = S3Objects(build_client(s3_server.endpoint_url, "us-east-1", **keys), s3_bucket)
    pattern = f"S3 at .* refuses access to the bucket {s3_bucket} .*: check the access key, the secret key .*"
    _assert_all_unavailable(objects, tmp_path, f"(?!.*hunter2){pattern}")


def test_an_unreachable_endpoint_is_named_by_every_method(tmp_path: Path) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        objects = S3Objects(build_client(endpoint, "us-east-1", "a", "b"), "bucket")
        _assert_all_unavailable(objects, tmp_path, f"S3 at {endpoint} cannot be reached .*: start it, or correct .*")


def test_missing_credentials_say_which_variables_to_set(
    s3_server: S3Server, s3_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(ObjectsUnavailable, match="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"):
        S3Objects(build_client(s3_server.endpoint_url, "us-east-1"), s3_bucket).get("a")


def test_stores_with_different_prefixes_do_not_see_each_other(s3_client: Any, s3_bucket: str) -> None:
    here, there = (open_objects(f"s3://{s3_bucket}/{name}", s3_client=s3_client) for name in ("here", "there/deep/"))
    here.put("a", b"here")
    there.put("a", b"there")
    assert (here.get("a"), there.get("a")) == (b"here", b"there")
    assert [stored.key for stored in here.list()] == [stored.key for stored in there.list()] == ["a"]
    assert there.url("a") == f"s3://{s3_bucket}/there/deep/a"
    here.delete("a")
    assert there.exists("a")


def test_a_key_that_is_too_long_only_with_its_prefix_is_an_invalid_key(s3_client: Any, s3_bucket: str) -> None:
    objects = S3Objects(s3_client, s3_bucket, "a-prefix-of-some-length/" * 3)
    with pytest.raises(InvalidKey, match="too long"):
        objects.put("/".join(["x" * 249] * 4), b"")


class _Proxy(BaseHTTPRequestHandler):
    """Passes requests on to the real server, but for what `fault` does to the first write."""

    protocol_version = "HTTP/1.1"
    upstream: tuple[str, int]
    fault: str
    writes: list[str]

    def _pass_on(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.command == "PUT":
            self.writes.append(self.path)
        first = self.command == "PUT" and len(self.writes) == 1
        if first and self.fault == "conflict":
            refusal = b"<Error><Code>ConditionalRequestConflict</Code><Message>again</Message></Error>"
            self._reply(409, {"Content-Length": str(len(refusal))}, refusal)
            return
        connection = HTTPConnection(*self.upstream)
        connection.request(self.command, self.path, body, dict(self.headers))
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if first and self.fault == "lost answer":
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._reply(answer.status, dict(answer.getheaders()), data)

    def _reply(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_HEAD = do_PUT = _pass_on  # noqa: N815  # the names that the standard library looks for

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  # the standard library's own name
        """Keep the output of the tests quiet."""


@contextmanager
def _through_a_proxy(server: S3Server, bucket: str, fault: str) -> Iterator[tuple[S3Objects, list[str]]]:
    host, port = server.endpoint_url.removeprefix("http://").split(":")
    writes: list[str] = []
    handler = type("Handler", (_Proxy,), {"upstream": (host, int(port)), "fault": fault, "writes": writes})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        endpoint = f"http://127.0.0.1:{proxy.server_port}"
        client = build_client(endpoint, "us-east-1", server.access_key, server.secret_key)
        try:
            yield S3Objects(client, bucket), writes
        finally:
            client.close()
            proxy.shutdown()
            thread.join()


@pytest.mark.parametrize("fault", ["lost answer", "conflict"])
def test_a_create_whose_answer_goes_astray_is_repeated_and_still_succeeds(
    s3_server: S3Server, s3_client: Any, s3_bucket: str, fault: str
) -> None:
    with _through_a_proxy(s3_server, s3_bucket, fault) as (objects, writes):
        objects.create("a", b"mine")
        assert len(writes) == 2
        with pytest.raises(ObjectExists):
            objects.create("a", b"another's")
    assert S3Objects(s3_client, s3_bucket).get("a") == b"mine"
