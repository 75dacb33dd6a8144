"""The memory of all agents, with the names of the learning architecture."""

import asyncio
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from functools import partial
from typing import Any

from rl_pipeline.memory.consolidating import WINDOW_DAYS, ConsolidatedSet, Wording, consolidate
from rl_pipeline.memory.embedding import Embed, unembedded
from rl_pipeline.memory.query import FoundMemory, MemoryQuery
from rl_pipeline.memory.recall import Recall
from rl_pipeline.memory.remembering import put_rows
from rl_pipeline.memory.rows import RETENTION, current_memories
from rl_pipeline.memory.telling import MemoryTeller, Telling
from rl_pipeline.rewards.document import as_text, texts_of
from rl_pipeline.stores.agent_memories import AgentMemories, AgentMemory, MemoryType
from rl_pipeline.stores.warehouse import Warehouse

_CARRIED_AT_ONCE = 2000


@dataclass(frozen=True, slots=True)
class Consolidation:
    """What a consolidation came to."""

    day: date
    semantic: Sequence[ConsolidatedSet]
    procedural: Sequence[ConsolidatedSet]


class IntegratedMemorySystem:
    """Episodic, semantic and procedural memories of all agents: to be told, and looked up. Threads may share it."""

    def __init__(
        self,
        open_warehouse: Callable[[], Warehouse],
        recall: Recall,
        teller: MemoryTeller,
        clock: Callable[[], datetime],
        *,
        consolidate_after: int = 200,
        wording: Wording | None = None,
        embed: Embed = unembedded,
        retention: timedelta = RETENTION,
        window_days: int = WINDOW_DAYS,
    ) -> None:
        """After `consolidate_after` experiences the day is consolidated."""
        self.recall = recall
        self.teller = teller
        self._open_warehouse = open_warehouse
        self._clock = clock
        self._consolidate_after = consolidate_after
        self._wording = wording
        self._consolidate_all = partial(consolidate, retention=retention, window_days=window_days, embed=embed)
        self._told = 0
        self._consolidating = threading.Lock()

    async def store_experience(
        self,
        agent_id: str,
        experience: Mapping[str, Any],
        *,
        memory_type: MemoryType = "episodic",
        importance: float | None = None,
        key: str | None = None,
    ) -> AgentMemory:
        """Store it, embed it and index it; and consolidate, if it is time for that. Raises as `MemoryTeller.tell`."""
        telling = Telling(agent_id, memory_type, experience, importance, key)
        memory = await asyncio.to_thread(self.teller.tell, telling)
        self.recall.index.add([memory])
        self._told += 1
        if self.should_consolidate():
            await asyncio.to_thread(self.consolidate)
        return memory

    async def retrieve_for_task(
        self,
        task_context: Mapping[str, Any] | str,
        k: int = 10,
        *,
        memory_types: Sequence[MemoryType] = ("episodic", "semantic", "procedural"),
        agent_id: str | None = None,
        task_type: str | None = None,
        domain: str | None = None,
    ) -> list[FoundMemory]:
        """What may help with a task: exactly `k` memories where there are so many, each once, the best first."""
        text = task_context if isinstance(task_context, str) else context_text(task_context)
        query = MemoryQuery(text, k, tuple(memory_types), agent_id, task_type, domain)
        return await asyncio.to_thread(self.recall.retrieve_for_task, query)

    def should_consolidate(self) -> bool:
        """Whether enough was told since the last time."""
        return self._told >= self._consolidate_after

    def consolidate(self, day: date | None = None) -> Consolidation:
        """Consolidate what was remembered on a day, else today. Raises `WarehouseUnavailable`."""
        now = self._clock()
        of_day = day or now.date()
        # One after the other: two would make the same twice.
        with self._consolidating:
            self._told = 0
            warehouse, memories = self._open_warehouse(), self.recall.memories
            of_that_day = partial(self._consolidate_all, warehouse, memories, day=of_day, now=now)
            facts = of_that_day(memory_type="semantic", wording=self._wording)
            procedures = of_that_day(memory_type="procedural")
        self.recall.refresh()
        return Consolidation(of_day, facts, procedures)

    def close(self) -> None:
        """Keep what waits, and end."""
        self.teller.close()
        self.recall.close()


def carry_over(
    warehouse: Warehouse,
    memories: AgentMemories,
    embed: Embed = unembedded,
) -> int:
    """Bring every memory that counts from the warehouse into the store, and return how many were missing there,
    or said something else.

    What was forgotten or erased stays away.
    """
    missing = 0
    for frame in current_memories(warehouse):
        rows = list(frame.iter_rows(named=True))
        for start in range(0, len(rows), _CARRIED_AT_ONCE):
            missing += put_rows(memories, rows[start : start + _CARRIED_AT_ONCE], (), embed)
    return missing


def context_text(context: Mapping[str, Any]) -> str:
    """The words of a task's context, in which memories are looked for."""
    named = [as_text(context.get(name)) for name in ("goal", "instructions", "state", "query")]
    chosen = [text for text in named if text]
    return " ".join(chosen or texts_of(context)) or json.dumps(context)
