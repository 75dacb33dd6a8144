"""One look at all jobs, as the sensor of requests takes it: what happened, what follows, and which run comes next.

The order matters. The ends of attempts are concluded before cancellations are carried out: what has completed is not
cancelled any more. Cancellations are fetched before requests and carried out after them: see `cancelling`. Whatever
the sensor does not live to do, its next look does; see `reconciling` and `requests`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256

from rl_pipeline.ingestion.ledger import ledger_watermark
from rl_pipeline.stores.lease import Leases
from rl_pipeline.stores.stream import Stream
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.evidence import unscored_trajectories
from rl_pipeline.training.jobs.cancelling import Cancellation, fetch_cancellations, nobody_to_cancel
from rl_pipeline.training.jobs.job import Attempt, Job
from rl_pipeline.training.jobs.outbox import publish_kept
from rl_pipeline.training.jobs.reconciling import UNFINISHED, RunState, Step, cancel, reconcile
from rl_pipeline.training.jobs.refusals import OpenRedactor
from rl_pipeline.training.jobs.requests import BEFORE_TRAINING, Defaults, TakenIn, accept_requests, successor_of
from rl_pipeline.training.jobs.rows import attempts_of, carry_out, find_job, unfinished_jobs
from rl_pipeline.training.jobs.scheduling import Preempt, Start, Wait, next_move
from rl_pipeline.training.jobs.silence import PATIENCE, START_PATIENCE, Silence
from rl_pipeline.training.jobs.statuses import cancelled, failed_without_attempt

TRAINING_LEASE = "training"
"""Held by a run from its beginning to its end, under its attempt's `holder`."""
SENSOR_LEASE = "training-requests"
"""Held by a sensor while it looks: only one changes jobs at a time."""
_SENSOR_SECONDS = 120
# Something that is never scored must not hold a job up for ever.
_PATIENCE_FOR_REWARDS = timedelta(minutes=30)
# By these words a job's row tells that ingest has arrived; the row's time tells when. A row that is not understood only
# starts that time once more.
_AWAITS_REWARDS = "its trajectories are ingested, it waits for their rewards"
# The waits between them double, up to ten minutes: half an hour.
MOST_IMPORTS = 8
"""So many imports of a job's files may fail; then it is given up."""


@dataclass(frozen=True, slots=True)
class ImportRuns:
    """What Dagster knows of the runs that were to import a job's files."""

    failures: int = 0
    message: str = ""
    """Of the last failure."""
    is_cancelled: bool = False
    """Somebody has cancelled the newest."""


def import_lease(job_id: str) -> str:
    """The lease of the run that imports a job's files. It bears no id: that may hold what no key of a lease may."""
    return f"import.{sha256(job_id.encode()).hexdigest()[:32]}"


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
    import_runs: Callable[[Job], ImportRuns]
    unfinished_imports: Mapping[str, RunState]
    """The runs that import files and are not over, by the ids of their jobs, whatever has become of these."""
    holder: str | None
    """Who holds the lease of the training."""
    import_holder: Callable[[str], str | None]
    """Who holds the lease of a job's import."""
    silence: Silence
    """As the look before this one left it."""
    ingested_up_to: Callable[[], int]
    unscored_up_to: Callable[[int], int]
    rolled_back: Callable[[], Collection[str]] = tuple
    """The models that were rolled back."""


