"""What `PUT /admin/traffic` can do at a gateway follows from the login that the gateway has at NATS."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline_tests.deploy.accounts import connect, password
from rl_pipeline_tests.serving.commanded_gateway import CommandedGateway
from rl_pipeline_tests.serving.states import NEW, OLD, model_at, ramping
from rl_pipeline_tests.serving.stub_backend import StubBackend, stub_backends
from rl_pipeline_tests.waiting import wait_until


@pytest.fixture
def backends() -> Iterator[tuple[StubBackend, StubBackend]]:
    with stub_backends(OLD, NEW) as (old, new):
        yield old, new


@pytest.fixture
def stores(clickhouse_url: str, warehouse: ClickHouseWarehouse) -> dict[str, str]:
    """Where the audit is written, as environment variables."""
    return {"CLICKHOUSE_URL": clickhouse_url, "CLICKHOUSE_DATABASE": warehouse.database}


def recorded(url: str) -> DesiredState:
    with connect(url, "deployer") as deployer:
        stored = JetStreamDesiredStates(deployer).read()
    assert stored is not None
    return DesiredState.decoded(stored.data)


def started(
    user: str, directory: Path, url: str, stores: dict[str, str], backends: tuple[StubBackend, StubBackend]
) -> CommandedGateway:
    """A gateway with this login that gives a candidate a tenth of the traffic."""
    old, new = backends
    with connect(url, "admin") as admin:
        admin.request("STREAM.PURGE.KV_RL_DEPLOYMENT")
        state = ramping(1, model_at(OLD, old.endpoint), model_at(NEW, new.endpoint), 0.1)
        assert JetStreamDesiredStates(admin).swap(state.encoded(), 0)
    login = {"NATS_URL": url, "NATS_USER": user, "NATS_PASSWORD": password(user)}
    gateway = CommandedGateway(directory, {**stores, **login}).start()
    wait_until(lambda: gateway.standing()["generation"] == 1 and not gateway.standing()["not_ready"])
    return gateway


def test_as_gateway_admin_it_changes_the_record_and_still_tells_outcomes(
    tmp_path: Path, url: str, stores: dict[str, str], backends: tuple[StubBackend, StubBackend]
) -> None:
    gateway = started("gateway_admin", tmp_path / "gateway", url, stores, backends)
    try:
        raised = gateway.call("PUT", "/admin/traffic", {"model_id": NEW, "traffic_percentage": 50})
        assert (raised.status, raised.json["recorded"]) == (200, True), raised.body
        assert recorded(url).weights == {NEW: 0.5, OLD: 0.5}
        back = gateway.call("PUT", "/admin/traffic", {"model_id": OLD, "traffic_percentage": 100})
        assert (back.status, back.json["recorded"]) == (200, True), back.body
        assert recorded(url).weights == {OLD: 1.0}
        assert gateway.chat("somebody").status == 200
    finally:
        gateway.end()
    with connect(url, "pipeline") as pipeline:
        assert pipeline.state("RL_SERVING").messages == 1


def test_as_gateway_it_only_takes_a_candidate_out_and_says_so(
    tmp_path: Path, url: str, stores: dict[str, str], backends: tuple[StubBackend, StubBackend]
) -> None:
    gateway = started("gateway", tmp_path / "gateway", url, stores, backends)
    try:
        refused = gateway.call("PUT", "/admin/traffic", {"model_id": NEW, "traffic_percentage": 50})
        assert refused.status == 403
        assert "may not change the desired state" in refused.json["error"]["message"]
        assert "gateway_admin" in refused.json["error"]["next_step"]
        assert gateway.standing()["weights"] == {NEW: 0.1, OLD: 0.9}
        back = gateway.call("PUT", "/admin/traffic", {"model_id": OLD, "traffic_percentage": 100})
        assert (back.status, back.json["recorded"]) == (200, False), back.body
        assert gateway.standing()["weights"] == {OLD: 1.0}
        assert recorded(url).generation == 1
    finally:
        gateway.end()
