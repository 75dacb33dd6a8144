"""Reports as Dagster makes them: from published trajectories to files, the catalogue and an event."""

from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from random import Random
from typing import Any

import dagster as dg
import pytest

from rl_pipeline.assets.redacted_trajectories import raw_and_redacted_trajectories
from rl_pipeline.assets.summaries import daily_summaries, weekly_reports
from rl_pipeline.assets.training_job_reports import training_job_reports
from rl_pipeline.assets.trajectory_rewards import trajectory_rewards
from rl_pipeline.assets.trajectory_stream import trajectory_stream
from rl_pipeline.automation.alerts import notices_waiting
from rl_pipeline.automation.reporting import report_every_monday, summarize_every_morning
from rl_pipeline.automation.trainings_over import trainings_over
from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.contracts import Report, parse_message, serialize
from rl_pipeline.observability.reports.training_job import complete_report
from rl_pipeline.partitions import training_jobs
from rl_pipeline.resources.alerts import AlertsResource
from rl_pipeline.resources.objects import ObjectsResource
from rl_pipeline.resources.reports import ReportsResource
from rl_pipeline.resources.rewards import RewardsResource
from rl_pipeline.rewards.configuration import DEFAULT_WEIGHTS
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.training.jobs.rows import write_attempt, write_job
from rl_pipeline_tests.observability.reports.stored_period import store_audit, store_validation
from rl_pipeline_tests.training.job_values import a_job, an_attempt


@pytest.fixture
def resources(ingest_resources: dict[str, Any], tmp_path: Path) -> dict[str, Any]:
    return {
        **ingest_resources,
        "rewards": RewardsResource(weights=DEFAULT_WEIGHTS),
        "model_objects": ObjectsResource(url=str(tmp_path / "models")),
        "reports": ReportsResource(),
        "alerts": AlertsResource(file=str(tmp_path / "alerts.jsonl"), service_url="http://127.0.0.1:1"),
    }


@pytest.fixture
def day_that_ends_now(monkeypatch: pytest.MonkeyPatch) -> str:
    """Today, of which a summary covers all that came until now, and not only until this morning."""
    monkeypatch.setattr("rl_pipeline.observability.reports.periods.REPORT_HOUR", time(23, 59, 59, tzinfo=UTC))
    return datetime.now(UTC).date().isoformat()


def made(resources: dict[str, Any], asset: Any, key: str, instance: dg.DagsterInstance | None = None) -> dict[str, Any]:
    result = dg.materialize([asset], partition_key=key, resources=resources, instance=instance)
    [event] = result.get_asset_materialization_events()
    checks = {each.check_name: each.passed for each in result.get_asset_check_evaluations()}
    return {label: value.value for label, value in event.materialization.metadata.items()} | {"checks": checks}


def test_what_agents_published_is_in_the_summary_as_files_in_the_catalogue_and_as_an_event(
    resources: dict[str, Any], stream: JetStream, tmp_path: Path, day_that_ends_now: str
) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    for trajectory in sample_trajectories(6, now=now, randomness=Random(7)):
        stream.publish("agent.rl.trajectory.v1", serialize(trajectory), trajectory.trajectory_id)
    stream.publish("agent.rl.trajectory.v1", b"not a trajectory", "broken")
    day = stream.get("RL_TRAJECTORIES", 1).time.date().isoformat()
    lineage = [trajectory_stream, raw_and_redacted_trajectories, trajectory_rewards]
    assert dg.materialize(lineage, partition_key=day, resources=resources).success

    day = day_that_ends_now
    shown = made(resources, daily_summaries, day)
    assert shown["trajectories"] == 6
    assert 0 < shown["reward_mean"] < 1
    assert shown["checks"] == {"nothing_critical_was_found": True}
    assert "| accepted | 6 |" in shown["report"]
    assert "warehouse_bytes_per_trajectory" in shown
    assert "cost_usd" not in shown, "what is not known is no figure"
    kept = tmp_path / "models" / "reports" / "daily" / day
    assert {file.name for file in kept.iterdir() if file.suffix in (".md", ".html", ".json")} == {
        "report.md",
        "report.html",
        "report.json",
    }
    assert "<svg" in (kept / "report.html").read_text()

    made(resources, daily_summaries, day)
    notices_waiting(dg.build_sensor_context(resources=resources))
    assert stream.state("RL_REPORTS").messages == 1, "made again, and told once"
    told = parse_message("agent.rl.report.v1", stream.get("RL_REPORTS", 1).data)
    assert isinstance(told, Report)
    assert (told.report_id, told.figures["trajectories"], told.figures["cost_usd"]) == (f"daily-{day}", 6, None)
    assert told.text.startswith("Trajectories collected: 6 (last 24h)")

    week = made(resources, weekly_reports, day)
    assert week["trajectories"] == 6
    assert "Against the base period" in week["report"]


