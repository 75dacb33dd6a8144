"""What somebody has to know at once: noticed in the tables, at the servers and by failed runs, and kept until told."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta

import dagster as dg

from rl_pipeline.automation.runs import message_of_failure
from rl_pipeline.contracts import Alert
from rl_pipeline.errors import PipelineError
from rl_pipeline.observability.alerts.alerting import alert, notice_of
from rl_pipeline.observability.alerts.episodes import Look
from rl_pipeline.observability.alerts.looking import (
    collection_is_bad,
    failed_trainings,
    failed_validations,
    rollbacks,
    waiting_rollouts,
)
from rl_pipeline.observability.notices.outbox import Outbox
from rl_pipeline.resources.alerts import AlertsResource
from rl_pipeline.resources.objects import ObjectsResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.stream import Stream
from rl_pipeline.stores.topology import TRAJECTORIES
from rl_pipeline.stores.warehouse import Warehouse, WarehouseUnavailable

NATS_LOST_AFTER = timedelta(minutes=5)
_OVERLAP = timedelta(hours=1)
"""What was written late is seen by a later look; what was seen twice is one alert."""
_ANSWER_SECONDS = 15
_REFUSED = "messages are refused"


@dg.sensor(
    description="Looks for what somebody has to know at once, and raises one alert for each episode.",
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def something_is_wrong(
    context: dg.SensorEvaluationContext,
    stream: StreamResource,
    warehouse: WarehouseResource,
    model_objects: ObjectsResource,
    alerts: AlertsResource,
) -> dg.SensorResult:
    """Look at trainings, validations, rollbacks, refused messages, NATS, the warehouse and the service, and put every
    new alert into the outbox. The cursor holds what goes on and since when; an alert is raised once for each episode.
    """
    look = Look.after(context.cursor, datetime.now(UTC))
    with warehouse.open_late(_ANSWER_SECONDS) as tables:
        raised = [*_lost_nats(stream, look), *_unreachable_service(alerts, look), *_in_tables(tables, alerts, look)]
    with model_objects.open() as objects:
        outbox = Outbox(objects)
        new = [each for each in raised if outbox.add(notice_of(each))]
    for each in new:
        context.log.error(f"{each.text} {each.next_step}")
    return dg.SensorResult(skip_reason=str(look) or "nothing is wrong", cursor=look.as_text())


@dg.sensor(
    description="Delivers reports and alerts by NATS, file and webhook, until each has taken them.",
    minimum_interval_seconds=15,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def notices_waiting(
    context: dg.SensorEvaluationContext, stream: StreamResource, model_objects: ObjectsResource, alerts: AlertsResource
) -> dg.SkipReason:
    """Deliver reports and alerts by every way that they have left; what is not taken is tried again, ever later."""
    with model_objects.open() as objects, _connecting(stream) as connect:
        left = Outbox(objects).deliver(alerts.ways(connect), datetime.now(UTC))
    for notice in left:
        for way, trouble in notice.troubles.items():
            context.log.warning(f"{notice.id} did not leave by {way}, {notice.attempts} times: {trouble}")
    return dg.SkipReason(
        f"{len(left)} notices wait: {', '.join(each.id for each in left)}" if left else "all were told"
    )


@dg.run_failure_sensor(
    description="Alerts when a job has failed several times in a row, once for each episode.",
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def runs_failed(context: dg.RunFailureSensorContext, model_objects: ObjectsResource, alerts: AlertsResource) -> None:
    """Alert when a job has failed so many times in a row: once, at exactly that failure, until it succeeds again.

    Training is told of by its attempts, which know more.
    """
    in_a_row = failures_in_a_row(context.instance, context.dagster_run, alerts.after_failures)
    if context.dagster_run.tags.get("rl/stage") == "training" or len(in_a_row) != alerts.after_failures:
        return
    name, run_id = context.dagster_run.job_name, context.dagster_run.run_id
    raised = alert(
        "runs_failed",
        f"{name} {in_a_row[-1]}",
        datetime.now(UTC),
        subject=name,
        text=f"{name} failed {len(in_a_row)} times in a row, last: {message_of_failure(context.instance, run_id)}",
        next_step=f"See the log of run {run_id[:8]} in Dagster; docs/operations.md says what each job needs.",
    )
    with model_objects.open() as objects:
        Outbox(objects).add(notice_of(raised))


def failures_in_a_row(instance: dg.DagsterInstance, run: dg.DagsterRun, enough: int) -> list[str]:
    """The runs of the same job that failed one after the other up to this one, the newest first; one more than enough
    at most. What was cancelled is neither a failure nor a success."""
    earlier = [
        each
        for each in instance.get_run_records(dg.RunsFilter(job_name=run.job_name), limit=50 * (enough + 1))
        if each.dagster_run.status in (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE) and each.end_time
    ]
    earlier.sort(key=lambda each: (each.end_time or 0.0, each.storage_id), reverse=True)
    here = next((place for place, each in enumerate(earlier) if each.dagster_run.run_id == run.run_id), None)
    found: list[str] = []
    for each in earlier[here:] if here is not None else ():
        if each.dagster_run.status == dg.DagsterRunStatus.SUCCESS or len(found) > enough:
            break
        found.append(each.dagster_run.run_id)
    return found


def _lost_nats(stream: StreamResource, look: Look) -> Iterator[Alert]:
    try:
        with stream.open() as messages:
            messages.state(TRAJECTORIES.name)
        trouble = ""
    except PipelineError as lost:
        trouble = str(lost)
    episode = look.found("NATS is lost", bool(trouble))
    if episode and episode.has_lasted(NATS_LOST_AFTER, look.now):
        yield alert(
            "nats_lost",
            episode.since.isoformat(),
            look.now,
            subject=stream.url,
            text=f"NATS has been lost since {episode.since:%Y-%m-%d %H:%M:%S} UTC, for more than "
            f"{NATS_LOST_AFTER / timedelta(minutes=1):.0f} minutes: {trouble}",
            next_step="Start it again: agents keep what they record in their outboxes, and nothing of it is lost. "
            "docs/operations.md, “NATS is lost”.",
        )


def _unreachable_service(alerts: AlertsResource, look: Look) -> Iterator[Alert]:
    episode = look.found("the service does not answer", not alerts.service_answers())
    if episode and episode.looks >= alerts.after_failures:
        yield alert(
            "service_unreachable",
            episode.since.isoformat(),
            look.now,
            subject=alerts.service_url,
            text=f"The AgentGym-RL service at {alerts.service_url} has not answered {episode.looks} times in a row, "
            f"since {episode.since:%Y-%m-%d %H:%M:%S} UTC",
            next_step="Look at its log and start it again; trainings are asked for by NATS meanwhile.",
        )


def _in_tables(tables: Warehouse, alerts: AlertsResource, look: Look) -> Iterator[Alert]:
    since = look.looked_last - _OVERLAP
    try:
        refused = collection_is_bad(tables, TRAJECTORIES.name, look.now)
        yield from failed_trainings(tables, alerts.after_failures, look.now)
        yield from failed_validations(tables, since, look.now)
        yield from rollbacks(tables, since, look.now)
        yield from waiting_rollouts(tables, since, look.now)
    except WarehouseUnavailable as away:
        look.could_not_see(_REFUSED)
        episode = look.found("the warehouse is lost", True)
        if episode and episode.looks >= alerts.after_failures:
            yield alert(
                "warehouse_lost",
                episode.since.isoformat(),
                look.now,
                text=f"The warehouse has been lost since {episode.since:%Y-%m-%d %H:%M:%S} UTC: {away}",
                next_step="Start ClickHouse again: what arrives waits in NATS, and rollouts are judged by what "
                "gateways remember.",
            )
        return
    if episode := look.found(_REFUSED, refused is not None):
        yield alert(
            "collection_errors",
            episode.since.isoformat(),
            look.now,
            text=f"{refused}, more than 10 %",
            next_step="rl-pipeline dead-letters list says why and whose they are; mend the publisher, and replay them.",
        )


@contextmanager
def _connecting(stream: StreamResource) -> Iterator[Callable[[], Stream]]:
    """Connects once, when it is first needed, and stays so for the block; one that failed is not tried again in it."""
    found: list[Stream | PipelineError] = []
    with ExitStack() as opened:

        def connect() -> Stream:
            if not found:
                try:
                    found.append(opened.enter_context(stream.open()))
                except PipelineError as trouble:
                    found.append(trouble)
            if isinstance(found[0], PipelineError):
                raise found[0]
            return found[0]

        yield connect
