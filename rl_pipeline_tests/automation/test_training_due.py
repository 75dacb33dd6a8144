"""When the pipeline asks for a training by itself, and that a tick says why it did or did not."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import polars as pl
import pytest

from rl_pipeline.automation.training_due import training_due, training_schedule
from rl_pipeline.contracts import TrainingRequest, parse_message
from rl_pipeline.definitions import build_definitions
from rl_pipeline.deployment.releases import Releases
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.validation.verdict import Decision
from rl_pipeline_tests.deployment.states import a_release
from rl_pipeline_tests.serving.states import model_at, ramping, steady
from rl_pipeline_tests.training.job_tables import emptied, migrated_database, store_trajectories
from rl_pipeline_tests.training.stored_training import TrainingPlace
from rl_pipeline_tests.validation.stored_reports import a_report, store_a_report, store_checkpoint

TWO_O_CLOCK = datetime(2026, 2, 1, 2, tzinfo=UTC)
THRESHOLD, MIN_NEW = 20, 5


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def place(tables: ClickHouseWarehouse, stream: JetStream, nats_server: NatsServer, tmp_path: Path) -> TrainingPlace:
    return TrainingPlace(stream, emptied(tables), nats_server.url, tmp_path)


@pytest.fixture
def resources(place: TrainingPlace, clickhouse_url: str) -> dict[str, Any]:
    return place.resources(clickhouse_url, threshold=THRESHOLD, min_new=MIN_NEW)


def rewarded(place: TrainingPlace, count: int) -> None:
    store_trajectories(place.tables, count, scored=count, at=datetime.now(UTC) - timedelta(hours=1))


def sensed(resources: dict[str, Any]) -> str:
    """The reason that a tick of the sensor leaves behind."""
    names = ("stream", "warehouse", "training")
    context = dg.build_sensor_context(resources={name: resources[name] for name in names})
    outcome = training_due.evaluate_tick(context)
    assert not outcome.run_requests
    return str(outcome.skip_message)


def scheduled(resources: dict[str, Any]) -> str:
    """The reason that a tick of the schedule leaves behind."""
    names = ("stream", "warehouse", "training")
    context = dg.build_schedule_context(
        resources={name: resources[name] for name in names}, scheduled_execution_time=TWO_O_CLOCK
    )
    outcome = training_schedule("0 2 * * *").evaluate_tick(context)
    assert not outcome.run_requests
    return str(outcome.skip_message)


def requests(place: TrainingPlace) -> list[TrainingRequest]:
    last = place.messages.state("RL_TRAINING").last_sequence
    stored = [one for batch in place.messages.read("RL_TRAINING", 1, last, 10) for one in batch] if last else []
    return [parse_message(one.subject, one.data) for one in stored if "request" in one.subject]  # type: ignore[misc]


FIRST, SECOND = model_at("v1"), model_at("v2")


def put(place: TrainingPlace, state: DesiredState, **changes: Any) -> None:
    """Let the record say so, with a rollout that has just begun."""
    states = JetStreamDesiredStates(place.messages)
    rollout = state.rollout and state.rollout.model_copy(update={"started_at": datetime.now(UTC)})
    known = states.read()
    changed = state.model_copy(update={"rollout": rollout, **changes})
    assert states.swap(changed.encoded(), known.revision if known else 0)


@pytest.mark.parametrize(
    "then", [steady(2, SECOND), ramping(2, FIRST, SECOND, 1.0).model_copy(update={"phase": "baking"})]
)
def test_enough_new_trajectories_wait_for_a_model_that_is_being_rolled_out_but_not_for_its_bake(
    place: TrainingPlace, resources: dict[str, Any], then: DesiredState
) -> None:
    rewarded(place, THRESHOLD)
    put(place, ramping(1, FIRST, SECOND, 0.25))
    assert "v2 is on its way into service" in sensed(resources)
    assert requests(place) == []
    put(place, then)
    assert "threshold" not in sensed(resources)
    assert [request.trigger_reason for request in requests(place)] == ["threshold_reached"]


@pytest.mark.parametrize(
    "changes",
    [{"frozen": "a holiday"}, {"phase": "awaiting_approval"}, {"phase": "testing"}, {"rollout": "of last year"}],
    ids=["frozen", "awaits approval", "an A/B test", "no traffic"],
)
def test_nobody_waits_for_a_rollout_that_waits_for_a_person_or_does_not_end(
    place: TrainingPlace, resources: dict[str, Any], changes: dict[str, Any]
) -> None:
    rewarded(place, THRESHOLD)
    state = ramping(1, FIRST, SECOND, 0.25)
    put(place, state, **(changes if "rollout" not in changes else {"rollout": state.rollout}))
    assert "asked for" in sensed(resources)


def store_trained(place: TrainingPlace, job_id: str, *, shadow: bool = False, ago: timedelta = timedelta()) -> None:
    """A training that has just completed, of a file, which is none of those that the threshold counts from."""
    at = datetime.now(UTC) - ago
    state = {"job_id": job_id, "state": "completed", "source": "s3", "shadow": shadow, "version": 1}
    times = dict.fromkeys(("requested_at", "accepted_at", "changed_at"), at)
    place.tables.insert("training_jobs", pl.DataFrame([{**state, **times}]))
    store_checkpoint(place.tables, job_id, shadow=shadow)


def test_enough_new_trajectories_wait_from_the_end_of_a_training_to_the_start_of_its_rollout(
    place: TrainingPlace, resources: dict[str, Any]
) -> None:
    rewarded(place, THRESHOLD)
    put(place, steady(1, FIRST))
    store_trained(place, "job")
    waits = "the model of job is on its way into service: what is trained next starts from it, or from its control"
    assert sensed(resources) == waits, "it is to be validated"
    store_a_report(place.tables, place.directory, "job", a_report("deploy"))
    assert sensed(resources) == waits, "it is to be released"
    release = a_release(1).model_copy(update={"training_job_id": "job"})
    Releases(place.tables)._write([release])
    assert sensed(resources) == waits, "it is to be rolled out"
    put(place, steady(2, FIRST), frozen="a holiday")
    assert "asked for" in sensed(resources), "nothing is rolled out"


@pytest.mark.parametrize("why", ["refused", "asks a person", "shadow", "long ago", "started", "to be approved"])
def test_nobody_waits_for_a_trained_model_that_does_not_come_by_itself(
    place: TrainingPlace, resources: dict[str, Any], why: str
) -> None:
    rewarded(place, THRESHOLD)
    put(place, steady(1, FIRST))
    store_trained(place, "job", shadow=why == "shadow", ago=timedelta(days=2 * (why == "long ago")))
    decisions: dict[str, Decision] = {"refused": "refuse", "asks a person": "ask_a_person"}
    if why in decisions:
        store_a_report(place.tables, place.directory, "job", a_report(decisions[why]))
    if why in ("started", "to be approved"):
        state = "started" if why == "started" else "waiting"
        release = a_release(1, needs_approval=why == "to be approved")
        Releases(place.tables)._write([release.model_copy(update={"training_job_id": "job", "state": state})])
    assert "asked for" in sensed(resources)


def test_where_it_cannot_be_told_what_is_in_service_the_request_is_made_and_waits_itself(
    place: TrainingPlace, resources: dict[str, Any]
) -> None:
    rewarded(place, THRESHOLD)
    JetStreamDesiredStates(place.messages).swap(b"{}", 0)
    assert "asked for" in sensed(resources)


def test_too_few_new_trajectories_ask_for_nothing_and_the_tick_says_how_many(
    place: TrainingPlace, resources: dict[str, Any]
) -> None:
    rewarded(place, THRESHOLD - 1)
    assert sensed(resources) == "19 new trajectories since the last training, 20 are needed"
    assert requests(place) == []


def test_enough_new_trajectories_ask_for_a_training_once(place: TrainingPlace, resources: dict[str, Any]) -> None:
    rewarded(place, THRESHOLD)
    for _ in range(2):
        assert "(normal): 20 new trajectories since the last training" in sensed(resources)
    [asked] = requests(place)
    assert (asked.trigger_reason, asked.priority, asked.requester) == ("threshold_reached", "normal", "rl-pipeline")
    assert asked.training_config.dataset.source == "clickhouse"
    place.look()
    assert sensed(resources) == f"the job {asked.training_job_id} is under way"
    assert len(requests(place)) == 1


def test_the_schedule_says_why_it_skips_and_asks_when_something_is_new(
    place: TrainingPlace, resources: dict[str, Any]
) -> None:
    rewarded(place, MIN_NEW - 1)
    assert scheduled(resources) == "4 new trajectories since the last completed training, the schedule needs 5"
    assert requests(place) == []
    emptied(place.tables)
    rewarded(place, MIN_NEW)
    assert "(normal): 5 new trajectories since the last completed training" in scheduled(resources)
    [asked] = requests(place)
    assert (asked.trigger_reason, asked.priority) == ("scheduled", "normal")


def test_the_schedule_is_at_two_o_clock_utc_and_on() -> None:
    schedule = build_definitions().resolve_schedule_def("train_at_night")
    assert (schedule.cron_schedule, schedule.execution_timezone) == ("0 2 * * *", "UTC")
    assert schedule.default_status == dg.DefaultScheduleStatus.RUNNING
