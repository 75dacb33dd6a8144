"""What the routes of memory answer."""

from datetime import date, datetime
from typing import Any

from pydantic import Field

from rl_pipeline.memory.consolidating import ConsolidatedSet
from rl_pipeline.memory.query import FoundMemory
from rl_pipeline.memory.system import Consolidation
from rl_pipeline.service.answers import Answer
from rl_pipeline.stores.agent_memories import AgentMemory, MemoryType


class StoredMemoryAnswer(Answer):
    """A memory that is kept."""

    id: str = Field(description="A UUID; the same for the same Idempotency-Key of the same agent.")
    memory_type: MemoryType
    agent_id: str = Field(description="Redacted.")
    created_at: datetime


class MemoryAnswer(Answer):
    """A memory that was found."""

    id: str
    agent_id: str = Field(description="Empty where all agents share it.")
    memory_type: MemoryType
    content: dict[str, Any] = Field(description="What it says, redacted.")
    task_type: str
    domain: str
    importance: float
    access_count: int
    last_accessed: datetime | None = None
    created_at: datetime
    score: float = Field(description="By relevance, recency and importance.")
    relevance: float = Field(description="From 0 to 1; 0 where it was found for other reasons.")


class MemoriesAnswer(Answer):
    """Memories, the best first."""

    memories: list[MemoryAnswer]
    count: int


class ConsolidatedAnswer(Answer):
    """What a type of task came to."""

    memory_type: MemoryType
    task_type: str
    memories: int
    sources: int = Field(description="Memories that these were made of.")
    contradicted: int = Field(description="Facts that others contradict.")
    changed: bool
    generation: str = Field(description="The hash of the set: the same sources make the same.")


class ConsolidationAnswer(Answer):
    """What a consolidation came to."""

    day: date
    sets: list[ConsolidatedAnswer]


def stored_memory(memory: AgentMemory) -> StoredMemoryAnswer:
    """The answer to whoever told it."""
    return StoredMemoryAnswer(
        id=memory.id, memory_type=memory.memory_type, agent_id=memory.agent_id, created_at=memory.created_at
    )


def found_memories(found: list[FoundMemory]) -> MemoriesAnswer:
    """The answer to whoever asked."""
    memories = [
        MemoryAnswer(
            id=one.memory.id,
            agent_id=one.memory.agent_id,
            memory_type=one.memory.memory_type,
            content=dict(one.memory.content),
            task_type=one.memory.task_type,
            domain=one.memory.domain,
            importance=one.memory.importance,
            access_count=one.memory.access_count,
            last_accessed=one.memory.last_accessed,
            created_at=one.memory.created_at,
            score=round(one.score, 6),
            relevance=round(one.relevance, 6),
        )
        for one in found
    ]
    return MemoriesAnswer(memories=memories, count=len(memories))


def consolidated(done: Consolidation) -> ConsolidationAnswer:
    """The answer to whoever had it done."""
    sets = [_set("semantic", each) for each in done.semantic] + [_set("procedural", each) for each in done.procedural]
    return ConsolidationAnswer(day=done.day, sets=sets)


def _set(memory_type: MemoryType, made: ConsolidatedSet) -> ConsolidatedAnswer:
    return ConsolidatedAnswer(
        memory_type=memory_type,
        task_type=made.task_type,
        memories=made.memories,
        sources=made.sources,
        contradicted=made.contradicted,
        changed=made.is_new,
        generation=made.generation,
    )
