"""The login with a credentials file, at a real server in operator mode."""

import base64
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped]  # ships no types
import pytest

from rl_pipeline.embedded.nats_server import NatsServer, write_nats_configuration
from rl_pipeline.embedded.ports import free_port
from rl_pipeline.opening import open_stream
from rl_pipeline.settings import Settings
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.stream import PublishRefused, StreamDenied, StreamUnavailable
from rl_pipeline.stores.topology import TRAJECTORIES, bootstrap
from rl_pipeline_tests.waiting import wait_until

TRAJECTORY = "agent.rl.trajectory.v1"
UNLIMITED = {"subs": -1, "data": -1, "payload": -1}
ACCOUNT_LIMITS = {**UNLIMITED, "imports": -1, "exports": -1, "wildcards": True, "conn": -1, "leaf": -1}
JETSTREAM_LIMITS = {"mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1}


def new_key(prefix: int) -> Any:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), prefix))


OPERATOR = new_key(nkeys.PREFIX_BYTE_OPERATOR)
ACCOUNT, SYSTEM = (new_key(nkeys.PREFIX_BYTE_ACCOUNT) for _ in range(2))


def name_of(key: Any) -> str:
    return str(key.public_key.decode())


def encoded(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


def signed_claims(issuer: Any, subject: Any, kind: str, of_nats: dict[str, Any], expires: int | None = None) -> str:
    """A JWT as NATS has them, version 2."""
    claims = {"iss": name_of(issuer), "sub": name_of(subject), "name": kind, "iat": int(time.time()), "jti": kind}
    claims |= {"nats": {"type": kind, "version": 2, **of_nats}, **({"exp": expires} if expires else {})}
    signed = b".".join(encoded(json.dumps(part).encode()) for part in ({"typ": "JWT", "alg": "ed25519-nkey"}, claims))
    return (signed + b"." + encoded(issuer.sign(signed))).decode()


def write_credentials(
    path: Path, *, key: Any = None, inbox: str = "_INBOX", expires: int | None = None, line_end: str = "\n"
) -> Path:
    """The file of a new user that receives replies under `inbox` alone; `key` is what it holds instead of its own."""
    user = new_key(nkeys.PREFIX_BYTE_USER)
    token = signed_claims(ACCOUNT, user, "user", {**UNLIMITED, "sub": {"allow": [f"{inbox}.>"]}}, expires)
    lines = ["-----BEGIN NATS USER JWT-----", token, "------END NATS USER JWT------", "", "*** IMPORTANT ***", ""]
    lines += ["-----BEGIN USER NKEY SEED-----", (key or user).seed.decode(), "------END USER NKEY SEED------", ""]
    path.write_bytes(line_end.join(lines).encode())
    return path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server that trusts an operator, and knows one account with JetStream."""
    port, monitoring_port = free_port(), free_port()
    configuration = write_nats_configuration(tmp_path, port, monitoring_port, "operated", sync_always=False)
    accounts = {
        name_of(key): signed_claims(OPERATOR, key, "account", {"limits": limits})
        for key, limits in ((ACCOUNT, {**ACCOUNT_LIMITS, **JETSTREAM_LIMITS}), (SYSTEM, ACCOUNT_LIMITS))
    }
    with configuration.open("a") as text:
        text.write(
            f"operator: {signed_claims(OPERATOR, OPERATOR, 'operator', {})}\nsystem_account: {name_of(SYSTEM)}\n"
        )
        text.write(f"resolver: MEMORY\nresolver_preload: {json.dumps(accounts)}\n")
    server = NatsServer(configuration, port, monitoring_port, "operated", tmp_path / "nats-server.log")
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_the_file_of_the_settings_logs_in_and_does_so_again_after_a_restart(
    server: NatsServer, tmp_path: Path, line_end: str
) -> None:
    file = write_credentials(tmp_path / "user.creds", line_end=line_end)
    with open_stream(Settings(nats_url=server.url, nats_credentials_file=file)) as stream:
        bootstrap(stream)
        assert stream.publish(TRAJECTORY, b"before", "id-1").sequence == 1
        server.kill()
        server.start()
        assert stream.publish(TRAJECTORY, b"after", "id-2").sequence == 2
        (batch,) = stream.read(TRAJECTORIES.name, 1, 2, 10)
        assert [message.data for message in batch] == [b"before", b"after"]


def test_replies_arrive_under_the_prefix_that_is_given(server: NatsServer, tmp_path: Path) -> None:
    file = write_credentials(tmp_path / "user.creds", inbox="_INBOX_own")
    with JetStream.connect(server.url, credentials_file=file, inbox_prefix="_INBOX_own") as stream:
        bootstrap(stream, 1, [TRAJECTORIES])
        assert stream.publish(TRAJECTORY, b"", "id-1").sequence == 1
    with JetStream.connect(server.url, credentials_file=file) as stream, pytest.raises(PublishRefused, match="_INBOX"):
        stream.publish(TRAJECTORY, b"", "id-2")


def test_a_login_that_is_refused_says_which_settings_to_check(server: NatsServer, tmp_path: Path) -> None:
    refuses = f"NATS at {server.url} refuses"
    with pytest.raises(StreamDenied) as refusal:
        JetStream.connect(server.url)
    settings = "set NATS_USER and NATS_PASSWORD, or NATS_CREDENTIALS_FILE"
    assert str(refusal.value) == f"{refuses} connections without a user: {settings}"
    another = write_credentials(tmp_path / "another.creds", key=new_key(nkeys.PREFIX_BYTE_USER))
    expired = write_credentials(tmp_path / "expired.creds", expires=int(time.time()) - 60)
    for file in (another, expired):
        with pytest.raises(StreamDenied) as refusal:
            JetStream.connect(server.url, credentials_file=file)
        settings = "check NATS_CREDENTIALS_FILE, and that it has not expired"
        assert str(refusal.value) == f"{refuses} the user of {file}: {settings}"


@pytest.mark.parametrize("spoil", ["BEGIN NATS USER JWT", "BEGIN USER NKEY SEED", "\nSU"])
def test_a_file_that_is_no_credentials_is_refused(tmp_path: Path, spoil: str) -> None:
    file = write_credentials(tmp_path / "user.creds")
    file.write_text(file.read_text().replace(spoil, "\nspoilt"))
    with pytest.raises(StreamDenied, match=r"lacks a user's JWT or seed.*: set NATS_CREDENTIALS_FILE"):
        JetStream.connect("nats://127.0.0.1:1", credentials_file=file)


def test_a_login_that_expires_comes_back_with_the_renewed_file(server: NatsServer, tmp_path: Path) -> None:
    file = write_credentials(tmp_path / "user.creds", expires=int(time.time()) + 2)
    with JetStream.connect(server.url, credentials_file=file, patience_seconds=0.2) as stream:

        def fault() -> str:
            try:
                stream.request("INFO")
            except StreamUnavailable as error:
                return str(error)
            return ""

        wait_until(lambda: "Authorization Violation" in fault())
        file.write_text("half-written")
        wait_until(lambda: "invalid user credentials" in fault())
        write_credentials(file)
        wait_until(lambda: fault() == "")
