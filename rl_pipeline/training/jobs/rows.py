"""What the warehouse keeps of jobs and attempts: their rows, and what the run of an attempt reads and writes of them.

Every change is a row of its own with a higher version; writing one again changes nothing.
"""

import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from rl_pipeline.contracts import ContractError, FailureCode, TrainingRequest, parse_message, serialize
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.stream import Stream
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.jobs.job import Attempt, Job, Outcome, Phase, State
from rl_pipeline.training.jobs.reconciling import Step
from rl_pipeline.training.jobs.statuses import Announcement, announce, completed, failed_without_attempt
from rl_pipeline.training.plans.plan import TrainingPlan

REQUEST_SUBJECT = "agent.rl.training.request.v1"

_log = logging.getLogger(__name__)

_UNFINISHED = """
    job_id IN (SELECT job_id FROM training_jobs FINAL WHERE state NOT IN ('completed', 'failed', 'cancelled'))
    OR job_id IN (SELECT job_id FROM training_attempts FINAL WHERE outcome = '')
"""


class NoSuchJob(PipelineError):
    """Nobody asked for this job, or its request was not accepted yet."""


class JobNotRunning(PipelineError):
    """A run of a job that is not to be run now."""


class JobCancelled(PipelineError):
    """The job was cancelled while it was being trained: what came of it is not kept."""


def write_job(warehouse: Warehouse, job: Job) -> None:
    """Add a change of a job."""
    import polars as pl

    row = {
        "job_id": job.job_id,
        "request": serialize(job.request).decode(),
        "requester": job.request.requester,
        "trigger_reason": job.trigger_reason,
        "priority": job.priority,
        "shadow": job.shadow,
        "source": job.source,
        "through_sequence": job.through_sequence,
        "state": job.state,
        "explanation": job.explanation,
        "requested_at": job.request.timestamp,
        "accepted_at": job.accepted_at,
        "changed_at": job.changed_at,
        "watermark": job.watermark,
        "version": job.version,
    }
    warehouse.insert("training_jobs", pl.DataFrame([row]))


def write_attempt(warehouse: Warehouse, attempt: Attempt) -> None:
    """Add a change of an attempt."""
    import polars as pl

    row = {
        "job_id": attempt.job_id,
        "attempt": attempt.number,
        "starts_from": attempt.starts_from,
        "plan": attempt.plan,
        "changes": attempt.changes,
        "not_before": attempt.not_before,
        "run_id": attempt.run_id,
        "started_at": attempt.started_at,
        "ended_at": attempt.ended_at,
        "outcome": attempt.outcome or "",
        "failure_code": attempt.failure_code or "",
        "message": attempt.message,
        "traceback": attempt.traceback,
        "result": attempt.result,
        "version": int(attempt.phase),
    }
    moments = {name: pl.Datetime("ms", "UTC") for name in ("not_before", "started_at", "ended_at")}
    warehouse.insert("training_attempts", pl.DataFrame([row], schema_overrides=moments))


def carry_out(messages: Stream, warehouse: Warehouse, steps: Iterable[Step]) -> None:
    """Do the steps of a change in their order; see `reconciling` for what holds when not all of them are done."""
    for step in steps:
        match step:
            case Job():
                write_job(warehouse, step)
            case Attempt():
                write_attempt(warehouse, step)
            case Announcement():
                announce(messages, step)


def find_job(warehouse: Warehouse, job_id: str) -> Job | None:
    """The job as it stands, if there is one."""
    found = _jobs(warehouse, "job_id = {job:String}", {"job": job_id})
    return found[0] if found else None


def job_of(warehouse: Warehouse, job_id: str) -> Job:
    """The job as it stands. Raises `NoSuchJob`."""
    job = find_job(warehouse, job_id)
    if job is None:
        raise NoSuchJob(
            f"there is no training job {job_id}: ask for one with `rl-pipeline train`, and its run starts by itself; "
            "`rl-pipeline jobs` lists those there are"
        )
    return job


def newest_jobs(warehouse: Warehouse, limit: int) -> list[Job]:
    """The jobs that were accepted last, the newest first."""
    return _jobs(warehouse, "true ORDER BY accepted_at DESC, job_id LIMIT {limit:UInt32}", {"limit": limit})


