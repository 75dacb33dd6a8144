"""Every night: the days that changed go into the archive, and what has outlived its time goes away."""

from datetime import UTC, datetime

import dagster as dg

from rl_pipeline.ingestion.archive import archive_days, prune_archive, prune_raw
from rl_pipeline.resources.ingest import IngestResource
from rl_pipeline.resources.warehouse import WarehouseResource


@dg.op(pool="ingest")
def archive_and_prune(context: dg.OpExecutionContext, warehouse: WarehouseResource, ingest: IngestResource) -> None:
    """Write changed days as Parquet; remove archived days after 90 days and large raw payloads after 30."""
    now = datetime.now(UTC)
    archive = ingest.archive().open()
    with warehouse.open() as tables:
        report = archive_days(tables, archive, now)
    expired = prune_archive(archive, now) + prune_raw(ingest.raw_objects().open(), now)
    context.log.info(
        "%s trajectories of %s days written, %s days unchanged, %s expired objects removed",
        *(sum(report.written.values()), len(report.written), len(report.unchanged), expired),
    )


@dg.job(tags={"rl/stage": "archiving"})
def archive_trajectories() -> None:
    """Copy redacted trajectories to the archive, and prune it."""
    archive_and_prune()


archive_at_night = dg.ScheduleDefinition(
    name="archive_at_night",
    description="Copies the days that changed to the archive, and prunes it.",
    job=archive_trajectories,
    cron_schedule="30 3 * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
