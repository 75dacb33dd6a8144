"""What Prometheus is told while a store is away, slow, or holds what cannot be read."""

import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from threading import Event
from typing import Any

import polars as pl
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from rl_pipeline.embedded.ports import LOOPBACK, free_port
from rl_pipeline.observability.metrics import PipelineCollector
from rl_pipeline.observability.metrics_training import steps_to_convergence
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.warehouse import WarehouseUnavailable
from rl_pipeline_tests.observability.scraping import served
from rl_pipeline_tests.training.job_tables import emptied, migrated_database, store_trajectories
from rl_pipeline_tests.waiting import wait_until


@pytest.fixture(scope="module")
def database(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as made:
        yield made


@pytest.fixture
def tables(database: ClickHouseWarehouse) -> ClickHouseWarehouse:
    store_trajectories(emptied(database), 20, scored=20, at=datetime.now(UTC))
    return database


def no_nats() -> Any:
    return JetStream.connect(f"nats://{LOOPBACK}:{free_port()}", connect_seconds=0.2, patience_seconds=0.2)


def collector(open_warehouse: Callable[[], Any], patience_seconds: float = 60.0) -> PipelineCollector:
    return PipelineCollector(
        open_warehouse,
        no_nats,
        trajectory_stream="RL_TRAJECTORIES",
        training_stream="RL_TRAINING",
        streams=["RL_TRAJECTORIES"],
        fresh_seconds=0.0,
        patience_seconds=patience_seconds,
    )


def told(source: PipelineCollector) -> dict[str, float]:
    """The sum over the labels of each."""
    figures: dict[str, float] = {}
    for family in source.collect():
        for sample in family.samples:
            figures[sample.name] = figures.get(sample.name, 0.0) + sample.value
    return figures


def test_without_nats_everything_else_is_told(tables: ClickHouseWarehouse) -> None:
    figures = told(collector(lambda: tables))
    assert figures["agent_rl_nats_reachable"] == 0
    assert figures["agent_rl_warehouse_reachable"] == 1
    assert figures["agent_rl_trajectories_collected_total"] == 20
    assert figures["agent_rl_metrics_broken"] == 0
    assert "agent_rl_stream_messages" not in figures


def test_while_the_warehouse_is_away_its_last_figures_stand(tables: ClickHouseWarehouse) -> None:
    is_away = True

    class Tables:
        """The warehouse, unless it is away."""

        def __getattr__(self, name: str) -> Any:
            if is_away:
                raise WarehouseUnavailable("ClickHouse does not answer: start it")
            return getattr(tables, name)

    source = collector(Tables)
    assert "agent_rl_trajectories_collected_total" not in told(source), "nothing is made up"
    is_away = False
    assert told(source)["agent_rl_trajectories_collected_total"] == 20
    is_away = True
    figures = told(source)
    assert figures["agent_rl_warehouse_reachable"] == 0
    assert figures["agent_rl_trajectories_collected_total"] == 20
    is_away = False
    assert told(source)["agent_rl_warehouse_reachable"] == 1


def test_a_warehouse_that_is_silent_is_asked_once_for_all_of_its_figures() -> None:
    asked = []

    class Silent:
        """Takes its whole patience to say nothing, each time."""

        def query(self, *_: Any) -> Any:
            asked.append(1)
            raise WarehouseUnavailable("ClickHouse does not answer: start it")

    figures = told(collector(Silent))
    assert figures["agent_rl_warehouse_reachable"] == 0
    assert len(asked) == 1


def test_a_scrape_does_not_wait_for_a_store_that_is_slow(tables: ClickHouseWarehouse) -> None:
    answers = Event()

    def slowly() -> ClickHouseWarehouse:
        answers.wait()
        return tables

    source = collector(slowly, patience_seconds=0.01)
    try:
        figures = told(source)
        assert "agent_rl_trajectories_collected_total" not in figures
        assert "agent_rl_host_cpu_ratio" in figures
    finally:
        answers.set()
    wait_until(lambda: told(source).get("agent_rl_trajectories_collected_total") == 20, "the figures")
    assert told(source)["agent_rl_metrics_age_seconds"] >= 0


def test_what_cannot_be_read_hides_nothing_else(tables: ClickHouseWarehouse) -> None:
    broken = {"generation": 1, "hash": "h", "state": "no JSON", "event": "deployed", "at": datetime.now(UTC)}
    tables.insert("deployment_audit", pl.DataFrame([broken]))
    figures = told(collector(lambda: tables))
    assert figures["agent_rl_metrics_broken"] == 1
    assert figures["agent_rl_warehouse_reachable"] == 1
    assert figures["agent_rl_trajectories_collected_total"] == 20
    assert figures["agent_rl_training_jobs_total"] == 0


def test_scrapes_that_come_at_once_ask_the_stores_once(tables: ClickHouseWarehouse) -> None:
    source = collector(lambda: tables)
    source.fresh_seconds = 60.0
    before = told(source)["agent_rl_trajectories_collected_total"]
    emptied(tables)
    store_trajectories(tables, 30, scored=0, at=datetime.now(UTC))
    assert told(source)["agent_rl_trajectories_collected_total"] == before == 20
    source.fresh_seconds = 0.0
    assert told(source)["agent_rl_trajectories_collected_total"] == 30


def test_the_route_answers_without_a_key_and_as_prometheus_reads(tables: ClickHouseWarehouse) -> None:
    with served(collector(lambda: tables)) as address, urllib.request.urlopen(f"http://{address}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        names = {family.name for family in text_string_to_metric_families(answer.read().decode())}
    assert {"agent_rl_trajectories_collected", "agent_rl_trajectory_reward", "process_cpu_seconds"} <= names


def test_names_labels_and_buckets_are_those_of_the_specification(tables: ClickHouseWarehouse) -> None:
    registry = CollectorRegistry()
    registry.register(collector(lambda: tables))
    families = {each.name: each for each in text_string_to_metric_families(generate_latest(registry).decode())}

    def labels(name: str) -> set[str]:
        return {label for sample in families[name].samples for label in sample.labels}

    def bounds(name: str) -> list[float]:
        buckets = [sample for sample in families[name].samples if sample.name.endswith("_bucket")]
        return [float(sample.labels["le"]) for sample in buckets][:-1]

    assert labels("agent_rl_trajectories_collected") == {"agent_type", "task_domain"}
    assert labels("agent_rl_training_jobs") == {"status"}
    assert labels("agent_rl_model_reward_mean") == {"model_version"}
    assert labels("agent_rl_model_deployments") == {"status"}
    assert bounds("agent_rl_trajectory_reward") == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert bounds("agent_rl_trajectory_length") == [1, 3, 5, 10, 20, 50]
    assert bounds("agent_rl_training_duration_seconds") == [300, 600, 1800, 3600, 7200, 14400]
    assert bounds("agent_rl_training_samples") == [1000, 5000, 10_000, 50_000, 100_000]


@pytest.mark.parametrize(
    ("losses", "step"),
    [
        ([(10, 2.0), (20, 1.0), (50, 0.52), (100, 0.5)], 50),
        ([(10, 2.0), (20, 0.4), (30, 0.9)], 20),
        ([(10, 1.0), (20, 1.5)], None),
        ([(10, 1.0)], None),
        ([], None),
    ],
)
def test_a_training_has_converged_when_its_loss_has_done_most_of_its_fall(
    losses: list[tuple[float, float]], step: float | None
) -> None:
    assert steps_to_convergence(losses) == step
