"""One service for a module, and one database and one set of streams behind it."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.topology import bootstrap
from rl_pipeline_tests.fixtures.nats import remove_all_streams
from rl_pipeline_tests.service.running_service import ServiceProcess, Shell
from rl_pipeline_tests.training.job_tables import migrated_database


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as warehouse:
        yield warehouse


@pytest.fixture(scope="module")
def streams(nats_server: NatsServer) -> Iterator[JetStream]:
    with JetStream.connect(nats_server.url) as jetstream:
        remove_all_streams(jetstream)
        bootstrap(jetstream)
        yield jetstream


@pytest.fixture(scope="module")
def stores(
    nats_server: NatsServer, streams: JetStream, clickhouse_url: str, tables: ClickHouseWarehouse
) -> dict[str, str]:
    return {
        "NATS_URL": nats_server.url,
        "CLICKHOUSE_URL": clickhouse_url,
        "CLICKHOUSE_DATABASE": tables.database,
    }


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, stores: dict[str, str]) -> Iterator[ServiceProcess]:
    with ServiceProcess(tmp_path_factory.mktemp("service"), stores) as running:
        yield running


@pytest.fixture
def shell(service: ServiceProcess, tmp_path: Path) -> Shell:
    return Shell(service, tmp_path / "shell")
