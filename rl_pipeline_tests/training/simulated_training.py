"""A world in which jobs are asked for, cancelled, started, killed and forgotten at random, and a sensor that may die
between any two of its steps. The decisions are the product's; the tables, Dagster's runs and the lease are played.

It watches what must hold at every moment: changes are those of the table, an end stays, one program trains at a time.
"""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rl_pipeline.training.jobs.advancing import Board, ImportRuns, Surroundings, Tick, move_on, settle
from rl_pipeline.training.jobs.attempts import outcome_of_stop
from rl_pipeline.training.jobs.job import VALID_TRANSITIONS, Attempt, Job, State
from rl_pipeline.training.jobs.reconciling import RunState, Step, cancel
from rl_pipeline.training.jobs.silence import Silence
from rl_pipeline.training.jobs.statuses import Announcement
from rl_pipeline_tests.training.job_values import NOW, a_plan, a_request

LOOK = timedelta(seconds=15)
LEASE = timedelta(seconds=60)
CODES = ("OOM", "CONVERGENCE", "DATA", "INFRA", "TIMEOUT", "UNKNOWN", "UNKNOWN", "UNKNOWN")
PRIORITIES = ("low", "normal", "high", "urgent")
SOURCES = ("clickhouse", "nats_stream", "local")


class Died(Exception):
    """The sensor is gone."""


@dataclass
class Run:
    """A run of an attempt, and the program that it started."""

    key: str
    state: RunState = "queued"
    stop_asked: bool = False
    attempt: Attempt | None = None
    """As the program knows it; None before it began, and after it ended."""
    is_dead: bool = False
    """Its machine is gone, and Dagster does not know."""


@dataclass
class Chances:
    """How likely each thing is, at each look."""

    request: float = 0.15
    cancellation: float = 0.1
    sensor_dies_at_a_step: float = 0.2
    program_completes: float = 0.15
    program_fails: float = 0.15
    program_is_killed: float = 0.03
    run_vanishes: float = 0.01
    run_is_given_up_though_it_lives: float = 0.01
    run_is_cancelled_by_a_person: float = 0.01
    machine_dies: float = 0.02
    import_fails: float = 0.1


QUIET = Chances(0, 0, 0, 0.3, 0, 0, 0, 0, 0, 0, 0)
"""Nothing new and no faults: everything that was begun comes to its end."""


