"""`agent.rl.training.request.v1`: someone wants a training run. Sections that are left out take the defaults below.

`algorithm` and `base_model` have no default here: left out, they are what the receiving pipeline is set up with.
"""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator

from rl_pipeline.contracts.fields import (
    ClosedObject,
    Count,
    Identifier,
    Name,
    NonNegativeNumber,
    Number,
    OpenObject,
    PositiveInteger,
    Share,
    Timestamp,
    check_order,
    optional,
)
from rl_pipeline.contracts.trajectory import Domain

# `sft` is an addition to the first contract: imitation of the best trajectories.
Algorithm = Literal["ppo", "dpo", "rloo", "grpo", "reinforce", "sft"]
TriggerReason = Literal["scheduled", "threshold_reached", "manual", "performance_degradation"]
Priority = Literal["low", "normal", "high", "urgent"]
EvaluationMetric = Literal["reward", "task_completion", "efficiency", "loss", "kl_divergence"]


def _default_metrics() -> list[EvaluationMetric]:
    return ["reward", "task_completion", "efficiency"]


def _default_benchmarks() -> list[str]:
    return ["code_generation", "data_analysis", "research_synthesis", "tool_usage"]


class DateRange(
    OpenObject, json_schema_extra={"examples": [{"start": "2025-12-01T00:00:00Z", "end": "2025-12-08T12:59:59Z"}]}
):
    """A span of time, open on a side that is left out."""

    start: Timestamp | None = optional("First moment.")
    end: Timestamp | None = optional("Last moment; not before the first.")

    @field_validator("end")
    @classmethod
    def _ends_after_it_starts(cls, end: datetime | None, info: ValidationInfo) -> datetime | None:
        check_order(info.data.get("start"), end)
        return end


class DatasetFilter(
    OpenObject,
    json_schema_extra={
        "examples": [
            {
                "min_reward": 0.5,
                "max_trajectory_length": 50,
                "last_days": 30,
                "domain_shares": {"coding": 0.4, "research": 0.3, "general": 0.3},
            }
        ]
    },
):
    """Which trajectories may enter the dataset."""

    min_reward: Number = Field(default=0.5, description="Smallest reward that is good enough to imitate.")
    max_trajectory_length: PositiveInteger = Field(default=50, description="Largest number of turns.")
    date_range: DateRange | None = optional("Span of time; if left out, the last `last_days` before the request.")
    last_days: PositiveInteger = Field(default=30, description="Days to look back when there is no date_range.")
    task_domains: list[Domain] | None = optional("Only these domains.")
    domain_shares: dict[Domain, Share] | None = optional("Share of each domain; balanced if left out.")
    exclude_subordinate_profiles: list[str] | None = optional("None of these subordinate profiles.")


class Dataset(
    OpenObject,
    json_schema_extra={"examples": [{"source": "nats_stream", "stream_name": "RL_TRAJECTORIES", "sample_size": 5000}]},
):
    """Where the trajectories come from, and how many."""

    source: Literal["nats_stream", "clickhouse", "s3", "local"] = Field(
        default="nats_stream", description="Where the trajectories are."
    )
    stream_name: Name | None = optional("Stream to drain if the source is nats_stream; RL_TRAJECTORIES if left out.")
    path: Name | None = optional("Where to read if the source is s3 or local.")
    filter: DatasetFilter = Field(default_factory=DatasetFilter, description="Which trajectories may enter.")
    sample_size: PositiveInteger = Field(default=10_000, description="Number of trajectories to use.")


class Hyperparameters(
    OpenObject, json_schema_extra={"examples": [{"learning_rate": 1e-5, "batch_size": 32, "epochs": 3}]}
):
    """The knobs of the algorithm."""

    learning_rate: Annotated[float, Field(gt=0)] = Field(default=1e-5, description="Learning rate.")
    batch_size: PositiveInteger = Field(default=32, description="Trajectories in a batch.")
    epochs: PositiveInteger = Field(default=3, description="Passes over the dataset.")
    clip_epsilon: NonNegativeNumber = Field(default=0.2, description="Clip range of the policy ratio.")
    gamma: Share = Field(default=0.99, description="Discount factor.")
    gae_lambda: Share = Field(default=0.95, description="Lambda of generalised advantage estimation.")


