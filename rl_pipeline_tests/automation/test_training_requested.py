"""What the sensor of requests asks of Dagster, with a real stream, warehouse and lease."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import (  # what a run in the queue has to know, and nobody else
    RegisteredCodeLocationOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)

from rl_pipeline.automation.training_requested import training_requested
from rl_pipeline.definitions import build_definitions
from rl_pipeline.deployment.audit import AuditRow, WarehouseAudit
from rl_pipeline.deployment.state import ServedModel
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.embedded.ports import free_port
from rl_pipeline.ingestion.dead_letters import show_dead_letter
from rl_pipeline.partitions import training_jobs
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.stores.stream import StreamUnavailable
from rl_pipeline.stores.topology import DEPLOYMENT
from rl_pipeline.training.jobs.advancing import MOST_IMPORTS, SENSOR_LEASE, TRAINING_LEASE, import_lease
from rl_pipeline.training.jobs.requests import REQUESTS_CONSUMER
from rl_pipeline.training.jobs.rows import begin_attempt, end_attempt, find_job, keep_plan
from rl_pipeline.training.jobs.silence import START_PATIENCE, Silence
from rl_pipeline_tests.serving.states import ramping, steady
from rl_pipeline_tests.training.job_tables import emptied, migrated_database, wait_for_pending
from rl_pipeline_tests.training.job_values import a_plan
from rl_pipeline_tests.training.stored_training import TrainingPlace

REQUEST = "agent.rl.training.request.v1"
# A run that waits in the queue is cancelled by taking it out, which needs no process to end.
QUEUE = {"run_coordinator": {"module": "dagster.core.run_coordinator", "class": "QueuedRunCoordinator"}}


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def place(tables: ClickHouseWarehouse, stream: JetStream, nats_server: NatsServer, tmp_path: Path) -> TrainingPlace:
    return TrainingPlace(stream, emptied(tables), nats_server.url, tmp_path)


@pytest.fixture
def resources(place: TrainingPlace, clickhouse_url: str) -> dict[str, Any]:
    return place.resources(clickhouse_url)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def tick(resources: dict[str, Any], instance: dg.DagsterInstance, cursor: str | None = None) -> dg.SensorResult:
    context = dg.build_sensor_context(instance=instance, resources=resources, cursor=cursor)
    result = training_requested(context)
    assert isinstance(result, dg.SensorResult)
    return result


def keys(result: dg.SensorResult) -> list[str | None]:
    return [request.run_key for request in result.run_requests or ()]


def create_run(
    instance: dg.DagsterInstance, request: dg.RunRequest, status: dg.DagsterRunStatus = dg.DagsterRunStatus.STARTED
) -> dg.DagsterRun:
    """The run as Dagster's daemon makes it of what a sensor asks for."""
    job = build_definitions().resolve_job_def(str(request.job_name))
    repository = RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("rl_pipeline"), "__repository__")
    return instance.create_run_for_job(
        job,
        tags=dict(request.tags),
        run_config=request.run_config,
        status=status,
        remote_job_origin=RemoteJobOrigin(repository, job.name),
    )


def started(resources: dict[str, Any], instance: dg.DagsterInstance) -> dg.DagsterRun:
    """The run that a tick asks for, under way."""
    [request] = tick(resources, instance).run_requests or []
    return create_run(instance, request)


def status_of(instance: dg.DagsterInstance, run: dg.DagsterRun) -> dg.DagsterRunStatus:
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status


