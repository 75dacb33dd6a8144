"""Validates every checkpoint that a training has left, and releases those that pass."""

from datetime import UTC, datetime

import dagster as dg

from rl_pipeline.assets.deployed_models import deployed_models
from rl_pipeline.assets.validation_reports import WAITS_FOR_A_PERSON, validation_reports
from rl_pipeline.automation.runs import has_succeeded, reason_to_wait, waits_for_a_person
from rl_pipeline.deployment import record
from rl_pipeline.deployment.releases import Releases
from rl_pipeline.partitions import training_jobs
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.validation.storing import waiting_checkpoints

_STAGE = {"rl/stage": "release"}
_JOB = "rl/job"
_AGAINST = "rl/measured_against"
_BEFORE = "rl/measured_before"
"""A model that serves again after another was taken back is measured against again."""

release_policy = dg.define_asset_job(
    "release_policy",
    selection=dg.AssetSelection.assets(validation_reports, deployed_models),
    partitions_def=training_jobs,
    tags=_STAGE,
    description="Validate the checkpoint of a training job, and start its rollout if it passes.",
)


@dg.sensor(
    description="Validates every checkpoint that a training has left, and releases those that pass.",
    job=release_policy,
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def checkpoints_to_validate(
    context: dg.SensorEvaluationContext, stream: StreamResource, warehouse: WarehouseResource
) -> dg.SensorResult:
    """Validate the oldest checkpoint that nobody has judged or released yet; one run has all the machine.

    Then a release that waits for its rollout and was measured against a model which no longer serves: once for each
    change of the model in service. What is due is read from the tables. A run key carries the number of the attempt:
    Dagster never starts a key twice.
    """
    now = datetime.now(UTC)
    with stream.open_jetstream() as messages, warehouse.open() as tables:
        due = [(job, {_JOB: job, **_STAGE}) for job in waiting_checkpoints(tables)]
        recorded = record.read(JetStreamDesiredStates(messages))
        outdated = Releases(tables).outdated(recorded.state.serving) if recorded else None
    if recorded and outdated:
        job = outdated.training_job_id
        compared = {_AGAINST: recorded.state.serving, _BEFORE: outdated.plan.measured_against}
        due.append((job, {_JOB: job, **compared, **_STAGE}))
    waits = "every checkpoint is judged"
    for job, tags in due:
        waits = reason_to_wait(context.instance, stage=_STAGE, tags=tags, now=now) or ""
        waits = waits or waits_for_a_person(context.instance, tags, WAITS_FOR_A_PERSON, now) or ""
        if not waits and has_succeeded(context.instance, tags):
            waits = "it was judged, and is not to be released: see its report"
        if not waits:
            attempt = context.instance.get_runs_count(dg.RunsFilter(tags={_JOB: job, **_STAGE}))
            request = dg.RunRequest(run_key=f"release/{job}#{attempt}", partition_key=job, tags=tags)
            return dg.SensorResult(run_requests=[request])
        waits = f"{job}: {waits}"
    return dg.SensorResult(skip_reason=waits)
