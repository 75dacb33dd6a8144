"""A real Prometheus looks at a stack on which something of everything has happened: figures, queries, panels, alerts.

The tests of alerts bring their causes about in the real components, and make them go away again.
"""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from rl_pipeline.embedded.nats_server import NatsServer, running_nats_server
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.deployment.release_place import FIRST
from rl_pipeline_tests.end_to_end.specified_lines import PROMQL
from rl_pipeline_tests.fixtures.clickhouse import ClickHouseFront
from rl_pipeline_tests.observability.filled_stack import CANDIDATE, FilledStack, fill, stack
from rl_pipeline_tests.observability.scraping import (
    DEPLOY,
    Prometheus,
    running_prometheus,
    seconds_for_minutes,
    served,
)
from rl_pipeline_tests.waiting import wait_until

pytestmark = pytest.mark.promtool  # it comes with Prometheus

DASHBOARDS = sorted((DEPLOY / "grafana" / "dashboards").glob("*.json"))
PANELS = [
    pytest.param(target["expr"], id=f"{page.stem}: {panel['title']} {target['refId']}")
    for page in DASHBOARDS
    for panel in json.loads(page.read_text())["panels"]
    for target in panel.get("targets", ())
]
CAUSED = (
    "TrainingFailsInARow",
    "ModelValidationFailed",
    "DeploymentRolledBack",
    "RolloutRefused",
    "CollectionErrors",
)


