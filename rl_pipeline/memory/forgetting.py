"""What goes: what is too old, and of an agent with too many memories those that are worth least.

A memory is worth `importance * 0.5 ** (age / half_life)`, where age is since it happened or was last looked up: what
was important once and is looked up by nobody goes before what is looked up every day. All agents' shared memories have
one budget, as if they were one agent's.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta

from rl_pipeline.stores.agent_memories import AgentMemories, Standing
from rl_pipeline.stores.warehouse import Warehouse

_KEPT_DAYS = 2


@dataclass(frozen=True, slots=True)
class ForgettingReport:
    """What went."""

    expired: int
    beyond_budget: int
    agents: int
    """Whose budgets were exceeded."""


def worth(standing: Standing, now: datetime, half_life: timedelta) -> float:
    """What keeps a memory."""
    since = max(standing.created_at, standing.last_accessed or standing.created_at)
    age = max(timedelta(), now - since)
    return float(standing.importance * 0.5 ** (age / half_life))


def worth_least(standings: Sequence[Standing], count: int, now: datetime, half_life: timedelta) -> list[str]:
    """So many memories to forget; of equals the older, then by id."""
    if count <= 0:
        return []
    ranked = sorted(standings, key=lambda one: (worth(one, now, half_life), one.created_at, one.id))
    return [one.id for one in ranked[:count]]


def forget(
    memories: AgentMemories, *, budget: int, half_life: timedelta, retention: timedelta, now: datetime
) -> ForgettingReport:
    """Let each agent keep `budget` memories, none of them older than `retention`. Done again, it changes nothing.

    The warehouse's rows expire by themselves; until then they do not come back into the store.
    """
    expired = beyond = over = 0
    for agent in memories.agents_over(0):
        standings = memories.standings(agent)
        old = {one.id for one in standings if one.created_at < now - retention}
        expired += memories.remove(old, "forgotten")
        young = [one for one in standings if one.id not in old]
        gone = memories.remove(worth_least(young, len(young) - budget, now, half_life), "forgotten")
        beyond, over = beyond + gone, over + bool(gone)
    return ForgettingReport(expired, beyond, over)


def drop_superseded(warehouse: Warehouse, today: date) -> None:
    """Delete the sets of consolidated memories that do not count any more, but for the last days'."""
    condition = """
        generation != '' AND stored_at < {before:DateTime64(3, 'UTC')}
        AND (memory_type, task_type, generation) NOT IN (
            SELECT memory_type, task_type, argMax(generation, day) FROM memory_generations FINAL
            GROUP BY memory_type, task_type
        )
    """
    before = {"before": datetime.combine(today - timedelta(days=_KEPT_DAYS), datetime.min.time())}
    if warehouse.query(f"SELECT 1 FROM memories WHERE {condition} LIMIT 1", before).height:  # noqa: S608 - all of it is ours
        done = {"mutations_sync": 2, "allow_nondeterministic_mutations": 1}
        warehouse.execute(f"ALTER TABLE memories DELETE WHERE {condition}", before, done)
