"""Which job trains next, and which gives way: a pure function of the jobs, their attempts and the time.

One job trains at a time. Of those that are ready the one with the highest level goes first, of equal ones what is
urgent by itself, and then the one that was accepted first. A job's level is its priority, and rises by one for every
`AGEING` since it was accepted. On the level of urgent work it still lets that pass, for another `AGEING`; then it is
above it: so each job is some day at the top, behind nothing but what was accepted before it, and nothing starves,
whatever arrives.

Urgent work does not wait for what runs, if that is of a level up to normal, whoever else waits: the running job saves
its state at the end of its step, gives way, and goes on from there afterwards. It gives way at most `MOST_PREEMPTIONS`
times; then it may finish. What was high, or had waited long enough to be, is not interrupted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from rl_pipeline.contracts.training_request import Priority
from rl_pipeline.training.jobs.job import Attempt, Job

LEVELS: Mapping[Priority, int] = MappingProxyType({"low": 0, "normal": 1, "high": 2, "urgent": 3})
AGEING = timedelta(hours=12)
MOST_PREEMPTIONS = 3
_GIVES_WAY_UP_TO = LEVELS["normal"]
_TOP = LEVELS["urgent"] + 1


@dataclass(frozen=True, slots=True)
class Start:
    """Start the attempt of a job."""

    job: Job
    attempt: Attempt


@dataclass(frozen=True, slots=True)
class Preempt:
    """Stop a running job at its next step, because another is urgent."""

    job: Job
    urgent: Job


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing can be started now."""

    reason: str


def next_move(jobs: Sequence[Job], attempts: Mapping[str, Sequence[Attempt]], now: datetime) -> Start | Preempt | Wait:
    """What to do now. `attempts` are all attempts of each job, in their order, by its id.

    `jobs` are all that have not ended, and those that have while their attempt is open: they are being stopped, and
    until they are they take the only place.
    """
    ready = [job for job in jobs if _may_start(job, attempts.get(job.job_id, ()), now)]
    waiting = sorted(ready, key=lambda job: (-level(job, now), not _is_urgent(job), job.accepted_at, job.job_id))
    busy = [job for job in jobs if _takes_the_place(job, attempts.get(job.job_id, ()))]
    if not waiting:
        return Wait(_nothing_to_start(jobs, attempts, busy))
    first = waiting[0]
    if not busy:
        return Start(first, attempts[first.job_id][-1])
    running = busy[0]
    urgent = next(filter(_is_urgent, waiting), None)
    if urgent and gives_way(running, attempts.get(running.job_id, ())):
        return Preempt(running, urgent)
    return Wait(f"{first.job_id} waits for {running.job_id}, which is {running.state}")


def level(job: Job, at: datetime) -> int:
    """How much a job matters at a time: its priority, and how long it has been there."""
    aged = max(at - job.accepted_at, timedelta()) // AGEING
    return min(LEVELS[job.priority] + aged, _TOP)


def gives_way(job: Job, attempts: Sequence[Attempt]) -> bool:
    """Whether a running job stops for urgent work. Its level is that with which it was started."""
    preemptions = sum(1 for attempt in attempts if attempt.outcome == "preempted")
    return job.state == "running" and level(job, job.changed_at) <= _GIVES_WAY_UP_TO and preemptions < MOST_PREEMPTIONS


def _is_urgent(job: Job) -> bool:
    return job.priority == "urgent"


def _may_start(job: Job, attempts: Sequence[Attempt], now: datetime) -> bool:
    return job.state == "ready" and bool(attempts) and attempts[-1].is_open and attempts[-1].not_before <= now


def _takes_the_place(job: Job, attempts: Sequence[Attempt]) -> bool:
    is_open = bool(attempts) and attempts[-1].is_open
    return job.state in ("running", "preempting", "cancelling") or (job.is_final and is_open)


def _nothing_to_start(jobs: Sequence[Job], attempts: Mapping[str, Sequence[Attempt]], busy: Sequence[Job]) -> str:
    if busy:
        return f"{busy[0].job_id} is {busy[0].state}, and nothing else is ready"
    later = [attempts[job.job_id][-1].not_before for job in jobs if job.state == "ready" and attempts.get(job.job_id)]
    if later:
        return f"the next attempt starts after {min(later):%H:%M:%S} UTC"
    preparing = [job for job in jobs if not job.is_final]
    return f"{preparing[0].job_id} is {preparing[0].state}: {preparing[0].explanation}" if preparing else "no job waits"
