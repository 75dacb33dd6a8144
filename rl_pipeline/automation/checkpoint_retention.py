"""Every night: checkpoints that have had their time go away, never the best or one that was deployed."""

from datetime import UTC, datetime

import dagster as dg

from rl_pipeline.resources.objects import ObjectsResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.training.retention import prune_released


@dg.op
def prune_released_checkpoints(
    context: dg.OpExecutionContext, warehouse: WarehouseResource, model_objects: ObjectsResource
) -> None:
    """Remove the files of checkpoints that are older than 90 days; their rows and manifests' hashes stay."""
    with warehouse.open() as tables, model_objects.open() as objects:
        report = prune_released(tables, objects, datetime.now(UTC), keep=5)
    context.log.info(f"{len(report.pruned)} checkpoints removed, {len(report.elsewhere)} lie in another store")


@dg.job(tags={"rl/stage": "retention"})
def prune_checkpoints() -> None:
    """Remove checkpoints that have had their time."""
    prune_released_checkpoints()


prune_at_night = dg.ScheduleDefinition(
    name="prune_checkpoints_at_night",
    job=prune_checkpoints,
    cron_schedule="0 4 * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
