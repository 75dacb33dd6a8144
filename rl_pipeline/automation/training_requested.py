"""Works off requests for training and their cancellations, and starts, stops and follows the runs of the jobs."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import uuid4

import dagster as dg

from rl_pipeline.assets.curated_datasets import curated_datasets
from rl_pipeline.assets.policy_checkpoints import policy_checkpoints
from rl_pipeline.automation.imports import import_trajectories
from rl_pipeline.automation.runs import UNFINISHED, message_of_failure, reason_to_wait
from rl_pipeline.automation.starting_point import rolled_back_models, starting_point
from rl_pipeline.partitions import training_jobs
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.resources.ingest import IngestResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.stores.topology import TRAJECTORIES
from rl_pipeline.training.jobs.advancing import MOST_IMPORTS, ImportRuns, Tick, advance
from rl_pipeline.training.jobs.job import Attempt, Job
from rl_pipeline.training.jobs.reconciling import RunState
from rl_pipeline.training.jobs.requests import Defaults
from rl_pipeline.training.jobs.silence import Silence

# `dagster.yaml` lets one run of this stage be under way; the pool and the lease of the run say the same.
_STAGE = {"rl/stage": "training"}
_IMPORT_STAGE = {"rl/stage": "import"}
_STATES: dict[dg.DagsterRunStatus, RunState] = {
    dg.DagsterRunStatus.NOT_STARTED: "queued",
    dg.DagsterRunStatus.QUEUED: "queued",
    dg.DagsterRunStatus.SUCCESS: "succeeded",
    dg.DagsterRunStatus.FAILURE: "failed",
    dg.DagsterRunStatus.CANCELED: "canceled",
}

train_policy = dg.define_asset_job(
    "train_policy",
    selection=dg.AssetSelection.assets(curated_datasets, policy_checkpoints),
    partitions_def=training_jobs,
    tags=_STAGE,
    description="Make the dataset of a training job and train on it, or go on from its last verified state.",
)


@dg.sensor(
    description="Accepts requests and cancellations, and lets the job whose turn it is have its run.",
    jobs=[train_policy, import_trajectories],
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def training_requested(
    context: dg.SensorEvaluationContext,
    stream: StreamResource,
    warehouse: WarehouseResource,
    ingest: IngestResource,
    training: TrainingResource,
) -> dg.SensorResult:
    """Accept what was asked for, and let the job whose turn it is have its run.

    Every decision is the core's, made from the tables; this wiring asks Dagster how runs are, starts those that are to
    start and cancels those that are to stop. A run key is the job and the number of the attempt: asked for twice, it
    starts once.
    """
    instance = context.instance
    imports = instance.get_runs(dg.RunsFilter(tags=_IMPORT_STAGE, statuses=list(UNFINISHED)))
    with stream.open_jetstream() as messages, warehouse.open() as tables:
        tick = advance(
            messages,
            tables,
            JetStreamLeases(messages),
            run_state=lambda attempt: _state_of(_run_of(instance, attempt)),
            import_runs=lambda job: _import_runs(instance, job),
            # One that a person has started by hand has no tag of a job.
            unfinished_imports={run.tags["rl/job"]: _state_of(run) for run in imports if "rl/job" in run.tags},
            silence=Silence.from_text(context.cursor),
            defaults=Defaults(training.default_algorithm(), lambda: starting_point(training, messages, tables)),
            rolled_back=lambda: rolled_back_models(messages),
            redactor=lambda: Redactor(ingest.policy()),
            trajectories=TRAJECTORIES.name,
            sensor=f"sensor-{uuid4().hex[:8]}",
            now=datetime.now(UTC),
        )
    for line in tick.told:
        context.log.info(line)
    _end_runs(instance, tick, imports)
    requests = [_training_run(attempt) for attempt in tick.starts]
    requests += [run for job in tick.imports if (run := _import_run(instance, job))]
    keys = [attempt.job_id for attempt in tick.starts]
    return dg.SensorResult(
        run_requests=requests,
        dynamic_partitions_requests=[training_jobs.build_add_request(keys)] if keys else [],
        skip_reason=None if requests else tick.waits,
        cursor=tick.silence.as_text(),
    )


def _end_runs(instance: dg.DagsterInstance, tick: Tick, imports: Sequence[dg.DagsterRun]) -> None:
    """Give up the runs that are lost, and cancel those that nobody wants. `imports` are those that were not over."""
    for attempt in tick.lost:
        _report_lost(instance, _run_of(instance, attempt))
    for attempt in tick.stops:
        _cancel(instance, _run_of(instance, attempt))
    for run in imports:
        job_id, now = run.tags.get("rl/job"), instance.get_run_by_id(run.run_id)
        if job_id in tick.lost_imports and _state_of(now) == "started":
            _report_lost(instance, now)
        elif job_id in tick.stopped_imports:
            _cancel(instance, now)


def _training_run(attempt: Attempt) -> dg.RunRequest:
    selection = [policy_checkpoints.key] if attempt.starts_from == "checkpoint" else None
    return dg.RunRequest(
        run_key=attempt.key,
        job_name=train_policy.name,
        partition_key=attempt.job_id,
        asset_selection=selection,
        tags={**_STAGE, **attempt.tags},
    )


def _import_tags(job: Job) -> dict[str, str]:
    return {"rl/job": job.job_id, **_IMPORT_STAGE}


def _import_run(instance: dg.DagsterInstance, job: Job) -> dg.RunRequest | None:
    tags = _import_tags(job)
    if reason_to_wait(instance, stage=tags, tags=tags, now=datetime.now(UTC)):
        return None
    tried = instance.get_runs_count(dg.RunsFilter(tags=tags))
    config = {"job_id": job.job_id, "path": job.request.training_config.dataset.path or ""}
    return dg.RunRequest(
        run_key=f"import/{job.job_id}#{tried}",
        job_name=import_trajectories.name,
        run_config={"ops": {"import_files": {"config": config}}},
        tags=tags,
    )


def _import_runs(instance: dg.DagsterInstance, job: Job) -> ImportRuns:
    runs = instance.get_runs(dg.RunsFilter(tags=_import_tags(job)), limit=MOST_IMPORTS)
    if runs and runs[0].status in (dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED):
        return ImportRuns(is_cancelled=True)
    failed = [run for run in runs if run.status == dg.DagsterRunStatus.FAILURE]
    return ImportRuns(len(failed), message_of_failure(instance, failed[0].run_id) if failed else "")


def _run_of(instance: dg.DagsterInstance, attempt: Attempt) -> dg.DagsterRun | None:
    """The run that has begun the attempt; before that, the one that may still."""
    if attempt.run_id:
        return instance.get_run_by_id(attempt.run_id)
    found = instance.get_runs(dg.RunsFilter(tags=attempt.tags))
    return next((run for run in found if not run.is_finished), found[0] if found else None)


def _state_of(run: dg.DagsterRun | None) -> RunState:
    return "missing" if run is None else _STATES.get(run.status, "started")


def _report_lost(instance: dg.DagsterInstance, run: dg.DagsterRun | None) -> None:
    if run is not None and not run.is_finished:
        instance.report_run_failed(run, "Nothing is heard of this run: its process or its machine is gone.")


def _cancel(instance: dg.DagsterInstance, run: dg.DagsterRun | None) -> None:
    if run is not None and not run.is_finished and run.status != dg.DagsterRunStatus.CANCELING:
        instance.run_coordinator.cancel_run(run.run_id)
