"""Waits for trainings to be over, and for what becomes of their models, and has each reported."""

from datetime import UTC, datetime, timedelta

import dagster as dg

from rl_pipeline.assets.training_job_reports import training_job_reports
from rl_pipeline.automation.runs import has_succeeded, reason_to_wait
from rl_pipeline.observability.reports.training_job import changed_jobs
from rl_pipeline.partitions import training_jobs
from rl_pipeline.resources.warehouse import WarehouseResource

_STAGE = {"rl/stage": "reports"}
_LOOKED_BACK = timedelta(days=7)
"""What was reported is known by its run, which is kept for longer."""

report_training_job = dg.define_asset_job(
    "report_training_job",
    selection=dg.AssetSelection.assets(training_job_reports),
    partitions_def=training_jobs,
    tags=_STAGE,
    description="Make the report on a training job that is over.",
)


@dg.sensor(
    description="Reports every training that is over, and again when more became of its model.",
    job=report_training_job,
    minimum_interval_seconds=15,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def trainings_over(context: dg.SensorEvaluationContext, warehouse: WarehouseResource) -> dg.SensorResult:
    """Report the oldest job that is over and of which more is known than its last report says.

    What is due is read from the tables and from the runs before. A run key carries the number of the attempt: Dagster
    never starts a key twice.
    """
    now = datetime.now(UTC)
    with warehouse.open() as tables:
        due = changed_jobs(tables, now - _LOOKED_BACK)
    waits = "every training that is over is reported"
    for job, changed in due.items():
        tags = {"rl/job": job, "rl/known_at": changed.isoformat(), **_STAGE}
        if has_succeeded(context.instance, tags):
            continue
        reason = reason_to_wait(context.instance, stage=tags, tags=tags, now=now)
        if reason is None:
            attempt = context.instance.get_runs_count(dg.RunsFilter(tags={"rl/job": job, **_STAGE}))
            return dg.SensorResult(
                run_requests=[dg.RunRequest(run_key=f"report/{job}#{attempt}", partition_key=job, tags=tags)],
                # One that failed before its first attempt was never given its partition.
                dynamic_partitions_requests=[training_jobs.build_add_request([job])],
            )
        waits = f"{job}: {reason}"
    return dg.SensorResult(skip_reason=waits)