def test_a_request_becomes_a_run_of_its_partition_from_the_dataset_on(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    place.ask("job")
    result = tick(resources, instance)
    [request] = result.run_requests or []
    assert (request.job_name, request.partition_key, request.run_key) == ("train_policy", "job", "job#1")
    assert request.tags == {"rl/stage": "training", "rl/job": "job", "rl/attempt": "1"}
    assert request.asset_selection is None, "both assets of the job"
    assert list(result.dynamic_partitions_requests or ()) == [training_jobs.build_add_request(["job"])]
    assert [status.status for status in place.statuses("job")] == ["queued"]


FIRST = ServedModel(model_id="strict", base_model="strict", checkpoint_path="strict")


def trained(job_id: str) -> ServedModel:
    path = f"s3://models/{job_id}/final"
    return ServedModel(model_id=f"of-{job_id}", base_model="strict", checkpoint_path=path, training_job_id=job_id)


def base_of(place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance, job_id: str) -> str | None:
    """From what a training starts that is asked for now without the name of a model."""
    place.ask(job_id, base_model=None)
    tick(resources, instance)
    return place.job(job_id).request.training_config.base_model


@pytest.mark.parametrize(("train_from", "start"), [("serving", "s3://models/job-1/final"), ("base", "strict")])
def test_a_training_goes_on_from_the_model_in_service_unless_each_is_to_start_anew(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance, train_from: str, start: str
) -> None:
    resources["training"] = TrainingResource(**{**dict(resources["training"]), "train_from": train_from})
    states = JetStreamDesiredStates(place.messages)
    revision = states.swap(steady(1, FIRST).encoded(), 0)
    assert base_of(place, resources, instance, "from-the-first") == "strict"
    assert revision is not None
    states.swap(steady(2, trained("job-1")).encoded(), revision)
    assert base_of(place, resources, instance, "from-the-trained") == start


@pytest.mark.parametrize(("phase", "start"), [("ramping", "job-1"), ("testing", "job-1"), ("baking", "job-2")])
def test_a_training_starts_from_a_candidate_only_once_it_has_won_all_of_the_traffic(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance, phase: str, start: str
) -> None:
    state = ramping(1, trained("job-1"), trained("job-2"), 1.0 if phase == "baking" else 0.9).model_copy(
        update={"phase": phase}
    )
    JetStreamDesiredStates(place.messages).swap(state.encoded(), 0)
    assert base_of(place, resources, instance, "job") == f"s3://models/{start}/final"


def test_a_training_that_was_to_go_on_from_a_model_which_was_rolled_back_is_not_started(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    states = JetStreamDesiredStates(place.messages)
    revision = states.swap(steady(1, trained("job-1")).encoded(), 0)
    assert revision is not None
    place.ask("busy")
    tick(resources, instance)
    base_of(place, resources, instance, "job")
    states.swap(steady(2, FIRST, retired=("of-job-1",)).encoded(), revision)
    tick(resources, instance)
    assert place.job("job").state == "cancelled"
    assert "of-job-1, from which it was to go on, was rolled back" in place.job("job").explanation
    assert place.job("busy").state == "running"


def test_without_a_record_of_what_is_in_service_only_what_depends_on_it_waits(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    place.messages.request(f"STREAM.DELETE.{DEPLOYMENT.name}")
    assert base_of(place, resources, instance, "before-anything-was-deployed") == "strict"
    place.cancel("before-anything-was-deployed")
    WarehouseAudit(place.tables).add([AuditRow.of(steady(1, trained("job-1")).encoded())])
    place.ask("waits", base_model=None)
    place.ask("named")
    tick(resources, instance)
    assert [find_job(place.tables, job) is not None for job in ("waits", "named")] == [False, True]
    assert place.job("before-anything-was-deployed").state in ("cancelling", "cancelled")


def test_a_record_that_cannot_be_read_holds_up_nothing_else(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    JetStreamDesiredStates(place.messages).swap(b"{}", 0)
    place.ask("waits", base_model=None)
    place.ask("named")
    assert keys(tick(resources, instance)) == ["named#1"]
    assert find_job(place.tables, "waits") is None


def test_a_repeated_request_starts_nothing_twice(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    place.ask("job")
    [first] = tick(resources, instance).run_requests or []
    last = place.messages.state("RL_TRAINING").last_sequence
    [asked] = [one for batch in place.messages.read("RL_TRAINING", 1, last, 10) for one in batch][:1]
    place.messages.publish(REQUEST, asked.data, "the-same-under-another-message-id")
    wait_for_pending(place.messages, REQUESTS_CONSUMER, 1)
    assert keys(tick(resources, instance)) == [first.run_key], "Dagster starts a key once"
    create_run(instance, first)
    rests = tick(resources, instance)
    assert not rests.run_requests
    assert "job is running" in str(rests.skip_reason)
    assert len(place.attempts("job")) == 1


def test_the_next_attempt_runs_the_checkpoint_alone_once_it_may(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    place.ask("job")
    run = started(resources, instance)
    begun = begin_attempt(place.tables, "job", run.run_id, run.tags, datetime.now(UTC))[1][-1]
    keep_plan(place.tables, begun, a_plan())
    long_ago = datetime.now(UTC) - timedelta(minutes=11)
    end_attempt(place.tables, begun, "failed", long_ago, failure_code="INFRA", message="the store was away")
    instance.report_run_failed(run)
    [request] = tick(resources, instance).run_requests or []
    assert (request.run_key, request.partition_key) == ("job#2", "job")
    assert [key.to_user_string() for key in request.asset_selection or ()] == ["policy_checkpoints"]
    assert request.tags["rl/attempt"] == "2"


def test_a_run_that_died_without_a_word_is_tried_again_later(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    place.ask("job")
    run = started(resources, instance)
    begin_attempt(place.tables, "job", run.run_id, run.tags, datetime.now(UTC))
    instance.report_run_failed(run)
    waits = tick(resources, instance)
    assert not waits.run_requests
    assert "the next attempt starts after" in str(waits.skip_reason)
    status = place.statuses("job")[-1]
    assert status.error is not None
    assert (status.status, status.error.code) == ("queued", "INFRA")


def a_while_ago(cursor: str | None) -> str:
    """What a tick left for the next, as if its silence had begun long before it."""
    left = Silence.from_text(cursor)
    return Silence(
        looked_at=left.looked_at, since={key: since - START_PATIENCE for key, since in left.since.items()}
    ).as_text()


def test_a_run_whose_machine_is_gone_is_reported_failed_and_tried_again(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    place.ask("job")
    run = started(resources, instance)
    attempt = begin_attempt(place.tables, "job", run.run_id, run.tags, datetime.now(UTC))[1][-1]
    leases = JetStreamLeases(place.messages)
    lease = leases.acquire(TRAINING_LEASE, attempt.holder, 60)
    assert lease is not None
    held = tick(resources, instance, a_while_ago(tick(resources, instance).cursor))
    assert Silence.from_text(held.cursor).since == {}, "it trains"
    leases.release(lease)
    silent = tick(resources, instance, held.cursor)
    assert instance.get_runs()[0].status == dg.DagsterRunStatus.STARTED, "it may only have lost its server for a while"
    noticed = tick(resources, instance, a_while_ago(silent.cursor))
    assert status_of(instance, run) == dg.DagsterRunStatus.FAILURE, "so its place in the pool is free"
    waits = tick(resources, instance, noticed.cursor)
    assert "the next attempt starts after" in str(waits.skip_reason)
    assert (place.attempts("job")[0].failure_code, place.job("job").state) == ("INFRA", "ready")


@pytest.mark.parametrize("status", [dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED])
def test_a_run_whose_machine_is_gone_before_it_began_does_not_hold_the_place_for_ever(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance, status: dg.DagsterRunStatus
) -> None:
    place.ask("job")
    [request] = tick(resources, instance).run_requests or []
    run = create_run(instance, request, status)
    silent = tick(resources, instance)
    assert status_of(instance, run) == status, "it may only take long to load"
    noticed = tick(resources, instance, a_while_ago(silent.cursor))
    assert status_of(instance, run) == dg.DagsterRunStatus.FAILURE
    tick(resources, instance, noticed.cursor)
    assert (place.attempts("job")[0].failure_code, place.job("job").state) == ("INFRA", "ready")


def test_a_cursor_of_somebody_else_begins_anew(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    place.ask("job")
    assert keys(tick(resources, instance, "17")) == ["job#1"]


def test_a_run_that_a_person_executes_again_does_not_count_for_the_attempt(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    place.ask("job")
    [request] = tick(resources, instance).run_requests or []
    run = create_run(instance, request)
    begin_attempt(place.tables, "job", run.run_id, run.tags, datetime.now(UTC))
    instance.report_run_failed(create_run(instance, request))
    tick(resources, instance)
    assert (place.job("job").state, place.attempts("job")[0].is_open) == ("running", True)


def test_an_invalid_request_is_answered_with_failed_and_a_dead_letter(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    invalid = {"training_job_id": "job", "requester": "mail jo@northwind.example", "training_config": {}}
    sequence = place.messages.publish(REQUEST, json.dumps(invalid).encode(), "invalid").sequence
    wait_for_pending(place.messages, REQUESTS_CONSUMER, 1)
    result = tick(resources, instance)
    assert not result.run_requests
    assert not result.dynamic_partitions_requests
    assert "no job waits" in str(result.skip_reason)
    [status] = place.statuses("job")
    assert status.error is not None
    assert (status.status, status.error.code) == ("failed", "DATA")
    letter = show_dead_letter(place.messages, "RL_TRAINING", sequence)
    assert (letter.subject, letter.message_id) == (REQUEST, "job")
    assert "northwind" not in letter.excerpt


def test_a_cancelled_job_takes_its_run_out_of_the_queue(
    place: TrainingPlace, resources: dict[str, Any], tmp_path: Path
) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=QUEUE) as instance:
        place.ask("job")
        [request] = tick(resources, instance).run_requests or []
        run = create_run(instance, request, dg.DagsterRunStatus.QUEUED)
        place.cancel("job")
        assert not tick(resources, instance).run_requests
        assert status_of(instance, run) == dg.DagsterRunStatus.CANCELED
        tick(resources, instance)
        assert place.attempts("job")[-1].outcome == "cancelled"
    assert [status.status for status in place.statuses("job")] == ["queued", "cancelled"]


def test_files_are_imported_first_by_a_run_of_their_own(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.ask("job", source={"source": "local", "path": "episodes.jsonl"})
    [request] = tick(resources, instance).run_requests or []
    assert (request.job_name, request.run_key, request.partition_key) == ("import_trajectories", "import/job#0", None)
    config = {"job_id": "job", "path": "episodes.jsonl"}
    assert request.run_config == {"ops": {"import_files": {"config": config}}}
    run = create_run(instance, request)
    assert not tick(resources, instance).run_requests, "it is on its way"
    instance.report_run_failed(run)
    assert not tick(resources, instance).run_requests, "not at once"
    monkeypatch.setattr("rl_pipeline.automation.runs.not_before", lambda *_: datetime(2026, 1, 1, tzinfo=UTC))
    assert keys(tick(resources, instance)) == ["import/job#1"]


def importing(place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance) -> dg.RunRequest:
    """The run that a tick asks for, of a job whose files cannot be reached."""
    place.ask("job", source={"source": "local", "path": "episodes.jsonl"})
    [request] = tick(resources, instance).run_requests or []
    return request


def test_an_import_that_fails_and_fails_is_given_up_with_its_reason(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = importing(place, resources, instance)
    monkeypatch.setattr("rl_pipeline.automation.runs.not_before", lambda *_: datetime(2026, 1, 1, tzinfo=UTC))
    for _ in range(MOST_IMPORTS - 1):
        instance.report_run_failed(create_run(instance, request))
        assert keys(tick(resources, instance)), "once more"
    away = StreamResource(url=f"nats://127.0.0.1:{free_port()}")
    job = build_definitions({**resources, "stream": away}).resolve_job_def("import_trajectories")
    last = job.execute_in_process(
        run_config=request.run_config, tags=dict(request.tags), instance=instance, raise_on_error=False
    )
    assert not last.success
    assert not tick(resources, instance).run_requests
    status = place.statuses("job")[-1]
    assert status.error is not None
    assert (status.status, status.error.code, place.job("job").state) == ("failed", "INFRA", "failed")
    assert "NATS_URL" in str(status.error.message), "as the last of them said"


@pytest.mark.parametrize("is_over", [True, False])
def test_a_cancelled_import_cancels_its_job(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance, is_over: bool
) -> None:
    run = create_run(instance, importing(place, resources, instance))
    instance.report_run_canceling(run)
    if is_over:
        instance.report_run_canceled(run)
    assert not tick(resources, instance).run_requests
    assert (place.job("job").state, place.statuses("job")[-1].status) == ("cancelled", "cancelled")


def test_an_import_whose_machine_is_gone_is_reported_failed_and_tried_again(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = create_run(instance, importing(place, resources, instance))
    leases = JetStreamLeases(place.messages)
    lease = leases.acquire(import_lease("job"), run.run_id, 60)
    assert lease is not None
    held = tick(resources, instance, a_while_ago(tick(resources, instance).cursor))
    assert Silence.from_text(held.cursor).since == {}, "it imports"
    leases.release(lease)
    silent = tick(resources, instance, held.cursor)
    assert status_of(instance, run) == dg.DagsterRunStatus.STARTED, "it may only have lost its server for a while"
    noticed = tick(resources, instance, a_while_ago(silent.cursor))
    assert status_of(instance, run) == dg.DagsterRunStatus.FAILURE
    monkeypatch.setattr("rl_pipeline.automation.runs.not_before", lambda *_: datetime(2026, 1, 1, tzinfo=UTC))
    assert keys(tick(resources, instance, noticed.cursor)) == ["import/job#1"]
    assert place.job("job").state == "importing"


def test_a_job_that_is_cancelled_takes_its_import_out_of_the_queue(
    place: TrainingPlace, resources: dict[str, Any], tmp_path: Path
) -> None:
    with dg.DagsterInstance.local_temp(str(tmp_path), overrides=QUEUE) as instance:
        run = create_run(instance, importing(place, resources, instance), dg.DagsterRunStatus.QUEUED)
        place.cancel("job")
        assert not tick(resources, instance).run_requests
        assert (place.job("job").state, status_of(instance, run)) == ("cancelled", dg.DagsterRunStatus.CANCELED)


def test_one_sensor_looks_at_a_time(
    place: TrainingPlace, resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    place.ask("job")
    assert JetStreamLeases(place.messages).acquire(SENSOR_LEASE, "another sensor", 60)
    result = tick(resources, instance)
    assert not result.run_requests
    assert "another sensor is at it" in str(result.skip_reason)
    assert place.statuses("job") == []


def test_an_unreachable_server_fails_the_tick_with_what_to_do(
    resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    nowhere = StreamResource(url=f"nats://127.0.0.1:{free_port()}")
    with pytest.raises(StreamUnavailable, match="NATS_URL"):
        tick({**resources, "stream": nowhere}, instance)
