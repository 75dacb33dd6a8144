"""Moves the rollout on: takes in what sessions came to, and lets the controller look, every few seconds."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

import dagster as dg

from rl_pipeline.assets.deployed_models import deployed_models
from rl_pipeline.deployment.ab_tests import EndedTest, ended_tests, report_text
from rl_pipeline.deployment.audit import WarehouseAudit
from rl_pipeline.deployment.commands import Commands
from rl_pipeline.deployment.controller import Tick
from rl_pipeline.deployment.first_model import first_model
from rl_pipeline.deployment.holds import Hold, note_hold
from rl_pipeline.deployment.outcomes import drain_outcomes
from rl_pipeline.deployment.phases import TransitionRefused
from rl_pipeline.deployment.post_mortem import PostMortem, hold_post_mortems
from rl_pipeline.deployment.releases import Releases
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.deployment.traffic import TrafficUnavailable
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.resources.deployment import DeploymentResource
from rl_pipeline.resources.ingest import IngestResource
from rl_pipeline.resources.objects import ObjectsResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.objects import Objects, ObjectsUnavailable
from rl_pipeline.stores.topology import TRAJECTORIES
from rl_pipeline.stores.warehouse import Warehouse, WarehouseUnavailable

Event = dg.AssetObservation | dg.AssetMaterialization

_ANSWER_SECONDS = 15
"""So long the warehouse may be silent. Dagster gives a look a minute, and a bad model is to be out within one."""


@dg.sensor(
    description="Moves the rollout on: one look of the controller at a time, with its post-mortems and A/B reports.",
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def rollout_under_way(  # noqa: PLR0917 - Dagster passes them by name
    context: dg.SensorEvaluationContext,
    stream: StreamResource,
    warehouse: WarehouseResource,
    ingest: IngestResource,
    training: TrainingResource,
    deployment: DeploymentResource,
    model_objects: ObjectsResource,
) -> dg.SensorResult:
    """One look of the controller: no run waits for a rollout. The cursor is the generation up to which was told.

    Every change shows as an event of `deployed_models` on its training job, whoever made it; a rollback leaves its
    post-mortem there, and an A/B test that ends its report. While the warehouse is away the controller judges by what
    the gateways remember; what needs the warehouse is done by the first look that finds it again.
    """
    now = datetime.now(UTC)
    waits: list[str] = []
    with (
        stream.open_jetstream() as messages,
        warehouse.open_late(_ANSWER_SECONDS) as tables,
        model_objects.open() as objects,
    ):
        with _noting(waits, "what sessions came to"):
            drain_outcomes(messages, tables, redactor=lambda: Redactor(ingest.policy()), now=now)
        tick = deployment.controller(messages, tables).tick(now)
        if tick.state is None and not tick.pending:
            tick = _first(messages, tables, training, deployment, now)
        told = _told_up_to(context.cursor, tick)
        events: list[Event] = []
        with _noting(waits, "the catalogue"):
            rows = WarehouseAudit(tables).after(told)
            events += _changes([row.state for row in rows], Releases(tables))
            for test in ended_tests(tables, rows):
                found = report_text(test.rollout, deployment.windows(tables, test.rollout, now))
                events.append(_found(test, found, objects))
            told = max([told, *(row.state.generation for row in rows)])
        begun: Hold | None = None
        with _noting(waits, "whether a person is waited for"):
            begun = note_hold(tables, tick, now)
        held: list[PostMortem] = []
        with _noting(waits, "post-mortems"):
            held += hold_post_mortems(
                tables,
                objects,
                now,
                session_keys=deployment.session_keys(),
                last_sequence=lambda: messages.state(TRAJECTORIES.name).last_sequence,
                skipped=waits.append,
            )
    for line in dict.fromkeys((*tick.pending, *waits)):
        context.log.warning(line)
    if begun:
        context.log.error(f"The rollout of {begun.model_id} waits for a person ({begun.reason}): {begun.explanation}")
    for state in tick.rolled_back:
        context.log.error(f"Model {state.change.model_id} rolled back: {state.change.reason}. Its post-mortem follows.")
    for post_mortem in held:
        context.log.error(post_mortem.alert)
    events += [_told(post_mortem) for post_mortem in held]
    return dg.SensorResult(asset_events=events, skip_reason=_standing(tick), cursor=str(told))


@contextmanager
def _noting(waits: list[str], what: str) -> Iterator[None]:
    """What needs the warehouse or the objects is done by a later look while they are away."""
    try:
        yield
    except (WarehouseUnavailable, ObjectsUnavailable) as away:
        waits.append(f"{what} has to wait: {away}")


def _told_up_to(cursor: str | None, tick: Tick) -> int:
    """The generation up to which the catalogue was told. Without one, of what this look has changed: what was long ago
    is in the audit. People can edit a cursor: what makes no sense counts for none."""
    if cursor and cursor.isdecimal():
        return int(cursor)
    changed = [state.generation - 1 for state in tick.changes]
    return min([*changed, tick.state.generation if tick.state else 0])


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


def _changes(states: Iterable[DesiredState], releases: Releases) -> Iterator[Event]:
    """On the job of the model that each change is about: a state no longer has the model that it has rolled back."""
    for state in states:
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


def _found(test: EndedTest, report: str, objects: Objects) -> Event:
    """What an A/B test had found when it was ended, kept as an artifact too."""
    key = f"ab-tests/{test.rollout.deployment_id}.md"
    objects.put(key, report.encode())
    return dg.AssetMaterialization(
        asset_key=deployed_models.key,
        partition=test.model.training_job_id,
        metadata={
            "event": "ab_test_ended",
            "model": test.rollout.candidate,
            "reason": test.ended.reason,
            "ab_report": dg.MetadataValue.md(report),
            "report_url": objects.url(key),
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
