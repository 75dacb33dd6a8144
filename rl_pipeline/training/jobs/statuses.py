"""The states of a job as `agent.rl.training.status.v1`: every message that is not about the progress of a program.

Each has an id made of the job and of what it says, so that saying it again within the stream's duplicate window
changes nothing: whoever is cut off says it again. Job ids have no `/`, so these ids are nobody else's.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeVar

from rl_pipeline.contracts import TrainingStatus, serialize
from rl_pipeline.contracts.training_status import (
    Artifacts,
    EvaluationResults,
    Failure,
    FailureCode,
    ResourceUsage,
    TrainingStatusMetadata,
)
from rl_pipeline.stores.stream import Stream
from rl_pipeline.training.jobs.job import Attempt

STATUS_SUBJECT = "agent.rl.training.status.v1"
_Part = TypeVar("_Part", Artifacts, ResourceUsage, EvaluationResults)

# The status is no log: what is longer stays in the table of attempts.
_LONGEST_TRACEBACK = 20_000


@dataclass(frozen=True, slots=True)
class Announcement:
    """A status and the id under which it is said once."""

    status: TrainingStatus
    message_id: str


def announce(messages: Stream, announcement: Announcement) -> None:
    """Publish a status; again if need be."""
    messages.publish(STATUS_SUBJECT, serialize(announcement.status), announcement.message_id)


def queued(job_id: str, attempt: int, now: datetime, after: Attempt | None = None) -> Announcement:
    """The job waits for its first attempt, or for the next one `after` an attempt that failed or gave way."""
    failure = failure_of(after) if after is not None and after.outcome == "failed" else None
    metadata = TrainingStatusMetadata(attempt=attempt)
    status = TrainingStatus(training_job_id=job_id, timestamp=now, status="queued", error=failure, metadata=metadata)
    return Announcement(status, f"status/{job_id}/queued/{attempt}")


def failed(attempt: Attempt, reason: str, now: datetime) -> Announcement:
    """The job has failed for good; `reason` says why it is not tried again."""
    failure = failure_of(attempt)
    failure = failure.model_copy(update={"message": f"{failure.message}; {reason}" if failure.message else reason})
    return Announcement(
        TrainingStatus(
            training_job_id=attempt.job_id,
            timestamp=now,
            status="failed",
            error=failure,
            metadata=TrainingStatusMetadata(attempt=attempt.number),
        ),
        f"status/{attempt.job_id}/failed",
    )


def failed_without_attempt(job_id: str, reason: str, now: datetime, code: FailureCode = "DATA") -> Announcement:
    """The job has failed before anything was trained, such as when its files could not be imported."""
    error = Failure(code=code, message=reason)
    status = TrainingStatus(training_job_id=job_id, timestamp=now, status="failed", error=error)
    return Announcement(status, f"status/{job_id}/failed")


def refused(job_id: str, sequence: int, reason: str, now: datetime) -> Announcement:
    """A request under an id that no job has was refused; `sequence` is that of the request."""
    error = Failure(code="DATA", message=f"the request was refused: {reason}")
    status = TrainingStatus(training_job_id=job_id, timestamp=now, status="failed", error=error)
    return Announcement(status, f"status/{job_id}/refused/{sequence}")


def cancelled(job_id: str, reason: str, now: datetime) -> Announcement:
    """The job was cancelled."""
    metadata = TrainingStatusMetadata.model_validate({"reason": reason})
    status = TrainingStatus(training_job_id=job_id, timestamp=now, status="cancelled", metadata=metadata)
    return Announcement(status, f"status/{job_id}/cancelled")


def completed(attempt: Attempt, now: datetime) -> Announcement:
    """The job has made its checkpoint. What it tells comes from the attempt's result.

    `result` has the keys of the program's own, and beside them `artifacts`, `resource_usage` and `evaluation_results`
    as the contract has them, where they are known.
    """
    result: Mapping[str, Any] = json.loads(attempt.result)
    return Announcement(
        TrainingStatus(
            training_job_id=attempt.job_id,
            timestamp=now,
            status="completed",
            artifacts=_part(Artifacts, result.get("artifacts")),
            resource_usage=_part(ResourceUsage, result.get("resource_usage")),
            evaluation_results=_part(EvaluationResults, result.get("evaluation_results")),
            metadata=TrainingStatusMetadata(attempt=attempt.number),
        ),
        f"status/{attempt.job_id}/completed",
    )


def _part(model: type[_Part], content: Any) -> _Part | None:
    return None if content is None else model.model_validate(content)


def failure_of(attempt: Attempt) -> Failure:
    """Why an attempt failed."""
    return Failure(
        code=attempt.failure_code or "UNKNOWN",
        message=attempt.message,
        traceback=attempt.traceback[-_LONGEST_TRACEBACK:] or None,
    )
