"""The specification's curl lines for the gateway, letter by letter, against `rl-pipeline gateway`, NATS and ClickHouse.

What is not theirs is in curl's own configuration: the token, and that the status is told. The address is the gateway's.
"""

import json
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline_tests.serving.commanded_gateway import CommandedGateway
from rl_pipeline_tests.serving.running_gateway import TOKEN
from rl_pipeline_tests.serving.states import model_at, ramping, sessions_at, steady
from rl_pipeline_tests.serving.stub_backend import StubBackend, stub_backends
from rl_pipeline_tests.waiting import wait_until

pytestmark = pytest.mark.curl

ADDRESS = "http://tensorzero-gateway:3000"

REGISTER = """curl -X POST http://tensorzero-gateway:3000/admin/models \\
  -H "Content-Type: application/json" \\
  -d '{
    "model_id": "agent-zero-rl-v2.3",
    "base_model": "qwen2.5-32b-instruct",
    "checkpoint_path": "s3://pmoves-models/rl-checkpoints/..."
  }'"""
SPLIT = """curl -X PUT http://tensorzero-gateway:3000/admin/traffic \\
  -H "Content-Type: application/json" \\
  -d '{
    "model_id": "agent-zero-rl-v2.3",
    "traffic_percentage": 50
  }'"""
METRICS = "curl http://tensorzero-gateway:3000/admin/models/agent-zero-rl-v2.3/metrics"
ROLL_BACK = """curl -X PUT http://tensorzero-gateway:3000/admin/traffic \\
  -d '{"model_id": "agent-zero-rl-v2.3", "traffic_percentage": 100}'"""
HEALTH = "curl http://tensorzero-gateway:3000/health"
CURRENT = "curl http://tensorzero-gateway:3000/admin/models/current/metrics"
PROMETHEUS = "curl http://tensorzero-gateway:3000/metrics"

BEFORE, MODEL, AFTER = "agent-zero-rl-v2.2", "agent-zero-rl-v2.3", "agent-zero-rl-v2.4"


class Told(NamedTuple):
    """What curl printed."""

    status: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Shell:
    """Where somebody types the lines; `token` is in curl's configuration."""

    def __init__(self, gateway: CommandedGateway, home: Path, token: str | None) -> None:
        self.gateway, self.home = gateway, home
        home.mkdir()
        header = f'header = "Authorization: Bearer {token}"\n' if token else ""
        (home / ".curlrc").write_text(f'silent\nshow-error\nmax-time = 60\nwrite-out = "\\n%{{http_code}}"\n{header}')

    def run(self, line: str) -> Told:
        environment = {"CURL_HOME": str(self.home), "PATH": "/usr/bin:/bin", "NO_PROXY": "127.0.0.1"}
        command = ["sh", "-c", line.replace(ADDRESS, self.gateway.url)]
        printed = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        text, _, status = printed.rpartition("\n")
        return Told(int(status), text)


@pytest.fixture
def backends() -> Iterator[tuple[StubBackend, ...]]:
    with stub_backends(BEFORE, MODEL, AFTER) as stubs:
        yield tuple(stubs)


@pytest.fixture
def gateway(
    tmp_path: Path, nats_server: NatsServer, stream: JetStream, warehouse: ClickHouseWarehouse, clickhouse_url: str
) -> Iterator[CommandedGateway]:
    stores = {
        "NATS_URL": nats_server.url,
        "CLICKHOUSE_URL": clickhouse_url,
        "CLICKHOUSE_DATABASE": warehouse.database,
        "GATEWAY_SESSION_IDLE_SECONDS": "0.5",
    }
    with CommandedGateway(tmp_path / "gateway", stores) as running:
        yield running


def record(stream: JetStream, gateway: CommandedGateway, state: DesiredState) -> None:
    """What the controller writes, once the gateway goes by it."""
    states = JetStreamDesiredStates(stream)
    stored = states.read()
    assert states.swap(state.encoded(), stored.revision if stored else 0)

    def is_followed() -> bool:
        standing, nats = gateway.standing(), gateway.health()["nats"]
        return standing["generation"] == state.generation and not standing["not_ready"] and nats["reachable"]

    wait_until(is_followed, f"generation {state.generation}")


def recorded(stream: JetStream) -> DesiredState:
    stored = JetStreamDesiredStates(stream).read()
    assert stored is not None
    return DesiredState.decoded(stored.data)


