"""`agent.rl.trajectory.v1`: one task from start to end, turn by turn, with what is needed to score and learn from it.

The fields of the first contract keep their names and limits; the additions that rewards, enrichment and credit
assignment need live in the objects that the contract leaves open (`task_context`, `metadata`, a turn).
"""

from datetime import datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from rl_pipeline.contracts.feedback import FeedbackSignal
from rl_pipeline.contracts.fields import (
    ClosedObject,
    Count,
    JsonObject,
    Name,
    NonNegativeNumber,
    Number,
    OpenObject,
    Percentage,
    PositiveInteger,
    Share,
    Timestamp,
    TokenIds,
    Uuid,
    check_order,
    optional,
)

Domain = Literal["coding", "research", "data_analysis", "general", "debugging", "writing"]
SubordinateProfile = Literal["researcher", "developer", "hacker", "rl-trainer"]
TaskStatus = Literal["success", "partial", "failed", "abandoned"]


def wrap_parts(content: Any) -> str | JsonObject:
    """`content` as an observation may carry it: text and objects as they are, anything else as `{"parts": [...]}`."""
    if isinstance(content, str | dict):
        return content
    return {"parts": content if isinstance(content, list) else [content]}


class ObservationContext(OpenObject, json_schema_extra={"examples": [{"available_tools": ["code_exe", "memory"]}]}):
    """What surrounded the agent when it observed."""

    memory_state: JsonObject | None = optional("Snapshot of the agent's memory.")
    available_tools: list[str] | None = optional("Tools the agent could call in this turn.")
    subordinates_active: Count | None = optional("Subordinate agents at work.")


class Observation(
    OpenObject,
    json_schema_extra={
        "examples": [
            {"type": "user_message", "content": "Implement binary search in Python."},
            {"type": "tool_result", "content": {"parts": [{"text": "3 passed"}, {"text": "0 failed"}]}},
        ]
    },
):
    """What the agent was shown."""

    type: Literal["user_message", "tool_result", "subordinate_response", "system_message"] = Field(
        description="Where the observation comes from."
    )
    content: str | JsonObject = Field(description='Text or an object; a list of parts is wrapped as {"parts": [...]}.')
    context: ObservationContext | None = optional("What surrounded the observation.")


class Action(
    OpenObject,
    json_schema_extra={
        "examples": [
            {"type": "tool_call", "tool_name": "code_exe", "tool_args": {"runtime": "python", "code": "print(1)"}},
            {"type": "response", "raw_response": "Done: the function passes its tests."},
        ]
    },
):
    """What the agent did about it."""

    type: Literal["tool_call", "subordinate_call", "response", "memory_update"] = Field(description="Kind of action.")
    tool_name: str | None = optional("Tool that was called.")
    tool_args: JsonObject | None = optional("Arguments of the call.")
    raw_response: str | None = optional("The model's whole response.")


class Result(
    OpenObject,
    json_schema_extra={"examples": [{"success": True, "output": "3 passed", "error": None, "execution_time_ms": 1500}]},
):
    """What came of the action."""

    success: bool = Field(description="Whether the action succeeded.")
    output: str | JsonObject | None = optional("What the tool or the model returned.")
    error: str | None = optional("Why the action failed.")
    execution_time_ms: NonNegativeNumber | None = optional("Duration of the action in milliseconds.")


class Sampling(
    OpenObject,
    json_schema_extra={
        "examples": [
            {
                "model_version": "agent-zero-rl-v2.3",
                "prompt_token_ids": [1, 733, 16289],
                "completion_token_ids": [995, 2],
                "logprobs": [-0.02, -0.31],
            }
        ]
    },
):
    """How the model's response was drawn: what off-policy estimates need."""

    model_version: Name | None = optional("Version of the policy that answered in this turn.")
    prompt_token_ids: TokenIds | None = optional("Tokens the model was given.")
    completion_token_ids: TokenIds | None = optional("Tokens it drew.")
    logprobs: Annotated[list[Number], Field(fail_fast=True)] | None = optional("Log-probability of each drawn token.")