def chosen_jobs(
    warehouse: Warehouse,
    *,
    job_ids: Sequence[str] | None = None,
    states: Sequence[State] | None = None,
    since: datetime | None = None,
    limit: int,
) -> list[Job]:
    """The jobs among these ids, in these states and changed since a time, the newest change first."""
    given = {
        "job_id IN {jobs:Array(String)}": ("jobs", job_ids),
        "state IN {states:Array(String)}": ("states", states),
        "changed_at >= {since:DateTime64(3, 'UTC')}": ("since", since),
    }
    asked = {condition: parameter for condition, parameter in given.items() if parameter[1] is not None}
    order = "ORDER BY changed_at DESC, job_id LIMIT {limit:UInt32}"
    return _jobs(warehouse, f"{' AND '.join(asked) or 'true'} {order}", {**dict(asked.values()), "limit": limit})


def unfinished_jobs(warehouse: Warehouse) -> list[Job]:
    """The jobs that have not ended, and those that have while an attempt is open, in the order of their acceptance."""
    return _jobs(warehouse, f"{_UNFINISHED} ORDER BY accepted_at, job_id", {})


def attempts_of(warehouse: Warehouse, job_ids: Sequence[str]) -> dict[str, list[Attempt]]:
    """All attempts of each job, in their order."""
    found: dict[str, list[Attempt]] = {job_id: [] for job_id in job_ids}
    rows = warehouse.query(
        "SELECT * FROM training_attempts FINAL WHERE job_id IN {jobs:Array(String)} ORDER BY job_id, attempt",
        {"jobs": list(job_ids)},
    )
    for row in rows.iter_rows(named=True):
        found[row["job_id"]].append(_attempt(row))
    return found


def begin_attempt(
    warehouse: Warehouse, job_id: str, run_id: str, tags: Mapping[str, str], now: datetime
) -> tuple[Job, list[Attempt]]:
    """The job that a run is to train, with all its attempts, of which the last is the run's own and has begun now.

    `tags` are those of the run: the sensor writes into them for which attempt it asks for it. Raises `NoSuchJob`
    without a request, and `JobNotRunning` where the sensor has not asked for this run: that of a job that waits, is
    being stopped, or has ended, and one that a person has started or started again while another is the attempt's.
    """
    job = job_of(warehouse, job_id)
    attempts = attempts_of(warehouse, [job_id])[job_id]
    if job.state != "running" or not attempts or not attempts[-1].is_open:
        raise JobNotRunning(
            f"the training job {job_id} is {job.state} ({job.explanation}): its runs are started for it when it is its "
            "turn; to train once more, ask for another job with `rl-pipeline train`"
        )
    newest = attempts[-1]
    if newest.run_id == run_id:  # an earlier step of the same run has begun it
        return job, attempts
    if newest.run_id or not newest.tags.items() <= tags.items():
        raise JobNotRunning(
            f"this run is not that of attempt {newest.number} of the training job {job_id}: its runs are started for "
            "it, and left alone; to train once more, ask for another job with `rl-pipeline train`"
        )
    begun = newest.begun(run_id, now)
    write_attempt(warehouse, begun)
    return job, [*attempts[:-1], begun]


def keep_plan(warehouse: Warehouse, attempt: Attempt, plan: TrainingPlan) -> Attempt:
    """Store the plan of an attempt: its dataset is there, and attempts after it go on from its checkpoints."""
    planned = attempt.with_plan(plan.model_dump_json())
    write_attempt(warehouse, planned)
    return planned


def end_attempt(
    warehouse: Warehouse,
    attempt: Attempt,
    outcome: Outcome,
    now: datetime,
    *,
    failure_code: FailureCode | None = None,
    message: str = "",
    traceback: str = "",
    result: Mapping[str, Any] | None = None,
) -> Attempt:
    """Store how an attempt ended; the sensor draws the conclusion for the job.

    `result` of a completed one is the program's, with `artifacts`, `resource_usage` and `evaluation_results` as the
    status has them; of one that failed by DATA, `quarantined` tells how many rows were.
    """
    # As it is stored: whoever holds an attempt may hold it as it was before its plan was kept.
    stored = attempts_of(warehouse, [attempt.job_id])[attempt.job_id]
    newest = next((each for each in stored if each.number == attempt.number and each.is_open), attempt)
    ended = newest.ended(
        outcome,
        now,
        failure_code=failure_code,
        message=message,
        traceback=traceback,
        result=json.dumps(result or {}),
    )
    if outcome == "completed":
        completed(ended, now)  # a result that cannot be told is better found here than by the sensor, again and again
    write_attempt(warehouse, ended)
    return ended