def test_every_curl_line_of_the_specification_does_what_it_says(
    tmp_path: Path,
    gateway: CommandedGateway,
    stream: JetStream,
    warehouse: ClickHouseWarehouse,
    backends: tuple[StubBackend, ...],
) -> None:
    before, model, after = (model_at(stub.name, stub.endpoint) for stub in backends)
    shell = Shell(gateway, tmp_path / "operator", TOKEN)
    stranger = Shell(gateway, tmp_path / "stranger", None)
    record(stream, gateway, steady(1, before))
    wait_until(lambda: shell.run(HEALTH).json["status"] == "ok", "a healthy gateway")
    for line in (REGISTER, SPLIT, METRICS, ROLL_BACK, CURRENT):
        assert stranger.run(line).status == 401

    # Register new model
    registered = shell.run(REGISTER)
    assert registered.status == 201
    assert registered.json == {
        "model_id": MODEL,
        "base_model": "qwen2.5-32b-instruct",
        "checkpoint_path": "s3://pmoves-models/rl-checkpoints/...",
        "ready": False,
        "traffic_percentage": 0,
    }
    wait_until(lambda: gateway.health()["nats"]["reachable"], "NATS")
    early = shell.run(SPLIT)
    assert early.status == 409, "a model that nobody has validated gets no traffic by being registered"
    assert early.json["error"]["next_step"] == "`rl-pipeline deployment ab-test` starts one"

    # Update traffic split: of the rollout that begins once it is validated
    record(stream, gateway, ramping(2, before, model, 0.1))
    split = shell.run(SPLIT)
    assert (split.status, split.json) == (
        200,
        {"model_id": MODEL, "traffic_percentage": 50, "generation": 3, "recorded": True},
    )
    assert recorded(stream).weights == {BEFORE: 0.5, MODEL: 0.5}

    # Query model metrics
    asked = list(islice(sessions_at(0.5, split=1), 10))
    assert {gateway.chat(session).model for session in asked} == {MODEL}
    metrics = shell.run(METRICS)
    assert metrics.status == 200
    assert metrics.json["model_id"] == MODEL
    assert (metrics.json["requests"], metrics.json["errors"], metrics.json["error_rate"]) == (10, 0, 0)
    assert metrics.json["traffic_percentage"] == 50
    assert metrics.json["latency_ms_p99"] > 0

    # Immediate switch to previous model: it serves by now, and the next one is being rolled out
    record(stream, gateway, ramping(4, model, after, 0.5, deployment_id="deployment-2"))
    session = next(each for each in sessions_at(0.5, deployment_id="deployment-2") if each not in asked)
    assert gateway.chat(session).model == AFTER
    switched = shell.run(ROLL_BACK)
    assert (switched.status, switched.json) == (
        200,
        {"model_id": MODEL, "traffic_percentage": 100, "generation": 5, "recorded": True},
    )
    assert gateway.chat(session).model == MODEL
    state = recorded(stream)
    assert (state.weights, state.change.event, state.retired) == ({MODEL: 1.0}, "rolled_back", (AFTER,))
    audited = warehouse.query("SELECT generation, event, by FROM deployment_audit FINAL ORDER BY generation").rows()
    assert audited[-1] == (5, "rolled_back", "gateway-1")

    # Check TensorZero Gateway status
    health = shell.run(HEALTH)
    assert health.status == 200
    assert (health.json["serving"], health.json["generation"], health.json["phase"]) == (MODEL, 5, "steady")

    # Check current model performance
    current = shell.run(CURRENT)
    assert (current.status, current.json["model_id"], current.json["traffic_percentage"]) == (200, MODEL, 100)
    assert current.json["requests"] == 11

    prometheus = shell.run(PROMETHEUS)
    assert prometheus.status == 200
    assert f'agent_rl_model_traffic_percentage{{model_version="{MODEL}"}} 100.0' in prometheus.text


def test_the_line_that_rolls_back_brings_the_previous_model_back_after_a_promotion(
    tmp_path: Path, gateway: CommandedGateway, stream: JetStream, backends: tuple[StubBackend, ...]
) -> None:
    _, model, after = (model_at(stub.name, stub.endpoint) for stub in backends)
    shell = Shell(gateway, tmp_path / "operator", TOKEN)
    record(stream, gateway, steady(1, model))
    record(stream, gateway, steady(2, after))
    assert gateway.chat("somebody").model == AFTER
    switched = shell.run(ROLL_BACK)
    assert (switched.status, switched.json) == (
        200,
        {"model_id": MODEL, "traffic_percentage": 100, "generation": 3, "recorded": True},
    )
    state = recorded(stream)
    assert (state.serving, state.weights, state.retired) == (MODEL, {MODEL: 1.0}, (AFTER,))
    wait_until(lambda: gateway.chat("somebody").model == MODEL, "the previous model")
    never_served = shell.run(ROLL_BACK.replace(MODEL, BEFORE))
    assert never_served.status == 409
    assert "has not served before" in never_served.json["error"]["message"]
