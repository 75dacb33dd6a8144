"""Jobs and attempts as values, and as rows that two parties write."""

import itertools
from collections.abc import Iterator
from typing import get_args

import pytest

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.training.jobs.job import FINAL_STATES, VALID_TRANSITIONS, InvalidTransition, Phase, State
from rl_pipeline.training.jobs.rows import (
    JobCancelled,
    JobNotRunning,
    NoSuchJob,
    attempts_of,
    begin_attempt,
    check_wanted,
    end_attempt,
    find_job,
    import_failed,
    imported,
    keep_plan,
    newest_jobs,
    quarantine,
    unfinished_jobs,
    write_attempt,
    write_job,
)
from rl_pipeline_tests.training.job_tables import emptied, migrated_database
from rl_pipeline_tests.training.job_values import MINUTE, NOW, a_job, a_plan, an_attempt

STATES: tuple[State, ...] = get_args(State)


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def warehouse(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(tables)


def test_the_table_of_transitions_names_every_state_and_ends_in_three() -> None:
    assert set(VALID_TRANSITIONS) == set(STATES)
    assert {state for state, following in VALID_TRANSITIONS.items() if not following} == FINAL_STATES
    assert {"completed", "failed", "cancelled"} == FINAL_STATES


def test_every_state_can_be_reached_and_every_state_can_come_to_an_end() -> None:
    reached: set[State] = {"accepted"}
    for _ in STATES:
        reached |= {following for state in reached for following in VALID_TRANSITIONS[state]}
    assert reached == set(STATES)
    assert all("cancelled" in VALID_TRANSITIONS[state] for state in set(STATES) - FINAL_STATES)


@pytest.mark.parametrize(("state", "following"), list(itertools.product(STATES, STATES)))
def test_a_job_changes_as_the_table_says_and_not_otherwise(state: State, following: State) -> None:
    job = a_job(state=state)
    if following in VALID_TRANSITIONS[state]:
        changed = job.moved(following, "why", NOW + MINUTE)
        assert (changed.state, changed.explanation, changed.changed_at) == (following, "why", NOW + MINUTE)
        assert changed.version > job.version
        assert changed.accepted_at == job.accepted_at
    else:
        with pytest.raises(InvalidTransition, match=f"is {state} and cannot become {following}"):
            job.moved(following, "why", NOW)


def test_the_stores_know_the_same_states(warehouse: ClickHouseWarehouse) -> None:
    for state in STATES:
        write_job(warehouse, a_job(f"job-{state}", state))
    assert {job.state for job in newest_jobs(warehouse, 100)} == set(STATES)


def test_a_job_and_its_attempts_come_back_as_they_were_written(warehouse: ClickHouseWarehouse) -> None:
    job = a_job(state="running", metadata={"shadow": True, "notes": "trial"}, priority="urgent")
    attempts = [
        an_attempt(1, plan=a_plan()).ended("failed", NOW + MINUTE, failure_code="OOM", message="m", traceback="t"),
        an_attempt(2),
    ]
    write_job(warehouse, job)
    for attempt in attempts:
        write_attempt(warehouse, attempt)
    assert find_job(warehouse, "job-1") == job
    assert (job.shadow, job.priority, job.source) == (True, "urgent", "clickhouse")
    assert attempts_of(warehouse, ["job-1", "job-2"]) == {"job-1": attempts, "job-2": []}
    assert find_job(warehouse, "job-2") is None


def test_of_two_changes_of_the_same_row_the_end_wins_in_whatever_order_they_are_written(
    warehouse: ClickHouseWarehouse,
) -> None:
    for number, order in enumerate(itertools.permutations(["waiting", "cancelled"])):
        job = a_job(f"job-{number}", "importing")
        changes = {state: job.moved(state, "two at once", NOW) for state in ("waiting", "cancelled")}
        for state in order:
            write_job(warehouse, changes[state])
        found = find_job(warehouse, job.job_id)
        assert found is not None
        assert found.state == "cancelled"


def test_what_the_sensor_closed_stays_closed_though_its_run_writes_later(warehouse: ClickHouseWarehouse) -> None:
    attempt = an_attempt(begun=True)
    closed = attempt.ended("failed", NOW, phase=Phase.CLOSED, failure_code="INFRA", message="vanished")
    write_attempt(warehouse, closed)
    end_attempt(warehouse, attempt, "completed", NOW + MINUTE)
    assert attempts_of(warehouse, ["job-1"])["job-1"] == [closed]


def test_unfinished_are_those_without_an_end_and_those_that_are_being_stopped(warehouse: ClickHouseWarehouse) -> None:
    for state in STATES:
        write_job(warehouse, a_job(f"job-{state}", state))
    write_job(warehouse, a_job("stopping", "cancelled"))
    write_attempt(warehouse, an_attempt(job_id="stopping", begun=True))
    write_attempt(warehouse, an_attempt(job_id="job-failed").ended("failed", NOW))
    found = {job.job_id for job in unfinished_jobs(warehouse)}
    assert found == {"stopping", *(f"job-{state}" for state in set(STATES) - FINAL_STATES)}


def test_a_run_begins_its_attempt_makes_its_plan_and_ends_it(warehouse: ClickHouseWarehouse) -> None:
    write_job(warehouse, a_job(state="running"))
    write_attempt(warehouse, an_attempt())
    job, [attempt] = begin_attempt(warehouse, "job-1", "run-7", an_attempt().tags, NOW)
    assert (job.state, attempt.run_id, attempt.started_at, attempt.holder) == ("running", "run-7", NOW, "job-1#1#run-7")
    assert attempt.is_holder("job-1#1#run-7")
    assert not attempt.is_holder("job-1#11#run-7")
    again = begin_attempt(warehouse, "job-1", "run-7", an_attempt().tags, NOW + MINUTE)[1]
    assert again == [attempt], "a later step of the same run begins nothing anew"
    keep_plan(warehouse, attempt, a_plan())
    end_attempt(warehouse, attempt, "completed", NOW + MINUTE, result={"steps": 3})
    [found] = attempts_of(warehouse, ["job-1"])["job-1"]
    assert (found.outcome, found.ended_at, found.result, found.phase) == (
        *("completed", NOW + MINUTE, '{"steps": 3}', Phase.ENDED),
    )
    assert found.plan == a_plan().model_dump_json(), "whoever ends it need not hold it with its plan"
    found_job = find_job(warehouse, "job-1")
    assert found_job is not None
    assert found_job.state == "running", "the job is the sensor's to change"


def test_a_run_without_a_request_says_how_to_ask_for_one(warehouse: ClickHouseWarehouse) -> None:
    with pytest.raises(NoSuchJob, match="no training job job-1: ask for one with `rl-pipeline train`"):
        begin_attempt(warehouse, "job-1", "run-1", an_attempt().tags, NOW)


@pytest.mark.parametrize("state", [state for state in STATES if state != "running"])
def test_a_run_that_nobody_asked_for_does_not_begin(warehouse: ClickHouseWarehouse, state: State) -> None:
    write_job(warehouse, a_job(state=state))
    write_attempt(warehouse, an_attempt())
    with pytest.raises(JobNotRunning, match=f"job-1 is {state}"):
        begin_attempt(warehouse, "job-1", "run-1", an_attempt().tags, NOW)
    assert attempts_of(warehouse, ["job-1"])["job-1"] == [an_attempt()]


def test_a_run_of_an_attempt_that_is_over_does_not_begin(warehouse: ClickHouseWarehouse) -> None:
    write_job(warehouse, a_job(state="running"))
    write_attempt(warehouse, an_attempt().ended("failed", NOW))
    with pytest.raises(JobNotRunning):
        begin_attempt(warehouse, "job-1", "run-1", an_attempt().tags, NOW)


@pytest.mark.parametrize("tags", [{}, {"rl/job": "job-1", "rl/attempt": "1"}, {"rl/job": "job-9", "rl/attempt": "2"}])
def test_a_run_that_was_not_started_for_the_newest_attempt_does_not_begin_it(
    warehouse: ClickHouseWarehouse, tags: dict[str, str]
) -> None:
    write_job(warehouse, a_job(state="running"))
    write_attempt(warehouse, an_attempt(2))
    with pytest.raises(JobNotRunning, match=r"not that of attempt 2 of the training job job-1.*`rl-pipeline train`"):
        begin_attempt(warehouse, "job-1", "by-hand", tags, NOW)
    assert attempts_of(warehouse, ["job-1"])["job-1"] == [an_attempt(2)]


def test_a_run_that_is_executed_again_does_not_take_the_attempt_over(warehouse: ClickHouseWarehouse) -> None:
    write_job(warehouse, a_job(state="running"))
    write_attempt(warehouse, an_attempt(begun=True))
    with pytest.raises(JobNotRunning):
        begin_attempt(warehouse, "job-1", "another-with-the-same-tags", an_attempt().tags, NOW)
    assert attempts_of(warehouse, ["job-1"])["job-1"] == [an_attempt(begun=True)]


def test_nothing_is_released_for_a_job_that_was_cancelled_meanwhile(warehouse: ClickHouseWarehouse) -> None:
    job = a_job(state="running")
    write_job(warehouse, job)
    check_wanted(warehouse, "job-1")
    write_job(warehouse, job.moved("cancelled", "cancelled by ada", NOW))
    with pytest.raises(JobCancelled, match="cancelled by ada"):
        check_wanted(warehouse, "job-1")


def test_a_result_that_could_not_be_told_is_refused_before_it_is_stored(warehouse: ClickHouseWarehouse) -> None:
    with pytest.raises(ValueError, match="cost_usd"):
        end_attempt(warehouse, an_attempt(begun=True), "completed", NOW, result={"resource_usage": {"cost_usd": -1.0}})
    assert attempts_of(warehouse, ["job-1"])["job-1"] == []


def test_quarantined_rows_are_kept_once_however_often_they_are_named(warehouse: ClickHouseWarehouse) -> None:
    for ids in (["a", "b"], ["b"]):
        quarantine(warehouse, "job-1", ids, "it cannot be rendered", NOW)
    found = warehouse.query("SELECT job_id, trajectory_id FROM quarantined_trajectories FINAL ORDER BY trajectory_id")
    assert found.rows() == [("job-1", "a"), ("job-1", "b")]


def test_an_import_moves_its_job_on_unless_it_was_cancelled(warehouse: ClickHouseWarehouse, stream: JetStream) -> None:
    for job_id, state in (("done", "importing"), ("broken", "importing"), ("over", "cancelled")):
        write_job(warehouse, a_job(job_id, state))  # type: ignore[arg-type]
    for job_id in ("done", "over"):
        imported(warehouse, job_id, 41, NOW)
    for job_id in ("broken", "over"):
        import_failed(stream, warehouse, job_id, "there is nothing at s3://nowhere", NOW)
    states = {job.job_id: (job.state, job.through_sequence) for job in newest_jobs(warehouse, 10)}
    assert states == {"done": ("waiting", 41), "broken": ("failed", 0), "over": ("cancelled", 0)}
    assert stream.state("RL_TRAINING").messages == 1
