"""`deployed_models`: a validated model, registered under its number, and the start of its rollout."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from rl_pipeline.assets.catalogue import OWNERS, table_columns
from rl_pipeline.assets.pictures import table
from rl_pipeline.assets.validation_reports import validation_reports
from rl_pipeline.deployment.admission import NotAdmitted, admit
from rl_pipeline.deployment.controller import Tick
from rl_pipeline.deployment.outcomes import drain_outcomes
from rl_pipeline.deployment.releases import Release
from rl_pipeline.partitions import training_jobs
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.resources.deployment import DeploymentResource
from rl_pipeline.resources.ingest import IngestResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.validation.storing import report_of
from rl_pipeline.validation.verdict import Improvement


@dg.asset(
    deps=[validation_reports],
    description=(
        "The model of a training job as it was released: its id, its strategy, and the generation of the desired state "
        "that let it in. Its way from there is in the events of this asset and in `deployment_audit`."
    ),
    group_name="release",
    kinds={"nats", "clickhouse"},
    owners=OWNERS,
    metadata=table_columns("model_releases"),
    partitions_def=training_jobs,
    output_required=False,
)
def deployed_models(
    context: dg.AssetExecutionContext,
    stream: StreamResource,
    warehouse: WarehouseResource,
    ingest: IngestResource,
    deployment: DeploymentResource,
) -> Iterator[dg.MaterializeResult[None]]:
    """Release the model if validation lets it, and look once, so that it starts at once where nothing else is going on.

    Nothing waits here: the rollout is moved on by `rollout_under_way`. A model that is refused leaves no
    materialization, and the old one stays in service.
    """
    with stream.open_jetstream() as messages, warehouse.open() as tables:
        now = datetime.now(UTC)
        try:
            terms = deployment.terms()
            release = admit(tables, JetStreamLeases(messages), context.partition_key, terms, now=now)
        except NotAdmitted as refusal:
            context.log.warning(str(refusal))
            return
        drain_outcomes(messages, tables, redactor=lambda: Redactor(ingest.policy()), now=now)
        tick = deployment.controller(messages, tables).tick(now)
        report = _report(release, report_of(tables, context.partition_key).report.improvement, tick)
    context.log.info(report)
    yield dg.MaterializeResult(metadata={"report": report, **_metadata(release, tick)})


def _report(release: Release, found: Improvement | None, tick: Tick) -> str:
    """What a superior is told."""
    rollout = tick.state.rollout if tick.state else None
    better = "" if found is None or found.relative is None else f", {found.relative:+.0%} performance improvement"
    way = f"{release.plan.strategy.replace('_', '-')} rollout"
    if rollout is None or rollout.deployment_id != release.deployment_id:
        return f"Model {release.model.model_id} released{better}, {way} waits for its turn"
    if tick.state and tick.state.phase == "awaiting_approval":
        return f"Model {release.model.model_id} released{better}, {way} waits for an approval"
    return f"Model {release.model.model_id} deployed{better}, {way} in progress"


def _metadata(release: Release, tick: Tick) -> dict[str, Any]:
    steps = [(f"{step.share:.0%}", f"{step.min_seconds / 3600:g} h", step.min_samples) for step in release.plan.steps]
    state = tick.state
    return {
        "model": release.model.model_id,
        "strategy": release.plan.strategy,
        "because": release.plan.explanation,
        "steps": dg.MetadataValue.md(table(("share", "at least", "sessions"), steps)),
        "rule": release.plan.rule,
        "needs_approval": release.needs_approval,
        "deployment": release.deployment_id,
        "checkpoint": release.model.checkpoint_path or release.model.endpoint or "",
        "generation": state.generation if state else 0,
        "phase": state.phase if state else "nothing is in service: name a model with `rl-pipeline deployment create`",
        "pending": "; ".join(tick.pending),
    }
