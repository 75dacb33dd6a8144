"""Memories for tests: made by hand, or of attempts at tasks that are stored as the pipeline stores them."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from rl_pipeline.memory.remembering import RememberedDay, remember_day
from rl_pipeline.rewards.storing import remember_configuration
from rl_pipeline.stores.agent_memories import AgentMemories, AgentMemory
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline_tests.curation.stored import NOW, STREAM, Attempt, store
from rl_pipeline_tests.rewards.documents import call, document, says

TODAY = NOW.date()
START = datetime(2026, 1, 1, tzinfo=UTC)


def memory(text: str = "a memory", number: int = 0, **columns: Any) -> AgentMemory:
    """A memory that says something, an hour after the one before."""
    given: dict[str, Any] = {
        "agent_id": "agent",
        "memory_type": "episodic",
        "content": {"text": text},
        "created_at": START + timedelta(hours=number),
        "searched": (text,),
    }
    return AgentMemory(id=id_of(f"{text} {number}"), **{**given, **columns})


def id_of(name: str) -> str:
    """A memory's id, by a name."""
    return str(uuid5(NAMESPACE_URL, name))


def crafted(goal: str, *actions: str, done: bool = True, useless: Sequence[int] = (), **columns: Any) -> Attempt:
    """An attempt at crafting something, some actions of which did nothing."""
    asked = f"Craft things. Goal: {goal}. You have nothing."
    turns = [
        call("crafting", {"command": action}, success=place not in useless, output=f"after {action}", content=asked)
        for place, action in enumerate(actions)
    ]
    turns.append(says(f"Have {goal}" if done else "I give up", content="Well?"))
    made = document(turns, {"task_id": goal, "instructions": asked})
    status = "success" if done else "failed"
    given = {"task_type": "crafting", "domain": "general", "task_status": status, **columns}
    return Attempt(task=goal, reward=0.9 if done else 0.1, document=made, columns=given)


def store_and_remember(
    warehouse: Warehouse, memories: AgentMemories, attempts: Sequence[Attempt], first: int = 1
) -> RememberedDay:
    """Store the attempts of today, and remember the day."""
    store(warehouse, attempts, first)
    remember_configuration(warehouse, "c1", "", "{}", NOW)
    return remember_today(warehouse, memories)


def remember_today(warehouse: Warehouse, memories: AgentMemories) -> RememberedDay:
    """Remember the day of all that is stored."""
    return remember_day(warehouse, memories, stream=STREAM, day=TODAY, now=NOW)
