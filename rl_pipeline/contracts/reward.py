"""`agent.rl.reward.v1`: what a trajectory was worth, by component and in total. How it is computed is not said here."""

from typing import Literal

from pydantic import ConfigDict, Field

from rl_pipeline.contracts.fields import (
    ClosedObject,
    Count,
    Identifier,
    JsonObject,
    Name,
    NonNegativeNumber,
    Number,
    OpenObject,
    Share,
    Timestamp,
    Uuid,
    optional,
)


class RewardComponent(
    OpenObject,
    json_schema_extra={
        "examples": [
            {
                "score": 0.9,
                "weight": 0.15,
                "source": "linter",
                "reasoning": "pylint 9.0 of 10, no critical findings",
                "raw_data": {"pylint": 9.0},
            }
        ]
    },
):
    """One reason for the reward."""

    score: Number = Field(description="Raw score, before normalisation.")
    weight: Share = Field(description="Weight in the total, from 0 to 1.")
    source: Literal["automated", "human", "linter", "test_results", "benchmark"] = Field(
        description="Where the score comes from."
    )
    reasoning: str | None = optional("Why the score is what it is, for people.")
    raw_data: JsonObject | None = optional("The figures behind the score.")


_COMPONENTS_EXAMPLE = {
    "task_completion": {"score": 1.0, "weight": 0.4, "source": "automated"},
    "efficiency": {"score": 0.85, "weight": 0.2, "source": "automated"},
    "code_quality": {"score": 0.9, "weight": 0.15, "source": "linter"},
    "user_feedback": {"score": 0.5, "weight": 0.25, "source": "human"},
}


class RewardComponents(OpenObject, json_schema_extra={"examples": [_COMPONENTS_EXAMPLE]}):
    """The components by name, each left out where it does not apply. Further ones are welcome under their own names."""

    __pydantic_extra__: dict[str, RewardComponent] = Field(init=False)

    task_completion: RewardComponent | None = optional("Whether the task was done.")
    efficiency: RewardComponent | None = optional("Turns, time and tokens against the usual.")
    code_quality: RewardComponent | None = optional("Linters, tests and security scans.")
    user_feedback: RewardComponent | None = optional("What the user said or showed.")
    safety: RewardComponent | None = optional("Whether it stayed within bounds.")
    accuracy: RewardComponent | None = optional("Whether the answer was right.")

    def by_name(self) -> dict[str, RewardComponent]:
        """Every component that applies, further ones included."""
        return {name: component for name, component in self if component is not None}


class Normalization(
    OpenObject, json_schema_extra={"examples": [{"method": "z-score", "mean": 0.75, "std": 0.15, "n": 1000}]}
):
    """How scores were put on one scale."""

    method: Literal["z-score", "min-max", "none"] | None = optional("Method that was applied.")
    mean: Number | None = optional("Mean of the window (z-score).")
    std: NonNegativeNumber | None = optional("Standard deviation of the window (z-score).")
    min: Number | None = optional("Smallest value of the window (min-max).")
    max: Number | None = optional("Largest value of the window (min-max).")
    n: Count | None = optional("Number of values in the window.")


class RewardMetadata(
    OpenObject,
    json_schema_extra={
        "examples": [{"evaluator": "rl-trainer", "evaluation_method": "hybrid", "confidence": 0.92, "revision": 0}]
    },
):
    """Who computed the reward, and how sure they are."""

    evaluator: Name = Field(description="Who or what computed it.")
    evaluation_method: Literal["automated", "human", "hybrid", "model-based"] = Field(
        description="How it was computed."
    )
    confidence: Share | None = optional("Confidence from 0 to 1.")
    revision: Count | None = optional("0 for the first reward of a trajectory, higher when it was computed again.")
    raw_total: Number | None = optional("Weighted sum of the raw scores: what trends and comparisons read.")
    configuration_hash: Name | None = optional("Hash of the reward configuration that was in force.")


class Reward(
    ClosedObject,
    json_schema_extra={
        "examples": [
            {
                "reward_id": "8a1d6c0e-2f3b-5c4d-8e9f-0a1b2c3d4e5f",
                "trajectory_id": "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f",
                "session_id": "session-7",
                "timestamp": "2025-12-08T12:06:00Z",
                "reward_components": _COMPONENTS_EXAMPLE,
                "total_reward": 0.83,
                "reward_type": "sparse",
                "normalization": {"method": "none"},
                "metadata": {"evaluator": "rl-trainer", "evaluation_method": "hybrid", "confidence": 0.92},
            }
        ]
    },
):
    """The reward of one trajectory."""

    model_config = ConfigDict(title="Agent RL Reward")

    reward_id: Identifier = Field(description="Unique id of this reward; the same computation has the same id.")
    trajectory_id: Uuid = Field(description="The trajectory that was scored.")
    session_id: Name = Field(description="Session of the agent.")
    timestamp: Timestamp = Field(description="When the reward was computed.")
    reward_components: RewardComponents = Field(description="What the reward is made of.")
    total_reward: Number = Field(description="Weighted sum of the normalised components.")
    reward_type: Literal["dense", "sparse"] = Field(description="dense: for each turn; sparse: for the outcome.")
    normalization: Normalization | None = optional("How the components were normalised.")
    metadata: RewardMetadata = Field(description="Who computed it and how.")
