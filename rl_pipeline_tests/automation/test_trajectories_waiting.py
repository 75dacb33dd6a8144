"""What the sensor does with a real stream and a real warehouse."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import dagster as dg
import pytest

from rl_pipeline.automation.trajectories_waiting import ingest_trajectories, trajectories_waiting
from rl_pipeline.definitions import build_definitions
from rl_pipeline.embedded.ports import free_port
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.stream import StreamUnavailable
from rl_pipeline.stores.warehouse import WarehouseUnavailable
from rl_pipeline_tests.fixtures.ingest import changed

SUBJECT = "agent.rl.trajectory.v1"


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def publish(stream: JetStream, count: int) -> None:
    for number in range(count):
        stream.publish(SUBJECT, b"{}", f"message-{number}")


def tick(
    resources: dict[str, Any], instance: dg.DagsterInstance | None = None, cursor: str | None = None, **ingest: Any
) -> dg.SensorResult:
    context = dg.build_sensor_context(instance=instance, cursor=cursor, resources=changed(resources, **ingest))
    result = trajectories_waiting(context)
    assert isinstance(result, dg.SensorResult)
    return result


def observed(result: dg.SensorResult) -> dict[str, Any]:
    [observation] = [event for event in result.asset_events if isinstance(event, dg.AssetObservation)]
    assert observation.asset_key == dg.AssetKey("trajectory_stream")
    return {label: value.value for label, value in observation.metadata.items()}


def run_of(result: dg.SensorResult) -> dg.RunRequest:
    assert result.run_requests is not None
    [request] = result.run_requests
    return request


def test_messages_that_arrived_are_observed_and_recorded(
    ingest_resources: dict[str, Any], instance: dg.DagsterInstance, stream: JetStream, warehouse: ClickHouseWarehouse
) -> None:
    publish(stream, 2)
    seen = observed(tick(ingest_resources, instance))
    assert (seen["messages"], seen["last_sequence"], seen["lag"]) == (2, 2, 2)
    assert warehouse.query("SELECT messages FROM stream_observations FINAL")["messages"].to_list() == [2]


def test_a_stream_that_stands_still_is_observed_once(
    ingest_resources: dict[str, Any], instance: dg.DagsterInstance, warehouse: ClickHouseWarehouse
) -> None:
    first = tick(ingest_resources, instance)
    second = tick(ingest_resources, instance, cursor=first.cursor)
    assert (second.asset_events, second.run_requests) == ([], [])
    assert warehouse.query("SELECT count() AS n FROM stream_observations FINAL")["n"][0] == 1


def test_an_erased_message_moves_the_stream_and_is_told_from_a_lost_one(
    ingest_resources: dict[str, Any], instance: dg.DagsterInstance, stream: JetStream
) -> None:
    publish(stream, 3)
    before = tick(ingest_resources, instance)
    stream.erase("RL_TRAJECTORIES", 2)
    seen = observed(tick(ingest_resources, instance, cursor=before.cursor))
    assert (seen["erased"], seen["overrun"], seen["lag"]) == (1, 0, 2)


def test_enough_waiting_trajectories_start_an_ingest_of_their_range(
    ingest_resources: dict[str, Any], instance: dg.DagsterInstance, stream: JetStream
) -> None:
    publish(stream, 2)
    few = tick(ingest_resources, instance)
    assert few.run_requests == []
    assert few.skip_reason is not None
    assert "2 wait" in str(few.skip_reason.skip_message)
    publish(stream, 3)
    request = run_of(tick(ingest_resources, instance, cursor=few.cursor))
    assert request.partition_key == stream.get("RL_TRAJECTORIES", 1).time.date().isoformat()
    [config] = [op["config"] for op in request.run_config["ops"].values()]
    assert config == {"first_sequence": 1, "last_sequence": 3}


def test_one_that_has_waited_long_enough_starts_an_ingest(
    ingest_resources: dict[str, Any], instance: dg.DagsterInstance, stream: JetStream
) -> None:
    publish(stream, 1)
    assert tick(ingest_resources, instance).run_requests == []
    assert run_of(tick(ingest_resources, instance, wait_seconds=0.0)).run_key == "1-1#0"


def test_every_request_has_a_key_of_its_own_because_dagster_never_starts_a_key_twice(
    ingest_resources: dict[str, Any], instance: dg.DagsterInstance, stream: JetStream
) -> None:
    publish(stream, 3)
    first = tick(ingest_resources, instance)
    second = tick(ingest_resources, instance, cursor=first.cursor)
    assert (run_of(first).run_key, run_of(second).run_key) == ("1-3#0", "1-3#1")


def start_run(instance: dg.DagsterInstance, request: dg.RunRequest, status: dg.DagsterRunStatus) -> None:
    job = build_definitions().resolve_job_def(ingest_trajectories.name)
    run = instance.create_run_for_job(job, tags={**request.tags}, status=dg.DagsterRunStatus.STARTED)
    if status == dg.DagsterRunStatus.FAILURE:
        instance.report_run_failed(run)


def test_while_an_ingest_is_on_its_way_no_other_is_started(
    ingest_resources: dict[str, Any], instance: dg.DagsterInstance, stream: JetStream
) -> None:
    publish(stream, 3)
    start_run(instance, run_of(tick(ingest_resources, instance)), dg.DagsterRunStatus.STARTED)
    waiting = tick(ingest_resources, instance)
    assert waiting.run_requests == []
    assert "is on its way" in str(waiting.skip_reason)


def test_a_range_that_has_failed_is_tried_again_but_not_at_once(
    ingest_resources: dict[str, Any],
    instance: dg.DagsterInstance,
    stream: JetStream,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    publish(stream, 3)
    start_run(instance, run_of(tick(ingest_resources, instance)), dg.DagsterRunStatus.FAILURE)
    waiting = tick(ingest_resources, instance)
    assert waiting.run_requests == []
    assert "failed 1 times, again after" in str(waiting.skip_reason)
    monkeypatch.setattr("rl_pipeline.automation.runs.not_before", lambda *_: datetime(2026, 1, 1, tzinfo=UTC))
    assert run_of(tick(ingest_resources, instance)).partition_key


def test_the_freshness_check_turns_when_a_message_has_waited_too_long(
    ingest_resources: dict[str, Any], instance: dg.DagsterInstance, stream: JetStream
) -> None:
    def verdict(result: dg.SensorResult) -> list[bool]:
        return [event.passed for event in result.asset_events if isinstance(event, dg.AssetCheckEvaluation)]

    publish(stream, 1)
    fresh = tick(ingest_resources, instance)
    assert verdict(fresh) == [True]
    assert verdict(tick(ingest_resources, instance, cursor=fresh.cursor)) == []
    assert verdict(tick(ingest_resources, instance, cursor=fresh.cursor, stale_seconds=1e-6)) == [False]


def test_the_cursor_holds_no_position(
    ingest_resources: dict[str, Any], instance: dg.DagsterInstance, stream: JetStream
) -> None:
    publish(stream, 3)
    stale = json.dumps({"observed": "1-900/900@900 in time", "attempt": 41})
    assert run_of(tick(ingest_resources, instance, cursor=stale)).run_key == "1-3#41"


@pytest.mark.parametrize("cursor", ["garbage", "{}", "[]", "null", '{"observed": 1, "attempt": "x"}'])
def test_a_cursor_that_makes_no_sense_counts_for_nothing(
    ingest_resources: dict[str, Any], instance: dg.DagsterInstance, stream: JetStream, cursor: str
) -> None:
    publish(stream, 3)
    request = run_of(tick(ingest_resources, instance, cursor=cursor))
    assert str(request.run_key).startswith("1-3#")
    assert request.run_key != "1-3#0", "a key that may have been used"


def test_an_unreachable_server_fails_the_tick_with_what_to_do(
    ingest_resources: dict[str, Any], instance: dg.DagsterInstance
) -> None:
    nowhere = free_port()
    with pytest.raises(StreamUnavailable, match="NATS_URL"):
        tick({**ingest_resources, "stream": StreamResource(url=f"nats://127.0.0.1:{nowhere}")}, instance)
    unreachable = WarehouseResource(url=f"http://127.0.0.1:{nowhere}", database="rl_pipeline")
    with pytest.raises(WarehouseUnavailable, match="CLICKHOUSE_URL"):
        tick({**ingest_resources, "warehouse": unreachable}, instance)
