"""Every night: runs that have had their time go away with their events and logs, never those behind a deployed model.

The open-source Dagster keeps runs for ever. What is kept beyond the days that are set:

- every run of a training job that is behind a model which was ever deployed, or waits for it however long (an approval,
  an A/B test), and of those that it was trained from;
- of every other partition, the newest run of each job that succeeded: it is what the catalogue shows of the partition,
  and the days that a deployed model has learnt from are among them;
- what has not ended.
"""

from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime, timedelta
from pathlib import Path

import dagster as dg
from pydantic import Field

from rl_pipeline.ingestion.ancestry import read_ancestry
from rl_pipeline.observability.notices.outbox import Outbox
from rl_pipeline.resources.objects import ObjectsResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.warehouse import Warehouse

_PARTITION = "dagster/partition"
_JOB = "rl/job"
_PAGE = 500


class RetentionConfig(dg.Config):
    """How long runs are kept."""

    days: int = Field(30, ge=1, description="Runs that ended before go away.")


def behind_deployed_models(warehouse: Warehouse) -> set[str]:
    """The training jobs whose models were ever deployed or may still be, and those that these were trained from."""
    found = warehouse.query(
        """
        SELECT DISTINCT training_job_id AS job FROM model_releases FINAL
        WHERE state != 'refused' OR model_id IN (SELECT model_id FROM deployment_audit)
        UNION DISTINCT SELECT job_id AS job FROM model_checkpoints FINAL WHERE deployed
        """
    )
    ancestry = read_ancestry(warehouse)
    jobs = {str(job) for job in found["job"]}
    return jobs | {ancestor.job_id for job in jobs for ancestor in ancestry.line(job)}


def runs_to_prune(
    records: Iterable[dg.RunRecord], protected: AbstractSet[str], now: datetime, days: int
) -> list[dg.DagsterRun]:
    """Those that have had their time; `records` come with the newest first."""
    due = []
    shown: set[tuple[str, str | None, str | None]] = set()
    for record in records:
        run = record.dagster_run
        partition = run.tags.get(_PARTITION)
        if not run.is_finished or {partition, run.tags.get(_JOB)} & protected:
            continue
        place = (run.job_name, partition, run.tags.get("dagster/asset_partition_range_start"))
        newest = run.is_success and place not in shown
        if newest:
            shown.add(place)
        ended = datetime.fromtimestamp(record.end_time or record.update_timestamp.timestamp(), UTC)
        if not newest and now - ended > timedelta(days=days):
            due.append(run)
    return due


def delete_runs(instance: dg.DagsterInstance, runs: Iterable[dg.DagsterRun]) -> int:
    """Remove runs with their events and compute logs; returns how many. What was killed may be repeated."""
    count = 0
    for run in runs:
        instance.compute_log_manager.delete_logs(prefix=[run.run_id])
        instance.delete_run(run.run_id)
        _remove_file_of_events(instance, run.run_id)
        count += 1
    return count


def _remove_file_of_events(instance: dg.DagsterInstance, run_id: str) -> None:
    """On SQLite every run has a file for its events, which Dagster empties and leaves as large as it was."""
    file_of = getattr(instance.event_log_storage, "path_for_shard", None)
    if file_of is not None:
        for suffix in ("", "-wal", "-shm", "-journal"):
            Path(f"{file_of(run_id)}{suffix}").unlink(missing_ok=True)


@dg.op
def prune_old_runs(
    context: dg.OpExecutionContext,
    config: RetentionConfig,
    warehouse: WarehouseResource,
    model_objects: ObjectsResource,
) -> None:
    """Remove the runs that have had their time, and what the outbox remembers of notices told long ago."""
    now = datetime.now(UTC)
    with warehouse.open() as tables:
        protected = behind_deployed_models(tables)
    due = runs_to_prune(_newest_first(context.instance), protected, now, config.days)
    removed = delete_runs(context.instance, due)
    with model_objects.open() as objects:
        forgotten = Outbox(objects).forget(now)
    context.log.info(f"{removed} runs removed; those of {len(protected)} training jobs behind deployed models stay")
    context.add_output_metadata({"removed": removed, "jobs_behind_deployed_models": len(protected)})
    context.log.info(f"{forgotten} notices forgotten that were told long ago")


def _newest_first(instance: dg.DagsterInstance) -> Iterable[dg.RunRecord]:
    """All runs, a page at a time. Nothing is removed before all of them were looked at."""
    cursor: str | None = None
    while page := instance.get_run_records(limit=_PAGE, cursor=cursor):
        yield from page
        cursor = page[-1].dagster_run.run_id


@dg.job(tags={"rl/stage": "retention"})
def prune_runs() -> None:
    """Remove Dagster runs that have had their time, with their events and logs."""
    prune_old_runs()


def prune_runs_at_night(days: int) -> dg.ScheduleDefinition:
    """Every night, of what ended so many days ago."""
    return dg.ScheduleDefinition(
        name="prune_runs_at_night",
        description="Removes runs that have had their time, never those behind a deployed model.",
        job=prune_runs,
        cron_schedule="30 4 * * *",
        execution_timezone="UTC",
        run_config={"ops": {"prune_old_runs": {"config": {"days": days}}}},
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
