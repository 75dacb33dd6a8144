"""What the sensor of checkpoints asks of Dagster, with the real warehouse."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rl_pipeline.assets.validation_reports import WAITS_FOR_A_PERSON
from rl_pipeline.automation.checkpoints_to_validate import checkpoints_to_validate
from rl_pipeline.definitions import build_definitions
from rl_pipeline.deployment import phases, record
from rl_pipeline.deployment.releases import Releases
from rl_pipeline.deployment.state import RampStep
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline_tests.deployment.states import a_model, a_release, a_rollout, because, first_state
from rl_pipeline_tests.training.job_tables import emptied, migrated_database
from rl_pipeline_tests.validation.stored_reports import NOW, a_report, store_a_report, store_checkpoint, store_job


@pytest.fixture(scope="module")
def database(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def tables(database: ClickHouseWarehouse) -> ClickHouseWarehouse:
    """Two checkpoints that nobody has judged."""
    for number, job in enumerate(("older", "newer")):
        store_job(emptied(database) if number == 0 else database, job)
        store_checkpoint(database, job, created_at=NOW + timedelta(hours=number))
    return database


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def resources(
    tables: ClickHouseWarehouse, clickhouse_url: str, nats_server: NatsServer, stream: JetStream
) -> dict[str, Any]:
    """As Dagster has them. Nothing is deployed."""
    assert record.read(JetStreamDesiredStates(stream)) is None
    return {
        "stream": StreamResource(url=nats_server.url),
        "warehouse": WarehouseResource(url=clickhouse_url, database=tables.database),
    }


def tick(resources: dict[str, Any], instance: dg.DagsterInstance) -> dg.SensorResult:
    result = checkpoints_to_validate(dg.build_sensor_context(instance=instance, resources=resources))
    assert isinstance(result, dg.SensorResult)
    return result


def asked(result: dg.SensorResult) -> list[tuple[str | None, str | None]]:
    return [(request.partition_key, request.run_key) for request in result.run_requests or ()]


def ended(instance: dg.DagsterInstance, result: dg.SensorResult, status: dg.DagsterRunStatus, **more: str) -> None:
    """The run that was asked for, as it stands, with `more` tags."""
    [request] = result.run_requests or []
    job = build_definitions().resolve_job_def("release_policy")
    run = instance.create_run_for_job(job, tags={**request.tags, **more}, status=dg.DagsterRunStatus.STARTED)
    if status == dg.DagsterRunStatus.SUCCESS:
        instance.report_dagster_event(dg.DagsterEvent(dg.DagsterEventType.RUN_SUCCESS.value, job.name), run.run_id)
    if status == dg.DagsterRunStatus.FAILURE:
        instance.report_run_failed(run)


def test_the_oldest_checkpoint_that_nobody_judged_is_validated_and_released(
    tables: ClickHouseWarehouse, instance: dg.DagsterInstance, resources: dict[str, Any]
) -> None:
    result = tick(resources, instance)
    assert asked(result) == [("older", "release/older#0")]
    [request] = result.run_requests or []
    assert request.tags == {"rl/job": "older", "rl/stage": "release"}
    job = build_definitions().resolve_job_def("release_policy")
    assert {key.to_user_string() for key in job.asset_layer.executable_asset_keys} == {
        "validation_reports",
        "deployed_models",
    }


def test_one_run_at_a_time_has_all_the_machine(
    tables: ClickHouseWarehouse, instance: dg.DagsterInstance, resources: dict[str, Any]
) -> None:
    ended(instance, tick(resources, instance), dg.DagsterRunStatus.STARTED)
    waits = tick(resources, instance)
    assert asked(waits) == []
    assert "is on its way" in str(waits.skip_reason)


def test_a_run_that_failed_comes_again_later_and_holds_up_nobody(
    tables: ClickHouseWarehouse,
    instance: dg.DagsterInstance,
    resources: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rl_pipeline.automation.runs.not_before", lambda *_: datetime(2199, 1, 1, tzinfo=UTC))
    ended(instance, tick(resources, instance), dg.DagsterRunStatus.FAILURE)
    assert asked(tick(resources, instance)) == [("newer", "release/newer#0")]
    store_checkpoint(tables, "newer", version=2, pruned_at=NOW)
    waits = tick(resources, instance)
    assert asked(waits) == []
    assert "older: failed 1 times, again after 00:00:00 UTC" in str(waits.skip_reason)
    monkeypatch.setattr("rl_pipeline.automation.runs.not_before", lambda *_: datetime(2026, 1, 1, tzinfo=UTC))
    assert asked(tick(resources, instance)) == [("older", "release/older#1")]


def test_what_only_a_person_can_mend_is_asked_again_after_hours_and_not_at_each_tick(
    tables: ClickHouseWarehouse,
    instance: dg.DagsterInstance,
    resources: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rl_pipeline.automation.runs.not_before", lambda *_: datetime(2026, 1, 1, tzinfo=UTC))
    ended(instance, tick(resources, instance), dg.DagsterRunStatus.FAILURE, **WAITS_FOR_A_PERSON)
    assert asked(tick(resources, instance)) == [("newer", "release/newer#0")], "it holds up nobody"
    store_checkpoint(tables, "newer", version=2, pruned_at=NOW)
    waits = tick(resources, instance)
    assert asked(waits) == []
    assert "older: see the log of its run (again after " in str(waits.skip_reason)
    monkeypatch.setattr("rl_pipeline.automation.runs._BETWEEN_QUESTIONS_TO_A_PERSON", timedelta(0))
    assert asked(tick(resources, instance)) == [("older", "release/older#1")]


def test_what_was_judged_and_not_released_is_left_alone(
    tables: ClickHouseWarehouse, instance: dg.DagsterInstance, resources: dict[str, Any], tmp_path: Path
) -> None:
    ended(instance, tick(resources, instance), dg.DagsterRunStatus.SUCCESS)
    store_a_report(tables, tmp_path, "older", a_report("deploy"))
    second = tick(resources, instance)
    assert asked(second) == [("newer", "release/newer#0")]
    ended(instance, second, dg.DagsterRunStatus.SUCCESS)
    assert "is not to be released: see its report" in str(tick(resources, instance).skip_reason)


def test_where_every_checkpoint_is_judged_nothing_is_asked_for(
    tables: ClickHouseWarehouse, instance: dg.DagsterInstance, resources: dict[str, Any], tmp_path: Path
) -> None:
    for job in ("older", "newer"):
        store_a_report(tables, tmp_path, job, a_report("refuse"))
    rests = tick(resources, instance)
    assert (asked(rests), rests.skip_reason and rests.skip_reason.skip_message) == ([], "every checkpoint is judged")


def test_a_release_measured_against_a_model_that_no_longer_serves_is_validated_again_once_for_each_that_does(
    tables: ClickHouseWarehouse, instance: dg.DagsterInstance, resources: dict[str, Any], stream: JetStream
) -> None:
    for job in ("older", "newer"):
        waiting = a_release(1 + (job == "newer"), measured_against="old")
        Releases(tables)._write([waiting.model_copy(update={"training_job_id": job})])
    state, states = first_state(), JetStreamDesiredStates(stream)
    first = record.swap(states, state, None)
    assert "every checkpoint is judged" in str(tick(resources, instance).skip_reason)
    rollout = a_rollout(steps=(RampStep(share=1, min_seconds=0, min_samples=0),))
    started = phases.start(state, a_model("new"), rollout, because(), approved=True)
    assert record.swap(states, phases.promote(started, because()), first)
    again = tick(resources, instance)
    assert asked(again) == [("newer", "release/newer#0")], "the other one is overtaken by it"
    [request] = again.run_requests or []
    compared = {"rl/measured_against": "new", "rl/measured_before": "old"}
    assert request.tags == {"rl/job": "newer", "rl/stage": "release", **compared}
    ended(instance, again, dg.DagsterRunStatus.SUCCESS)
    assert "newer: it was judged" in str(tick(resources, instance).skip_reason)
    promoted = record.read(states)
    assert promoted is not None
    former = record.swap(states, phases.take_back(promoted.state, a_model("old-again"), because()), promoted)
    assert former is not None
    assert asked(tick(resources, instance)) == [("newer", "release/newer#1")]


def test_a_model_that_serves_again_after_another_was_taken_back_is_measured_against_again(
    tables: ClickHouseWarehouse, instance: dg.DagsterInstance, resources: dict[str, Any], stream: JetStream
) -> None:
    def measured_against(model: str) -> None:
        for number, job in enumerate(("older", "newer")):
            release = a_release(number + 1, measured_against=model)
            Releases(tables)._write([release.model_copy(update={"training_job_id": job})])

    states = JetStreamDesiredStates(stream)
    assert record.swap(states, first_state(), None)
    measured_against("nothing")
    ended(instance, tick(resources, instance), dg.DagsterRunStatus.SUCCESS)
    measured_against("one that was taken back since")
    assert asked(tick(resources, instance)) == [("newer", "release/newer#1")]
