"""Trajectories and rewards in the warehouse as ingest and scoring would have left them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, uuid5
from zlib import crc32

import orjson
import polars as pl

from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline_tests.rewards.documents import call, document, says

STREAM = "RL_TRAJECTORIES"
# Each another task: what is the same task stays on one side of a dataset.
TASKS = list({task.id: task for task in CraftingWorld().tasks(20_000, seed=0)}.values())
# ClickHouse goes by its own clock when it lets rows expire.
NOW = datetime.now(UTC).replace(microsecond=0)


@dataclass(frozen=True)
class Attempt:
    """One trajectory: what was asked, what was done, and what it earned. `columns` are those of the table."""

    task: str = "task-1"
    actions: Sequence[str] = ("look",)
    reward: float | None = 0.5
    answer: str = "Done."
    environment: str = ""
    columns: dict[str, Any] = field(default_factory=dict)
    document: dict[str, Any] | None = None


def name_of(number: int) -> str:
    """The id of the trajectory at this sequence."""
    return str(uuid5(NAMESPACE_URL, f"trajectory {number}"))


def store(warehouse: Warehouse, attempts: Sequence[Attempt], first: int = 1, configuration: str = "c1") -> list[str]:
    """Store the attempts from the sequence `first` on, and return their ids."""
    numbered = list(enumerate(attempts, first))
    rows = [_row(number, attempt) for number, attempt in numbered]
    warehouse.insert("trajectories", pl.DataFrame(rows, infer_schema_length=None))
    rewarded = [(number, one) for number, one in numbered if one.reward is not None]
    store_rewards(warehouse, {number: float(one.reward or 0) for number, one in rewarded}, configuration)
    return [name_of(number) for number, _ in numbered]


def store_rewards(
    warehouse: Warehouse, rewards: dict[int, float], configuration: str = "c1", revision: int = 0, total: float = 0.5
) -> None:
    rows = [
        {
            "trajectory_id": name_of(number),
            "sequence": number,
            "raw_total": reward,
            "total": total,
            "reward_id": f"reward of {number}, {configuration}.{revision}",
            "revision": revision,
        }
        for number, reward in rewards.items()
    ]
    common = {"stream": STREAM, "stream_time": NOW, "configuration": configuration, "scored_at": NOW}
    frame = pl.DataFrame(rows, infer_schema_length=None)
    warehouse.insert("rewards", frame.with_columns(pl.lit(value).alias(name) for name, value in common.items()))


def setup_of(task: str) -> dict[str, Any]:
    """A task of the world `crafting`, one for each name."""
    return dict(TASKS[crc32(task.encode()) % len(TASKS)].setup)


def document_of(attempt: Attempt) -> dict[str, Any]:
    """Its document: one call for each action, then an answer."""
    if attempt.document is not None:
        return attempt.document
    asked = f"Please do {attempt.task}."
    turns = [
        call("act", {"what": action}, observed="tool_result" if place else "user_message", content=asked)
        for place, action in enumerate(attempt.actions)
    ]
    for place in range(1, len(turns)):
        turns[place]["observation"]["content"] = f"after {attempt.actions[place - 1]}"
    turns.append(says(attempt.answer, content="after all"))
    task: dict[str, Any] = {"task_id": attempt.task, "instructions": asked}
    if attempt.environment:
        task |= {"environment": attempt.environment, "environment_task": setup_of(attempt.task)}
    return document(turns, task)


def _row(number: int, attempt: Attempt) -> dict[str, Any]:
    content = document_of(attempt)
    row = {
        "trajectory_id": name_of(number),
        "stream": STREAM,
        "sequence": number,
        "stream_time": NOW,
        "revision": 1,
        "version": 2**40 + 2**40 - 1 - number,
        "publisher": "agent-zero",
        "agent_id": content["agent_id"],
        "user": "",
        "task_id": attempt.task,
        "group_id": attempt.task,
        "task_type": "tests",
        "domain": "coding",
        "task_status": "",
        "started_at": NOW,
        "ended_at": NOW,
        "expires_at": NOW + timedelta(days=30),
        "turns": len(content["turns"]),
        "subordinate_profile": "",
        "tools": ["act"] * len(attempt.actions),
        "document": orjson.dumps({**content, "trajectory_id": name_of(number)}).decode(),
    }
    return row | attempt.columns
