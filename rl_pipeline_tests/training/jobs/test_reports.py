"""What people are told when a job is asked for and when it is over."""

from collections.abc import Iterator
from datetime import timedelta

import polars as pl
import pytest

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.training.jobs.reports import announcement, job_report, next_job_number
from rl_pipeline.training.jobs.rows import NoSuchJob, write_attempt, write_job
from rl_pipeline_tests.training.job_tables import emptied, migrated_database
from rl_pipeline_tests.training.job_values import NOW, a_job, an_attempt

RESULT = """{
    "steps": 120, "seconds": 5000, "measure": "success", "improvement": 0.2,
    "base": {"success_sampled": 0.4, "success_greedy": 0.5, "reward_mean": 0.41},
    "final": {"success_sampled": 0.6, "success_greedy": 0.7, "reward_mean": 0.62},
    "artifacts": {"final_checkpoint": "s3://models/job-1"}, "resource_usage": {"cost_usd": 1.25}
}"""


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def warehouse(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(tables)


def store_finished(warehouse: ClickHouseWarehouse, **fields: object) -> None:
    """A job whose first attempt of half an hour failed and whose second of an hour completed."""
    write_job(warehouse, a_job(state="completed", **fields))
    first, second = an_attempt(1, begun=True), an_attempt(2, begun=True)
    cost = '{"resource_usage": {"cost_usd": 0.25}}'
    write_attempt(warehouse, first.ended("failed", NOW + timedelta(minutes=30), failure_code="OOM", result=cost))
    write_attempt(warehouse, second.ended("completed", NOW + timedelta(hours=1), result=RESULT))
    rows = [
        {"dataset_id": f"job-1.r{revision}", "job_id": "job-1", "revision": revision, "trajectories": count}
        for revision, count in ((1, 9000), (2, 8990))
    ]
    warehouse.insert("datasets", pl.DataFrame(rows).with_columns(created_at=pl.lit(NOW)))


def test_the_report_of_a_completed_job_has_what_the_specification_asks_for(warehouse: ClickHouseWarehouse) -> None:
    store_finished(warehouse)
    report = job_report(warehouse, "job-1")
    assert (report.job_id, report.duration_hours, report.samples) == ("job-1", 1.5, 8990)
    assert (report.final_reward, report.improvement_percent, report.measure) == (0.62, pytest.approx(50.0), "success")
    assert (report.validation, report.deployment, report.cost_usd) == ("not yet", "not yet", 1.5)
    assert report.text().splitlines() == [
        "Training job ID: job-1",
        "State: completed, a test",
        "Attempts: 2",
        "Duration: 1.50h",
        "Samples used: 8,990",
        "Final reward: 0.620",
        "Improvement: +50.0% (success)",
        "Validation: not yet",
        "Deployment: not yet",
        "Cost: $1.50",
        "Checkpoint: s3://models/job-1",
    ]
    assert report.as_dict()["improvement_percent"] == report.improvement_percent


def test_a_shadow_job_is_never_deployed(warehouse: ClickHouseWarehouse) -> None:
    store_finished(warehouse, metadata={"shadow": True})
    assert job_report(warehouse, "job-1").deployment == "never, it is a shadow job"


def test_a_job_that_failed_is_not_validated_and_its_deployment_is_aborted(warehouse: ClickHouseWarehouse) -> None:
    write_job(warehouse, a_job(state="failed"))
    write_attempt(warehouse, an_attempt(begun=True).ended("failed", NOW, failure_code="UNKNOWN"))
    report = job_report(warehouse, "job-1")
    assert (report.validation, report.deployment) == ("none", "aborted")
    assert "Improvement: not known" in report.text()


def test_a_job_that_has_not_begun_has_a_report_too(warehouse: ClickHouseWarehouse) -> None:
    write_job(warehouse, a_job())
    report = job_report(warehouse, "job-1")
    assert (report.state, report.attempts, report.samples, report.final_reward, report.cost_usd) == (
        *("accepted", 0, None, None, None),
    )


@pytest.mark.parametrize(
    ("result", "percent"),
    [
        ('{"measure": "holdout_loss", "improvement": 0.5, "base": {"holdout_loss": 2.0}}', 25.0),
        ('{"measure": "preference_accuracy", "improvement": -0.1, "base": {"preference_accuracy": 0.5}}', -20.0),
        ('{"measure": "success", "improvement": 0.3, "base": {"success_sampled": 0.0}}', None),
        ("{}", None),
    ],
)
def test_the_improvement_is_that_of_the_measure_against_the_base(
    warehouse: ClickHouseWarehouse, result: str, percent: float | None
) -> None:
    write_job(warehouse, a_job(state="completed"))
    write_attempt(warehouse, an_attempt(begun=True).ended("completed", NOW, result=result))
    assert job_report(warehouse, "job-1").improvement_percent == (None if percent is None else pytest.approx(percent))


def test_an_unknown_job_says_where_to_look(warehouse: ClickHouseWarehouse) -> None:
    with pytest.raises(NoSuchJob, match="`rl-pipeline jobs` lists those there are"):
        job_report(warehouse, "job-1")


def test_a_superior_is_told_the_number_of_the_job_and_its_samples(warehouse: ClickHouseWarehouse) -> None:
    for number in range(46):
        write_job(warehouse, a_job(f"job-{number}"))
    assert announcement(f"#{next_job_number(warehouse)}", 10_000) == "Initiating RL training job #47 with 10K samples"
    assert announcement("manual-1", 5127) == "Initiating RL training job manual-1 with 5,127 samples"
