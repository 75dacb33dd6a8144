"""One look at all jobs, as the sensor of requests takes it: what happened, what follows, and which run comes next.

The order matters. The ends of attempts are concluded before cancellations are carried out: what has completed is not
cancelled any more. Cancellations are fetched before requests and carried out after them: see `cancelling`. Whatever
the sensor does not live to do, its next look does; see `reconciling` and `requests`.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rl_pipeline.ingestion.ledger import ledger_watermark
from rl_pipeline.stores.lease import Leases
from rl_pipeline.stores.stream import Stream
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.cancelling import Cancellation, fetch_cancellations, nobody_to_cancel
from rl_pipeline.training.evidence import unscored_trajectories
from rl_pipeline.training.job_rows import attempts_of, carry_out, find_job, unfinished_jobs
from rl_pipeline.training.jobs import Attempt, Job
from rl_pipeline.training.reconciling import RunState, Step, cancel, reconcile
from rl_pipeline.training.refusals import OpenRedactor
from rl_pipeline.training.requests import Defaults, TakenIn, accept_requests
from rl_pipeline.training.scheduling import Preempt, Start, Wait, next_move

TRAINING_LEASE = "training"
"""Held by the run that trains, under its attempt's `holder`."""
SENSOR_LEASE = "training-requests"
"""Held by a sensor while it looks: only one changes jobs at a time."""
_SENSOR_SECONDS = 120
# Something that is never scored must not hold a job up for ever.
_PATIENCE_FOR_REWARDS = timedelta(minutes=30)


@dataclass(slots=True)
class Board:
    """The jobs that are not over, with all their attempts. `do` stores a step; the board remembers it."""

    jobs: dict[str, Job]
    attempts: dict[str, list[Attempt]]
    do: Callable[[Step], None]
    told: list[str] = field(default_factory=list)

    def change(self, steps: Iterable[Step]) -> None:
        """Do the steps in their order."""
        for step in steps:
            self.do(step)
            if isinstance(step, Job):
                self.jobs[step.job_id] = step
                self.told.append(f"{step.job_id} is {step.state}: {step.explanation}")
            elif isinstance(step, Attempt):
                others = [attempt for attempt in self.attempts.get(step.job_id, []) if attempt.number != step.number]
                self.attempts[step.job_id] = [*others, step]

    def newest_attempt(self, job_id: str) -> Attempt | None:
        """The attempt that counts."""
        attempts = self.attempts.get(job_id)
        return attempts[-1] if attempts else None


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What is known of the world beside the tables of jobs."""

    run_state: Callable[[Attempt], RunState]
    holder: str | None
    """Who holds the lease of the training."""
    ingested_up_to: Callable[[], int]
    unscored_up_to: Callable[[int], int]


@dataclass(slots=True)
class Tick:
    """What the sensor is to do with Dagster after one look, and what it can tell people."""

    starts: list[Attempt] = field(default_factory=list)
    """Runs to ask for, each under its attempt's `key`: asking again is harmless."""
    stops: list[Attempt] = field(default_factory=list)
    """Attempts whose unfinished run is to be cancelled: asking again is harmless."""
    imports: list[Job] = field(default_factory=list)
    """Jobs whose files are to be imported."""
    taken: TakenIn = field(default_factory=TakenIn)
    told: Sequence[str] = ()
    waits: str = ""
    """Why nothing new was started."""


def advance(
    messages: Stream,
    warehouse: Warehouse,
    leases: Leases,
    *,
    run_state: Callable[[Attempt], RunState],
    defaults: Defaults,
    redactor: OpenRedactor,
    trajectories: str,
    sensor: str,
    now: datetime,
) -> Tick:
    """Take one look. `sensor` names who looks, once; two that look at the same time are kept apart by a lease.

    Raises what the stores raise; the next look goes on from there.
    """
    lease = leases.acquire(SENSOR_LEASE, sensor, _SENSOR_SECONDS)
    if lease is None:
        return Tick(waits="another sensor is at it")
    try:
        unfinished_jobs(warehouse)  # fails here, before any message is fetched in vain
        cancellations = fetch_cancellations(messages, redactor, now)
        taken = accept_requests(
            messages, warehouse, defaults=defaults, trajectories=trajectories, redactor=redactor, now=now
        )
        board = _board(messages, warehouse)
        around = Surroundings(
            run_state=run_state,
            holder=leases.holder(TRAINING_LEASE),
            ingested_up_to=lambda: ledger_watermark(warehouse, trajectories),
            unscored_up_to=lambda last: unscored_trajectories(warehouse, trajectories, last),
        )
        settle(board, around, now)
        for cancellation in cancellations:
            job_id = cancellation.asked.training_job_id
            job = board.jobs.get(job_id) or find_job(warehouse, job_id)
            if job is None:
                nobody_to_cancel(messages, cancellation, redactor, now)
            else:
                _cancel(board, job, cancellation, now)
        tick = move_on(board, around, now)
        tick.taken = taken
        return tick
    finally:
        leases.release(lease)


