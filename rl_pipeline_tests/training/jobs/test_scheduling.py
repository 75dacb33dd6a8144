"""Who trains next: single cases, and a simulation in which urgent work does not wait and nothing starves."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pytest

from rl_pipeline.training.jobs.job import Attempt, Job, State
from rl_pipeline.training.jobs.scheduling import (
    AGEING,
    LEVELS,
    MOST_PREEMPTIONS,
    Preempt,
    Start,
    Wait,
    gives_way,
    next_move,
)
from rl_pipeline_tests.training.job_values import MINUTE, NOW, a_job, an_attempt


def a_ready_job(job_id: str, priority: str = "normal", *, at: datetime = NOW, state: State = "ready") -> Job:
    return a_job(job_id, state, now=at, priority=priority)


def attempts_for(*jobs: Job, not_before: datetime = NOW) -> dict[str, list[Attempt]]:
    return {job.job_id: [Attempt(job.job_id, 1, "dataset", not_before)] for job in jobs}


def chosen(*jobs: Job, now: datetime = NOW, **more: list[Attempt]) -> Any:
    return next_move(jobs, {**attempts_for(*jobs), **more}, now)


@pytest.mark.parametrize(
    ("first", "second"), [("urgent", "high"), ("high", "normal"), ("normal", "low"), ("urgent", "low")]
)
def test_the_higher_priority_goes_first_though_it_came_later(first: str, second: str) -> None:
    jobs = [a_ready_job("a", second), a_ready_job("b", first, at=NOW + MINUTE)]
    move = chosen(*jobs, now=NOW + MINUTE)
    assert isinstance(move, Start)
    assert (move.job.job_id, move.attempt.key) == ("b", "b#1")


def test_of_equal_ones_the_one_that_came_first_goes_first() -> None:
    jobs = [a_ready_job("a", at=NOW + MINUTE), a_ready_job("b"), a_ready_job("c", at=NOW + MINUTE)]
    assert chosen(*jobs, now=NOW + MINUTE).job.job_id == "b"
    assert chosen(jobs[0], jobs[2], now=NOW + MINUTE).job.job_id == "a"


def test_who_has_waited_long_goes_before_who_matters_more() -> None:
    old, young = a_ready_job("old", "low"), a_ready_job("young", "normal", at=NOW + AGEING)
    assert chosen(old, young, now=NOW + AGEING).job.job_id == "old"
    assert chosen(old, young, now=NOW + AGEING - MINUTE).job.job_id == "young"


def test_what_has_aged_lets_urgent_work_pass_for_a_while_and_no_longer() -> None:
    old, later = a_ready_job("old", "normal"), NOW + 3 * AGEING - MINUTE
    urgent = a_ready_job("urgent", "urgent", at=later)
    assert chosen(old, urgent, now=later).job.job_id == "urgent"
    assert chosen(old, urgent, now=NOW + 3 * AGEING).job.job_id == "old"


@pytest.mark.parametrize("age", [2, 3])
def test_urgent_work_makes_what_runs_give_way_whoever_waits_before_it(age: int) -> None:
    now = NOW + age * AGEING
    running, urgent = a_ready_job("a", state="running"), a_ready_job("c", "urgent", at=now)
    assert chosen(running, a_ready_job("b"), urgent, now=now) == Preempt(running, urgent)


def test_one_trains_at_a_time() -> None:
    move = chosen(a_ready_job("a", state="running"), a_ready_job("b", "high"))
    assert move == Wait("b waits for a, which is running")


@pytest.mark.parametrize("priority", ["low", "normal"])
def test_urgent_work_makes_a_job_up_to_normal_give_way(priority: str) -> None:
    running, urgent = a_ready_job("a", priority, state="running"), a_ready_job("b", "urgent")
    assert chosen(running, urgent) == Preempt(running, urgent)


@pytest.mark.parametrize("waiting", ["low", "normal", "high"])
def test_nothing_gives_way_to_what_is_not_urgent(waiting: str) -> None:
    assert isinstance(chosen(a_ready_job("a", "low", state="running"), a_ready_job("b", waiting)), Wait)


@pytest.mark.parametrize("priority", ["high", "urgent"])
def test_what_matters_is_not_interrupted(priority: str) -> None:
    assert isinstance(chosen(a_ready_job("a", priority, state="running"), a_ready_job("b", "urgent")), Wait)


def test_what_had_waited_until_it_mattered_is_not_interrupted() -> None:
    patient = a_job("a", "ready", priority="normal").moved("running", "at last", NOW + AGEING)
    assert not gives_way(patient, [an_attempt()])
    at_once = a_job("a", "ready", priority="normal").moved("running", "at once", NOW)
    assert gives_way(at_once, [an_attempt()]), "however long it runs"


def test_a_job_gives_way_only_so_often() -> None:
    running, urgent = a_ready_job("a", "low", state="running"), a_ready_job("b", "urgent")
    gave_way = [an_attempt(number).ended("preempted", NOW) for number in range(1, MOST_PREEMPTIONS + 1)]
    still = [*gave_way[1:], an_attempt(9)]
    assert isinstance(chosen(running, urgent, a=still), Preempt)
    assert isinstance(chosen(running, urgent, a=[*gave_way, an_attempt(9)]), Wait)


def test_a_job_that_is_giving_way_is_not_asked_twice() -> None:
    assert isinstance(chosen(a_ready_job("a", "low", state="preempting"), a_ready_job("b", "urgent")), Wait)


def test_a_job_that_was_cancelled_takes_the_place_until_its_run_is_over() -> None:
    cancelled, waiting = a_job("a", "cancelled"), a_ready_job("b", "urgent")
    assert chosen(cancelled, waiting) == Wait("b waits for a, which is cancelled")
    over = [an_attempt(job_id="a").ended("cancelled", NOW)]
    assert isinstance(chosen(cancelled, waiting, a=over), Start)


def test_a_next_attempt_waits_for_its_time_and_lets_others_pass() -> None:
    later = {"a": [Attempt("a", 2, "checkpoint", NOW + 10 * MINUTE)]}
    job, other = a_ready_job("a", "urgent"), a_ready_job("b", "low")
    assert next_move([job], later, NOW) == Wait("the next attempt starts after 12:10:00 UTC")
    assert isinstance(next_move([job], later, NOW + 10 * MINUTE), Start)
    move = next_move([job, other], {**later, **attempts_for(other)}, NOW)
    assert isinstance(move, Start)
    assert move.job == other


@pytest.mark.parametrize("state", ["accepted", "importing", "waiting"])
def test_a_job_that_is_not_ready_says_why_nothing_starts(state: State) -> None:
    assert next_move([a_job("a", state)], {}, NOW) == Wait(f"a is {state}: {a_job('a', state).explanation}")


def test_without_jobs_there_is_nothing_to_do() -> None:
    assert next_move([], {}, NOW) == Wait("no job waits")


LOOK = timedelta(seconds=15)
START = timedelta(seconds=45)
LONGEST_STEP = timedelta(seconds=60)


@dataclass
class OneMachine:
    """A machine that trains what it is told: programs take a while to start, and stop at the end of a step."""

    randomness: random.Random
    now: datetime = NOW
    jobs: dict[str, Job] = field(default_factory=dict)
    attempts: dict[str, list[Attempt]] = field(default_factory=dict)
    left: dict[str, timedelta] = field(default_factory=dict)
    """What remains of each job's training."""
    step_ends: datetime = NOW
    began: dict[str, datetime] = field(default_factory=dict)
    ended: dict[str, datetime] = field(default_factory=dict)
    in_the_way: dict[str, timedelta] = field(default_factory=dict)
    """How long each job waited behind one that does not give way."""

    def arrive(self, priority: str, duration: timedelta) -> None:
        job = a_ready_job(f"{priority}-{len(self.jobs)}", priority, at=self.now)
        self.jobs[job.job_id] = job
        self.attempts.update(attempts_for(job, not_before=self.now))
        self.left[job.job_id] = duration

    def unfinished(self) -> list[Job]:
        return [job for job_id, job in self.jobs.items() if job_id not in self.ended]

    def pass_time(self) -> None:
        self.now += LOOK
        running = next((job for job in self.unfinished() if job.state in ("running", "preempting")), None)
        if running:
            self._train(running)
        match next_move(self.unfinished(), self.attempts, self.now):
            case Start(job, _):
                self.jobs[job.job_id] = job.moved("running", "", self.now)
                self.began.setdefault(job.job_id, self.now)
                self.left[job.job_id] += START
            case Preempt(job, _):
                self.jobs[job.job_id] = job.moved("preempting", "", self.now)
                self.step_ends = self.now + LONGEST_STEP * self.randomness.random()

    def _train(self, job: Job) -> None:
        self.left[job.job_id] -= LOOK
        attempt = self.attempts[job.job_id][-1]
        keeps_going = job.state == "running" and not gives_way(job, self.attempts[job.job_id])
        for waiting in self.unfinished() if keeps_going else ():
            if waiting.state == "ready":
                self.in_the_way[waiting.job_id] = self.in_the_way.get(waiting.job_id, timedelta()) + LOOK
        if self.left[job.job_id] <= timedelta():
            self.attempts[job.job_id][-1] = attempt.ended("completed", self.now)
            self.jobs[job.job_id] = job.moved("completed", "", self.now)
            self.ended[job.job_id] = self.now
        elif job.state == "preempting" and self.now >= self.step_ends:
            following = Attempt(job.job_id, attempt.number + 1, "checkpoint", self.now)
            self.attempts[job.job_id][-1:] = [attempt.ended("preempted", self.now), following]
            self.jobs[job.job_id] = job.moved("ready", "", self.now)


