"""The gateway and the watchdog as people start them."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl_pipeline.contracts import ServingOutcome
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.embedded.ports import free_port
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline_tests.end_to_end.running_stack import COMMAND, run_command, user_environment
from rl_pipeline_tests.serving import stub_backend
from rl_pipeline_tests.serving.commanded_gateway import CommandedGateway
from rl_pipeline_tests.serving.running_gateway import SESSION_KEY, TOKEN, stored_as
from rl_pipeline_tests.serving.states import NEW, OLD, model_at, ramping, sessions_at
from rl_pipeline_tests.serving.stub_backend import StubBackend, stub_backends
from rl_pipeline_tests.waiting import wait_until


@pytest.fixture
def backends() -> Iterator[tuple[StubBackend, StubBackend]]:
    with stub_backends(OLD, NEW) as (old, new):
        yield old, new


@pytest.fixture
def stores(nats_server: NatsServer, stream: JetStream, warehouse: ClickHouseWarehouse, clickhouse_url: str) -> Any:
    """Where the stores are, as environment variables."""
    return {
        "NATS_URL": nats_server.url,
        "CLICKHOUSE_URL": clickhouse_url,
        "CLICKHOUSE_DATABASE": warehouse.database,
        "GATEWAY_SESSION_IDLE_SECONDS": "0.5",
    }


def record(stream: JetStream, backends: tuple[StubBackend, StubBackend]) -> None:
    """A candidate is to have half of the traffic."""
    old, new = backends
    state = ramping(1, model_at(OLD, old.endpoint), model_at(NEW, new.endpoint), 0.5)
    stored = JetStreamDesiredStates(stream).read()
    assert JetStreamDesiredStates(stream).swap(state.encoded(), stored.revision if stored else 0)


def recorded(stream: JetStream) -> DesiredState:
    stored = JetStreamDesiredStates(stream).read()
    assert stored is not None
    return DesiredState.decoded(stored.data)


def follows(gateway: CommandedGateway, generation: int) -> bool:
    standing = gateway.standing()
    return standing["generation"] == generation and not standing["not_ready"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "TENSORZERO_ADMIN_TOKEN"),
        ({"TENSORZERO_ADMIN_TOKEN": TOKEN}, "GATEWAY_SESSION_KEY"),
        ({"TENSORZERO_ADMIN_TOKEN": TOKEN, "GATEWAY_SESSION_KEY": "v1:short"}, "32 characters"),
        ({"TENSORZERO_ADMIN_TOKEN": "short", "GATEWAY_SESSION_KEY": SESSION_KEY}, "16 characters"),
    ],
)
def test_a_gateway_that_lacks_a_secret_says_which_in_one_line(
    tmp_path: Path, given: dict[str, str], named: str
) -> None:
    refused = run_command(tmp_path, "gateway", "--port", "0", **given)
    assert refused.returncode == 1
    (line,) = refused.stderr.splitlines()
    assert named in line


def test_a_gateway_follows_the_record_tells_outcomes_and_changes_the_traffic(
    tmp_path: Path,
    stores: dict[str, str],
    stream: JetStream,
    warehouse: ClickHouseWarehouse,
    backends: tuple[StubBackend, StubBackend],
) -> None:
    record(stream, backends)
    with CommandedGateway(tmp_path / "gateway", stores) as gateway:
        wait_until(lambda: follows(gateway, 1))
        assert gateway.chat("somebody").status == 200
        wait_until(lambda: stream.state("RL_SERVING").messages == 1)
        told = ServingOutcome.model_validate_json(stream.get("RL_SERVING", 1).data)
        assert (told.session_id, told.gateway) == (stored_as("somebody"), "gateway-1")
        changed = gateway.call("PUT", "/admin/traffic", {"model_id": NEW, "traffic_percentage": 75})
        assert (changed.status, changed.json["recorded"]) == (200, True), changed.body
        assert recorded(stream).weights == {NEW: 0.75, OLD: 0.25}
        audited = warehouse.query("SELECT generation, by FROM deployment_audit FINAL ORDER BY generation")
        assert audited.rows()[-1] == (2, "gateway-1")
        assert gateway.process is not None
        libraries = [each.path for each in psutil.Process(gateway.process.pid).memory_maps()]
        assert any("uvloop" in path for path in libraries), "it runs on the event loop that is measured"
        assert gateway.end() == 0


@pytest.mark.parametrize(
    "asked", [{"model_id": OLD, "traffic_percentage": 100}, {"model_id": NEW, "traffic_percentage": 0}]
)
def test_a_person_takes_a_candidate_out_while_the_warehouse_is_away(
    tmp_path: Path,
    stores: dict[str, str],
    stream: JetStream,
    backends: tuple[StubBackend, StubBackend],
    asked: dict[str, object],
) -> None:
    record(stream, backends)
    nobody = f"http://127.0.0.1:{free_port()}"
    with CommandedGateway(tmp_path / "gateway", {**stores, "CLICKHOUSE_URL": nobody}) as gateway:
        wait_until(lambda: follows(gateway, 1))
        session = next(sessions_at(0.5))
        assert gateway.chat(session).model == NEW
        raised = gateway.call("PUT", "/admin/traffic", {"model_id": NEW, "traffic_percentage": 75})
        assert (raised.status, raised.json["error"]["next_step"]) == (503, "try again once it is back")
        assert (gateway.standing()["weights"], recorded(stream).weights) == ({NEW: 0.5, OLD: 0.5},) * 2
        back = gateway.call("PUT", "/admin/traffic", asked)
        assert back.status == 200, back.body
        assert gateway.standing()["weights"] == {OLD: 1.0}
        assert NEW in gateway.standing()["fenced"]
        assert gateway.chat(session).model == OLD
        assert back.json["recorded"] == (recorded(stream).weights == {OLD: 1.0})
        gateway.kill()
        gateway.start()
        assert gateway.chat(session).model == OLD, "it outlives the gateway"


def test_a_watchdog_takes_a_bad_candidate_out_by_itself(
    tmp_path: Path, stores: dict[str, str], stream: JetStream, backends: tuple[StubBackend, StubBackend]
) -> None:
    record(stream, backends)
    with CommandedGateway(tmp_path / "gateway", stores) as gateway:
        wait_until(lambda: follows(gateway, 1))
        backends[1].behaviour = stub_backend.answer_500
        for number in range(200):
            gateway.chat(f"session-{number}")
        data = tmp_path / "watchdog"
        environment = user_environment(
            tmp_path, **stores, TENSORZERO_BASE_URL=gateway.url, TENSORZERO_ADMIN_TOKEN=TOKEN
        )
        dog = subprocess.Popen(
            [COMMAND, "watchdog", "--data", str(data), "--interval", "0.2"],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            wait_until(lambda: NEW in gateway.standing()["fenced"])
            wait_until(lambda: recorded(stream).change.event == "rolled_back")
        finally:
            dog.terminate()
            _, logged = dog.communicate()
        assert dog.returncode == 0
    change = recorded(stream).change
    assert (change.by, change.reason, change.model_id) == ("rollout-watchdog", "high_error_rate", NEW)
    assert f"{NEW} fenced at {gateway.url}" in logged
    assert (data / "last-look").exists()