@dataclass(slots=True)
class Tick:
    """What the sensor is to do with Dagster after one look, and what it can tell people."""

    starts: list[Attempt] = field(default_factory=list)
    """Runs to ask for, each under its attempt's `key`: asking again is harmless."""
    stops: list[Attempt] = field(default_factory=list)
    """Attempts whose unfinished run is to be cancelled: asking again is harmless."""
    lost: list[Attempt] = field(default_factory=list)
    """Attempts whose run is gone without Dagster knowing: told that it failed, it frees its place, and the next look
    finds it failed."""
    stopped_imports: list[str] = field(default_factory=list)
    """Jobs whose unfinished import is to be cancelled, because they are: asking again is harmless."""
    lost_imports: list[str] = field(default_factory=list)
    """Jobs whose import's run is gone without Dagster knowing: told that it failed, the next one begins."""
    silence: Silence = field(default_factory=Silence)
    """For the next look."""
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
    import_runs: Callable[[Job], ImportRuns],
    unfinished_imports: Mapping[str, RunState],
    silence: Silence,
    defaults: Defaults,
    redactor: OpenRedactor,
    trajectories: str,
    sensor: str,
    now: datetime,
    rolled_back: Callable[[], Collection[str]] = tuple,
) -> Tick:
    """Take one look. `sensor` names who looks, once; two that look at the same time are kept apart by a lease.

    `silence` is that of the last look's tick. `rolled_back` gives the models that never serve again.

    Raises what the stores raise; the next look goes on from there.
    """
    lease = leases.acquire(SENSOR_LEASE, sensor, _SENSOR_SECONDS)
    if lease is None:
        return Tick(waits="another sensor is at it", silence=silence)
    try:
        # The warehouse fails here if it does: a message that is fetched in vain comes again ever later.
        told = publish_kept(messages, warehouse, now)
        cancellations = fetch_cancellations(messages, redactor, now)
        taken = accept_requests(
            messages, warehouse, defaults=defaults, trajectories=trajectories, redactor=redactor, now=now
        )
        board = _board(messages, warehouse)
        around = Surroundings(
            run_state=run_state,
            import_runs=import_runs,
            unfinished_imports=unfinished_imports,
            holder=leases.holder(TRAINING_LEASE),
            import_holder=lambda job_id: leases.holder(import_lease(job_id)),
            silence=silence,
            ingested_up_to=lambda: ledger_watermark(warehouse, trajectories),
            unscored_up_to=lambda last: unscored_trajectories(warehouse, trajectories, last),
            rolled_back=rolled_back,
        )
        board.told += [*told, *(f"a request has to wait: {left.why}" for left in taken.left)]
        settle(board, around, now)
        for cancellation in cancellations:
            job_id = cancellation.asked.training_job_id
            job = board.jobs.get(job_id) or find_job(warehouse, job_id) or _left(taken, job_id, now)
            if job is None:
                nobody_to_cancel(messages, cancellation, redactor, now)
            else:
                _cancel(board, job, cancellation, now)
        tick = move_on(board, around, now)
        tick.stopped_imports = [
            job_id
            for job_id in unfinished_imports
            if (job := board.jobs.get(job_id) or find_job(warehouse, job_id)) and job.state == "cancelled"
        ]
        tick.taken = taken
        return tick
    finally:
        leases.release(lease)


def settle(board: Board, around: Surroundings, now: datetime) -> Tick:
    """Conclude what has ended; the runs that are to be asked for, to be stopped, or to be given up."""
    tick, silent = Tick(told=board.told), dict[str, Attempt]()
    for job in list(board.jobs.values()):
        newest = board.newest_attempt(job.job_id)
        is_held = newest is not None and newest.is_holder(around.holder)
        run: RunState = around.run_state(newest) if newest and (newest.is_open or is_held) else "missing"
        change = reconcile(job, board.attempts.get(job.job_id, []), run, is_held=is_held, now=now)
        board.change(change.steps)
        tick.starts += [change.start] if change.start else []
        tick.stops += [change.stop] if change.stop else []
        if newest and newest.is_open and run == "started" and not is_held:
            # What was not heard of it before it began does not count afterwards.
            silent[newest.key if newest.has_begun else f"start/{newest.key}"] = newest
    imports = {
        f"import/{job_id}": job_id
        for job_id, run in around.unfinished_imports.items()
        if run == "started" and around.import_holder(job_id) is None
    }
    tick.silence = around.silence.at(now, [*silent, *imports])
    for key, attempt in silent.items():
        if tick.silence.is_lost(key, PATIENCE if attempt.has_begun else START_PATIENCE):
            tick.lost.append(attempt)
    tick.lost_imports = [job_id for key, job_id in imports.items() if tick.silence.is_lost(key, START_PATIENCE)]
    return tick


