"""What follows for a job from its attempts and from the run that carries the newest one out, as a pure function.

A change is a sequence of steps, done in their order, and any of them may be the last that is done before the sensor
dies. So the order is chosen such that the next look finds either the same change again or the rest of it:

- A status that follows from an attempt's end is said first, and the job's row is written after it: until then the same
  end is found, and the same status is said again, which changes nothing.
- A job goes back to `ready` before its next attempt is planned: a job that is ready and whose newest attempt has ended
  only lacks that plan.
- A job becomes `running` before its run is asked for. Where no run is found and the attempt has not begun, the run is
  asked for again; its key is the attempt's, and Dagster starts a key once.
- A job that runs is `cancelling` before its run is stopped, and is said to be cancelled when that is over: what its
  program says last comes before. An attempt of a job that has ended and which is still open is still to be closed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from rl_pipeline.training.jobs.attempts import NO_CHANGES, GiveUp, NextAttempt, after_failure, goes_on_from
from rl_pipeline.training.jobs.job import Attempt, Job, Phase
from rl_pipeline.training.jobs.statuses import Announcement, cancelled, completed, failed, queued

RunState = Literal["missing", "queued", "started", "succeeded", "failed", "canceled"]
"""What Dagster knows of a run. `missing`: there is none, or it was deleted. `queued`: it waits for its place."""
UNFINISHED: frozenset[RunState] = frozenset({"queued", "started"})

Step = Job | Attempt | Announcement
"""A row to write, or a status to say."""


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What is to be done for a job: steps, then its attempt's run to ask for, or to stop. Mostly nothing."""

    steps: tuple[Step, ...] = ()
    start: Attempt | None = None
    stop: Attempt | None = None


def reconcile(job: Job, attempts: Sequence[Attempt], run: RunState, *, is_held: bool, now: datetime) -> Reconciled:
    """What follows for a job. `attempts` are all of its own in their order, and `run` is that of the newest.

    `is_held`: somebody holds the lease in the newest attempt's name, so that its program may still be at work whatever
    Dagster says of the run; nothing is concluded before the lease ends. A run that is gone while Dagster takes it for
    started is not found here: see `silence`.
    """
    if job.state in ("accepted", "importing", "waiting"):
        return Reconciled()
    if job.state == "ready":
        return Reconciled(_planned(job, attempts))
    if attempts and attempts[-1].is_open:
        return _with_open_attempt(job, attempts, run, is_held=is_held, now=now)
    if job.is_final or (is_held and run in UNFINISHED):  # the run that has told its end is still at work
        return Reconciled()
    return Reconciled(_concluded(job, attempts, now) if attempts else _without_attempt(job, now))


def cancel(job: Job, by: str, reason: str | None, now: datetime) -> tuple[Step, ...]:
    """The steps that end a job before its time, wherever it stands; none where it has ended already.

    The row comes first: whoever dies before the status was said gets the cancellation again, and then says it. Of a job
    that runs it is said when its run has ended.
    """
    if job.state == "cancelling":
        return ()
    if job.is_final:
        return (cancelled(job.job_id, job.explanation, job.changed_at),) if job.state == "cancelled" else ()
    explanation = f"cancelled by {by}" + (f": {reason}" if reason else "")
    if job.state in ("running", "preempting"):
        return (job.moved("cancelling", explanation, now),)
    return job.moved("cancelled", explanation, now), cancelled(job.job_id, explanation, now)


def _with_open_attempt(
    job: Job, attempts: Sequence[Attempt], run: RunState, *, is_held: bool, now: datetime
) -> Reconciled:
    attempt = attempts[-1]
    if run in UNFINISHED:
        return Reconciled(stop=None if job.state == "running" else attempt)
    if is_held:
        return Reconciled()
    if job.state == "running" and run == "missing" and not attempt.has_begun:
        return Reconciled(start=attempt)
    closed = _closed(job, attempt, run, now)
    return Reconciled((closed, *(() if job.is_final else _concluded(job, (*attempts[:-1], closed), now))))


def _without_attempt(job: Job, now: datetime) -> tuple[Step, ...]:
    if job.state == "cancelling":
        return _cancelled(job, job.explanation, now)
    return (job.moved("ready", "it has lost its attempt", now),)


def _closed(job: Job, attempt: Attempt, run: RunState, now: datetime) -> Attempt:
    """The attempt with the end that its run could not write."""
    if not job.is_wanted:
        return attempt.ended("cancelled", now, phase=Phase.CLOSED, message=job.explanation)
    if job.state == "preempting" and (run == "canceled" or not attempt.has_begun):
        return attempt.ended("preempted", now, phase=Phase.CLOSED, message="it gave way")
    if run == "canceled":
        return attempt.ended("cancelled", now, phase=Phase.CLOSED, message="its run was cancelled in Dagster")
    if run == "succeeded":
        message = "its run succeeded and left no result: see its log"
        return attempt.ended("failed", now, phase=Phase.CLOSED, failure_code="UNKNOWN", message=message)
    told = {"missing": "its run has vanished", "failed": "its run ended without telling why: see its log"}
    message = told[run] if attempt.has_begun else "its run failed before it began: see its log"
    return attempt.ended("failed", now, phase=Phase.CLOSED, failure_code="INFRA", message=message)


def _concluded(job: Job, attempts: Sequence[Attempt], now: datetime) -> tuple[Step, ...]:
    """The steps after the newest attempt has ended."""
    attempt = attempts[-1]
    if attempt.outcome == "completed":
        return completed(attempt, now), job.moved("completed", f"attempt {attempt.number} has completed", now)
    if job.state == "cancelling" or attempt.outcome == "cancelled":
        explanation = job.explanation if job.state == "cancelling" else attempt.message or "its run was cancelled"
        return _cancelled(job, explanation, now)
    following = after_failure(attempts) if attempt.outcome == "failed" else _goes_on(attempt)
    told = f"attempt {attempt.number} {_ended(attempt)}"
    if isinstance(following, GiveUp):
        return failed(attempt, following.reason, now), job.moved("failed", f"{told}; {following.reason}", now)
    back = job.moved("ready", f"{told}; next: {following.explanation}", now)
    return queued(job.job_id, attempt.number + 1, now, after=attempt), back, *_planned(back, attempts)


def _cancelled(job: Job, explanation: str, now: datetime) -> tuple[Step, ...]:
    return cancelled(job.job_id, explanation, now), job.moved("cancelled", explanation, now)


def _planned(job: Job, attempts: Sequence[Attempt]) -> tuple[Step, ...]:
    """The attempt that a job lacks that is ready; none if it has one."""
    if not attempts:
        return (Attempt(job.job_id, 1, "dataset", not_before=job.accepted_at),)
    attempt = attempts[-1]
    if attempt.is_open:
        return ()
    following = after_failure(attempts) if attempt.outcome == "failed" else _goes_on(attempt)
    if isinstance(following, GiveUp):
        # It was decided to try again, when the job became ready; the table of retries has become stricter since.
        following = _goes_on(attempt)
    return (
        Attempt(
            job_id=job.job_id,
            number=attempt.number + 1,
            starts_from=following.starts_from,
            not_before=following.not_before,
            changes=following.changes.as_json(),
        ),
    )


def _goes_on(attempt: Attempt) -> NextAttempt:
    return NextAttempt(NO_CHANGES, goes_on_from(attempt), attempt.ended_at or attempt.not_before, "it goes on")


def _ended(attempt: Attempt) -> str:
    return "gave way" if attempt.outcome == "preempted" else f"ended in {attempt.failure_code or 'UNKNOWN'}"
