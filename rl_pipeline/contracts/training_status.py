"""`agent.rl.training.status.v1`: how a training job is doing, and what came of it."""

from typing import Literal

from pydantic import ConfigDict, Field

from rl_pipeline.contracts.fields import (
    ClosedObject,
    Count,
    Identifier,
    NonNegativeNumber,
    Number,
    OpenObject,
    Percentage,
    PositiveInteger,
    Timestamp,
    optional,
)

JobStatus = Literal["queued", "running", "completed", "failed", "cancelled"]
FailureCode = Literal["OOM", "CONVERGENCE", "DATA", "INFRA", "TIMEOUT", "UNKNOWN"]

_PROGRESS_EXAMPLE = {
    "current_epoch": 2,
    "total_epochs": 3,
    "current_step": 5000,
    "total_steps": 7500,
    "percent_complete": 66.67,
    "eta_seconds": 1800,
}


class Progress(OpenObject, json_schema_extra={"examples": [_PROGRESS_EXAMPLE]}):
    """How far the job is."""

    current_epoch: Count | None = optional("Epoch that is running.")
    total_epochs: PositiveInteger | None = optional("Epochs in all.")
    current_step: Count | None = optional("Steps done.")
    total_steps: PositiveInteger | None = optional("Steps in all.")
    percent_complete: Percentage | None = optional("Done, from 0 to 100.")
    eta_seconds: NonNegativeNumber | None = optional("Seconds that remain, estimated.")


class CurrentMetrics(
    OpenObject, json_schema_extra={"examples": [{"loss": 0.234, "reward_mean": 0.82, "kl_divergence": 0.015}]}
):
    """Figures of the latest step."""

    loss: Number | None = optional("Training loss.")
    reward_mean: Number | None = optional("Mean reward.")
    reward_std: NonNegativeNumber | None = optional("Standard deviation of the reward.")
    policy_entropy: Number | None = optional("Entropy of the policy.")
    kl_divergence: Number | None = optional("Divergence from the reference model; an estimate can be below 0.")
    learning_rate: NonNegativeNumber | None = optional("Learning rate in force.")


class BestMetrics(OpenObject, json_schema_extra={"examples": [{"epoch": 1, "step": 3000, "reward_mean": 0.85}]}):
    """Figures of the best step so far."""

    epoch: Count | None = optional("Its epoch.")
    step: Count | None = optional("Its step.")
    reward_mean: Number | None = optional("Its mean reward.")
    checkpoint_path: str | None = optional("Its checkpoint.")


class Metrics(OpenObject, json_schema_extra={"examples": [{"current": {"loss": 0.2}, "best": {"reward_mean": 0.85}}]}):
    """Figures of the training."""

    current: CurrentMetrics | None = optional("The latest step.")
    best: BestMetrics | None = optional("The best step so far.")


class EvaluationResults(
    OpenObject,
    json_schema_extra={"examples": [{"holdout_reward": 0.83, "benchmark_scores": {"code_generation": 0.88}}]},
):
    """How the result did on data it had not seen."""

    holdout_reward: Number | None = optional("Mean reward on the holdout.")
    benchmark_scores: dict[str, Number] | None = optional("Score by benchmark.")
    improvement_over_baseline: Number | None = optional("Gain over the base model.")


class Artifacts(
    OpenObject,
    json_schema_extra={"examples": [{"final_checkpoint": "s3://pmoves-models/rl-checkpoints/job-123/final"}]},
):
    """What the job left behind."""

    final_checkpoint: str | None = optional("The trained model.")
    tensorboard_logs: str | None = optional("Logs for TensorBoard.")
    training_curves: str | None = optional("Picture of the curves.")
    model_card: str | None = optional("Description of the model.")


class ResourceUsage(
    OpenObject, json_schema_extra={"examples": [{"gpu_hours": 8.0, "cost_usd": 50.0, "peak_memory_gb": 78.4}]}
):
    """What the job cost."""

    gpu_hours: NonNegativeNumber | None = optional("GPU hours.")
    cost_usd: NonNegativeNumber | None = optional("Cost in US dollars, estimated.")
    peak_memory_gb: NonNegativeNumber | None = optional("Largest memory in GB.")
    total_training_time_seconds: NonNegativeNumber | None = optional("Duration in seconds.")


class Failure(OpenObject, json_schema_extra={"examples": [{"code": "OOM", "message": "CUDA out of memory"}]}):
    """Why the job failed."""

    code: FailureCode | None = optional("Kind of failure, which decides about the retry.")
    message: str | None = optional("What happened, for people.")
    traceback: str | None = optional("The whole traceback.")


class TrainingStatusMetadata(OpenObject, json_schema_extra={"examples": [{"training_platform": "trl", "attempt": 1}]}):
    """Whatever else is known about the job."""

    training_platform: str | None = optional("What trains.")
    cuda_version: str | None = optional("Version of CUDA.")
    pytorch_version: str | None = optional("Version of PyTorch.")
    attempt: PositiveInteger | None = optional("Number of the attempt, from 1.")


class TrainingStatus(
    ClosedObject,
    json_schema_extra={
        "examples": [
            {
                "training_job_id": "manual-5b0c6d1e-7f8a-4b9c-8d0e-1f2a3b4c5d6e",
                "timestamp": "2025-12-08T13:15:00Z",
                "status": "running",
                "progress": _PROGRESS_EXAMPLE,
                "metrics": {
                    "current": {"loss": 0.234, "reward_mean": 0.82, "policy_entropy": 2.34, "kl_divergence": 0.015},
                    "best": {"epoch": 1, "step": 3000, "reward_mean": 0.85},
                },
            },
            {
                "training_job_id": "5b0c6d1e-7f8a-4b9c-8d0e-1f2a3b4c5d6e",
                "timestamp": "2025-12-08T14:15:00Z",
                "status": "failed",
                "error": {"code": "OOM", "message": "CUDA out of memory"},
            },
        ]
    },
):
    """The state of one training job at one moment."""

    model_config = ConfigDict(title="Agent RL Training Status")

    training_job_id: Identifier = Field(description="The job.")
    timestamp: Timestamp = Field(description="When this was so.")
    status: JobStatus = Field(description="State of the job.")
    progress: Progress | None = optional("How far it is.")
    metrics: Metrics | None = optional("Figures of the training.")
    evaluation_results: EvaluationResults | None = optional("Results on unseen data.")
    artifacts: Artifacts | None = optional("What it left behind.")
    resource_usage: ResourceUsage | None = optional("What it cost.")
    error: Failure | None = optional("Why it failed.")
    metadata: TrainingStatusMetadata | None = optional("Anything else worth keeping.")
