"""Each class of failure, brought about in the real program: what its attempt ends in, what is said, what is next."""

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl_pipeline.contracts import Trajectory
from rl_pipeline.contracts.training_status import Failure, FailureCode
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.s3 import S3Objects, s3_client
from rl_pipeline.training.attempting import TrainingFailed, final_plan
from rl_pipeline.training.checkpoints.storage import newest_verified, verify
from rl_pipeline.training.jobs.job import Attempt
from rl_pipeline.training.launching.exits import read_failures
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline_tests.training.stored_training import (
    NOWHERE,
    TrainingPlace,
    recorded_episodes,
    scored_database,
    unreadable,
    without_jobs,
    write_strict_model,
)
from rl_pipeline_tests.training.tiny_jobs import progress


def long_winded(trajectory: Trajectory) -> Trajectory:
    """The trajectory, of another domain, with an answer that is many times as long as any other conversation."""
    first, second, *others = trajectory.turns
    told = second.model_copy(
        update={"observation": second.observation.model_copy(update={"content": "quite so. " * 380})}
    )
    elsewhere = trajectory.task_context.model_copy(update={"domain": "coding"})
    return trajectory.model_copy(update={"turns": [first, told, *others], "task_context": elsewhere})


EPISODES = recorded_episodes(60, 3)
# Worth to be imitated, and of some length.
_FIRST, *_, _LAST = [one for one in EPISODES if one.task_context.task_status == "success" and len(one.turns) >= 4]
POISON, LONG = unreadable(_FIRST), long_winded(_LAST)
SOUND = [one for one in EPISODES if one.trajectory_id not in (POISON.trajectory_id, LONG.trajectory_id)]
# More steps than any test waits for.
ENDLESS: dict[str, Any] = {"max_steps": 100_000, "learning_rate": 1e-3, "batch_size": 4}


