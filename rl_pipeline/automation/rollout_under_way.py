"""Moves the rollout on: takes in what sessions came to, and lets the controller look, every few seconds."""

from collections.abc import Iterator
from datetime import UTC, datetime

import dagster as dg

from rl_pipeline.assets.deployed_models import deployed_models
from rl_pipeline.deployment.commands import Commands
from rl_pipeline.deployment.controller import Tick
from rl_pipeline.deployment.first_model import first_model
from rl_pipeline.deployment.outcomes import drain_outcomes
from rl_pipeline.deployment.phases import TransitionRefused
from rl_pipeline.deployment.post_mortem import PostMortem, hold_post_mortems
from rl_pipeline.deployment.releases import Releases
from rl_pipeline.deployment.traffic import TrafficUnavailable
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.resources.deployment import DeploymentResource
from rl_pipeline.resources.ingest import IngestResource
from rl_pipeline.resources.objects import ObjectsResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.warehouse import Warehouse

Event = dg.AssetObservation | dg.AssetMaterialization


@dg.sensor(minimum_interval_seconds=5, default_status=dg.DefaultSensorStatus.RUNNING)
def rollout_under_way(  # noqa: PLR0917 - Dagster passes them by name
    context: dg.SensorEvaluationContext,
    stream: StreamResource,
    warehouse: WarehouseResource,
    ingest: IngestResource,
    training: TrainingResource,
    deployment: DeploymentResource,
    model_objects: ObjectsResource,
) -> dg.SensorResult:
    """One look of the controller: no run waits for a rollout, and nothing is kept here.

    Every change shows as an event of `deployed_models` on its training job; a rollback leaves its post-mortem there.
    """
    now = datetime.now(UTC)
    with stream.open_jetstream() as messages, warehouse.open() as tables, model_objects.open() as objects:
        drain_outcomes(messages, tables, redactor=lambda: Redactor(ingest.policy()), now=now)
        tick = deployment.controller(messages, tables).tick(now)
        if tick.state is None and not tick.pending:
            tick = _first(messages, tables, training, deployment, now)
        changes = list(_changes(tick, Releases(tables)))
        held = hold_post_mortems(tables, objects, now, session_keys=deployment.session_keys())
    for line in tick.pending:
        context.log.warning(line)
    for post_mortem in held:
        context.log.error(post_mortem.alert)
    told = [_told(post_mortem) for post_mortem in held]
    return dg.SensorResult(asset_events=[*changes, *told], skip_reason=_standing(tick))


def _first(
    messages: JetStream, tables: Warehouse, training: TrainingResource, deployment: DeploymentResource, now: datetime
) -> Tick:
    """Nothing was ever deployed: the base model serves until a better one is trained."""
    commands = Commands(deployment.desk(messages, tables), "rollout-controller", now)
    try:
        state = commands.create(first_model(training.base_model, deployment.endpoint), "the first model in service")
    except (TrafficUnavailable, TransitionRefused) as trouble:
        return Tick(pending=[str(trouble)])
    return Tick(state=state, changes=[state])


def _changes(tick: Tick, releases: Releases) -> Iterator[Event]:
    """On the job of the model that each change is about: a state no longer has the model that it has rolled back."""
    for state in tick.changes:
        release = releases.of_model(state.change.model_id)
        if release is not None:
            yield dg.AssetObservation(
                asset_key=deployed_models.key,
                partition=release.training_job_id,
                metadata={
                    "event": state.change.event,
                    "model": state.change.model_id,
                    "reason": state.change.reason,
                    "phase": state.phase,
                    "generation": state.generation,
                    "weights": dg.MetadataValue.json(state.weights),
                    "evidence": dg.MetadataValue.json(state.change.evidence),
                },
            )


def _told(post_mortem: PostMortem) -> dg.AssetMaterialization:
    return dg.AssetMaterialization(
        asset_key=deployed_models.key,
        partition=post_mortem.training_job_id,
        metadata={
            "event": "rolled_back",
            "model": post_mortem.model_id,
            "post_mortem": dg.MetadataValue.md(post_mortem.text),
            "report_url": post_mortem.url,
        },
    )


def _standing(tick: Tick) -> str:
    state = tick.state
    if state is None:
        return "; ".join(tick.pending) or "nothing is deployed"
    weights = ", ".join(f"{model} {weight:.0%}" for model, weight in sorted(state.weights.items()))
    judged = f": {tick.judgement.explanation}" if tick.judgement else ""
    return f"generation {state.generation}, {state.phase}, {weights}{judged}"
