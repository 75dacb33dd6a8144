"""Retention of runs on a real instance: what goes, what stays, and that what stays is still in the catalogue."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
import polars as pl
import pytest

from rl_pipeline.automation.run_retention import (
    _newest_first,
    behind_deployed_models,
    delete_runs,
    runs_to_prune,
)
from rl_pipeline.partitions import training_jobs
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline_tests.observability.reports.stored_period import store_audit

LATER = datetime.now(UTC) + timedelta(days=31)


class Fails(dg.Config):
    fails: bool = False


@dg.asset(partitions_def=training_jobs)
def checkpoints(context: dg.AssetExecutionContext, config: Fails) -> None:
    context.log.info("a line for the log")
    print("a line for the compute log")  # noqa: T201
    if config.fails:
        raise dg.Failure("as it was asked")


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "dagster").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "dagster")) as instance:
        instance.add_dynamic_partitions(training_jobs.name or "", ["deployed", "other"])
        yield instance


def run(instance: dg.DagsterInstance, partition: str, *, fails: bool = False) -> str:
    result = dg.materialize(
        [checkpoints],
        partition_key=partition,
        instance=instance,
        run_config={"ops": {"checkpoints": {"config": {"fails": fails}}}},
        raise_on_error=False,
    )
    return result.run_id


def prune(instance: dg.DagsterInstance, protected: set[str], now: datetime = LATER) -> set[str]:
    due = runs_to_prune(_newest_first(instance), protected, now, 30)
    delete_runs(instance, due)
    return {each.run_id for each in due}


def test_runs_behind_a_deployed_model_stay_whole_and_of_others_the_newest_success(
    instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    behind = [run(instance, "deployed", fails=True), run(instance, "deployed"), run(instance, "deployed")]
    first, failed, newest = run(instance, "other"), run(instance, "other", fails=True), run(instance, "other")
    last_failed = run(instance, "other", fails=True)
    assert prune(instance, {"deployed"}, datetime.now(UTC) + timedelta(days=29)) == set(), "before their time all stay"
    assert prune(instance, {"deployed"}) == {first, failed, last_failed}
    left = {each.run_id for each in instance.get_runs()}
    assert left == {*behind, newest}
    for kept in left:
        assert instance.all_logs(kept), "its events are there"
    for gone in (first, failed, last_failed):
        assert instance.get_run_by_id(gone) is None
        assert not list((tmp_path / "dagster").rglob(f"*{gone}*")), "neither events nor compute logs are left"
    assert instance.get_materialized_partitions(checkpoints.key) == {"deployed", "other"}
    assert prune(instance, {"deployed"}) == set(), "again, it finds nothing"


def test_without_its_protection_a_models_attempts_would_go(instance: dg.DagsterInstance) -> None:
    attempts = [run(instance, "deployed", fails=True), run(instance, "deployed")]
    assert prune(instance, set()) == {attempts[0]}


def test_a_run_that_has_not_ended_stays_however_old_it_is(instance: dg.DagsterInstance) -> None:
    @dg.job
    def endless() -> None:
        pass

    unfinished = instance.create_run_for_job(endless, status=dg.DagsterRunStatus.STARTED)
    assert prune(instance, set()) == set()
    assert instance.get_run_by_id(unfinished.run_id) is not None


def test_every_page_of_runs_is_looked_at(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_pipeline.automation.run_retention._PAGE", 2)
    runs = {run(instance, "other", fails=True) for _ in range(5)}
    assert prune(instance, set()) == runs


def test_what_is_behind_a_deployed_model_goes_back_to_all_that_it_was_trained_from(
    warehouse: ClickHouseWarehouse,
) -> None:
    now = datetime.now(UTC)
    made = [("grand", "base"), ("parent", "s3://m/grand"), ("child", "s3://m/parent"), ("aside", "s3://m/grand")]
    made += [("waits", "base"), ("never released", "base")]
    rows = [
        {
            "id": job,
            "job_id": job,
            "checkpoint_path": f"s3://m/{job}",
            "base_model": base,
            "created_at": now,
            "version": 1,
        }
        for job, base in made
    ]
    warehouse.insert("model_checkpoints", pl.DataFrame(rows))
    released = [
        {"training_job_id": job, "number": number, "model_id": f"v{number}", "state": state}
        for number, job, state in ((1, "child", "refused"), (2, "aside", "refused"), (3, "waits", "waiting"))
    ]
    stamped = pl.DataFrame(released).with_columns(released_at=pl.lit(now), changed_at=pl.lit(now), version=pl.lit(1))
    warehouse.insert("model_releases", stamped)
    assert behind_deployed_models(warehouse) == {"waits"}, "somebody may approve it yet"
    store_audit(warehouse, {"at": now, "serving": "v1", "event": "rolled_back"})
    assert behind_deployed_models(warehouse) == {"child", "parent", "grand", "waits"}
