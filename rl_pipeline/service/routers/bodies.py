"""What requests hold that is no message of the contracts, as models."""

import contextlib
import re
from datetime import date
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from rl_pipeline.contracts.fields import (
    ClosedObject,
    Identifier,
    JsonObject,
    Name,
    PositiveInteger,
    Share,
    Timestamp,
    optional,
)
from rl_pipeline.contracts.training_request import (
    Evaluation,
    Priority,
    TrainingConfig,
    TrainingRequestMetadata,
    TriggerReason,
)
from rl_pipeline.stores.agent_memories import MemoryType

Reason = Annotated[str, Field(min_length=1, max_length=1024)]


_DAY_PATTERN = r"^20\d{2}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])$"


def _read_day(value: Any) -> date:
    if isinstance(value, str) and re.fullmatch(_DAY_PATTERN, value):
        with contextlib.suppress(ValueError):
            return date.fromisoformat(value)
    raise PydanticCustomError("not_a_day", "should be a day such as 2026-01-31")


Day = Annotated[
    date,
    BeforeValidator(_read_day),
    WithJsonSchema({"type": "string", "format": "date", "pattern": _DAY_PATTERN}),
]


class TrainingStart(
    ClosedObject,
    json_schema_extra={
        "examples": [
            {
                "training_config": {
                    "algorithm": "dpo",
                    "dataset": {"source": "clickhouse", "sample_size": 5000, "filter": {"last_days": 30}},
                    "hyperparameters": {"learning_rate": 1e-5, "batch_size": 32, "epochs": 3},
                }
            }
        ]
    },
):
    """`agent.rl.training.request.v1`, of which all but `training_config` may be left out."""

    training_config: TrainingConfig = Field(description="What to train.")
    training_job_id: Identifier | None = optional("The job's id; else manual- and a new UUID.")
    timestamp: Timestamp | None = optional("When the request was made; else now.")
    requester: Name | None = optional("Who asks; else the holder of the key.")
    trigger_reason: TriggerReason | None = optional("Why; else manual.")
    evaluation: Evaluation | None = optional("How to judge it.")
    priority: Priority | None = optional("Order among waiting jobs; else by the reason.")
    metadata: TrainingRequestMetadata | None = optional("Anything else worth keeping.")


class LoopStart(
    ClosedObject,
    json_schema_extra={"examples": [{"batch_size": 32, "learning_rate": 1e-5, "num_epochs": 3}]},
):
    """The knobs of a training; what is left out is the pipeline's."""

    batch_size: PositiveInteger | None = optional("Trajectories in a batch.")
    learning_rate: Annotated[float, Field(gt=0)] | None = optional("Learning rate.")
    num_epochs: PositiveInteger | None = optional("Passes over the dataset.")


class Why(ClosedObject, json_schema_extra={"examples": [{"reason": "The wrong base model."}]}):
    """Why something is ordered."""

    reason: Reason | None = optional("For people, and for the audit.")


class Order(ClosedObject, json_schema_extra={"examples": [{"model_id": "agent-zero-rl-v7", "reason": "It is good."}]}):
    """An order about a model."""

    model_id: Identifier | None = optional("The model; else the candidate.")
    reason: Reason | None = optional("For people, and for the audit.")


class Promotion(
    ClosedObject, json_schema_extra={"examples": [{"model_id": "agent-zero-rl-v7", "reason": "It is good."}]}
):
    """Which candidate gets all of the traffic."""

    model_id: Identifier = Field(description="The candidate.")
    reason: Reason | None = optional("For people, and for the audit.")


class Sentence(
    ClosedObject,
    json_schema_extra={"examples": [{"message": "Trigger training job with 10K samples from last 30 days"}]},
):
    """What the coordinator is told, in words."""

    message: Annotated[str, Field(min_length=1, max_length=2000)] = Field(description="One order.")


class TaskResult(
    ClosedObject,
    json_schema_extra={
        "examples": [
            {
                "task_id": "task-17",
                "result": {
                    "task_type": "coding",
                    "output": "42",
                    "agents": ["agent-zero"],
                    "metadata": {"task_status": "success"},
                },
            }
        ]
    },
):
    """A task that has ended, and what came of it."""

    task_id: Annotated[str, Field(min_length=1, max_length=256)] = Field(description="The task.")
    result: JsonObject = Field(
        description="task_type, output, agents (ids) and metadata (of a trajectory); and expected and steps, if known."
    )


class Memory(
    ClosedObject,
    json_schema_extra={
        "examples": [
            {
                "agent_id": "agent-zero",
                "memory_type": "semantic",
                "content": {"fact": "The deploy key is rotated on Mondays.", "task_type": "deploy"},
            }
        ]
    },
):
    """What shall be remembered."""

    agent_id: Annotated[str, Field(min_length=1, max_length=256)] = Field(description="Whose memory it is.")
    memory_type: MemoryType = Field(description="What happened, what is so, or what to do.")
    content: JsonObject = Field(
        description="What it says. `task_type` and `domain` are filtered by; who is named as `user_id` can be erased. "
        "An episode that has `goal`, `actions`, `status` or `reward`, and `outcome` is consolidated."
    )
    importance: Share | None = optional("From 0 to 1; else 0.5.")


class Recollection(
    ClosedObject,
    json_schema_extra={"examples": [{"context": {"goal": "Rotate the deploy key."}, "k": 10}]},
):
    """What memories are looked for."""

    context: JsonObject = Field(description="The task: `goal`, `instructions`, `state` or `query`; else all its texts.")
    k: Annotated[int, Field(ge=1, le=100)] = Field(10, description="How many.")
    memory_types: Annotated[list[MemoryType], Field(min_length=1, max_length=3)] | None = optional("Else all.")
    agent_id: Annotated[str, Field(min_length=1, max_length=256)] | None = optional(
        "Memories of this agent and those that all share; else of all agents."
    )
    task_type: Name | None = optional("Of this type of task alone.")
    domain: Name | None = optional("Of this domain alone.")


class Consolidate(ClosedObject, json_schema_extra={"examples": [{"day": "2026-01-31"}]}):
    """What is consolidated."""

    day: Day | None = optional("Its memories, with those before it; else today.")


BODIES: tuple[type[ClosedObject], ...] = (
    TrainingStart,
    LoopStart,
    Why,
    Order,
    Promotion,
    Sentence,
    TaskResult,
    Memory,
    Recollection,
    Consolidate,
)


def given(body: ClosedObject) -> dict[str, Any]:
    """What a body says, without what it left out or null."""
    return body.model_dump(exclude_unset=True, exclude_none=True)
