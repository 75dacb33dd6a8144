"""Consolidation: what the episodes of a type of task came to, as of a day, whole sets at a time.

Without a language model, and so reproducible: the same episodes make the same set, which has the same hash. A set
counts from the row in `memory_generations` on, which is written when all of it is stored: whoever dies in between
leaves the last whole set in force. The store of memories takes a set in one transaction.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import Literal, Protocol

from rl_pipeline.memory.consolidated import Consolidated
from rl_pipeline.memory.embedding import Embed, unembedded
from rl_pipeline.memory.facts import facts_of, merged_statements
from rl_pipeline.memory.procedures import procedures_of
from rl_pipeline.memory.remembering import Generation, generation_of, mark_generation, put_rows
from rl_pipeline.memory.rows import (
    RETENTION,
    insert_rows,
    remembered_episodes,
    row_of_consolidated,
    task_types_of,
    told_statements,
)
from rl_pipeline.stores.agent_memories import AgentMemories
from rl_pipeline.stores.warehouse import Warehouse

WINDOW_DAYS = 30
MOST_EPISODES = 5000
"""Of a type of task, the newest."""

ConsolidatedType = Literal["semantic", "procedural"]
POINTS = ("after_rows", "after_mark", "after_store")
"""Where `reached` is called, in the order of one set."""


class Wording(Protocol):
    """What puts facts into better words: a language model."""

    def reword(self, facts: Sequence[Consolidated]) -> list[Consolidated]:
        """The same facts, in order; one that could not be put into words comes back as it is."""
        ...


@dataclass(frozen=True, slots=True)
class ConsolidatedSet:
    """What came of a type of task."""

    task_type: str
    memories: int
    sources: int
    contradicted: int
    """Facts that others contradict."""
    is_new: bool
    generation: str


def consolidate(
    warehouse: Warehouse,
    memories: AgentMemories,
    memory_type: ConsolidatedType,
    *,
    day: date,
    now: datetime,
    window_days: int = WINDOW_DAYS,
    retention: timedelta = RETENTION,
    wording: Wording | None = None,
    embed: Embed = unembedded,
    reached: Callable[[str], None] = lambda _: None,
) -> list[ConsolidatedSet]:
    """Consolidate every type of task of which something was remembered on that day, from the days up to it.

    A day before the last that was consolidated is made, and does not count: what is looked up is the newest.
    """
    first = day - timedelta(days=window_days - 1)
    done = []
    for task_type in task_types_of(warehouse, day):
        made, sources = _made(warehouse, memory_type, task_type, first, day)
        if wording is not None:
            made = wording.reword(made)
        rows = [row_of_consolidated(each, retention) | {"day": day} for each in made]
        generation = generation_of(rows)
        is_new = generation != _marked(warehouse, memory_type, task_type, day)
        if is_new:
            insert_rows(warehouse, [row | {"generation": generation} for row in rows])
            reached("after_rows")
        mark_generation(warehouse, Generation(memory_type, task_type, day, generation, len(rows), sources, now))
        reached("after_mark")
        if _newest(warehouse, memory_type, task_type) == generation:
            told = _told(warehouse, memory_type, task_type)
            stale = set(memories.of(memory_type, task_type)) - told
            put_rows(memories, rows, stale, embed)
            reached("after_store")
        contradicted = sum(bool(each.content.get("contradictions")) for each in made)
        done.append(ConsolidatedSet(task_type, len(rows), sources, contradicted, is_new, generation))
    return done


def _made(
    warehouse: Warehouse, memory_type: ConsolidatedType, task_type: str, first: date, last: date
) -> tuple[list[Consolidated], int]:
    episodes = [episode for _, episode in remembered_episodes(warehouse, task_type, first, last, MOST_EPISODES)]
    if memory_type == "procedural":
        return procedures_of(episodes), len(episodes)
    told = told_statements(warehouse, task_type, first, last)
    domain = told[0][1] if told else ""
    merged = merged_statements(task_type, domain, [claim for _, _, claim in told])
    # What only one has said is there as it was told.
    merged = [fact for fact in merged if len(fact.sources) > 1]
    return [*facts_of(episodes), *merged], len(episodes) + len(told)


def _marked(warehouse: Warehouse, memory_type: str, task_type: str, day: date) -> str | None:
    found = warehouse.query(
        """
        SELECT generation FROM memory_generations FINAL
        WHERE memory_type = {memory_type:String} AND task_type = {task_type:String} AND day = {day:Date}
        """,
        {"memory_type": memory_type, "task_type": task_type, "day": day},
    )
    return str(found["generation"][0]) if found.height else None


def _newest(warehouse: Warehouse, memory_type: str, task_type: str) -> str:
    found = warehouse.query(
        """
        SELECT argMax(generation, day) AS generation FROM memory_generations FINAL
        WHERE memory_type = {memory_type:String} AND task_type = {task_type:String}
        """,
        {"memory_type": memory_type, "task_type": task_type},
    )
    return str(found["generation"][0])


def _told(warehouse: Warehouse, memory_type: str, task_type: str) -> set[str]:
    found = warehouse.query(
        """
        SELECT id FROM memories FINAL
        WHERE memory_type = {memory_type:String} AND origin = 'told' AND task_type = {task_type:String}
        """,
        {"memory_type": memory_type, "task_type": task_type},
    )
    return set(found["id"])