def move_on(board: Board, around: Surroundings, now: datetime) -> Tick:
    """Let jobs come closer to their training, and start or stop the one whose turn it is."""
    for job in list(board.jobs.values()):
        board.change(_prepared(job, around, now))
    tick = settle(board, around, now)
    board.told += [f"nothing is heard of the run of {attempt.key} any more: it is lost" for attempt in tick.lost]
    board.told += [f"nothing is heard of the import of {job_id} any more: it is lost" for job_id in tick.lost_imports]
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
            tick.stops += [attempt] if around.run_state(attempt) in UNFINISHED else []
            tick.waits = f"{job.job_id} gives way to {urgent.job_id}"
        case Wait(reason):
            tick.waits = reason
    tick.imports = [job for job in board.jobs.values() if job.state == "importing"]
    return tick


def _prepared(job: Job, around: Surroundings, now: datetime) -> tuple[Step, ...]:
    """The next step of a job on its way to being ready.

    One that was to go on from a model which was rolled back meanwhile ends. It is not given another start: what an
    attempt before has saved goes back to that model as well, and the next training learns from the same experience.
    """
    model = successor_of(job.request) if job.state in BEFORE_TRAINING else None
    if model is not None and model in around.rolled_back():
        explanation = f"{model}, from which it was to go on, was rolled back: ask for another training"
        return cancelled(job.job_id, explanation, now), job.moved("cancelled", explanation, now)
    match job.state:
        case "accepted":
            return (_begun(job, now),)
        case "importing":
            return _import_given_up(job, around.import_runs(job), now)
        case "waiting" if around.ingested_up_to() >= job.through_sequence:
            return _waited(job, around.unscored_up_to(job.through_sequence), now)
    return ()


def _begun(job: Job, now: datetime) -> Job:
    if job.source in ("s3", "local"):
        return job.moved("importing", "its files are imported", now)
    if job.through_sequence:
        return job.moved("waiting", f"for trajectories up to sequence {job.through_sequence}", now)
    return job.moved("ready", "it waits for its turn", now)


def _waited(job: Job, unscored: int, now: datetime) -> tuple[Step, ...]:
    """The next step of a job whose trajectories are ingested. However long that took, their rewards have their time."""
    if not unscored:
        return (job.moved("ready", "it waits for its turn", now),)
    if job.explanation != _AWAITS_REWARDS:
        return (job.moved("waiting", _AWAITS_REWARDS, now),)
    if now - job.changed_at > _PATIENCE_FOR_REWARDS:
        return (job.moved("ready", f"it waits for its turn; {unscored} trajectories got no reward in time", now),)
    return ()


def _import_given_up(job: Job, runs: ImportRuns, now: datetime) -> tuple[Step, ...]:
    if runs.is_cancelled:
        explanation = "the import of its files was cancelled in Dagster"
        return cancelled(job.job_id, explanation, now), job.moved("cancelled", explanation, now)
    if runs.failures < MOST_IMPORTS:
        return ()
    explanation = f"its files could not be imported, {runs.failures} times: {runs.message}"
    return failed_without_attempt(job.job_id, explanation, now, "INFRA"), job.moved("failed", explanation, now)


def _left(taken: TakenIn, job_id: str, now: datetime) -> Job | None:
    """The job that a request would become which has to wait; no row says so, and its first one is that of its end."""
    found = next((left.request for left in taken.left if left.request.training_job_id == job_id), None)
    return Job.accepted(found, through_sequence=0, now=now) if found else None


def _cancel(board: Board, job: Job, cancellation: Cancellation, now: datetime) -> None:
    if job.is_final:
        board.told.append(f"{job.job_id} is {job.state} already: there is nothing to cancel")
    board.change(cancel(job, cancellation.asked.requester, cancellation.asked.reason, now))
    cancellation.delivery.ack()


def _board(messages: Stream, warehouse: Warehouse) -> Board:
    jobs = {job.job_id: job for job in unfinished_jobs(warehouse)}
    return Board(jobs, attempts_of(warehouse, list(jobs)), lambda step: carry_out(messages, warehouse, [step]))
