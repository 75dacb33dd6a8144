"""The whole life of jobs: in a world of faults, and through the real stream, warehouse and lease."""

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from rl_pipeline.collection.publishing import outgoing_message
from rl_pipeline.contracts import TrainingCancel
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.stores.topology import TRAJECTORIES
from rl_pipeline.training.advancing import SENSOR_LEASE, TRAINING_LEASE, Tick, advance
from rl_pipeline.training.job_rows import attempts_of, begin_attempt, end_attempt, find_job, imported, keep_plan
from rl_pipeline.training.jobs import FINAL_STATES, VALID_TRANSITIONS, Attempt, State
from rl_pipeline.training.reconciling import RunState
from rl_pipeline.training.requests import Defaults
from rl_pipeline_tests.fixtures.ingest import REDACTION_KEY
from rl_pipeline_tests.training.job_tables import (
    emptied,
    migrated_database,
    store_rewards,
    store_trajectories,
    wait_for_pending,
)
from rl_pipeline_tests.training.job_values import MINUTE, NOW, a_plan, a_request
from rl_pipeline_tests.training.simulated_training import QUIET, Chances, SimulatedTraining


@pytest.mark.soak
def test_every_job_comes_to_exactly_one_end_whatever_happens_when(
    soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    walked, deaths, jobs = Counter[tuple[State, State]](), 0, 0
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
    assert set(walked) == {(state, after) for state, following in VALID_TRANSITIONS.items() for after in following}


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@dataclass
class Sensor:
    """The sensor on the real stream, warehouse and leases; only Dagster's runs are told by the test."""

    messages: JetStream
    warehouse: ClickHouseWarehouse
    now: datetime = NOW
    runs: dict[str, RunState] = field(default_factory=dict)
    waiting: Counter[str] = field(default_factory=Counter)
    """Messages that were published since the last look, by the consumer that hands them out."""

    @property
    def leases(self) -> JetStreamLeases:
        return JetStreamLeases(self.messages)

    def look(self, sensor: str = "sensor") -> Tick:
        self.now += MINUTE
        for consumer, count in self.waiting.items():
            wait_for_pending(self.messages, consumer, count)
        self.waiting.clear()
        return advance(
            *(self.messages, self.warehouse, self.leases),
            run_state=lambda attempt: self.runs.get(attempt.key, "missing"),
            defaults=Defaults("dpo", "small"),
            redactor=lambda: Redactor(RedactionPolicy(RedactionKey("v1", REDACTION_KEY.encode()))),
            trajectories=TRAJECTORIES.name,
            sensor=sensor,
            now=self.now,
        )

    def ask(self, job_id: str, **fields: Any) -> None:
        message = outgoing_message(a_request(job_id, **fields))
        self.messages.publish(message.subject, message.data, message.message_id)
        self.waiting["training_requests"] += 1

    def cancel(self, job_id: str) -> None:
        asked = {"training_job_id": job_id, "timestamp": self.now, "requester": "ada"}
        message = outgoing_message(TrainingCancel.model_validate(asked))
        self.messages.publish(message.subject, message.data, message.message_id)
        self.waiting["training_cancellations"] += 1

    def begin(self, job_id: str) -> Attempt:
        """Its run starts, as an asset would."""
        attempt = begin_attempt(self.warehouse, job_id, "run", self.now)[1][-1]
        self.runs[attempt.key] = "unfinished"
        return keep_plan(self.warehouse, attempt, a_plan())

    def state(self, job_id: str) -> str:
        job = find_job(self.warehouse, job_id)
        return job.state if job else "unknown"

    def said(self, job_id: str) -> list[str]:
        last = self.messages.state("RL_TRAINING").last_sequence
        stored = [message for batch in self.messages.read("RL_TRAINING", 1, last, 100) for message in batch]
        told = [json.loads(one.data) for one in stored if one.subject == "agent.rl.training.status.v1"]
        return [one["status"] for one in told if one["training_job_id"] == job_id]


@pytest.fixture
def sensor(stream: JetStream, tables: ClickHouseWarehouse) -> Sensor:
    return Sensor(stream, emptied(tables))


def keys(attempts: list[Attempt]) -> list[str]:
    return [attempt.key for attempt in attempts]


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
    assert (sensor.state("job-1"), keys(tick.stops), tick.starts) == ("cancelled", ["job-1#1"], [])
    assert keys(sensor.look().stops) == ["job-1#1"], "until it is over"
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


def test_two_sensors_do_not_look_at_the_same_time(sensor: Sensor) -> None:
    sensor.ask("job-1")
    lease = sensor.leases.acquire(SENSOR_LEASE, "another", 600)
    assert lease is not None
    assert sensor.look() == Tick(waits="another sensor is at it")
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
    sensor.look()
    sensor.now += timedelta(minutes=31)
    assert keys(sensor.look().starts) == ["job-1#1"]


def test_files_are_imported_before_a_job_waits_for_them(sensor: Sensor) -> None:
    sensor.ask("job-1", training_config={"dataset": {"source": "local", "path": "/files"}})
    assert [job.job_id for job in sensor.look().imports] == ["job-1"]
    imported(sensor.warehouse, "job-1", 0, sensor.now)
    tick = sensor.look()
    assert (tick.imports, keys(tick.starts)) == ([], ["job-1#1"])


def test_a_cancellation_of_nobody_s_job_stays_until_it_is_given_up(sensor: Sensor) -> None:
    sensor.cancel("nobody")
    tick = sensor.look()
    assert (tick.waits, sensor.state("nobody")) == ("no job waits", "unknown")
    info = sensor.messages.request("CONSUMER.INFO.RL_TRAINING.training_cancellations")
    assert info["num_ack_pending"] == 1