_TURN_EXAMPLE = {
    "turn_id": 1,
    "timestamp": "2025-12-08T12:00:00Z",
    "agent_id": "agent-zero-main",
    "observation": {
        "type": "user_message",
        "content": "Implement binary search in Python.",
        "context": {"available_tools": ["code_exe"], "subordinates_active": 0},
    },
    "thought_process": ["Write the function, then run it against a few lists."],
    "action": {"type": "tool_call", "tool_name": "code_exe", "tool_args": {"code": "assert search([1, 2], 2) == 1"}},
    "result": {"success": True, "output": "", "error": None, "execution_time_ms": 1500},
}


class Turn(OpenObject, json_schema_extra={"examples": [_TURN_EXAMPLE]}):
    """One observation, the action it led to, and the result."""

    turn_id: PositiveInteger = Field(description="Number of the turn, from 1.")
    timestamp: Timestamp = Field(description="When the turn began.")
    observation: Observation = Field(description="What the agent was shown.")
    action: Action = Field(description="What it did.")
    result: Result = Field(description="What came of it.")
    thought_process: list[str] | None = optional("Thoughts before the action.")
    agent_id: Name | None = optional("Agent that acted; the trajectory's own agent if left out. Credit goes by it.")
    sampling: Sampling | None = optional("How the response was drawn.")


class Subtask(OpenObject, json_schema_extra={"examples": [{"subtask_id": "write-tests", "status": "success"}]}):
    """A part of the task that can succeed on its own."""

    subtask_id: Name = Field(description="Name of the subtask within the task.")
    status: TaskStatus = Field(description="How it ended.")


_TASK_CONTEXT_EXAMPLE = {
    "task_id": "task-81",
    "instructions": "Implement binary search in Python.",
    "task_type": "implement_function",
    "domain": "coding",
    "complexity_score": 0.3,
    "task_status": "success",
    "subtasks": [{"subtask_id": "write-tests", "status": "success"}],
    "group_id": "task-81-rollouts",
}


class TaskContext(OpenObject, json_schema_extra={"examples": [_TASK_CONTEXT_EXAMPLE]}):
    """The task, and how it ended."""

    task_id: Name | None = optional("Id of the task; equal for repeated attempts at it.")
    instructions: str | None = optional("The user's request.")
    complexity_score: Share | None = optional("Estimated complexity: 0 simple, 1 very complex.")
    domain: Domain | None = optional("Domain of the task; the ingest guesses it if left out.")
    task_type: Name | None = optional("Finer than the domain: trajectories of one type are compared with each other.")
    task_status: TaskStatus | None = optional("How the task ended, if the agent knows.")
    completion_percentage: Percentage | None = optional("How much of a partly done task was done, from 0 to 100.")
    subtasks: list[Subtask] | None = optional("Parts of the task and how each ended.")
    group_id: Name | None = optional("Attempts from the same starting point share it: the group of RLOO and GRPO.")
    user_id: Name | None = optional("Pseudonymous id of the user; their data is erased by it.")
    opt_out: bool | None = optional("True: the user does not want this trajectory collected.")


class LinterResults(OpenObject, json_schema_extra={"examples": [{"tool": "pylint", "score": 9.0, "issues": 2}]}):
    """What a linter said about the code that was written."""

    tool: Name | None = optional("Linter that was run.")
    score: Annotated[float, Field(ge=0, le=10)] | None = optional("Score from 0 to 10, as pylint counts.")
    issues: Count | None = optional("Number of findings.")


class TestResults(OpenObject, json_schema_extra={"examples": [{"total": 12, "passed": 11, "failed": 1}]}):
    """What the tests said about the code that was written."""

    __test__ = False  # for pytest, which collects classes by this name

    total: Count = Field(description="Tests that were run.")
    passed: Count = Field(description="Tests that passed.")
    failed: Count | None = optional("Tests that failed.")

    @field_validator("passed")
    @classmethod
    def _passed_at_most_all(cls, passed: int, info: ValidationInfo) -> int:
        if passed > info.data.get("total", passed):
            raise PydanticCustomError("passed_exceeds_total", "should be at most total")
        return passed


