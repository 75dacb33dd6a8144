"""Trainings that came to their end, and whose delivery breaks."""

from datetime import UTC, datetime, timedelta
from typing import Any

from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.objects import ObjectsUnavailable, StoredObject
from rl_pipeline.training.jobs.job import Attempt
from rl_pipeline.training.jobs.rows import end_attempt, keep_plan
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline_tests.training.stored_training import TrainingPlace, leave_trained


def plan_of(job_id: str, **fields: Any) -> TrainingPlan:
    return TrainingPlan(**{"job_id": job_id, "algorithm": "dpo", "base_model": "small", **fields})


def undelivered(place: TrainingPlace, **asked: Any) -> Attempt:
    """The attempt that is to deliver what the one before it has trained."""
    place.ask("job", **asked)
    attempt = place.started()
    place.curated(attempt)
    finished = leave_trained(place.work(attempt), plan_of("job"))
    begun = place.attempts("job")[-1]
    keep_plan(place.tables, begun, finished.plan)
    end_attempt(place.tables, begun, "failed", datetime.now(UTC), failure_code="INFRA", message="the store was away")
    return place.started(timedelta(seconds=601))


class AnswersTooLate(DiskObjects):
    """A store that writes, and whose answer is lost."""

    def create(self, key: str, data: bytes) -> StoredObject:
        super().create(key, data)
        raise ObjectsUnavailable("no answer: try again")
