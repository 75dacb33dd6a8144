"""Where jobs stand, for people and other systems: the rows of each job, and in the words of its status."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from rl_pipeline.contracts.training_status import JobStatus, TrainingStatus
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.jobs.job import Attempt, Job, State
from rl_pipeline.training.jobs.rows import attempts_of, chosen_jobs
from rl_pipeline.training.jobs.statuses import completed, failure_of

STATUS_OF: Mapping[State, JobStatus] = MappingProxyType(
    {
        "accepted": "queued",
        "importing": "queued",
        "waiting": "queued",
        "ready": "queued",
        "running": "running",
        "preempting": "running",
        "cancelling": "running",
        "completed": "completed",
        "failed": "failed",
        "cancelled": "cancelled",
    }
)
"""The status that a job in a state has in `agent.rl.training.status.v1`."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A job as its tables have it."""

    job: Job
    attempts: Sequence[Attempt]

    @property
    def status(self) -> JobStatus:
        """In the words of the contract."""
        return STATUS_OF[self.job.state]

    def result(self) -> TrainingStatus | None:
        """What came of the newest attempt that has ended: its artifacts, costs and results, or its failure."""
        ended = [attempt for attempt in self.attempts if attempt.ended_at is not None]
        if not ended:
            return None
        newest = ended[-1]
        if newest.outcome == "completed":
            return completed(newest, newest.ended_at or self.job.changed_at).status
        if newest.outcome != "failed":
            return None
        moment = newest.ended_at or self.job.changed_at
        error = failure_of(newest)
        return TrainingStatus(training_job_id=newest.job_id, timestamp=moment, status="failed", error=error)


def standings_of(warehouse: Warehouse, job_ids: Sequence[str]) -> dict[str, Standing]:
    """Those of the jobs that there are, by their ids."""
    found = chosen_jobs(warehouse, job_ids=job_ids, limit=len(job_ids))
    return {one.job.job_id: one for one in _with_attempts(warehouse, found)}


def newest_standings(
    warehouse: Warehouse, *, status: JobStatus | None, since: datetime | None, limit: int
) -> list[Standing]:
    """The jobs that changed last, the newest change first; with a status alone, and changed since a time."""
    states = [state for state, told in STATUS_OF.items() if status in (None, told)]
    return _with_attempts(warehouse, chosen_jobs(warehouse, states=states, since=since, limit=limit))


def _with_attempts(warehouse: Warehouse, jobs: Sequence[Job]) -> list[Standing]:
    attempts = attempts_of(warehouse, [job.job_id for job in jobs]) if jobs else {}
    return [Standing(job, attempts[job.job_id]) for job in jobs]
