"""From a checkpoint to its report by Dagster: a real signed checkpoint, a real control, real logged work."""

import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rl_pipeline.assets.validation_reports import WAITS_FOR_A_PERSON, validation_reports
from rl_pipeline.deployment import phases, record
from rl_pipeline.deployment.phases import Cause
from rl_pipeline.deployment.state import ServedModel
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.resources.deployment import DeploymentResource
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.training.checkpoints.releasing import release
from rl_pipeline.training.checkpoints.storage import saving
from rl_pipeline.training.small_model.experience import crafting_experience
from rl_pipeline.validation.storing import NotValidated, report_of
from rl_pipeline.validation.suite import BENCHMARKS, SAFETY
from rl_pipeline_tests.training.stored_training import TrainingPlace, scored_database, without_jobs
from rl_pipeline_tests.validation.knowing_backend import knowing_backend
from rl_pipeline_tests.validation.stored_reports import store_checkpoint

LOGGED = 40
ITEMS = 40
CHECKS = ("the_benchmarks_are_passed", "it_is_safe", "nothing_has_become_worse")


@pytest.fixture(scope="module")
def scored(nats_server: NatsServer, clickhouse_url: str, small_model: Path) -> Iterator[ClickHouseWarehouse]:
    """What the base model did in service, ingested and rewarded."""
    played = crafting_experience(small_model, tasks=LOGGED // 2, attempts=2, seed=4, start=datetime.now(UTC))
    with scored_database(nats_server.url, clickhouse_url, played) as tables:
        tables.execute("TRUNCATE TABLE validation_reports")
        yield tables


@pytest.fixture
def place(scored: ClickHouseWarehouse, stream: JetStream, nats_server: NatsServer, tmp_path: Path) -> TrainingPlace:
    return TrainingPlace(stream, without_jobs(scored), nats_server.url, tmp_path)


@pytest.fixture
def candidate(place: TrainingPlace, small_model: Path) -> None:
    """A signed checkpoint that has the weights of the model in service; the one that it was trained from is gone."""
    place.tables.execute("TRUNCATE TABLE validation_reports")
    final = place.directory / "final"
    with saving(final, {"job_id": "job", "step": 1, "created": datetime.now(UTC)}) as staging:
        for file in small_model.iterdir():
            shutil.copy(file, staging)
    released = release(final, place.models, "job/final", place.signing_key)
    stored = {"checkpoint_path": released.url, "manifest_sha256": released.manifest_sha256}
    earlier = store_checkpoint(place.tables, "earlier", base_model=str(small_model))
    store_checkpoint(place.tables, "job", base_model=earlier, **stored)


def validated(
    place: TrainingPlace,
    clickhouse_url: str,
    job: str = "job",
    endpoint: str | None = None,
    instance: dg.DagsterInstance | None = None,
) -> dg.ExecuteInProcessResult:
    deployment = DeploymentResource(
        gateways=["http://127.0.0.1:9"],
        traffic_directory=str(place.directory / "traffic"),
        work_directory=str(place.directory / "validation"),
        items=ITEMS,
        endpoint=endpoint,
    )
    resources: dict[str, Any] = {**place.resources(clickhouse_url), "deployment": deployment}
    with nullcontext(instance) if instance else dg.DagsterInstance.ephemeral() as used:
        used.add_dynamic_partitions("training_jobs", [job])
        return dg.materialize(
            [validation_reports], partition_key=job, resources=resources, instance=used, raise_on_error=False
        )


def shown(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    [event] = result.asset_materializations_for_node("validation_reports")
    return {label: value.value for label, value in event.metadata.items()}


def checked(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {evaluation.check_name: evaluation.passed for evaluation in result.get_asset_check_evaluations()}


def put_in_service(stream: JetStream, model: ServedModel) -> None:
    state = phases.create(model, Cause("the first model in service", "test", datetime.now(UTC)))
    assert record.swap(JetStreamDesiredStates(stream), state, None)


@pytest.mark.usefixtures("candidate")
def test_a_checkpoint_is_compared_with_the_model_in_service_and_with_what_was_logged(
    place: TrainingPlace, clickhouse_url: str, stream: JetStream, small_model: Path
) -> None:
    put_in_service(stream, ServedModel(model_id="base", base_model="base", checkpoint_path=str(small_model)))
    result = validated(place, clickhouse_url)
    assert result.success
    stored, told = report_of(place.tables, "job"), shown(result)
    report = stored.report
    assert report.decision in ("deploy", "ask_a_person"), report.reasons
    assert (stored.control, told["in_service"], told["decision"]) == ("base", "base", report.decision)
    assert {suite.name for suite in report.suites} == {*BENCHMARKS, *SAFETY}
    assert all(suite.control_mean is not None for suite in report.suites if suite.name != "bias")
    assert report.probe is not None, "the pipeline's own reward is probed"
    flags = (report.benchmark_passed, report.safety_checks_passed, not report.performance_regression)
    assert checked(result) == dict(zip(CHECKS, flags, strict=True))
    assert told["report_url"] == place.models.url("job/validation/report.json")
    assert place.models.get("job/validation/report.md").decode() == told["report"]

    estimate = report.off_policy
    assert estimate is not None
    assert (estimate.available, estimate.trajectories) == (True, LOGGED)
    assert estimate.self_normalised == pytest.approx(estimate.logged_mean, abs=1e-3), (
        "the same weights would do the same"
    )
    assert estimate.interval is not None
    assert estimate.interval[0] < float(estimate.doubly_robust or 0) < estimate.interval[1]
    assert told["logged_work"].startswith("Reward on logged work, which decides nothing: ")
    assert told["logged_work"] in told["report"]


@pytest.mark.usefixtures("candidate")
def test_a_bad_model_that_is_served_elsewhere_is_refused_and_the_run_is_no_failure(
    place: TrainingPlace, clickhouse_url: str
) -> None:
    with knowing_backend("job") as stub:
        result = validated(place, clickhouse_url, endpoint=stub.endpoint)
        assert {body["model"] for body in stub.bodies} == {"job"}
    assert result.success
    stored = report_of(place.tables, "job")
    assert (stored.report.decision, stored.control, shown(result)["in_service"]) == ("refuse", "", "nothing")
    assert checked(result)["the_benchmarks_are_passed"] is False
    assert stored.report.off_policy is not None
    assert "the candidate is served elsewhere" in shown(result)["logged_work"]


@pytest.mark.usefixtures("candidate")
@pytest.mark.parametrize(
    ("models", "says_it_is", "complaint"),
    [
        (["base"], None, "does not serve a model 'job'"),
        (["base", "job"], "base", "was asked for 'job' and answered as 'base'"),
    ],
    ids=["it does not know the name", "it answers with another model"],
)
def test_an_endpoint_without_the_model_is_told_to_a_person_and_nothing_is_asked_of_it(
    place: TrainingPlace, clickhouse_url: str, models: list[str], says_it_is: str | None, complaint: str
) -> None:
    with knowing_backend(*models, says_it_is=says_it_is) as server, dg.DagsterInstance.ephemeral() as instance:
        result = validated(place, clickhouse_url, endpoint=server.endpoint, instance=instance)
        run = instance.get_run_by_id(result.run_id)
    assert not result.success
    [failure] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    told = str(failure.error)
    assert complaint in told
    assert f"serve the checkpoint {place.models.url('job/final')} there under the name job" in told
    assert server.requests <= 1, "no suite was asked"
    assert run is not None
    assert run.tags.items() >= WAITS_FOR_A_PERSON.items(), "the sensor leaves it alone for hours"
    with pytest.raises(NotValidated):
        report_of(place.tables, "job")


def test_without_a_checkpoint_or_an_answer_there_is_no_report(place: TrainingPlace, clickhouse_url: str) -> None:
    result = validated(place, clickhouse_url, job="unknown")
    assert not result.success
    [failure] = [event.step_failure_data for event in result.all_events if event.is_step_failure]
    assert "the job unknown has no checkpoint" in str(failure.error)
    with pytest.raises(NotValidated):
        report_of(place.tables, "unknown")
