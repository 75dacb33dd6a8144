"""What the service answers, as models: each is a schema of the OpenAPI document."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from rl_pipeline.contracts import TrainingRequest
from rl_pipeline.contracts.training_status import (
    Artifacts,
    EvaluationResults,
    Failure,
    JobStatus,
    Metrics,
    Progress,
    ResourceUsage,
    TrainingStatus,
)
from rl_pipeline.training.jobs.job import Attempt
from rl_pipeline.training.jobs.standings import Standing

_JOB = "manual-5b0c6d1e-7f8a-4b9c-8d0e-1f2a3b4c5d6e"


class Answer(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(frozen=True)


class AttemptAnswer(Answer):
    """One run at a job."""

    number: int = Field(description="From 1.")
    starts_from: Literal["dataset", "checkpoint"]
    run_id: str | None = Field(None, description="The Dagster run, once it has begun.")
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: Literal["completed", "failed", "cancelled", "preempted"] | None = Field(
        None, description="None while it is open."
    )
    failure_code: str | None = None
    message: str = Field(description="Why it ended so, for people.")


class JobAnswer(Answer):
    """A training job and where it stands."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "job_id": _JOB,
                    "status": "running",
                    "state": "running",
                    "explanation": "attempt 1 starts from the dataset",
                    "as_of": "2026-02-01T12:00:01Z",
                    "progress": {"current_step": 5000, "total_steps": 7500, "percent_complete": 66.67},
                    "metrics": {"current": {"loss": 0.234, "reward_mean": 0.82, "kl_divergence": 0.015}},
                    "attempts": [],
                }
            ]
        },
    )

    job_id: str
    status: JobStatus = Field(description="In the words of agent.rl.training.status.v1.")
    state: str = Field(
        description="Where exactly it stands: asked (its request is in the stream), kept (NATS is away, and its "
        "request is in the warehouse), refused, or the state of the accepted job."
    )
    explanation: str = Field(description="Why, for people.")
    as_of: datetime = Field(description="When the stores said so.")
    priority: str | None = None
    trigger_reason: str | None = None
    requester: str | None = None
    shadow: bool | None = None
    algorithm: str | None = Field(None, description="None where it was left to the pipeline and is not decided yet.")
    base_model: str | None = None
    sample_size: int | None = None
    requested_at: datetime | None = None
    accepted_at: datetime | None = None
    changed_at: datetime | None = None
    attempts: list[AttemptAnswer] = []
    told_at: datetime | None = Field(None, description="When its training told of itself last.")
    progress: Progress | None = None
    metrics: Metrics | None = None
    evaluation_results: EvaluationResults | None = None
    artifacts: Artifacts | None = None
    resource_usage: ResourceUsage | None = None
    error: Failure | None = None


class JobsAnswer(Answer):
    """Jobs, those that changed last first."""

    jobs: list[JobAnswer]
    count: int


