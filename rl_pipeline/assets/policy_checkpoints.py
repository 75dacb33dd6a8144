"""`policy_checkpoints`: the verified, signed checkpoint of a training job."""

import base64
from collections.abc import Iterator
from typing import Any

import dagster as dg

from rl_pipeline.assets.catalogue import OWNERS, table_columns
from rl_pipeline.assets.curated_datasets import curated_datasets
from rl_pipeline.assets.pictures import table
from rl_pipeline.assets.runs import begun_attempt, is_canceling
from rl_pipeline.partitions import training_jobs
from rl_pipeline.resources.objects import ObjectsResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.settings import child_environment, load_settings
from rl_pipeline.training.attempting import TrainingFailed, TrainingStopped
from rl_pipeline.training.carrying_out import AttemptRun, CompletedAttempt, carry_out_attempt

_LARGEST_PICTURE = 75_000


@dg.asset(
    deps=[curated_datasets],
    description=(
        "The model that a training job made: safetensors, signed manifest, model card and curves in the object store, "
        "a row in `model_checkpoints`, a version in MLflow's registry."
    ),
    group_name="training",
    kinds={"deepspeed", "pytorch", "mlflow"},
    owners=OWNERS,
    metadata=table_columns("model_checkpoints"),
    partitions_def=training_jobs,
    pool="training",
    check_specs=[
        dg.AssetCheckSpec(
            "the_checkpoint_is_better_than_its_base",
            asset="policy_checkpoints",
            blocking=False,
            description="By its own measure on held-out tasks. Whether it is deployed is for validation to say.",
            partitions_def=training_jobs,
        )
    ],
)
def policy_checkpoints(
    context: dg.AssetExecutionContext,
    stream: StreamResource,
    warehouse: WarehouseResource,
    training: TrainingResource,
    model_objects: ObjectsResource,
) -> Iterator[Any]:
    """Train as the job's plan says, in a program of its own, and store what came of it.

    A failure ends the run; whether and how there is another attempt is decided by `training_requested`.
    """
    with (
        stream.open_with_leases() as (_, leases),
        warehouse.open() as tables,
        model_objects.open() as models,
        dg.open_pipes_session(context, dg.PipesTempFileContextInjector(), dg.PipesTempFileMessageReader()) as session,
        begun_attempt(context, tables, leases) as (job, attempts, lease),
    ):
        run = AttemptRun(
            job=job,
            attempts=tuple(attempts),
            site=training.site(),
            tables=tables,
            base_models=training.base_models(),
            datasets=training.datasets().open(),
            models=models,
            tracker=training.tracker(),
            signing_key=training.signing_keys()[0],
            lease=lease,
            environment=_environment(stream, training, session),
            tell=context.log.info,
        )
        try:
            completed = carry_out_attempt(run, is_canceling=lambda: is_canceling(context))
        except (TrainingFailed, TrainingStopped) as ended:
            raise dg.Failure(str(ended), allow_retries=False) from ended
    yield from session.get_results(implicit_materializations=False)
    yield _result(completed)


def _environment(stream: StreamResource, training: TrainingResource, session: dg.PipesSession) -> dict[str, str]:
    """What the program finds the stores by: the addresses of these resources, whatever the environment says.

    It tells of itself, and does nothing else beyond its directory: of all secrets it needs the login of NATS alone.
    """
    addresses = {"NATS_URL": stream.url, "MLFLOW_TRACKING_URI": training.tracking_uri}
    return child_environment(
        load_settings(), secrets=["nats_password"], **addresses, **session.get_bootstrap_env_vars()
    )


def _result(completed: CompletedAttempt) -> dg.MaterializeResult[None]:
    plan, result = completed.plan, completed.result
    measures = [
        (name, _figure(result["base"].get(name)), _figure(value)) for name, value in sorted(result["final"].items())
    ]
    metadata: dict[str, Any] = {
        "checkpoint": completed.released.url,
        "measures": dg.MetadataValue.md(table(("measure", "base", "trained"), measures)),
        "improvement": result.get("improvement"),
        "steps": result["steps"],
        "tokens": result.get("tokens"),
        "seconds": result["seconds"],
        "cost_usd": result["resource_usage"]["cost_usd"],
        "peak_memory_gb": result.get("peak_memory_gb"),
        "curves": _picture(completed.curves),
        "algorithm": plan.algorithm,
        "engine": result.get("engine"),
        "plan": dg.MetadataValue.json(plan.model_dump(mode="json")),
        "attempts": dg.MetadataValue.md(_attempts(completed)),
        "dataset": completed.dataset_id,
        "manifest_sha256": completed.released.manifest_sha256,
        "signed_by": completed.released.key_id,
        "registered_version": completed.registration.version,
        "mlflow": dg.MetadataValue.url(completed.registration.run_url) if completed.registration.run_url else None,
        "note": completed.registration.note or None,
        "shadow": completed.shadow,
    }
    gain = result.get("improvement")
    return dg.MaterializeResult(
        metadata={name: value for name, value in metadata.items() if value is not None},
        check_results=[
            dg.AssetCheckResult(
                check_name="the_checkpoint_is_better_than_its_base",
                passed=gain is not None and gain > 0,
                severity=dg.AssetCheckSeverity.WARN,
                metadata={
                    "measure": str(result.get("measure")),
                    "improvement": gain if gain is not None else "unknown",
                },
            )
        ],
    )


def _attempts(completed: CompletedAttempt) -> str:
    rows = [
        (each.number, each.outcome or "", each.failure_code or "", each.message, each.changes)
        for each in completed.attempts
    ]
    return table(("attempt", "outcome", "failure", "message", "changed"), rows)


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _picture(png: bytes) -> dg.MarkdownMetadataValue | None:
    """A picture in the log itself; one that is too large for that stays beside the checkpoint."""
    if len(png) > _LARGEST_PICTURE:
        return None
    return dg.MetadataValue.md(f"![curves](data:image/png;base64,{base64.b64encode(png).decode()})")
