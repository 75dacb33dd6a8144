"""From a request to a checkpoint that people find: the sensor's run, carried out by Dagster with the real program."""

import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rl_pipeline.assets.runs import is_canceling
from rl_pipeline.automation.training_requested import training_requested
from rl_pipeline.definitions import build_definitions
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.stores.mlflow_tracker import MLflowTracker
from rl_pipeline.training.attempting import TrainingStopped
from rl_pipeline.training.carrying_out import AttemptRun
from rl_pipeline.training.checkpoints.releasing import download_checkpoint
from rl_pipeline.training.checkpoints.signing import PublicKeys
from rl_pipeline.training.delivering import AGENT
from rl_pipeline.training.jobs.advancing import TRAINING_LEASE
from rl_pipeline.training.jobs.rows import end_attempt, keep_plan
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline_tests.training.stored_training import (
    TrainingPlace,
    leave_trained,
    recorded_episodes,
    scored_database,
    without_jobs,
    write_strict_model,
)


@pytest.fixture(scope="module")
def scored(nats_server: NatsServer, clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with scored_database(nats_server.url, clickhouse_url, recorded_episodes(30, 2)) as tables:
        yield tables


@pytest.fixture
def place(
    scored: ClickHouseWarehouse,
    stream: JetStream,
    nats_server: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> TrainingPlace:
    # As on a machine without a compiler: one process without DeepSpeed, which is loaded in a third of the time.
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    return TrainingPlace(stream, without_jobs(scored), nats_server.url, tmp_path)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def asked_for(instance: dg.DagsterInstance, resources: dict[str, Any]) -> dg.RunRequest:
    """The run that the sensor asks for, with its partition made."""
    tick = training_requested(dg.build_sensor_context(instance=instance, resources=resources))
    assert isinstance(tick, dg.SensorResult)
    [request] = tick.run_requests or []
    instance.add_dynamic_partitions("training_jobs", [str(request.partition_key)])
    return request


def execute(
    instance: dg.DagsterInstance, resources: dict[str, Any], request: dg.RunRequest
) -> dg.ExecuteInProcessResult:
    job = build_definitions(resources).resolve_job_def(str(request.job_name))
    return job.execute_in_process(
        partition_key=request.partition_key,
        tags=dict(request.tags),
        instance=instance,
        asset_selection=list(request.asset_selection) if request.asset_selection else None,
        raise_on_error=False,
    )


def shown(result: dg.ExecuteInProcessResult) -> dict[str, Any]:
    [event] = result.asset_materializations_for_node("policy_checkpoints")
    return {label: value.value for label, value in event.metadata.items()}


def steps(result: dg.ExecuteInProcessResult) -> set[str]:
    return {str(event.step_key) for event in result.all_events if event.is_step_start}


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    [event] = [event for event in result.all_events if event.is_step_failure]
    error = event.step_failure_data.error
    assert error is not None
    return f"{error.message} {error.cause.message if error.cause else ''}"


def test_a_request_becomes_a_run_that_trains_delivers_and_shows_what_it_made(
    place: TrainingPlace, clickhouse_url: str, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    write_strict_model(tmp_path / "models" / "strict")
    place.tracking_uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    resources = place.resources(clickhouse_url, cpu_hour_usd=1.0)
    place.ask("job", max_steps=4, learning_rate=1e-2)
    result = execute(instance, resources, asked_for(instance, resources))
    assert result.success
    assert steps(result) == {"curated_datasets", "policy_checkpoints"}
    told = shown(result)
    plan = TrainingPlan.model_validate_json(dg.serialize_value(told["plan"]).encode())
    assert (plan.job_id, plan.optimization.max_steps, told["steps"]) == ("job", 4, 4)
    assert plan.dataset_url == place.datasets.url("job.r1/manifest.json")
    assert (told["algorithm"], told["engine"], told["dataset"]) == ("sft", "Qwen2ForCausalLM", "job.r1")
    assert told["curves"].startswith("![curves](data:image/png;base64,")
    assert "holdout_loss" in told["measures"]
    assert "| 1 | completed |" in told["attempts"]
    assert told["cost_usd"] > 0
    log = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert sum(line.startswith("step 1 of 4: loss") for line in log) == 1, "the program tells of it, and nobody else"
    checks = {evaluation.check_name: evaluation.passed for evaluation in result.get_asset_check_evaluations()}
    assert checks["the_checkpoint_is_better_than_its_base"] == (told["improvement"] > 0)

    manifest = download_checkpoint(
        *(place.models, "job/final", tmp_path / "fetched", PublicKeys.parse(place.signing_key.public_text())),
        manifest_sha256=told["manifest_sha256"],
    )
    assert {"model.safetensors", "MODEL_CARD.md", "curves.png", "training_plan.json"} <= manifest.files.keys()
    candidate = MLflowTracker(place.tracking_uri).find_alias(AGENT, "candidate")
    assert candidate is not None
    assert (candidate.version, candidate.url) == (told["registered_version"], told["checkpoint"])

    rests = training_requested(dg.build_sensor_context(instance=instance, resources=resources))
    assert isinstance(rests, dg.SensorResult)
    assert not rests.run_requests
    assert place.job("job").state == "completed"
    said = [status.status for status in place.statuses("job")]
    assert (said[0], set(said[1:-1]), said[-1]) == ("queued", {"running"}, "completed")
    assert JetStreamLeases(place.messages).holder(TRAINING_LEASE) is None


def test_an_attempt_that_goes_on_from_a_checkpoint_makes_no_dataset(
    place: TrainingPlace, clickhouse_url: str, instance: dg.DagsterInstance
) -> None:
    resources = place.resources(clickhouse_url)
    place.ask("job", shadow=True)
    attempt = place.started()
    place.curated(attempt)
    begun = place.attempts("job")[-1]
    finished = leave_trained(place.work(attempt), TrainingPlan(job_id="job", algorithm="sft", base_model="strict"))
    keep_plan(place.tables, begun, finished.plan)
    long_ago = datetime.now(UTC) - timedelta(minutes=11)
    end_attempt(place.tables, begun, "failed", long_ago, failure_code="INFRA", message="the store was away")
    result = execute(instance, resources, asked_for(instance, resources))
    assert result.success
    assert steps(result) == {"policy_checkpoints"}
    told = shown(result)
    assert (told["shadow"], told["dataset"]) == (True, "job.r1")
    assert "not registered" in told["note"]
    assert "| 1 | failed | INFRA | the store was away |" in told["attempts"]
    assert [each.outcome for each in place.attempts("job")] == ["failed", "completed"]


def test_a_failure_ends_the_run_with_its_class_and_the_job_if_nothing_can_be_done(
    place: TrainingPlace, clickhouse_url: str, instance: dg.DagsterInstance
) -> None:
    resources = place.resources(clickhouse_url)
    place.ask("job", base_model="missing")
    result = execute(instance, resources, asked_for(instance, resources))
    assert not result.success
    assert "UNKNOWN: There is no base model 'missing'" in failure_of(result)
    place.look()
    status = place.statuses("job")[-1]
    assert status.error is not None
    assert (status.status, status.error.code, place.job("job").state) == ("failed", "UNKNOWN", "failed")
    assert "put it into" in str(status.error.message)


def test_the_program_gets_no_secret_but_the_login_of_nats(
    place: TrainingPlace, clickhouse_url: str, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CHECKPOINT_SIGNING_KEY", "REDACTION_KEY", "CLICKHOUSE_PASSWORD", "NATS_USER", "NATS_PASSWORD"):
        monkeypatch.setenv(name, f"of {name}")
    given: dict[str, str] = {}

    def carried_out(run: AttemptRun, **_: Any) -> None:
        given.update(run.environment)
        raise TrainingStopped("seen enough")

    monkeypatch.setattr("rl_pipeline.assets.policy_checkpoints.carry_out_attempt", carried_out)
    resources = place.resources(clickhouse_url)
    place.ask("job")
    assert not execute(instance, resources, asked_for(instance, resources)).success
    assert "of CHECKPOINT_SIGNING_KEY" not in given.values()
    assert {name for name in given if given[name].startswith("of ")} == {"NATS_USER", "NATS_PASSWORD"}
    assert (given["NATS_URL"], given["MLFLOW_TRACKING_URI"]) == (place.nats_url, place.tracking_uri)
    assert "DAGSTER_PIPES_CONTEXT" in given


def test_two_trainings_do_not_run_at_the_same_time(
    place: TrainingPlace, clickhouse_url: str, instance: dg.DagsterInstance
) -> None:
    resources = place.resources(clickhouse_url)
    place.ask("job")
    request = asked_for(instance, resources)
    assert JetStreamLeases(place.messages).acquire(TRAINING_LEASE, "another#1#run", 60)
    result = execute(instance, resources, request)
    assert not result.success
    assert "another#1#run holds the lease" in failure_of(result)
    assert JetStreamLeases(place.messages).holder(TRAINING_LEASE) == "another#1#run"
    training_requested(dg.build_sensor_context(instance=instance, resources=resources))
    assert (place.job("job").state, place.attempts("job")[0].failure_code) == ("ready", "INFRA")


def test_a_run_knows_whether_somebody_cancels_it(instance: dg.DagsterInstance) -> None:
    answers = []

    @dg.asset
    def asks(context: dg.AssetExecutionContext) -> None:
        answers.append(is_canceling(context))
        context.instance.report_run_canceling(context.run)
        answers.append(is_canceling(context))

    dg.materialize([asks], instance=instance, raise_on_error=False)
    assert answers == [False, True]
