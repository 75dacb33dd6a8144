"""What is asked of memories, and how what is found is weighed."""

from dataclasses import dataclass
from datetime import timedelta

from rl_pipeline.stores.agent_memories import MEMORY_TYPES, AgentMemory, MemoryType

LOOKS_THAT_COUNT = 8
"""Looks beyond these make a memory no more important: else what is found is found ever more often."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The shares of a memory's score: of what it has to do with the query, how new it is, and how important.

    `score = relevance * r + recency * 0.5 ** (age / half_life) + importance * i`, where r is the share of the best
    match's BM25 (mixed with cosines by `dense`), age is since it happened or was last looked up, and i is the stored
    importance, with a quarter of what is missing to 1 for `LOOKS_THAT_COUNT` looks or more, in proportion for fewer.
    """

    relevance: float = 0.75
    recency: float = 0.1
    importance: float = 0.15
    half_life: timedelta = timedelta(days=30)
    dense: float = 0.0
    """Share of the embeddings in the relevance; 0 leaves it to words alone."""


@dataclass(frozen=True, slots=True)
class MemoryQuery:
    """Which memories are looked for."""

    text: str
    k: int = 10
    memory_types: tuple[MemoryType, ...] = MEMORY_TYPES
    agent_id: str | None = None
    """Those of this agent and those of nobody; None: of all."""
    task_type: str | None = None
    domain: str | None = None


@dataclass(frozen=True, slots=True)
class FoundMemory:
    """A memory, and why it was found."""

    memory: AgentMemory
    score: float
    relevance: float
    """From 0 to 1; 0 where nothing of it was asked for."""