def check_wanted(warehouse: Warehouse, job_id: str) -> None:
    """Raise `JobCancelled` if the job was cancelled meanwhile; asked before anything is released in its name."""
    job = job_of(warehouse, job_id)
    if not job.is_wanted:
        raise JobCancelled(f"the training job {job_id} is {job.state} ({job.explanation}): nothing more is kept of it")


def quarantine(warehouse: Warehouse, job_id: str, trajectory_ids: Sequence[str], reason: str, now: datetime) -> None:
    """Keep rows that broke a training out of every later revision of the job's dataset. Again is harmless."""
    import polars as pl

    rows = {"trajectory_id": list(trajectory_ids)}
    constants = {"job_id": pl.lit(job_id), "reason": pl.lit(reason), "found_at": pl.lit(now)}
    warehouse.insert("quarantined_trajectories", pl.DataFrame(rows).with_columns(**constants))


def imported(warehouse: Warehouse, job_id: str, through_sequence: int, now: datetime) -> None:
    """The files of a job are published up to a sequence; it waits until they are ingested and scored.

    Nothing where the job is no longer importing, such as after a cancellation.
    """
    job = job_of(warehouse, job_id)
    if job.state == "importing":
        explanation = f"its files are imported up to sequence {through_sequence}"
        write_job(warehouse, job.moved("waiting", explanation, now, through_sequence=through_sequence))


def import_failed(messages: Stream, warehouse: Warehouse, job_id: str, reason: str, now: datetime) -> None:
    """The files of a job cannot be imported: it has failed. Nothing where it is no longer importing."""
    job = job_of(warehouse, job_id)
    if job.state == "importing":
        status = failed_without_attempt(job_id, reason, now)
        carry_out(messages, warehouse, [status, job.moved("failed", reason, now)])


def _jobs(warehouse: Warehouse, condition: str, parameters: Mapping[str, Any]) -> list[Job]:
    rows = warehouse.query(f"SELECT * FROM training_jobs FINAL WHERE {condition}", parameters)  # noqa: S608
    return [_job(row) for row in rows.iter_rows(named=True)]


def _job(row: Mapping[str, Any]) -> Job:
    return Job(
        request=_request(row),
        **{
            name: row[name]
            for name in (
                *("job_id", "state", "explanation", "accepted_at", "changed_at", "version"),
                *("through_sequence", "watermark"),
            )
        },
    )


def _request(row: Mapping[str, Any]) -> TrainingRequest:
    """The request as it was stored. Of one that cannot be read any more, only what its columns say is left.

    Such a job trains nothing, because it names no algorithm, and keeps no other from being looked at.
    """
    try:
        return cast("TrainingRequest", parse_message(REQUEST_SUBJECT, row["request"].encode()))
    except ContractError as broken:
        _log.error("the request of the training job %s cannot be read, it will fail: %s", row["job_id"], broken)
    left = {
        "training_job_id": row["job_id"],
        "timestamp": row["requested_at"],
        **{name: row[name] for name in ("requester", "trigger_reason", "priority")},
        "training_config": {"dataset": {"source": row["source"]}},
        "metadata": {"shadow": row["shadow"], "notes": "the request cannot be read any more"},
    }
    return TrainingRequest.model_validate(left)


def _attempt(row: Mapping[str, Any]) -> Attempt:
    attempt = Attempt(
        **{
            name: row[name]
            for name in (
                *("job_id", "starts_from", "plan", "changes", "not_before", "run_id", "started_at", "ended_at"),
                *("message", "traceback", "result"),
            )
        },
        number=row["attempt"],
        phase=Phase(row["version"]),
    )
    return replace(attempt, outcome=row["outcome"] or None, failure_code=row["failure_code"] or None)
