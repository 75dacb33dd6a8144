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
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.embedded.ports import free_port
from rl_pipeline.ingestion.dead_letters import show_dead_letter
from rl_pipeline.partitions import training_jobs
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.stores.stream import StreamUnavailable
from rl_pipeline.training.advancing import SENSOR_LEASE
from rl_pipeline.training.job_rows import begin_attempt, end_attempt, keep_plan
from rl_pipeline.training.requests import REQUESTS_CONSUMER
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


def tick(resources: dict[str, Any], instance: dg.DagsterInstance) -> dg.SensorResult:
    result = training_requested(dg.build_sensor_context(instance=instance, resources=resources))
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
    begun = begin_attempt(place.tables, "job", run.run_id, datetime.now(UTC))[1][-1]
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
    begin_attempt(place.tables, "job", run.run_id, datetime.now(UTC))
    instance.report_run_failed(run)
    waits = tick(resources, instance)
    assert not waits.run_requests
    assert "the next attempt starts after" in str(waits.skip_reason)
    status = place.statuses("job")[-1]
    assert status.error is not None
    assert (status.status, status.error.code) == ("queued", "INFRA")


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
        stopped = instance.get_run_by_id(run.run_id)
        assert stopped is not None
        assert stopped.status == dg.DagsterRunStatus.CANCELED
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
