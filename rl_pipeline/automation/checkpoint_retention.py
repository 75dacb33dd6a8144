"""Every night: checkpoints that have had their time go away, never the best or one that was deployed, and so does what
trainings left on the machine, or in the store if they failed or were cancelled."""

from datetime import UTC, datetime

import dagster as dg

from rl_pipeline.resources.objects import ObjectsResource
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.training.checkpoints.retention import prune_released
from rl_pipeline.training.delivering import withdraw_abandoned
from rl_pipeline.training.leftovers import remove_work_directories


@dg.op
def prune_released_checkpoints(
    context: dg.OpExecutionContext,
    warehouse: WarehouseResource,
    training: TrainingResource,
    model_objects: ObjectsResource,
) -> None:
    """Remove the files of checkpoints that are older than 90 days; their rows and manifests' hashes stay. What failed
    and cancelled jobs have in the store goes at once, what jobs left on the machine a week after their end."""
    now = datetime.now(UTC)
    with warehouse.open() as tables, model_objects.open() as objects:
        report = prune_released(tables, objects, now)
        abandoned = withdraw_abandoned(tables, objects, training.tracker(), now)
        left = remove_work_directories(tables, training.site(), now)
    context.log.info(f"{len(report.pruned)} checkpoints removed, {len(report.elsewhere)} lie in another store")
    context.log.info(f"{len(abandoned)} checkpoints of failed or cancelled jobs withdrawn")
    context.log.info(f"{len(left)} work directories of ended jobs removed")


@dg.job(tags={"rl/stage": "retention"})
def prune_checkpoints() -> None:
    """Remove checkpoints that have had their time."""
    prune_released_checkpoints()


prune_at_night = dg.ScheduleDefinition(
    name="prune_checkpoints_at_night",
    description="Removes checkpoints that have had their time, never the best or a deployed one.",
    job=prune_checkpoints,
    cron_schedule="0 4 * * *",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
