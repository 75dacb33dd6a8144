"""`training_job_reports`: what came of each training job, up to whether its model is in service."""

from datetime import UTC, datetime

import dagster as dg

from rl_pipeline.assets.catalogue import OWNERS
from rl_pipeline.assets.deployed_models import deployed_models
from rl_pipeline.assets.policy_checkpoints import policy_checkpoints
from rl_pipeline.assets.summaries import KINDS, REPORT_COLUMNS, report_metadata
from rl_pipeline.assets.validation_reports import validation_reports
from rl_pipeline.observability.reports.keeping import keep
from rl_pipeline.observability.reports.training_job import ended_training
from rl_pipeline.partitions import training_jobs
from rl_pipeline.resources.objects import ObjectsResource
from rl_pipeline.resources.warehouse import WarehouseResource


@dg.asset(
    deps=[policy_checkpoints, validation_reports, deployed_models],
    description=(
        "The report on a training job that is over: duration, samples, final reward, improvement, validation, "
        "deployment, hours and cost, its attempts and its curves; made again when more became of its model. Page, text "
        "and figures lie in the object store, and `agent.rl.report.v1` tells of them."
    ),
    group_name="reports",
    kinds=KINDS,
    owners=OWNERS,
    metadata=REPORT_COLUMNS,
    partitions_def=training_jobs,
)
def training_job_reports(
    context: dg.AssetExecutionContext, warehouse: WarehouseResource, model_objects: ObjectsResource
) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster does not know it by its parameter
    """Read what the tables know of the job, and keep the report; made again, it replaces the one before."""
    with warehouse.open() as tables, model_objects.open() as objects:
        made = ended_training(tables, objects, context.partition_key).made()
        url = keep(objects, made, datetime.now(UTC))
    context.log.info(made.text)
    return dg.MaterializeResult(metadata=report_metadata(made, url))
