"""The setting that chooses what splits the traffic: each kind is really built, and really obeys the controller."""

import shlex
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rl_pipeline.definitions import resources_from
from rl_pipeline.deployment.admission import admit
from rl_pipeline.deployment.commands import Commands
from rl_pipeline.deployment.controller import Tick
from rl_pipeline.deployment.first_model import first_model
from rl_pipeline.deployment.state import ServedModel
from rl_pipeline.opening import open_traffic
from rl_pipeline.resources.deployment import DeploymentResource
from rl_pipeline.serving.traffic.direct import DirectBackend
from rl_pipeline.serving.traffic.gateways import Gateways
from rl_pipeline.serving.traffic.tensorzero import TensorZero
from rl_pipeline.settings import load_settings
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline_tests.serving.running_gateway import TOKEN, GatewayProcess
from rl_pipeline_tests.serving.stub_backend import StubBackend, stub_backends
from rl_pipeline_tests.training.job_tables import emptied, migrated_database, store_rewards
from rl_pipeline_tests.validation.stored_reports import a_report, store_a_report, store_checkpoint
from rl_pipeline_tests.waiting import wait_until

OLD, NEW = "old", "agent-zero-rl-v1"
SERVED_AS = "job"
"""The name of the new model at its backend: that of its training job, as validation asked for it."""