def test_a_report_is_made_without_nats_and_told_when_it_is_back(
    resources: dict[str, Any], stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    from rl_pipeline.resources.stream import StreamResource

    away = {**resources, "stream": StreamResource(url="nats://127.0.0.1:1")}
    day = datetime.now(UTC).date().isoformat()
    assert made(away, daily_summaries, day)["trajectories"] == 0
    skipped = notices_waiting(dg.build_sensor_context(resources=away))
    assert isinstance(skipped, dg.SkipReason)
    assert "1 notices wait" in (skipped.skip_message or "")
    assert stream.state("RL_REPORTS").messages == 0


def test_a_training_that_is_over_is_reported_and_again_when_more_became_of_its_model(
    resources: dict[str, Any], warehouse: ClickHouseWarehouse, tmp_path: Path
) -> None:
    now = datetime.now(UTC).replace(microsecond=0)
    usage = '{"resource_usage": {"gpu_hours": 8.0, "cost_usd": 16.0}, "final": {"reward_mean": 0.62}}'
    write_job(warehouse, a_job(state="completed", now=now - timedelta(hours=2)))
    write_attempt(warehouse, an_attempt(1, begun=True).ended("completed", now, result=usage))
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:

        def due() -> list[dg.RunRequest]:
            context = dg.build_sensor_context(instance=instance, resources=resources)
            return list(trainings_over(context).run_requests or [])  # type: ignore[union-attr]

        [asked] = due()
        assert (asked.partition_key, asked.run_key) == ("job-1", "report/job-1#0")
        instance.add_dynamic_partitions(training_jobs.name or "", ["job-1"])
        shown = dg.materialize(
            [training_job_reports], partition_key="job-1", resources=resources, instance=instance, tags=asked.tags
        )
        assert shown.success
        assert due() == [], "it is reported"
        store_validation(warehouse, "job-1", "refuse", now - timedelta(hours=1), "toxicity")
        [again] = due()
        assert again.run_key == "report/job-1#1"
    report = complete_report(warehouse, "job-1")
    assert (report.validation, report.deployment, report.cost_usd) == ("failed: toxicity", "aborted", 16.0)
    page = (tmp_path / "models" / "reports" / "training-jobs" / "job-1" / "report.md").read_text()
    assert "| Final reward | 0.620 |" in page
    assert "| Cost | $16.00 |" in page
    assert "| GPU hours | 8.00 |" in page


@pytest.mark.parametrize(
    ("event", "deployment"),
    [
        (None, "not yet"),
        ("deployed", "in progress, v7"),
        ("promoted", "in service, v7"),
        ("rolled_back", "rolled back, v7"),
    ],
)
def test_the_report_says_whether_the_model_came_into_service(
    warehouse: ClickHouseWarehouse, event: str | None, deployment: str
) -> None:
    import polars as pl

    now = datetime.now(UTC).replace(microsecond=0)
    write_job(warehouse, a_job(state="completed", now=now))
    store_validation(warehouse, "job-1", "deploy", now)
    if event:
        row = {"training_job_id": "job-1", "number": 7, "model_id": "v7", "state": "started", "released_at": now}
        warehouse.insert("model_releases", pl.DataFrame([{**row, "changed_at": now, "version": 1}]))
        store_audit(warehouse, {"at": now, "serving": "v6", "model_id": "v7", "event": event})
    assert complete_report(warehouse, "job-1").deployment == deployment
    assert complete_report(warehouse, "job-1").validation == "passed"


def test_the_summary_comes_at_eight_summarize_every_morning_and_the_week_on_mondays() -> None:
    assert (summarize_every_morning.cron_schedule, summarize_every_morning.execution_timezone) == ("0 8 * * *", "UTC")
    assert (report_every_monday.cron_schedule, report_every_monday.execution_timezone) == ("0 8 * * 1", "UTC")
    with dg.build_schedule_context(scheduled_execution_time=datetime(2026, 3, 9, 8, tzinfo=UTC)) as context:
        asked = [summarize_every_morning(context), report_every_monday(context)]
    assert [each.partition_key for each in asked] == ["2026-03-09"] * 2  # type: ignore[union-attr]