class SecurityResults(OpenObject, json_schema_extra={"examples": [{"tool": "bandit", "critical_issues": 0}]}):
    """What a security scan said about the code that was written."""

    tool: Name | None = optional("Scanner that was run.")
    critical_issues: Count = Field(description="Findings of the highest severity.")


_METADATA_EXAMPLE = {
    "model": "qwen2.5-32b-instruct",
    "model_version": "agent-zero-rl-v2.3",
    "temperature": 0.7,
    "total_tokens": 5000,
    "total_cost_usd": 0.025,
    "framework": "agent-zero",
    "linter_results": {"tool": "pylint", "score": 9.0},
    "test_results": {"total": 12, "passed": 12},
    "feedback": [{"kind": "thumbs_up"}],
}


class TrajectoryMetadata(OpenObject, json_schema_extra={"examples": [_METADATA_EXAMPLE]}):
    """How the trajectory was made, and what is already known about its quality."""

    model: Name = Field(description="Model that was used.")
    model_version: Name | None = optional("Version of the deployed policy, as the gateway named it.")
    temperature: Annotated[float, Field(ge=0, le=2)] | None = optional("Sampling temperature.")
    total_tokens: Count | None = optional("Tokens used, prompts and completions.")
    prompt_tokens: Count | None = optional("Tokens of the prompts.")
    completion_tokens: Count | None = optional("Tokens of the completions.")
    total_cost_usd: NonNegativeNumber | None = optional("Cost in US dollars.")
    framework: Name | None = optional("Agent framework that recorded it, such as agent-zero or massgen.")
    parent_trajectory_id: Uuid | None = optional("Trajectory of the superior agent that delegated this one.")
    linter_results: LinterResults | None = optional("Linter's verdict on the code.")
    test_results: TestResults | None = optional("Tests' verdict on the code.")
    security_results: SecurityResults | None = optional("Security scan's verdict on the code.")
    feedback: list[FeedbackSignal] | None = optional("Feedback that was known when the trajectory was published.")
    opt_out: bool | None = optional("True: the user does not want this trajectory collected.")


class TrajectoryIdentity(ClosedObject):
    """Whose trajectory, and when: what a trajectory and a reference to one have in common."""

    trajectory_id: Uuid = Field(description="Unique id of the trajectory; also the message id on the stream.")
    session_id: Name = Field(description="Session of the agent.")
    agent_id: Name = Field(description="Agent that carried the task, main or subordinate.")
    subordinate_profile: SubordinateProfile | None = optional("Profile of a subordinate agent; null for the main one.")
    start_timestamp: Timestamp = Field(description="When the task began.")
    end_timestamp: Timestamp = Field(description="When it ended; not before the start.")

    @field_validator("end_timestamp")
    @classmethod
    def _ends_after_it_starts(cls, end: datetime, info: ValidationInfo) -> datetime:
        check_order(info.data.get("start_timestamp"), end)
        return end


class Trajectory(
    TrajectoryIdentity,
    json_schema_extra={
        "examples": [
            {
                "trajectory_id": "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f",
                "session_id": "session-7",
                "agent_id": "agent-zero-main",
                "subordinate_profile": None,
                "start_timestamp": "2025-12-08T12:00:00Z",
                "end_timestamp": "2025-12-08T12:05:30Z",
                "turns": [_TURN_EXAMPLE],
                "task_context": _TASK_CONTEXT_EXAMPLE,
                "metadata": _METADATA_EXAMPLE,
            }
        ]
    },
):
    """A multi-turn interaction of an agent, from the request to its outcome."""

    model_config = ConfigDict(title="Agent RL Trajectory")

    turns: list[Turn] = Field(min_length=1, fail_fast=True, description="The turns in order.")
    task_context: TaskContext = Field(description="The task and its outcome.")
    metadata: TrajectoryMetadata = Field(description="How the trajectory was made.")

    @property
    def opted_out(self) -> bool:
        """Whether the user refused collection, wherever the publisher said so."""
        return bool(self.task_context.opt_out or self.metadata.opt_out)
