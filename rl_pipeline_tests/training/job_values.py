"""Requests, jobs, attempts and plans to test with."""

from datetime import UTC, datetime, timedelta
from typing import Any

from rl_pipeline.contracts import TrainingRequest
from rl_pipeline.training.jobs.job import Attempt, Job, State
from rl_pipeline.training.plans.plan import DistributionPlan, OptimizationPlan, TrainingPlan

NOW = datetime(2026, 2, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
# One way through the states for each; every job begins as accepted.
WAYS: dict[State, tuple[State, ...]] = {
    "accepted": (),
    "importing": ("importing",),
    "waiting": ("waiting",),
    "ready": ("ready",),
    "running": ("ready", "running"),
    "preempting": ("ready", "running", "preempting"),
    "cancelling": ("ready", "running", "cancelling"),
    "completed": ("ready", "running", "completed"),
    "failed": ("ready", "running", "failed"),
    "cancelled": ("cancelled",),
}


def a_request(job_id: str = "job-1", **fields: Any) -> TrainingRequest:
    """A whole request; `fields` replace its own."""
    config = {"algorithm": "dpo", "base_model": "small", "dataset": {"source": "clickhouse", "sample_size": 100}}
    request = {
        "training_job_id": job_id,
        "timestamp": NOW,
        "requester": "tests",
        "trigger_reason": "manual",
        "training_config": config,
    }
    return TrainingRequest.model_validate({**request, **fields})


def a_job(job_id: str = "job-1", state: State = "accepted", *, now: datetime = NOW, **fields: Any) -> Job:
    """A job that has come to a state by valid changes, all of them now."""
    job = Job.accepted(a_request(job_id, **fields), through_sequence=0, now=now)
    for step in WAYS[state]:
        job = job.moved(step, "a test", now)
    return job


def an_attempt(
    number: int = 1, *, job_id: str = "job-1", begun: bool = False, plan: TrainingPlan | None = None
) -> Attempt:
    """An open attempt."""
    attempt = Attempt(job_id, number, "dataset", not_before=NOW)
    if begun or plan:
        attempt = attempt.begun(f"run-{number}", NOW)
    return attempt.with_plan(plan.model_dump_json()) if plan else attempt


def a_failure(code: Any, number: int = 1, *, plan: TrainingPlan | None = None, result: str = "{}") -> Attempt:
    """An attempt that failed a minute after it was planned."""
    attempt = an_attempt(number, begun=True, plan=plan)
    return attempt.ended("failed", NOW + MINUTE, failure_code=code, message="it broke", traceback="…", result=result)


def a_plan(micro_batch: int = 8, accumulation: int = 2, **distribution: Any) -> TrainingPlan:
    """A plan for two processes."""
    return TrainingPlan(
        job_id="job-1",
        algorithm="dpo",
        base_model="small",
        distribution=DistributionPlan(**{"processes": 2, **distribution}),
        optimization=OptimizationPlan(micro_batch=micro_batch, accumulation=accumulation, learning_rate=4e-5),
    )
