"""`agent.rl.model.deployed.v1`: a step in a model's way into service, or out of it again.

Deployments, ramps, promotions and rollbacks share the subject; `metadata.event` tells them apart and `metadata.reason`
says why.
"""

from typing import Annotated, Literal, Self

from pydantic import ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from rl_pipeline.contracts.fields import (
    ClosedObject,
    Identifier,
    Name,
    Number,
    OpenObject,
    Percentage,
    PositiveInteger,
    Share,
    Timestamp,
    Uri,
    optional,
)

DeploymentEvent = Literal["deployed", "ramped", "promoted", "rolled_back"]

_MODEL_INFO_EXAMPLE = {
    "model_id": "agent-zero-rl-v2.4",
    "base_model": "qwen2.5-32b-instruct",
    "checkpoint_path": "s3://pmoves-models/rl-checkpoints/agent-zero-rl-v2.4/",
    "training_samples": 10000,
    "final_reward": 0.85,
}
_DEPLOYMENT_CONFIG_EXAMPLE = {
    "serving_platform": "tensorzero",
    "endpoint": "http://tensorzero-gateway:3000/v1/chat/completions",
    "model_name": "agent-zero-rl-v2.4",
    "rollout_strategy": "canary",
    "traffic_percentage": 10,
    "ramp_schedule": [
        {"timestamp": "2025-12-08T14:00:00Z", "percentage": 10},
        {"timestamp": "2025-12-08T15:00:00Z", "percentage": 25},
        {"timestamp": "2025-12-08T16:00:00Z", "percentage": 50},
        {"timestamp": "2025-12-08T18:00:00Z", "percentage": 100},
    ],
}
_VALIDATION_EXAMPLE = {
    "benchmark_passed": True,
    "safety_checks_passed": True,
    "performance_regression": False,
    "benchmark_scores": {"code_generation": 0.88, "data_analysis": 0.79, "research_synthesis": 0.81},
}


class ModelInfo(OpenObject, json_schema_extra={"examples": [_MODEL_INFO_EXAMPLE]}):
    """The model and where it comes from."""

    model_id: Identifier = Field(description="Unique id of the model, such as agent-zero-rl-v2.3.")
    base_model: Name = Field(description="Model that was trained further.")
    checkpoint_path: Name = Field(description="Where its checkpoint is.")
    training_date: Timestamp | None = optional("When it was trained.")
    training_samples: PositiveInteger | None = optional("Trajectories it learnt from.")
    final_reward: Number | None = optional("Reward at the end of training.")


class RampStep(OpenObject, json_schema_extra={"examples": [{"timestamp": "2025-12-08T15:00:00Z", "percentage": 25}]}):
    """One step of the ramp."""

    timestamp: Timestamp = Field(description="When the step is due at the earliest.")
    percentage: Percentage = Field(description="Share of the traffic from then on, from 0 to 100.")


class DeploymentConfig(OpenObject, json_schema_extra={"examples": [_DEPLOYMENT_CONFIG_EXAMPLE]}):
    """Where the model serves, and how it gets its traffic."""

    serving_platform: Literal["tensorzero", "vllm", "tgi", "ollama"] = Field(description="What serves it.")
    endpoint: Uri = Field(description="URL that serves it.")
    model_name: Name = Field(description="Its name there.")
    rollout_strategy: Literal["canary", "blue_green", "immediate"] = Field(description="How traffic moves to it.")
    traffic_percentage: Percentage | None = optional("Share of the traffic now, from 0 to 100.")
    ramp_schedule: list[RampStep] | None = optional("Steps of the ramp.")


class ValidationResults(OpenObject, json_schema_extra={"examples": [_VALIDATION_EXAMPLE]}):
    """What validation said before the model was let in."""

    benchmark_passed: bool = Field(description="Whether it passed the benchmarks.")
    safety_checks_passed: bool = Field(description="Whether it passed the safety checks.")
    performance_regression: bool = Field(description="Whether it is worse than the model in service.")
    human_eval_score: Share | None = optional("Score given by people, from 0 to 1.")
    benchmark_scores: dict[str, Number] | None = optional("Score by benchmark.")


class DeploymentMetadata(
    OpenObject,
    json_schema_extra={
        "if": {"properties": {"event": {"const": "rolled_back"}}, "required": ["event"]},
        "then": {"required": ["reason"], "properties": {"reason": {"type": "string"}}},
        "examples": [
            {"event": "deployed", "deployed_by": "rl-trainer", "approval_status": "automated"},
            {"event": "rolled_back", "reason": "high_error_rate", "previous_model": "agent-zero-rl-v2.3"},
        ],
    },
):
    """What happened, why, and by whom."""

    event: DeploymentEvent = Field(default="deployed", description="What happened to the model.")
    reason: Annotated[str, Field(min_length=1, max_length=4096)] | None = optional(
        "Why, such as high_error_rate, performance_degradation or user_dissatisfaction; a rollback always says."
    )
    deployed_by: Name | None = optional("Who did it; a publisher knows its own events by it.")
    approval_status: Literal["automated", "manual_approved", "emergency_override"] | None = optional(
        "Who let the model in."
    )
    previous_model: Identifier | None = optional("Model that served before, or serves again after a rollback.")

    @model_validator(mode="after")
    def _rollbacks_say_why(self) -> Self:
        if self.event == "rolled_back" and self.reason is None:
            raise PydanticCustomError("reason_of_rollback", "should have a reason when event is rolled_back")
        return self


class ModelDeployed(
    ClosedObject,
    json_schema_extra={
        "examples": [
            {
                "deployment_id": "6c2e9f10-3a4b-4c5d-9e6f-7a8b9c0d1e2f",
                "training_job_id": "5b0c6d1e-7f8a-4b9c-8d0e-1f2a3b4c5d6e",
                "timestamp": "2025-12-08T14:00:00Z",
                "model_info": _MODEL_INFO_EXAMPLE,
                "deployment_config": _DEPLOYMENT_CONFIG_EXAMPLE,
                "validation_results": _VALIDATION_EXAMPLE,
                "metadata": {
                    "event": "deployed",
                    "deployed_by": "rl-trainer",
                    "approval_status": "automated",
                    "previous_model": "agent-zero-rl-v2.3",
                },
            }
        ]
    },
):
    """An event in the deployment of one model."""

    model_config = ConfigDict(title="Agent RL Model Deployed")

    deployment_id: Identifier = Field(description="Unique id of the deployment; all its events share it.")
    training_job_id: Identifier = Field(description="Job that trained the model.")
    timestamp: Timestamp = Field(description="When it happened.")
    model_info: ModelInfo = Field(description="The model.")
    deployment_config: DeploymentConfig = Field(description="Where and how it serves.")
    validation_results: ValidationResults = Field(description="What validation said.")
    metadata: DeploymentMetadata = Field(default_factory=DeploymentMetadata, description="What happened and why.")
