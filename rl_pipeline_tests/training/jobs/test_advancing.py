"""The whole life of jobs: in a world of faults, and through the real stream, warehouse and lease."""

import random
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.training.jobs.advancing import MOST_IMPORTS, SENSOR_LEASE, TRAINING_LEASE, ImportRuns, Tick
from rl_pipeline.training.jobs.job import FINAL_STATES, VALID_TRANSITIONS, State
from rl_pipeline.training.jobs.reconciling import RunState
from rl_pipeline.training.jobs.requests import StartingPoint, StartUnknown
from rl_pipeline.training.jobs.rows import attempts_of, end_attempt, find_job, imported
from rl_pipeline_tests.training.job_tables import emptied, migrated_database, store_rewards, store_trajectories
from rl_pipeline_tests.training.job_values import NOW
from rl_pipeline_tests.training.played_sensor import Sensor, keys
from rl_pipeline_tests.training.simulated_training import QUIET, Chances, SimulatedTraining


@pytest.mark.soak
def test_every_job_comes_to_exactly_one_end_whatever_happens_when(
    soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    walked, deaths, machines, jobs = Counter[tuple[State, State]](), 0, 0, 0
    schedules = soak_count(60, 2000)
    for seed in range(schedules):
        world = SimulatedTraining(random.Random(seed), Chances())
        for _ in range(150):
            world.pass_time()
        world.chances = QUIET
        for _ in range(3000):
            if not world._unfinished():
                break
            world.pass_time()
        walked += world.walked
        deaths += world.deaths
        machines += world.machines_lost
        jobs += len(world.jobs)
        for job in world.jobs.values():
            assert job.state in FINAL_STATES, f"schedule {seed}: {job}"
            ends = {end for end in FINAL_STATES if f"status/{job.job_id}/{end}" in world.said}
            assert ends == {job.state}, f"schedule {seed}: {job.job_id} was said to be {ends}"
        assert all(run.attempt is None for run in world.runs.values()), f"schedule {seed}: a program was left"
        assert all(not attempt.is_open for attempt in world.attempts.values()), f"schedule {seed}: a place was left"
    record_property("schedules", schedules)
    record_property("jobs", jobs)
    record_property("deaths of the sensor", deaths)
    record_property("machines lost", machines)
    assert machines
    possible = {(state, after) for state, following in VALID_TRANSITIONS.items() for after in following}
    # Somebody cancels a run in Dagster while the sensor looks, and in the simulation nothing happens meanwhile.
    assert set(walked) == possible - {("preempting", "cancelled")}


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def sensor(stream: JetStream, tables: ClickHouseWarehouse) -> Sensor:
    return Sensor(stream, emptied(tables))


def test_a_request_is_trained_and_completed_and_each_is_said_once(sensor: Sensor) -> None:
    sensor.ask("job-1")
    tick = sensor.look()
    assert (tick.taken.accepted, keys(tick.starts), keys(tick.stops)) == (("job-1",), ["job-1#1"], [])
    assert tick.starts[0].tags == {"rl/job": "job-1", "rl/attempt": "1"}
    assert keys(sensor.look().starts) == ["job-1#1"], "no run was made: it is asked for again under the same key"
    attempt = sensor.begin("job-1")
    tick = sensor.look()
    assert (tick.starts, tick.stops, tick.waits) == ([], [], "job-1 is running, and nothing else is ready")
    end_attempt(
        sensor.warehouse, attempt, "completed", sensor.now, result={"artifacts": {"final_checkpoint": "s3://x"}}
    )
    sensor.runs["job-1#1"] = "succeeded"
    for _ in range(2):
        sensor.look()
    assert (sensor.state("job-1"), sensor.said("job-1")) == ("completed", ["queued", "completed"])


def test_a_failed_attempt_comes_again_after_its_time_and_from_its_checkpoint(sensor: Sensor) -> None:
    sensor.ask("job-1")
    sensor.look()
    end_attempt(sensor.warehouse, sensor.begin("job-1"), "failed", sensor.now, failure_code="INFRA", message="no disk")
    sensor.runs["job-1#1"] = "failed"
    tick = sensor.look()
    assert (tick.starts, sensor.state("job-1")) == ([], "ready")
    sensor.now += timedelta(minutes=10)
    [attempt] = sensor.look().starts
    assert (attempt.key, attempt.starts_from) == ("job-1#2", "checkpoint")
    assert sensor.said("job-1") == ["queued", "queued"]


def test_a_job_that_is_cancelled_while_it_runs_is_stopped_and_its_place_is_free_when_its_run_is_over(
    sensor: Sensor,
) -> None:
    sensor.ask("job-1")
    sensor.look()
    attempt = sensor.begin("job-1")
    sensor.cancel("job-1")
    sensor.ask("job-2")
    tick = sensor.look()
    assert (sensor.state("job-1"), keys(tick.stops), tick.starts) == ("cancelling", ["job-1#1"], [])
    assert keys(sensor.look().stops) == ["job-1#1"], "until it is over"
    assert sensor.said("job-1") == ["queued"], "its program may still say that it runs"
    sensor.runs["job-1#1"] = "canceled"
    assert keys(sensor.look().starts) == ["job-2#1"]
    [closed] = attempts_of(sensor.warehouse, ["job-1"])["job-1"]
    assert (closed.outcome, closed.plan) == ("cancelled", attempt.plan)
    assert sensor.said("job-1") == ["queued", "cancelled"]


@pytest.mark.parametrize("ready", [True, False])
def test_a_job_is_cancelled_before_it_started_and_never_starts(sensor: Sensor, ready: bool) -> None:
    sensor.ask("busy", priority="high")
    sensor.look()
    sensor.ask("job-1")
    if ready:
        sensor.look()
    sensor.cancel("job-1")
    sensor.look()
    assert (sensor.state("job-1"), sensor.said("job-1")) == ("cancelled", ["queued", "cancelled"])
    attempts = attempts_of(sensor.warehouse, ["job-1"])["job-1"]
    assert [attempt.outcome for attempt in attempts] == (["cancelled"] if ready else [])


def test_a_job_is_cancelled_while_it_waits_for_its_next_attempt(sensor: Sensor) -> None:
    sensor.ask("job-1")
    sensor.look()
    end_attempt(sensor.warehouse, sensor.begin("job-1"), "failed", sensor.now, failure_code="INFRA")
    sensor.look()
    sensor.cancel("job-1")
    sensor.now += timedelta(minutes=20)
    assert sensor.look().starts == []
    outcomes = [attempt.outcome for attempt in attempts_of(sensor.warehouse, ["job-1"])["job-1"]]
    assert (sensor.state("job-1"), outcomes) == ("cancelled", ["failed", "cancelled"])


UNNAMED = {"algorithm": "dpo", "dataset": {"source": "clickhouse"}}


def test_a_request_that_waits_to_know_what_is_in_service_is_cancelled_where_it_waits(sensor: Sensor) -> None:
    def unknown() -> StartingPoint:
        raise StartUnknown("the record was lost")

    known, sensor.start = sensor.start, unknown
    for job in ("job-1", "job-2"):
        sensor.ask(job, training_config=UNNAMED)
    for _ in range(3):
        told = sensor.look().told
        assert told.count("a request has to wait: the record was lost") == 2, "every look is handed all that wait"
    sensor.cancel("job-1")
    assert "job-1 is cancelled: cancelled by ada" in sensor.look().told
    assert (sensor.state("job-1"), sensor.state("job-2")) == ("cancelled", "unknown")
    sensor.start = known
    tick = sensor.look()
    assert (tick.taken.repeated, tick.taken.accepted, keys(tick.starts)) == (("job-1",), ("job-2",), ["job-2#1"])
    assert (sensor.state("job-1"), sensor.said("job-1"), sensor.said("job-2")) == (
        "cancelled",
        ["cancelled"],
        ["queued"],
    )


def test_what_was_to_go_on_from_a_model_that_was_rolled_back_ends_before_its_next_attempt(sensor: Sensor) -> None:
    sensor.ask("tried", training_config=UNNAMED, priority="high")
    sensor.look()
    failed = sensor.begin("tried")
    sensor.ask("waits", training_config={**UNNAMED, "dataset": {"source": "nats_stream"}})
    sensor.ask("named", training_config={**UNNAMED, "base_model": "in-service"})
    sensor.messages.publish("agent.rl.trajectory.v1", b"{}", "not-ingested")
    sensor.look()
    sensor.rolled_back.add("v6")
    assert sensor.look().waits, "another was rolled back"
    sensor.rolled_back.add("v7")
    sensor.look()
    assert (sensor.state("tried"), sensor.state("waits")) == ("running", "cancelled"), "what runs is validated"
    end_attempt(sensor.warehouse, failed, "failed", sensor.now, failure_code="INFRA", message="no disk")
    sensor.runs["tried#1"] = "failed"
    sensor.look()
    assert keys(sensor.look().starts) == ["named#1"], "somebody has asked for it by its name"
    job = find_job(sensor.warehouse, "tried")
    assert job is not None
    assert (job.state, sensor.said("tried")) == ("cancelled", ["queued", "queued", "cancelled"])
    assert job.explanation == "v7, from which it was to go on, was rolled back: ask for another training"
    assert not any(attempt.is_open for attempt in attempts_of(sensor.warehouse, ["tried"])["tried"])


def test_what_has_completed_is_not_cancelled_any_more(sensor: Sensor) -> None:
    sensor.ask("job-1")
    sensor.look()
    end_attempt(sensor.warehouse, sensor.begin("job-1"), "completed", sensor.now)
    sensor.cancel("job-1")
    tick = sensor.look()
    assert (sensor.state("job-1"), sensor.said("job-1")) == ("completed", ["queued", "completed"])
    assert "job-1 is completed already: there is nothing to cancel" in tick.told


def test_urgent_work_stops_what_runs_and_that_goes_on_afterwards(sensor: Sensor) -> None:
    sensor.ask("job-1", priority="normal")
    sensor.look()
    attempt = sensor.begin("job-1")
    sensor.ask("urgent", priority="urgent")
    tick = sensor.look()
    assert (keys(tick.stops), sensor.state("job-1"), tick.waits) == (
        ["job-1#1"],
        "preempting",
        "job-1 gives way to urgent",
    )
    end_attempt(sensor.warehouse, attempt, "preempted", sensor.now)
    sensor.runs["job-1#1"] = "canceled"
    assert keys(sensor.look().starts) == ["urgent#1"]
    end_attempt(sensor.warehouse, sensor.begin("urgent"), "completed", sensor.now)
    [resumed] = sensor.look().starts
    assert (resumed.key, resumed.starts_from, sensor.said("job-1")) == ("job-1#2", "checkpoint", ["queued", "queued"])


def test_nothing_is_concluded_while_the_program_of_a_lost_run_holds_its_lease(sensor: Sensor) -> None:
    sensor.ask("job-1")
    sensor.look()
    attempt = sensor.begin("job-1")
    sensor.runs["job-1#1"] = "failed"
    lease = sensor.leases.acquire(TRAINING_LEASE, attempt.holder, 600)
    assert lease is not None
    sensor.look()
    assert sensor.state("job-1") == "running"
    sensor.leases.release(lease)
    sensor.look()
    assert sensor.state("job-1") == "ready"


def test_nothing_is_concluded_from_an_end_while_its_run_is_still_at_work(sensor: Sensor) -> None:
    sensor.ask("job-1")
    sensor.look()
    attempt = sensor.begin("job-1")
    lease = sensor.leases.acquire(TRAINING_LEASE, attempt.holder, 600)
    assert lease is not None
    end_attempt(sensor.warehouse, attempt, "completed", sensor.now)
    sensor.look()
    assert sensor.state("job-1") == "running"
    sensor.leases.release(lease)
    sensor.look()
    assert sensor.state("job-1") == "completed"


def test_two_sensors_do_not_look_at_the_same_time(sensor: Sensor) -> None:
    sensor.ask("job-1")
    lease = sensor.leases.acquire(SENSOR_LEASE, "another", 600)
    assert lease is not None
    assert sensor.look() == Tick(waits="another sensor is at it", silence=sensor.silence)
    sensor.leases.release(lease)
    assert keys(sensor.look().starts) == ["job-1#1"]
    assert sensor.leases.holder(SENSOR_LEASE) is None


def test_a_job_on_the_stream_waits_until_its_trajectories_are_ingested_and_scored(sensor: Sensor) -> None:
    for number in (1, 2):
        sensor.messages.publish("agent.rl.trajectory.v1", b"{}", f"trajectory-{number}")
    sensor.ask("job-1", training_config={"dataset": {"source": "nats_stream"}})
    assert (sensor.look().waits, sensor.state("job-1")) == (
        "job-1 is waiting: for trajectories up to sequence 2",
        "waiting",
    )
    store_trajectories(sensor.warehouse, 2, scored=1, at=NOW)
    sensor.look()
    assert sensor.state("job-1") == "waiting", "one has no reward yet"
    store_rewards(sensor.warehouse, 2, at=NOW)
    [attempt] = sensor.look().starts
    job = find_job(sensor.warehouse, "job-1")
    assert job is not None
    assert (attempt.key, job.watermark) == ("job-1#1", 2)


def test_a_trajectory_that_never_gets_a_reward_does_not_hold_a_job_up_for_ever(sensor: Sensor) -> None:
    sensor.messages.publish("agent.rl.trajectory.v1", b"{}", "trajectory-1")
    sensor.ask("job-1", training_config={"dataset": {"source": "nats_stream"}})
    store_trajectories(sensor.warehouse, 1, scored=0, at=NOW)
    for _ in range(2):
        sensor.look()
    sensor.now += timedelta(minutes=31)
    assert keys(sensor.look().starts) == ["job-1#1"]


def test_rewards_have_their_time_from_when_ingest_has_arrived_however_long_that_took(sensor: Sensor) -> None:
    sensor.ask("job-1", training_config={"dataset": {"source": "local", "path": "files"}})
    sensor.look()
    imported(sensor.warehouse, "job-1", 5, sensor.now)
    sensor.now += timedelta(minutes=40)
    sensor.look()
    store_trajectories(sensor.warehouse, 5, scored=0, at=sensor.now)
    for _ in range(2):
        tick = sensor.look()
        assert (sensor.state("job-1"), tick.starts) == ("waiting", []), "nothing can be scored yet"
    assert tick.waits == "job-1 is waiting: its trajectories are ingested, it waits for their rewards"
    sensor.now += timedelta(minutes=20)
    assert sensor.look().starts == []
    store_rewards(sensor.warehouse, 5, at=sensor.now)
    assert keys(sensor.look().starts) == ["job-1#1"]


def test_files_are_imported_before_a_job_waits_for_them(sensor: Sensor) -> None:
    sensor.ask("job-1", training_config={"dataset": {"source": "local", "path": "/files"}})
    assert [job.job_id for job in sensor.look().imports] == ["job-1"]
    imported(sensor.warehouse, "job-1", 0, sensor.now)
    tick = sensor.look()
    assert (tick.imports, keys(tick.starts)) == ([], ["job-1#1"])


def test_files_that_cannot_be_imported_are_given_up_with_the_last_reason(sensor: Sensor) -> None:
    sensor.ask("job-1", training_config={"dataset": {"source": "local", "path": "files"}})
    sensor.look()
    sensor.imports = ImportRuns(MOST_IMPORTS - 1, "no bucket")
    assert [job.job_id for job in sensor.look().imports] == ["job-1"]
    sensor.imports = ImportRuns(MOST_IMPORTS, "no bucket")
    assert sensor.look().imports == []
    assert (sensor.state("job-1"), sensor.said("job-1")) == ("failed", ["queued", "failed"])
    job = find_job(sensor.warehouse, "job-1")
    assert job is not None
    assert job.explanation == "its files could not be imported, 8 times: no bucket"


@pytest.mark.parametrize("run", ["queued", "started"])
def test_a_job_that_is_cancelled_while_its_files_are_imported_stops_its_import(sensor: Sensor, run: RunState) -> None:
    for job_id in ("job-1", "job-2"):
        sensor.ask(job_id, training_config={"dataset": {"source": "local", "path": "files"}})
        sensor.unfinished_imports[job_id] = run
    assert sensor.look().stopped_imports == []
    sensor.cancel("job-1")
    for _ in range(2):
        tick = sensor.look()
        assert [job.job_id for job in tick.imports] == ["job-2"]
        assert tick.stopped_imports == ["job-1"], "until it is over"
    imported(sensor.warehouse, "job-2", 0, sensor.now)
    del sensor.unfinished_imports["job-1"]
    assert sensor.look().stopped_imports == [], "a run that has done its work ends by itself"


def test_an_import_that_somebody_cancels_cancels_its_job(sensor: Sensor) -> None:
    sensor.ask("job-1", training_config={"dataset": {"source": "local", "path": "files"}})
    sensor.look()
    sensor.imports = ImportRuns(is_cancelled=True)
    assert sensor.look().imports == []
    assert (sensor.state("job-1"), sensor.said("job-1")) == ("cancelled", ["queued", "cancelled"])


def test_a_request_that_cannot_be_read_any_more_trains_nothing_and_stops_no_other_job(sensor: Sensor) -> None:
    sensor.ask("job-1", metadata={"shadow": True})
    sensor.look()
    columns = '* REPLACE (\'{"training_job_id": "job-1"}\' AS request)'
    sensor.warehouse.execute(f"INSERT INTO training_jobs SELECT {columns} FROM training_jobs FINAL")
    sensor.ask("job-2")
    assert keys(sensor.look().starts) == ["job-1#1"]
    assert (sensor.state("job-1"), sensor.state("job-2")) == ("running", "ready")
    job = find_job(sensor.warehouse, "job-1")
    assert job is not None
    assert (job.shadow, job.request.training_config.algorithm) == (True, None), "so it never trains, nor is deployed"


def test_a_cancellation_of_nobody_s_job_stays_until_it_is_given_up(sensor: Sensor) -> None:
    sensor.cancel("nobody")
    tick = sensor.look()
    assert (tick.waits, sensor.state("nobody")) == ("no job waits", "unknown")
    info = sensor.messages.request("CONSUMER.INFO.RL_TRAINING.training_cancellations")
    assert info["num_ack_pending"] == 1