@pytest.fixture(scope="module")
def database(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def tables(database: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(database)


@pytest.fixture
def backend() -> Iterator[StubBackend]:
    with stub_backends("any") as (stub,):
        yield stub


def chosen(monkeypatch: pytest.MonkeyPatch, home: Path, **variables: str) -> DeploymentResource:
    """The resource as the code location makes it of these variables."""
    for name, value in {"RL_PIPELINE_HOME": str(home), **variables}.items():
        monkeypatch.setenv(name, value)
    with dg.build_resources({"deployment": resources_from(load_settings())["deployment"]}) as built:
        resource: DeploymentResource = built.deployment
        return resource


def rolled_out(deployment: DeploymentResource, stream: JetStream, tables: ClickHouseWarehouse, directory: Path) -> Tick:
    """The base model serves, a better one is let in, and the controller looks once."""
    now = datetime.now(UTC)
    commands = Commands(deployment.desk(stream, tables), "test", now)
    commands.create(first_model(OLD, deployment.endpoint), "the first model in service")
    store_checkpoint(tables, "job")
    store_a_report(tables, directory, "job", a_report())
    admit(tables, JetStreamLeases(stream), "job", deployment.terms(), now=now)
    tick = deployment.controller(stream, tables).tick(now)
    assert tick.pending == []
    return tick


def test_gateways_are_asked_by_default(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    stream: JetStream,
    tables: ClickHouseWarehouse,
    backend: StubBackend,
) -> None:
    with GatewayProcess(tmp_path / "gateway") as gateway:
        variables = {"TENSORZERO_BASE_URL": gateway.url, "TENSORZERO_ADMIN_TOKEN": TOKEN}
        deployment = chosen(monkeypatch, tmp_path, SERVING_ENDPOINT=backend.endpoint, **variables)
        assert isinstance(deployment.traffic(), Gateways)
        tick = rolled_out(deployment, stream, tables, tmp_path)
        assert tick.state is not None
        assert tick.state.weights == {OLD: 0.9, NEW: 0.1}
        wait_until(lambda: not deployment.traffic().standings()[0].not_ready)
        assert {gateway.chat(f"session-{number}").model for number in range(100)} == {OLD, NEW}
        assert open_traffic(load_settings()).standings() == deployment.traffic().standings()


def test_tensorzero_is_given_its_configuration_and_restarted(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    stream: JetStream,
    tables: ClickHouseWarehouse,
    backend: StubBackend,
) -> None:
    from tensorzero import TensorZeroGateway

    loaded = tmp_path / "loaded.toml"
    copies = "import shutil, sys; shutil.copy(sys.argv[2], sys.argv[1])"
    deployment = chosen(
        monkeypatch,
        tmp_path,
        TRAFFIC_CONTROLLER="tensorzero",
        TRAFFIC_COMMAND=shlex.join([sys.executable, "-c", copies, str(loaded)]),
        SERVING_ENDPOINT=backend.endpoint,
    )
    assert isinstance(deployment.traffic(), TensorZero)
    assert isinstance(open_traffic(load_settings()), TensorZero)
    tick = rolled_out(deployment, stream, tables, tmp_path)
    assert tick.state is not None
    assert tick.state.weights == {OLD: 0.9, NEW: 0.1}
    assert deployment.traffic().standings()[0].weights == tick.state.weights
    asked: Any = {"messages": [{"role": "user", "content": "who are you?"}]}
    with TensorZeroGateway.build_embedded(config_file=str(loaded)) as gateway:
        answered = {gateway.inference(function_name="agent", input=asked).variant_name for _ in range(100)}
    assert answered == {OLD, NEW}
    assert {body["model"] for body in backend.bodies} == {OLD, SERVED_AS}


def test_a_backend_that_is_asked_directly_is_switched(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    stream: JetStream,
    tables: ClickHouseWarehouse,
    backend: StubBackend,
) -> None:
    switched = tmp_path / "switched"
    notes = "import sys; print(sys.argv[2], file=open(sys.argv[1], 'a'))"
    deployment = chosen(
        monkeypatch,
        tmp_path,
        TRAFFIC_CONTROLLER="direct",
        TRAFFIC_COMMAND=shlex.join([sys.executable, "-c", notes, str(switched)]),
        SERVING_ENDPOINT=backend.endpoint,
    )
    assert isinstance(deployment.traffic(), DirectBackend)
    assert isinstance(open_traffic(load_settings()), DirectBackend)
    tick = rolled_out(deployment, stream, tables, tmp_path)
    assert tick.state is not None
    assert tick.state.weights == {NEW: 1.0}
    assert switched.read_text().split() == [OLD, SERVED_AS]
    pointed = ServedModel.model_validate_json((tmp_path / "traffic" / "serving.json").read_bytes())
    assert (pointed.model_id, pointed.endpoint) == (NEW, backend.endpoint)
    back = Commands(deployment.desk(stream, tables), "test", datetime.now(UTC)).roll_back("it is bad")
    assert (back.weights, switched.read_text().split()) == ({OLD: 1.0}, [OLD, SERVED_AS, OLD])


@pytest.mark.parametrize(
    ("before", "after", "reason", "phase"),
    [
        pytest.param((0.6, 0.7), (0.6, 0.7), "time_and_samples", "steady", id="as good as before"),
        pytest.param((0.8, 0.9), (0.5, 0.6), "worse_than_before", "baking", id="worse"),
        pytest.param((0.6, 0.7), (), "too_few_rewards", "baking", id="nobody publishes"),
    ],
)
def test_a_model_that_took_over_at_once_bakes_by_its_rewards_or_asks_a_person(  # noqa: PLR0917 - pytest passes them by name
    before: tuple[float, ...],
    after: tuple[float, ...],
    reason: str,
    phase: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    stream: JetStream,
    tables: ClickHouseWarehouse,
) -> None:
    deployment = chosen(
        monkeypatch,
        tmp_path,
        TRAFFIC_CONTROLLER="direct",
        TRAFFIC_COMMAND="true",
        SERVING_ENDPOINT="http://127.0.0.1:9",
        CANARY_BAKE_HOURS="2",
    )
    state = rolled_out(deployment, stream, tables, tmp_path).state
    assert state is not None
    assert (state.phase, state.weights) == ("baking", {NEW: 1.0})
    began, controller = state.change.at, deployment.controller(stream, tables)
    store_rewards(tables, 200, at=began - timedelta(hours=1), totals=before, model=OLD, seconds=60)
    if after:
        store_rewards(tables, 150, at=began + timedelta(hours=1), totals=after, model=NEW, first=1001, seconds=60)
    early = controller.tick(began + timedelta(minutes=110))
    assert early.state is not None
    assert early.state.phase == "baking", "it bakes for its time"
    tick = controller.tick(began + timedelta(hours=3))
    assert tick.state is not None
    assert tick.judgement is not None
    assert (tick.judgement.reason, tick.state.phase) == (reason, phase)
    if phase == "baking":
        assert "a person decides: `rl-pipeline deployment promote` or `roll-back`" in tick.judgement.explanation
        promoted = Commands(deployment.desk(stream, tables), "ada", began).promote("looked at it", model_id=NEW)
        assert promoted.serving == NEW


@pytest.mark.parametrize("command", ["false", "/nowhere/at/all"])
def test_a_command_that_fails_is_told_and_tried_again(
    command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, stream: JetStream, tables: ClickHouseWarehouse
) -> None:
    endpoint = "http://127.0.0.1:9"
    variables = {"TRAFFIC_CONTROLLER": "direct", "SERVING_ENDPOINT": endpoint, "TRAFFIC_COMMAND": command}
    broken = chosen(monkeypatch, tmp_path, **variables)
    commands = Commands(broken.desk(stream, tables), "test", datetime.now(UTC))
    commands.create(first_model(OLD, endpoint), "the first model in service")
    tick = broken.controller(stream, tables).tick(datetime.now(UTC))
    assert [command in line for line in tick.pending] == [True]
    whole = chosen(monkeypatch, tmp_path, **variables | {"TRAFFIC_COMMAND": "true"})
    assert whole.controller(stream, tables).tick(datetime.now(UTC)).pending == []
    assert whole.traffic().standings()[0].weights == {OLD: 1.0}