@pytest.fixture(scope="module")
def scored(nats_server: NatsServer, clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with scored_database(nats_server.url, clickhouse_url, [*SOUND, POISON, LONG]) as tables:
        yield tables


@pytest.fixture(scope="module")
def base_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("models")
    write_strict_model(directory / "strict")
    # A step on 64 episodes takes some 2 GB, on 32 half of that, and the process without it 1.8 GB.
    write_strict_model(directory / "broad", breadth=8192)
    return directory


@pytest.fixture
def place(
    scored: ClickHouseWarehouse, stream: JetStream, nats_server: NatsServer, base_models: Path, tmp_path: Path
) -> TrainingPlace:
    (tmp_path / "models").symlink_to(base_models)
    return TrainingPlace(stream, without_jobs(scored), nats_server.url, tmp_path)


def first_attempt(place: TrainingPlace, job_id: str = "job", **asked: Any) -> Attempt:
    """The first attempt at a job that is asked for, with its dataset. What it reaches is not measured."""
    place.ask(job_id, evaluation=False, **asked)
    attempt = place.started()
    place.curated(attempt)
    return attempt


def failing(place: TrainingPlace, attempt: Attempt, code: FailureCode, **how: Any) -> Attempt:
    """Carry out an attempt that fails; it ends in its class, tells why, and leaves no process behind."""
    with pytest.raises(TrainingFailed) as failed:
        place.carry_out(attempt, **how)
    assert failed.value.failure.code == code, failed.value
    ended = place.attempts(attempt.job_id)[-1]
    assert (ended.outcome, ended.failure_code) == ("failed", code)
    assert ended.message
    assert place.processes(attempt.job_id) == []
    return ended


def said_of_retry(place: TrainingPlace, failed: Attempt) -> Failure:
    """What the sensor says of the next attempt: that it is queued, and why."""
    status = place.statuses(failed.job_id)[-1]
    assert (status.status, status.metadata.attempt) == ("queued", failed.number + 1)
    assert status.error is not None
    assert status.error.code == failed.failure_code
    return status.error


def test_memory_that_runs_out_is_met_with_half_the_micro_batch_and_the_same_batch(place: TrainingPlace) -> None:
    limit = 3.3
    attempt = first_attempt(place, base_model="broad", batch_size=64, micro_batch=64, max_steps=1, learning_rate=1e-3)
    failed = failing(place, attempt, "OOM", memory_limit_gb=limit)
    planned = TrainingPlan.model_validate_json(failed.plan)
    assert (planned.optimization.micro_batch, planned.optimization.accumulation) == (64, 1)
    again = place.started()
    assert "allocate" in said_of_retry(place, failed).message
    completed = place.carry_out(again, memory_limit_gb=limit)
    plan = completed.plan
    assert (plan.optimization.micro_batch, plan.optimization.accumulation) == (32, 2)
    assert plan.global_batch == planned.global_batch == 64
    assert plan.distribution.memory_limit_gb == limit
    place.look()
    assert place.job("job").state == "completed"
    status = place.statuses("job")[-1]
    assert (status.status, status.metadata.attempt) == ("completed", 2)
    assert status.artifacts is not None
    assert status.artifacts.final_checkpoint == completed.released.url


def test_a_store_that_is_away_costs_ten_minutes_and_no_training(place: TrainingPlace) -> None:
    attempt = first_attempt(place, max_steps=2, learning_rate=1e-3)
    away = S3Objects(s3_client(NOWHERE, "us-east-1", "tests", "tests"), "models", "")
    failed = failing(place, attempt, "INFRA", models=away)
    trained = verify(place.work(attempt).final)
    assert place.look(timedelta(seconds=590)).starts == []
    assert said_of_retry(place, failed).message == failed.message
    again = place.started(timedelta(seconds=20))
    assert (again.number, again.starts_from) == (2, "checkpoint")
    completed = place.carry_out(again)
    assert not place.work(again).log_file.exists(), "the program was started again"
    assert completed.released.manifest.files["model.safetensors"] == trained.files["model.safetensors"]
    place.look()
    status = place.statuses("job")[-1]
    assert (place.job("job").state, status.status, status.metadata.attempt) == ("completed", "completed", 2)


def steps_done(place: TrainingPlace, attempt: Attempt) -> set[int]:
    return {line["step"] for line in progress(place.work(attempt)) if "step" in line}


def test_a_loss_that_is_no_number_halves_the_learning_rate_from_the_last_good_state(place: TrainingPlace) -> None:
    # The first step of the warm-up moves nothing, the second everything.
    attempt = first_attempt(place, max_steps=50, learning_rate=1e38, schedule="linear", warmup_share=0.1)
    failed = failing(place, attempt, "CONVERGENCE")
    again = place.started()
    assert again.starts_from == "checkpoint"
    assert "learning rate" in said_of_retry(place, failed).message
    first, next_plan = place.plan("job"), final_plan(place.plan("job"), place.attempts("job"))
    assert next_plan.optimization.learning_rate == first.optimization.learning_rate / 2 == 5e37
    assert next_plan.model_copy(update={"attempt": 1, "optimization": first.optimization}) == first
    good = newest_verified(place.work(attempt).checkpoints)
    assert good is not None
    [record] = [json.loads(file.read_text()) for file in place.work(attempt).attempt_directory.glob("failure-*.json")]
    good_step = verify(good).meta.step
    assert record["step"] == good_step + 1
    # Half of far too much is too much as well: the second attempt really goes on from there, and fails by itself.
    second = failing(place, again, "CONVERGENCE")
    assert TrainingPlan.model_validate_json(second.plan).optimization.learning_rate == 5e37
    steps = [steps_done(place, one) for one in (attempt, again)]
    assert steps == [{1, good_step}, set()], "it began anew, in place of going on"
    assert final_plan(place.plan("job"), place.attempts("job")).optimization.learning_rate == 2.5e37


def test_a_row_that_cannot_be_read_is_kept_out_of_the_next_dataset(place: TrainingPlace) -> None:
    attempt = first_attempt(place, domains=("general", "research"), max_steps=2)
    failed = failing(place, attempt, "DATA")
    found = place.tables.query("SELECT job_id, trajectory_id FROM quarantined_trajectories FINAL").rows()
    assert found == [("job", POISON.trajectory_id)]
    again = place.started()
    assert said_of_retry(place, failed).message == failed.message
    assert (again.number, again.starts_from) == (2, "dataset")
    second = place.curated(again)
    assert (second.dataset_id, second.report.left_out["quarantined"]) == ("job.r2", 1)
    holding = "SELECT dataset_id FROM dataset_provenance WHERE trajectory_id = {id:String}"
    assert set(place.tables.query(holding, {"id": POISON.trajectory_id})["dataset_id"]) == {"job.r1"}


def at_step(do: Callable[[], object]) -> Callable[[Mapping[str, Any]], None]:
    """Does it once, as soon as the program has done a step."""
    waits = [do]

    def hear(line: Mapping[str, Any]) -> None:
        if line.get("step") and waits:
            waits.pop()()

    return hear


def test_a_process_that_stands_still_is_ended_with_its_group_and_tried_again(
    place: TrainingPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_pipeline.training.launching.watching.LOADING_FACTOR", 200.0)

    def freeze() -> None:
        [rank] = [
            one for one in place.processes("job") if "rl_pipeline.training.launching.process_guard" not in one.cmdline()
        ]
        rank.send_signal(signal.SIGSTOP)

    attempt = first_attempt(place, **ENDLESS)
    failed = failing(place, attempt, "TIMEOUT", hear=at_step(freeze), stall_seconds=3.0)
    assert place.look().starts == []
    assert said_of_retry(place, failed).message == failed.message
    again = place.started(timedelta(seconds=61))
    assert (again.number, again.starts_from) == (2, "checkpoint")


def is_stopped_for_urgent_work(place: TrainingPlace, job_id: str) -> None:
    place.ask(f"urgent-{job_id}", priority="urgent")
    assert [attempt.job_id for attempt in place.look().stops] == [job_id]
    raise KeyboardInterrupt


def is_cancelled(place: TrainingPlace, job_id: str) -> None:
    place.cancel(job_id)
    assert [attempt.job_id for attempt in place.look().stops] == [job_id]
    raise KeyboardInterrupt


def is_cut_off(place: TrainingPlace, job_id: str) -> None:
    raise KeyboardInterrupt


# What happens, whether Dagster says that the run is being cancelled, the outcome, its class, what the sensor then says.
INTERRUPTIONS = [
    (is_stopped_for_urgent_work, True, "preempted", None, "queued"),
    (is_cancelled, True, "cancelled", None, "cancelled"),
    (is_cut_off, True, "cancelled", None, "cancelled"),
    (is_cut_off, False, "failed", "INFRA", "queued"),
]


@pytest.mark.soak
def test_an_interrupted_run_saves_its_state_ends_its_program_and_says_why(
    place: TrainingPlace, soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    count = soak_count(1, len(INTERRUPTIONS))
    for number, (happens, canceling, outcome, code, told) in enumerate(INTERRUPTIONS[:count]):
        job_id = f"job-{number}"
        without_jobs(place.tables)
        attempt = first_attempt(place, job_id, save_interval=100_000, **ENDLESS)
        interrupts = at_step(lambda: happens(place, job_id))  # noqa: B023 - called before the next round
        with pytest.raises(KeyboardInterrupt):
            place.carry_out(attempt, hear=interrupts, canceling=canceling)
        ended = place.attempts(job_id)[-1]
        assert (ended.outcome, ended.failure_code) == (outcome, code)
        assert place.processes(job_id) == []
        state = newest_verified(place.work(attempt).checkpoints)
        assert state is not None
        assert verify(state).meta.step >= 1
        place.look()
        status = place.statuses(job_id)[-1]
        assert status.status == told
        assert (status.error and status.error.code) == code
    record_property("interruptions", count)


def rank(place: TrainingPlace, job_id: str, number: int) -> psutil.Process:
    """One of the processes that DeepSpeed's launcher has started."""
    [found] = [one for one in place.processes(job_id) if one.environ().get("RANK") == str(number)]
    return found


def recorded_codes(place: TrainingPlace, attempt: Attempt) -> list[FailureCode]:
    """What the processes said of their ends, in the order in which they said it."""
    return [record.code for record in read_failures(place.work(attempt).attempt_directory)]


def memory_runs_out_in_one(place: TrainingPlace, job_id: str) -> None:
    """In the process whose batch has the long conversation: padded to it, four take 3.2 GB, and two half of that."""
    limit = 4.3
    asked = {"domains": ("general", "coding"), "base_model": "broad", "max_tokens": 4096, "learning_rate": 1e-3}
    attempt = first_attempt(place, job_id, **asked, batch_size=8, micro_batch=4, epochs=1, save_interval=100)
    failed = failing(place, attempt, "OOM", memory_limit_gb=limit)
    assert recorded_codes(place, attempt) == ["OOM", "INFRA"], "the other has lost it, and is not believed"
    again = place.started()
    assert "allocate" in said_of_retry(place, failed).message
    completed = place.carry_out(again, memory_limit_gb=limit)
    assert (completed.plan.optimization.micro_batch, completed.plan.optimization.accumulation) == (2, 2)
    assert completed.plan.global_batch == place.plan(job_id).global_batch == 8
    place.look()
    status = place.statuses(job_id)[-1]
    assert (place.job(job_id).state, status.status, status.metadata.attempt) == ("completed", "completed", 2)


def a_row_breaks_them(place: TrainingPlace, job_id: str) -> None:
    attempt = first_attempt(place, job_id, domains=("general", "research"), max_steps=2)
    failed = failing(place, attempt, "DATA")
    found = place.tables.query("SELECT job_id, trajectory_id FROM quarantined_trajectories FINAL").rows()
    assert found == [(job_id, POISON.trajectory_id)]
    again = place.started()
    assert (said_of_retry(place, failed).message, again.starts_from) == (failed.message, "dataset")
    assert place.curated(again).report.left_out["quarantined"] == 1


def the_loss_is_lost(place: TrainingPlace, job_id: str) -> None:
    attempt = first_attempt(place, job_id, max_steps=50, learning_rate=1e38, schedule="linear", warmup_share=0.1)
    failed = failing(place, attempt, "CONVERGENCE")
    assert set(recorded_codes(place, attempt)) == {"CONVERGENCE"}
    again = place.started()
    assert "learning rate" in said_of_retry(place, failed).message
    assert again.starts_from == "checkpoint"
    assert final_plan(place.plan(job_id), place.attempts(job_id)).optimization.learning_rate == 5e37
    good = newest_verified(place.work(attempt).checkpoints)
    assert good is not None
    assert {record.step for record in read_failures(place.work(attempt).attempt_directory)} == {
        verify(good).meta.step + 1
    }


def one_stands_still(place: TrainingPlace, job_id: str) -> None:
    attempt = first_attempt(place, job_id, **ENDLESS)
    frozen = at_step(lambda: rank(place, job_id, 1).send_signal(signal.SIGSTOP))
    failed = failing(place, attempt, "TIMEOUT", hear=frozen, stall_seconds=3.0)
    assert place.look().starts == []
    assert said_of_retry(place, failed).message == failed.message
    assert place.started(timedelta(seconds=61)).starts_from == "checkpoint"


FAULTS_OF_TWO = [a_row_breaks_them, the_loss_is_lost, one_stands_still, memory_runs_out_in_one]


@pytest.mark.soak
@pytest.mark.cplusplus
def test_each_class_is_told_by_two_processes_under_deepspeed(
    place: TrainingPlace,
    monkeypatch: pytest.MonkeyPatch,
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    monkeypatch.setattr("rl_pipeline.training.launching.watching.LOADING_FACTOR", 200.0)
    place.world_size = 2
    count = soak_count(1, len(FAULTS_OF_TWO))
    for number, happens in enumerate(FAULTS_OF_TWO[:count]):
        without_jobs(place.tables)
        happens(place, f"job-{number}")
        planned = TrainingPlan.model_validate_json(place.attempts(f"job-{number}")[0].plan).distribution
        assert (planned.deepspeed, planned.zero_stage, planned.processes) == (True, 2, 2)
    record_property("faults in two processes", count)