@dataclass
class SimulatedTraining:
    """See the module."""

    randomness: random.Random
    chances: Chances
    now: datetime = NOW
    jobs: dict[str, Job] = field(default_factory=dict)
    attempts: dict[tuple[str, int], Attempt] = field(default_factory=dict)
    said: dict[str, Announcement] = field(default_factory=dict)
    runs: dict[str, Run] = field(default_factory=dict)
    lease: tuple[str, datetime] | None = None
    """Who holds it, and until when unless it is renewed."""
    silence: Silence = field(default_factory=Silence)
    cancellations: list[str] = field(default_factory=list)
    walked: Counter[tuple[State, State]] = field(default_factory=Counter)
    deaths: int = 0
    machines_lost: int = 0

    def pass_time(self) -> None:
        """What happens until the next look, and the look."""
        self.now += LOOK
        if self._happens(self.chances.request):
            self.request(self.randomness.choice(PRIORITIES), self.randomness.choice(SOURCES))
        if self.jobs and self._happens(self.chances.cancellation):
            likely = [job.job_id for job in self.jobs.values() if job.state in ("running", "preempting")]
            self.cancellations.append(self.randomness.choice([*likely, *self.randomness.sample(list(self.jobs), 1)]))
        for run in list(self.runs.values()):
            self._run_on(run)
        self._import()
        self.look()

    def request(self, priority: str, source: str = "clickhouse") -> Job:
        """A request that the sensor has accepted; those that it has not are no jobs yet."""
        config = {"algorithm": "dpo", "base_model": "small", "dataset": {"source": source, "path": "/files"}}
        request = a_request(f"job-{len(self.jobs) + 1}", priority=priority, training_config=config)
        job = Job.accepted(request, through_sequence=7 if source == "nats_stream" else 0, now=self.now)
        self.jobs[job.job_id] = job
        return job

    def look(self) -> None:
        """The sensor, as `advance` does it; what it did not do before it died, its next look does."""
        try:
            tick = self._look()
        except Died:
            self.deaths += 1
            return
        self.silence = tick.silence
        for attempt in tick.lost:
            assert self.runs[attempt.key].is_dead, f"{attempt.key} is given up and lives"
            self.runs[attempt.key].state = "failed"
            self.machines_lost += 1
        for attempt in tick.starts:
            self.runs.setdefault(attempt.key, Run(attempt.key))  # Dagster starts a key once
        for attempt in tick.stops:
            self.runs[attempt.key].stop_asked = True

    def _look(self) -> Tick:
        board = Board(self._unfinished(), self._attempts_by_job(), self._do)
        around = Surroundings(
            run_state=self._run_state,
            import_runs=lambda _: ImportRuns(),
            unfinished_imports={},
            holder=self._holder(),
            import_holder=lambda _: None,
            silence=self.silence,
            ingested_up_to=lambda: 10,
            unscored_up_to=lambda _: self.randomness.choice((0, 1)),
        )
        settle(board, around, self.now)
        while self.cancellations:
            job = board.jobs.get(self.cancellations[0]) or self.jobs[self.cancellations[0]]
            board.change(cancel(job, "somebody", None, self.now))
            self.cancellations.pop(0)
        tick = move_on(board, around, self.now)
        if self._happens(self.chances.sensor_dies_at_a_step):
            raise Died
        return tick

    def _do(self, step: Step) -> None:
        if self._happens(self.chances.sensor_dies_at_a_step):
            raise Died
        match step:
            case Announcement():
                self.said.setdefault(step.message_id, step)
            case Attempt():
                self._store(step)
            case Job():
                before = self.jobs[step.job_id]
                assert step.state in VALID_TRANSITIONS[before.state], f"{before.state} became {step.state}"
                self.walked[before.state, step.state] += 1
                if step.version > before.version:
                    self.jobs[step.job_id] = step

    def _store(self, attempt: Attempt) -> None:
        stored = self.attempts.get((attempt.job_id, attempt.number))
        if stored is None or attempt.phase >= stored.phase:
            self.attempts[attempt.job_id, attempt.number] = attempt

    def _unfinished(self) -> dict[str, Job]:
        still_open = {job_id for (job_id, _), attempt in self.attempts.items() if attempt.is_open}
        return {job_id: job for job_id, job in self.jobs.items() if not job.is_final or job_id in still_open}

    def _attempts_by_job(self) -> dict[str, list[Attempt]]:
        found: dict[str, list[Attempt]] = {}
        for _, attempt in sorted(self.attempts.items()):
            found.setdefault(attempt.job_id, []).append(attempt)
        return found

    def _run_state(self, attempt: Attempt) -> RunState:
        run = self.runs.get(attempt.key)
        return run.state if run else "missing"

    def _holder(self) -> str | None:
        return self.lease[0] if self.lease and self.lease[1] > self.now else None

    def _run_on(self, run: Run) -> None:
        """What a run does until the next look."""
        if run.attempt is None:
            if run.state == "queued":
                self._begin(run)
            return
        if run.attempt.is_holder(self._holder()):
            self.lease = (run.attempt.holder, self.now + LEASE)
        events: list[tuple[float, Callable[[Run], None]]] = [
            (0.4 if run.stop_asked else 0.0, self._stop),  # its step may take a while
            (self.chances.run_is_cancelled_by_a_person, self._stop),
            (self.chances.program_completes, self._complete),
            (self.chances.program_fails, self._fail),
            (self.chances.program_is_killed, self._kill),
            (self.chances.run_vanishes, self._vanish),
            (self.chances.run_is_given_up_though_it_lives, self._give_up),
            (self.chances.machine_dies, self._die),
        ]
        for chance, event in events:
            if self._happens(chance):
                event(run)
                return

    def _begin(self, run: Run) -> None:
        """A run starts its program, if it is still wanted and nobody else trains."""
        job_id, _, number = run.key.rpartition("#")
        attempt = self.attempts[job_id, int(number)]
        if run.stop_asked:
            run.state = "canceled"
        elif self.jobs[job_id].state != "running" or not attempt.is_open or self._holder():
            run.state = "failed"
        elif self._happens(self.chances.machine_dies):
            run.state, run.is_dead = "started", True
        elif self._happens(0.7):
            run.state = "started"
            assert attempt.not_before <= self.now, f"{run.key} starts before its time"
            begun = attempt.begun(f"run-of-{run.key}", self.now)
            run.attempt = begun.with_plan(a_plan().model_dump_json()) if self._happens(0.8) else begun
            self.lease = (run.attempt.holder, self.now + LEASE)
            self._store(run.attempt)
            others = [other.key for other in self.runs.values() if other.attempt and other is not run]
            assert not others, f"{run.key} trains while {others} do"

    def _stop(self, run: Run) -> None:
        """The program saves its state and its run writes why it ended, or is killed before it can."""
        assert run.attempt
        if self._happens(0.8):
            state = self.jobs[run.attempt.job_id].state
            outcome, code = outcome_of_stop(state, run_is_canceling=True)
            self._store(run.attempt.ended(outcome, self.now, failure_code=code))
        self._over(run, "canceled", lease_is_released=self._happens(0.8))

    def _complete(self, run: Run) -> None:
        assert run.attempt
        self._store(run.attempt.ended("completed", self.now))
        self._over(run, "succeeded", lease_is_released=True)

    def _fail(self, run: Run) -> None:
        assert run.attempt
        code = self.randomness.choice(CODES)
        result = '{"quarantined": 2}' if code == "DATA" else "{}"
        self._store(run.attempt.ended("failed", self.now, failure_code=code, result=result))  # type: ignore[arg-type]
        self._over(run, "failed", lease_is_released=True)

    def _kill(self, run: Run) -> None:
        self._over(run, "failed", lease_is_released=False)

    def _vanish(self, run: Run) -> None:
        self._over(run, "missing", lease_is_released=False)

    def _give_up(self, run: Run) -> None:
        """Dagster takes the run for dead, and its program goes on."""
        run.state = "failed"

    def _die(self, run: Run) -> None:
        """Nobody is left to tell Dagster."""
        run.attempt, run.is_dead = None, True

    def _over(self, run: Run, state: RunState, *, lease_is_released: bool) -> None:
        assert run.attempt
        if lease_is_released and run.attempt.is_holder(self._holder()):
            self.lease = None
        run.attempt = None
        if run.state == "started":
            run.state = state
        if state == "missing":
            del self.runs[run.key]

    def _import(self) -> None:
        for job in list(self.jobs.values()):
            if job.state == "importing" and self._happens(0.3):
                fails = self._happens(self.chances.import_fails)
                moved = job.moved("failed" if fails else "waiting", "", self.now, through_sequence=5)
                self.walked[job.state, moved.state] += 1
                self.jobs[job.job_id] = moved
                if fails:
                    self.said[f"status/{job.job_id}/failed"] = Announcement(None, "")  # type: ignore[arg-type]

    def _happens(self, chance: float) -> bool:
        return self.randomness.random() < chance