class OwnClickHouse:
    """A server that a test may kill, and start again at its address."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._front = ClickHouseFront(directory)
        self.url = self._front.url

    def kill(self) -> None:
        self._front.release()

    def start(self) -> None:
        self._front = ClickHouseFront(self._directory, self._front.port)

    def close(self) -> None:
        self._front.release()


@dataclass
class Scraped:
    """A stack, its own servers, and the Prometheus that looks at it."""

    stack: FilledStack
    nats: NatsServer
    clickhouse: OwnClickHouse
    prometheus: Prometheus

    def fires(self, alert: str, since: float) -> None:
        """Wait until it fires, or has since then: windows are short here, and the machine may be busy."""

        def has_fired() -> bool:
            seconds = int(self.prometheus.value("time()") - since) + 1
            firing = f'ALERTS{{alertname="{alert}", alertstate="firing"}}'
            return bool(self.prometheus.query(f"count_over_time({firing}[{seconds}s])"))

        wait_until(has_fired, f"{alert}, which should fire,")

    def clears(self, alert: str) -> None:
        wait_until(lambda: alert not in self.prometheus.firing(), f"{alert}, which should clear,")


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """Prometheus has looked before anything happened, while it did, and afterwards."""
    with (
        running_nats_server(tmp_path_factory.mktemp("nats"), sync_always=False) as nats,
        closing(OwnClickHouse(tmp_path_factory.mktemp("clickhouse"))) as clickhouse,
        stack(nats.url, clickhouse.url, tmp_path_factory.mktemp("stack")) as made,
        JetStream.connect(nats.url, connect_seconds=1.0, patience_seconds=1.0) as messages,
        served(made.collector(lambda: messages)) as service,
        running_prometheus(
            tmp_path_factory.mktemp("prometheus"),
            {"rl-pipeline": [service], "gateway": [made.place.gateway.url.removeprefix("http://")]},
            shorter=seconds_for_minutes,
        ) as prometheus,
    ):
        prometheus.look_again()
        fill(made)
        prometheus.comes_to("agent_rl_training_loss", 0.75)
        yield Scraped(made, nats, clickhouse, prometheus)


def test_the_figures_of_collection_are_those_of_the_tables(scraped: Scraped) -> None:
    comes_to = scraped.prometheus.comes_to
    stored = scraped.stack.tables.query(
        "SELECT count() AS trajectories, sum(turns) AS turns FROM trajectories FINAL"
    ).row(0, named=True)
    assert stored["trajectories"] == 40
    comes_to("sum(agent_rl_trajectories_collected_total)", 40)
    comes_to('sum(agent_rl_trajectories_collected_total{agent_type="agent-zero"})', 40)
    comes_to('agent_rl_collection_messages_total{verdict="refused"}', 1)
    comes_to("agent_rl_trajectory_length_sum", stored["turns"])
    comes_to('agent_rl_trajectory_length_bucket{le="+Inf"}', 40)
    comes_to("agent_rl_trajectory_reward_count", 40)
    comes_to('agent_rl_trajectory_reward_bucket{le="1.0"}', 40)
    comes_to('agent_rl_feedback_total{kind="thumbs_up"}', 1)
    comes_to('agent_rl_stream_last_sequence{stream="RL_TRAJECTORIES"}', 41)
    comes_to('agent_rl_stream_ingested_sequence{stream="RL_TRAJECTORIES"}', 41)


def test_the_figures_of_training_are_those_of_its_jobs(scraped: Scraped) -> None:
    comes_to = scraped.prometheus.comes_to
    comes_to('agent_rl_training_jobs_total{status="completed"}', 2)
    comes_to('agent_rl_training_jobs_total{status="failed"}', 1)
    comes_to("agent_rl_training_consecutive_failed_jobs", 1)
    comes_to("agent_rl_training_duration_seconds_count", 3)
    comes_to("agent_rl_training_samples_count", 2)
    comes_to("agent_rl_training_cost_usd_total", 0.5)
    comes_to("agent_rl_training_throughput_samples_per_second", 16)
    comes_to("agent_rl_training_samples_to_convergence", 400)
    comes_to("agent_rl_training_loss", 0.75)


def test_the_figures_of_models_tell_them_apart(scraped: Scraped) -> None:
    prometheus = scraped.prometheus
    comes_to = prometheus.comes_to
    means = {labels["model_version"]: mean for labels, mean in prometheus.query("agent_rl_model_reward_mean")}
    found = scraped.stack.tables.query(
        "SELECT model_version, avg(raw_total) AS mean FROM rewards FINAL WHERE revision = 0 GROUP BY model_version"
    )
    assert set(means) == {FIRST, CANDIDATE}
    assert means == pytest.approx(dict(found.iter_rows()))
    score = f'agent_rl_model_benchmark_score{{model_version="{CANDIDATE}", task_type="code_generation"}}'
    comes_to(score, 0.8)
    assert prometheus.value(f'agent_rl_rollout_sessions{{model_version="{CANDIDATE}", role="candidate"}}') > 0
    comes_to(f'agent_rl_rollout_rewarded_trajectories{{model_version="{CANDIDATE}"}}', 10)
    comes_to("sum(agent_rl_rollout_failed_sessions)", 4)
    comes_to('sum(agent_rl_model_feedback_total{rating="negative"})', 6)
    assert prometheus.value("sum(agent_rl_model_errors_total)") >= 4


def test_the_figures_of_deployment_are_those_of_the_audit(scraped: Scraped) -> None:
    comes_to = scraped.prometheus.comes_to
    comes_to('agent_rl_model_deployments_total{status="deployed"}', 2)
    comes_to('agent_rl_model_deployments_total{status="rolled_back"}', 1)
    comes_to('agent_rl_deployment_phase{phase="ramping"}', 1)
    comes_to("agent_rl_rollout_step", 1)
    comes_to("agent_rl_rollout_steps", 1)
    comes_to(f'agent_rl_model_desired_percentage{{model_version="{CANDIDATE}"}}', 50)
    comes_to(f'agent_rl_model_traffic_percentage{{model_version="{CANDIDATE}"}}', 50)
    comes_to('agent_rl_model_validations_total{decision="refuse"}', 1)


@pytest.mark.parametrize(
    ("name", "bounds"),
    [
        ("agent_rl_trajectory_reward", (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)),
        ("agent_rl_trajectory_length", (1, 3, 5, 10, 20, 50)),
        ("agent_rl_training_duration_seconds", (300, 600, 1800, 3600, 7200, 14400)),
    ],
)
def test_histograms_have_the_buckets_of_the_specification(
    scraped: Scraped, name: str, bounds: tuple[float, ...]
) -> None:
    found = {float(labels["le"]) for labels, _ in scraped.prometheus.query(f"{name}_bucket")}
    assert found == {*bounds, float("inf")}


@pytest.mark.parametrize("query", PROMQL)
def test_every_query_of_the_specification_has_an_answer(scraped: Scraped, query: str) -> None:
    found = wait_until(lambda: scraped.prometheus.query(query), query)
    assert all(value == value for _, value in found), "no answer is not a number"  # noqa: PLR0124


def test_the_trend_of_a_week_can_be_asked_for(scraped: Scraped) -> None:
    now = scraped.prometheus.value("time()")
    found = scraped.prometheus.get(
        "query_range", query="agent_rl_model_reward_mean", start=str(now - 7 * 86_400), end=str(now), step="1h"
    )
    assert {each["metric"]["model_version"] for each in found["result"]} == {FIRST, CANDIDATE}


@pytest.mark.parametrize("expression", PANELS)
def test_no_panel_is_empty(scraped: Scraped, expression: str) -> None:
    wait_until(lambda: scraped.prometheus.query(expression), expression, seconds=30)


def test_a_collector_that_starts_anew_tells_the_same(scraped: Scraped) -> None:
    def counters(told: FilledStack) -> dict[str, float]:
        return {
            f"{sample.name}{sorted(sample.labels.items())}": sample.value
            for family in told.collector(patience_seconds=60).collect()
            if family.type in {"counter", "histogram"}
            for sample in family.samples
        }

    first = counters(scraped.stack)
    assert first == counters(scraped.stack)
    assert first["agent_rl_trajectories_collected_total[('agent_type', 'agent-zero'), ('task_domain', 'coding')]"] > 0


def test_each_alert_fires_while_its_cause_is_there_and_clears_when_it_is_gone(scraped: Scraped) -> None:
    made = scraped.stack
    for alert in CAUSED:
        scraped.clears(alert)
    made.train("fails-2", fails=True)
    scraped.prometheus.look_again()
    assert not scraped.prometheus.firing() & set(CAUSED), "two failures are not three"
    before = scraped.prometheus.value("time()")
    made.train("fails-3", fails=True)
    made.validate("fails-3", passes=False)
    made.place.commands().roll_back("a test of the alert")
    made.place.release("job-6", needs_approval=True)
    wait_until(lambda: made.place.look() and made.place.state().phase == "awaiting_approval", "a candidate that waits")
    made.place.commands().abort("a test of the alert")
    made.publish_raw(*[b"no JSON"] * 5)
    made.publish(5)
    made.ingest()
    for alert in CAUSED:
        scraped.fires(alert, before)
    made.train("works-again")
    for alert in CAUSED:
        scraped.clears(alert)


def test_the_loss_of_nats_raises_an_alert_that_clears_when_it_is_back(scraped: Scraped) -> None:
    before = scraped.prometheus.value("time()")
    scraped.nats.stop()
    scraped.fires("NatsUnreachable", before)
    assert scraped.prometheus.value('up{job="rl-pipeline"}') == 1, "the figures go on without NATS"
    assert scraped.prometheus.value("sum(agent_rl_trajectories_collected_total)") >= 40
    scraped.nats.start()
    scraped.clears("NatsUnreachable")


def test_the_loss_of_the_warehouse_raises_an_alert_that_clears_when_it_is_back(scraped: Scraped) -> None:
    collected = "sum(agent_rl_trajectories_collected_total)"
    before, known = scraped.prometheus.value("time()"), scraped.prometheus.value(collected)
    scraped.clickhouse.kill()
    scraped.fires("WarehouseUnreachable", before)
    assert "NatsUnreachable" not in scraped.prometheus.firing(), "its figures do not wait for the warehouse's"
    assert scraped.prometheus.value(collected) == known, "the last figures stand"
    scraped.clickhouse.start()
    scraped.clears("WarehouseUnreachable")
    scraped.stack.publish(1)
    scraped.stack.ingest()
    scraped.prometheus.comes_to(collected, known + 1)
