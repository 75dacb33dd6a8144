"""What callers call their sessions is stored nowhere: not by the gateway, the stream or the warehouse."""

import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from rl_pipeline.deployment.outcomes import drain_outcomes
from rl_pipeline.embedded.nats_server import NatsServer, running_nats_server
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.stores.topology import bootstrap
from rl_pipeline_tests.end_to_end.stored_bytes import stored_bytes
from rl_pipeline_tests.ingestion.ingesting import POLICY
from rl_pipeline_tests.serving import stub_backend
from rl_pipeline_tests.serving.running_gateway import GatewayProcess, stored_as
from rl_pipeline_tests.serving.states import NEW, OLD, model_at, ramping, sessions_at
from rl_pipeline_tests.serving.stub_backend import StubBackend, stub_backends
from rl_pipeline_tests.training.job_tables import migrated_database
from rl_pipeline_tests.waiting import wait_until

BY_HEADER, BY_USER, FAILING = "grace.hopper@example.com", "user/Ada-Lovelace", "jean.bartik"
NAMES = (BY_HEADER, BY_USER, FAILING)
# What names hold, should anything cut them up.
PIECES = (b"hopper", b"Lovelace", b"bartik")


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    with running_nats_server(tmp_path / "nats", sync_always=False) as server:
        with JetStream.connect(server.url) as jetstream:
            bootstrap(jetstream)
        yield server


@pytest.fixture
def backends() -> Iterator[tuple[StubBackend, StubBackend]]:
    with stub_backends(OLD, NEW) as (old, new):
        yield old, new


def started(directory: Path, nats: NatsServer, backends: tuple[StubBackend, StubBackend]) -> GatewayProcess:
    """A gateway that gives each of two models half of the traffic."""
    gateway = GatewayProcess(directory, {"nats_url": nats.url}).start()
    old, new = backends
    gateway.follow(ramping(1, model_at(OLD, old.endpoint), model_at(NEW, new.endpoint), 0.5))
    wait_until(lambda: not gateway.standing()["not_ready"])
    return gateway


def sent(port: int, header: str) -> bytes:
    """What answers a request with a header that no client of HTTP would write."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n{header}\r\n\r\n".encode())
        return connection.recv(65536)


def test_no_byte_of_a_callers_name_is_stored_anywhere(
    tmp_path: Path, nats: NatsServer, backends: tuple[StubBackend, StubBackend], clickhouse_url: str
) -> None:
    gateway = started(tmp_path / "gateway", nats, backends)
    assert gateway.chat(BY_HEADER).headers["x-session-id"] == BY_HEADER, "its caller knows it by its name"
    assert gateway.chat(user=BY_USER).status == 200
    assert gateway.chat(user=BY_USER, messages="no list").status == 400
    rating = {"session_id": BY_USER, "feedback": "negative"}
    assert gateway.call("POST", "/v1/feedback", rating).json == rating
    assert b" 400 " in sent(gateway.port, f"X-Session-Id: {BY_HEADER}\0")
    for stub in backends:
        stub.behaviour = stub_backend.answer_500
    assert gateway.chat(FAILING).status == 500
    gateway.end()  # it tells what is left
    with JetStream.connect(nats.url) as jetstream, migrated_database(clickhouse_url) as tables:
        (batch,) = jetstream.read("RL_SERVING", 1, 3, 10)
        assert len(batch) == 3
        drain_outcomes(jetstream, tables, redactor=lambda: Redactor(POLICY), now=datetime.now(UTC))
        rows = tables.query("SELECT * FROM serving_outcomes FINAL")
        assert set(rows["session_id"]) == set(map(stored_as, NAMES))
        assert dict(zip(rows["session_id"], rows["feedback"], strict=True))[stored_as(BY_USER)] == "negative"
        table = rows.write_json().encode()
    nats.kill()
    kept = {path: data for place in ("gateway", "nats") for path, data in stored_bytes(tmp_path / place)}
    assert any(stored_as(FAILING).encode() in data for data in kept.values()), "the files were looked into"
    for piece in PIECES:
        assert piece not in table
        assert [path for path, data in kept.items() if piece in data] == []


def test_gateways_with_one_key_agree_on_model_and_name_before_and_after_a_restart(
    tmp_path: Path, nats: NatsServer, backends: tuple[StubBackend, StubBackend]
) -> None:
    sessions = [session for session, _ in zip(sessions_at(1.0), range(20), strict=False)]
    first, second = (started(tmp_path / name, nats, backends) for name in ("one", "two"))
    models = {session: first.chat(session).model for session in sessions}
    assert set(models.values()) == {OLD, NEW}
    assert {session: second.chat(session).model for session in sessions} == models
    first.end()
    first.start()
    assert {session: first.chat(session).model for session in sessions} == models
    first.end()
    second.end()
    with JetStream.connect(nats.url) as jetstream:
        assert JetStreamDesiredStates(jetstream).read() is None
        messages = [message for batch in jetstream.read("RL_SERVING", 1, 60, 100) for message in batch]
    told = [message.data.decode() for message in messages]
    for session in sessions:
        assert sum(stored_as(session) in each for each in told) == 3