class Compute(
    OpenObject,
    json_schema_extra={
        "examples": [{"gpu_count": 2, "gpu_type": "a100", "distributed": True, "mixed_precision": "bf16"}]
    },
):
    """The machines that are asked for."""

    gpu_count: Count = Field(default=2, description="Number of GPUs.")
    gpu_type: Name = Field(default="a100", description="Type of GPU, or any.")
    distributed: bool = Field(default=True, description="Whether to train in several processes.")
    mixed_precision: Literal["fp32", "fp16", "bf16"] = Field(default="bf16", description="Number format.")


class Checkpointing(
    OpenObject,
    json_schema_extra={
        "examples": [
            {"save_interval": 1000, "max_checkpoints": 5, "storage_path": "s3://pmoves-models/rl-checkpoints/"}
        ]
    },
):
    """When checkpoints are written, and where."""

    save_interval: PositiveInteger = Field(default=1000, description="Steps between checkpoints.")
    max_checkpoints: PositiveInteger = Field(default=5, description="Checkpoints to keep.")
    storage_path: Name | None = optional("Where to write; the pipeline's own place if left out.")


class TrainingConfig(
    OpenObject, json_schema_extra={"examples": [{"algorithm": "ppo", "base_model": "qwen2.5-32b-instruct"}]}
):
    """What to train, from what, and how."""

    algorithm: Algorithm | None = optional("Algorithm; the pipeline's own if left out.")
    base_model: Name | None = optional("Model to start from; the pipeline's own if left out.")
    dataset: Dataset = Field(default_factory=Dataset, description="Trajectories to learn from.")
    hyperparameters: Hyperparameters = Field(default_factory=Hyperparameters, description="The algorithm's knobs.")
    compute: Compute = Field(default_factory=Compute, description="Machines.")
    checkpointing: Checkpointing = Field(default_factory=Checkpointing, description="Checkpoints.")


class Evaluation(
    OpenObject, json_schema_extra={"examples": [{"enabled": True, "holdout_size": 0.1, "metrics": ["reward", "loss"]}]}
):
    """How the result is judged during training."""

    enabled: bool = Field(default=True, description="Whether to evaluate at all.")
    holdout_size: Share = Field(default=0.1, description="Share of the data that is kept back.")
    metrics: list[EvaluationMetric] = Field(default_factory=_default_metrics, description="What to measure.")
    benchmark_tasks: list[str] = Field(default_factory=_default_benchmarks, description="Benchmarks to run.")


class TrainingRequestMetadata(
    OpenObject, json_schema_extra={"examples": [{"requested_by": "admin", "notes": "trial"}]}
):
    """Whatever else is known about the request."""

    requested_by: str | None = optional("User or system behind the requester.")
    previous_training_job: Identifier | None = optional("Job that this one continues.")
    shadow: bool | None = optional("True: train and validate, and never deploy.")
    notes: str | None = optional("For people.")


class TrainingRequest(
    ClosedObject,
    json_schema_extra={
        "examples": [
            {
                "training_job_id": "manual-5b0c6d1e-7f8a-4b9c-8d0e-1f2a3b4c5d6e",
                "timestamp": "2025-12-08T13:00:00Z",
                "requester": "admin-manual",
                "trigger_reason": "manual",
                "training_config": {
                    "algorithm": "ppo",
                    "base_model": "qwen2.5-32b-instruct",
                    "dataset": {"source": "nats_stream", "stream_name": "RL_TRAJECTORIES", "sample_size": 5000},
                    "hyperparameters": {"learning_rate": 1e-5, "batch_size": 32, "epochs": 3},
                },
            }
        ]
    },
):
    """A request for one training job."""

    model_config = ConfigDict(title="Agent RL Training Request")

    training_job_id: Identifier = Field(
        description="Unique id of the job, a UUID or manual- and a UUID by custom. It names partitions and directories."
    )
    timestamp: Timestamp = Field(description="When the request was made.")
    requester: Name = Field(description="Who asks, such as rl-trainer-subordinate or admin-manual.")
    trigger_reason: TriggerReason = Field(description="Why.")
    training_config: TrainingConfig = Field(description="What to train.")
    evaluation: Evaluation = Field(default_factory=Evaluation, description="How to judge it.")
    priority: Priority = Field(default="normal", description="Order among waiting jobs.")
    metadata: TrainingRequestMetadata = Field(
        default_factory=TrainingRequestMetadata, description="Anything else worth keeping."
    )