@pytest.mark.soak
def test_urgent_work_waits_for_a_step_and_all_work_is_done(
    soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    weeks, waits, preemptions, jobs = soak_count(1, 60), [timedelta()], 0, 0
    for seed in range(weeks):
        machine = OneMachine(random.Random(seed))
        randomness = machine.randomness
        while machine.now < NOW + timedelta(days=7):
            if randomness.random() < LOOK / timedelta(minutes=70):
                priority = randomness.choices(list(LEVELS), [3, 3, 2, 2])[0]
                machine.arrive(priority, timedelta(minutes=randomness.uniform(5, 95)))
            machine.pass_time()
        for _ in range(10_000):
            if not machine.unfinished():
                break
            machine.pass_time()
        assert machine.ended.keys() == machine.jobs.keys(), f"week {seed}: something was never done"
        for job in machine.jobs.values():
            if job.priority == "urgent":
                waited = machine.began[job.job_id] - job.accepted_at
                waits.append(waited - machine.in_the_way.get(job.job_id, timedelta()))
        gave_way = [sum(one.outcome == "preempted" for one in all_of) for all_of in machine.attempts.values()]
        assert max(gave_way) <= MOST_PREEMPTIONS
        preemptions += sum(gave_way)
        jobs += len(machine.jobs)
    record_property("weeks", weeks)
    record_property("jobs", jobs)
    record_property("preemptions", preemptions)
    record_property("longest wait of urgent work behind what gives way, seconds", max(waits).total_seconds())
    assert preemptions
    # Noticed at the next look, stopped at the end of the step, and noticed again.
    assert max(waits) <= LOOK + LONGEST_STEP + LOOK


def test_nothing_starves_even_if_urgent_work_never_ends() -> None:
    machine = OneMachine(random.Random(7))
    machine.arrive("low", timedelta(hours=2))
    while machine.now < NOW + 5 * AGEING:
        waiting = [job for job in machine.jobs.values() if job.state == "ready" and job.priority == "urgent"]
        if len(waiting) < 2:
            machine.arrive("urgent", timedelta(minutes=30))
        machine.pass_time()
    assert "low-0" in machine.ended
    assert machine.ended["low-0"] <= NOW + 4 * AGEING + timedelta(hours=4)