def settle(board: Board, around: Surroundings, now: datetime) -> tuple[list[Attempt], list[Attempt]]:
    """Conclude what has ended; the attempts whose runs are to be asked for, and those whose runs are to be stopped."""
    starts, stops = [], []
    for job in list(board.jobs.values()):
        newest = board.newest_attempt(job.job_id)
        run: RunState = around.run_state(newest) if newest and newest.is_open else "missing"
        is_held = newest is not None and newest.is_holder(around.holder)
        change = reconcile(job, board.attempts.get(job.job_id, []), run, is_held=is_held, now=now)
        board.change(change.steps)
        starts += [change.start] if change.start else []
        stops += [change.stop] if change.stop else []
    return starts, stops


def move_on(board: Board, around: Surroundings, now: datetime) -> Tick:
    """Let jobs come closer to their training, and start or stop the one whose turn it is."""
    for job in list(board.jobs.values()):
        board.change(_prepared(job, around, now))
    starts, stops = settle(board, around, now)
    tick = Tick(starts, stops, told=board.told)
    move = next_move(list(board.jobs.values()), board.attempts, now)
    match move:
        case Start(job, attempt):
            watermark = job.watermark or around.ingested_up_to()
            explanation = f"attempt {attempt.number} starts from the {attempt.starts_from}"
            board.change([job.moved("running", explanation, now, watermark=watermark)])
            tick.starts.append(attempt)
        case Preempt(job, urgent):
            board.change([job.moved("preempting", f"it gives way to {urgent.job_id}", now)])
            attempt = board.attempts[job.job_id][-1]
            tick.stops += [attempt] if around.run_state(attempt) == "unfinished" else []
            tick.waits = f"{job.job_id} gives way to {urgent.job_id}"
        case Wait(reason):
            tick.waits = reason
    tick.imports = [job for job in board.jobs.values() if job.state == "importing"]
    return tick


def _prepared(job: Job, around: Surroundings, now: datetime) -> tuple[Step, ...]:
    """The next step of a job on its way to being ready."""
    if job.state == "accepted":
        if job.source in ("s3", "local"):
            return (job.moved("importing", "its files are imported", now),)
        if job.through_sequence:
            return (job.moved("waiting", f"for trajectories up to sequence {job.through_sequence}", now),)
        return (job.moved("ready", "it waits for its turn", now),)
    if job.state == "waiting" and around.ingested_up_to() >= job.through_sequence:
        unscored = around.unscored_up_to(job.through_sequence)
        if not unscored:
            return (job.moved("ready", "it waits for its turn", now),)
        if now - job.changed_at > _PATIENCE_FOR_REWARDS:
            return (job.moved("ready", f"it waits for its turn; {unscored} trajectories got no reward in time", now),)
    return ()


def _cancel(board: Board, job: Job, cancellation: Cancellation, now: datetime) -> None:
    if job.is_final:
        board.told.append(f"{job.job_id} is {job.state} already: there is nothing to cancel")
    board.change(cancel(job, cancellation.asked.requester, cancellation.asked.reason, now))
    cancellation.delivery.ack()


def _board(messages: Stream, warehouse: Warehouse) -> Board:
    jobs = {job.job_id: job for job in unfinished_jobs(warehouse)}
    return Board(jobs, attempts_of(warehouse, list(jobs)), lambda step: carry_out(messages, warehouse, [step]))