class StartAnswer(Answer):
    """What came of asking for a training."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "job_id": _JOB,
                    "status": "queued",
                    "message": "Initiating RL training job #47 with 10K samples",
                    "sent_by": "nats",
                    "fell_back": False,
                    "repeated": False,
                    "status_url": f"/training/{_JOB}/status",
                }
            ]
        },
    )

    job_id: str
    status: JobStatus
    message: str = Field(description="For people.")
    sent_by: Literal["nats", "outbox"] = Field(description="outbox: NATS is away, and the request waits for it.")
    fell_back: bool = Field(description="Whether NATS was away.")
    repeated: bool = Field(description="Whether the same was asked for before: nothing more is started.")
    status_url: str


class CancelAnswer(Answer):
    """What came of cancelling."""

    job_id: str
    message: str
    sent_by: Literal["nats", "outbox"]
    fell_back: bool
    run_stopped: bool = Field(description="Whether its run was stopped through Dagster, because NATS is away.")


class StopAnswer(Answer):
    """Which trainings are being stopped."""

    stopping: list[CancelAnswer]
    message: str


class LoopAnswer(Answer):
    """How the training loop is."""

    status: Literal["idle", "waiting", "running"]
    current: JobAnswer | None = Field(None, description="The job that trains.")
    waiting: int = Field(description="Jobs that have not begun.")
    latest: JobAnswer | None = Field(None, description="The job that ended last.")


class CoordinatorAnswer(Answer):
    """What the trainer replies."""

    order: Literal["train", "status", "cancel"] = Field(description="What was understood.")
    reply: str = Field(description="For the superior.")
    job_id: str | None = None
    sample_size: int | None = None
    last_days: int | None = None
    fell_back: bool | None = Field(None, description="Whether NATS was away.")
    job: JobAnswer | None = None


class ModelAnswer(Answer):
    """A model that was released."""

    model_id: str
    state: str = Field(description="waiting, started, superseded or refused; first for the model that was there first.")
    explanation: str
    training_job_id: str | None = None
    base_model: str
    checkpoint_path: str | None = None
    released_at: datetime | None = None
    deployed_at: datetime | None = Field(None, description="When it first got traffic.")
    last_event: str | None = Field(None, description="created, deployed, ramped, promoted, rolled_back …")
    last_event_at: datetime | None = None
    traffic_percentage: float = Field(description="By the last change that is in the audit.")
    serving: bool
    validation: dict[str, Any]


class ModelsAnswer(Answer):
    """Models, the newest first."""

    models: list[ModelAnswer]
    count: int


class StoredAnswer(Answer):
    """A message that is in the stream."""

    id: str
    subject: str
    stored: Literal[True] = True


class RewardAnswer(Answer):
    """What an agent earned by a task."""

    id: str
    task_id: str
    agent_id: str
    raw_reward: float
    shaped_reward: float
    credit_assigned: float
    metadata: dict[str, Any]
    created_at: datetime


class RewardsAnswer(Answer):
    """Rewards, the newest first."""

    rewards: list[RewardAnswer]
    count: int


class TraceAnswer(Answer):
    """A trajectory as it is stored, which is redacted, and what became of it."""

    trajectory_id: str
    document: dict[str, Any]
    reward: dict[str, Any] | None = None
    feedback: list[dict[str, Any]]
    datasets: list[dict[str, Any]]
    checkpoints: list[dict[str, Any]]
    redactions: dict[str, int]


class RolloutAnswer(Answer):
    """A model on its way into service."""

    deployment_id: str
    candidate: str
    control: str
    strategy: str
    step: int
    steps: int
    step_since: datetime


class DeploymentAnswer(Answer):
    """Who serves what share, and how that came to be."""

    generation: int
    phase: str
    serving: str
    traffic: dict[str, float] = Field(description="Percentage by model.")
    frozen: str | None = Field(None, description="Why nothing advances.")
    rollout: RolloutAnswer | None = None
    retired: list[str]
    event: str
    by: str
    reason: str
    at: datetime


class FencedAnswer(Answer):
    """A model is out of service at the gateways, and the record of it has to wait."""

    recorded: Literal[False]
    message: str


class ComponentAnswer(Answer):
    """One of the servers behind the service."""

    status: Literal["ok", "degraded", "away"]
    latency_ms: float | None = None
    detail: str
    next_step: str


class HealthAnswer(Answer):
    """How the service and everything behind it is."""

    status: Literal["ok", "degraded", "unavailable"]
    version: str
    checked_at: datetime
    components: dict[str, ComponentAnswer]


def attempt_answer(attempt: Attempt) -> AttemptAnswer:
    """An attempt, without its plan, its traceback and its result."""
    return AttemptAnswer(
        number=attempt.number,
        starts_from=attempt.starts_from,
        run_id=attempt.run_id or None,
        started_at=attempt.started_at,
        ended_at=attempt.ended_at,
        outcome=attempt.outcome,
        failure_code=attempt.failure_code,
        message=attempt.message,
    )


def job_answer(standing: Standing, told: TrainingStatus | None, now: datetime) -> JobAnswer:
    """A job by its tables, with what its training told last."""
    job, result = standing.job, standing.result()
    # Of a job that failed before its first attempt, only the message tells why.
    source = result or told
    return JobAnswer(
        job_id=job.job_id,
        status=standing.status,
        state=job.state,
        explanation=job.explanation,
        as_of=now,
        accepted_at=job.accepted_at,
        changed_at=job.changed_at,
        attempts=[attempt_answer(attempt) for attempt in standing.attempts],
        told_at=told.timestamp if told else None,
        progress=told.progress if told else None,
        metrics=told.metrics if told else None,
        evaluation_results=result.evaluation_results if result else None,
        artifacts=result.artifacts if result else None,
        resource_usage=source.resource_usage if source else None,
        error=source.error if source and job.state != "completed" else None,
        **_asked(job.request),
    )


def unaccepted_answer(
    request: TrainingRequest, state: Literal["asked", "kept"], told: TrainingStatus | None, now: datetime
) -> JobAnswer:
    """A request that is no job yet; one that was refused has been told of as failed."""
    explanations = {
        "asked": "its request is in the stream, and the sensor takes it in within seconds",
        "kept": "NATS is away: its request is kept in the warehouse, and starts when NATS is back",
    }
    refused = told if told is not None and told.status == "failed" else None
    return JobAnswer(
        job_id=request.training_job_id,
        status="failed" if refused else "queued",
        state="refused" if refused else state,
        explanation=(refused.error.message or "") if refused and refused.error else explanations[state],
        as_of=now,
        error=refused.error if refused else None,
        **_asked(request),
    )


def _asked(request: TrainingRequest) -> dict[str, Any]:
    return {
        "priority": request.priority,
        "trigger_reason": request.trigger_reason,
        "requester": request.requester,
        "shadow": bool(request.metadata.shadow),
        "algorithm": request.training_config.algorithm,
        "base_model": request.training_config.base_model,
        "sample_size": request.training_config.dataset.sample_size,
        "requested_at": request.timestamp,
    }
