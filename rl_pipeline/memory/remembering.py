"""A day's episodes: each trajectory that is stored and rewarded is remembered once, as it is now.

Done again, it changes nothing; done under newer redaction or rewards, what says something else replaces what it said,
and what is not there any more goes. The order survives a death at any point: rows, the mark of the day, the store.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import date, datetime, timedelta
from hashlib import sha256

from rl_pipeline.memory.embedding import Embed, unembedded
from rl_pipeline.memory.episodes import episode_of
from rl_pipeline.memory.rows import RETENTION, Row, insert_rows, memory_of, row_of_episode, stored_episodes
from rl_pipeline.stores.agent_memories import AgentMemories, MemoryType
from rl_pipeline.stores.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class RememberedDay:
    """What came of a day."""

    episodes: int
    changed: int
    """New, or saying something else than before."""
    gone: int
    generation: str
    """The hash of the day's episodes."""


@dataclass(frozen=True, slots=True)
class Generation:
    """A set of memories that counts: a row of `memory_generations`."""

    memory_type: MemoryType
    task_type: str
    """Empty for the episodes of a day."""
    day: date
    generation: str
    memories: int
    sources: int
    made_at: datetime


def remember_day(
    warehouse: Warehouse,
    memories: AgentMemories,
    *,
    stream: str,
    day: date,
    now: datetime,
    retention: timedelta = RETENTION,
    embed: Embed = unembedded,
) -> RememberedDay:
    """Remember the trajectories of a day that have a reward."""
    rows: list[Row] = []
    for frame in stored_episodes(warehouse, stream, day):
        rows += [row_of_episode(episode_of(row), retention) for row in frame.iter_rows(named=True)]
    kept = _kept(warehouse, day)
    changed = [row for row in rows if kept.get(row["id"]) != row["hash"]]
    insert_rows(warehouse, changed)
    gone = sorted(kept.keys() - {row["id"] for row in rows})
    delete_memories(warehouse, gone)
    generation = generation_of(rows)
    mark_generation(warehouse, Generation("episodic", "", day, generation, len(rows), len(rows), now))
    # All of them: whoever died after the rows were written did not come to the store.
    put_rows(memories, rows, gone, embed)
    return RememberedDay(len(rows), len(changed), len(gone), generation)


def put_rows(memories: AgentMemories, rows: Sequence[Row], gone: Iterable[str], embed: Embed) -> int:
    """Bring rows into the store, where they replace what is gone; those that it does not know get embeddings.

    Returns how many are new there, or say something else.
    """
    made = [memory_of(row) for row in rows]
    there = {memory.id: memory.searched for memory in memories.get([memory.id for memory in made])}
    new = [memory for memory in made if there.get(memory.id) != memory.searched]
    known = [memory for memory in made if there.get(memory.id) == memory.searched]
    return memories.put([*known, *(embed(new) if new else ())], replacing=gone)


def generation_of(rows: Sequence[Row]) -> str:
    """The hash of a set of rows."""
    said = "\n".join(sorted(f"{row['id']} {row['hash']}" for row in rows))
    return sha256(said.encode()).hexdigest()[:32]


def mark_generation(warehouse: Warehouse, mark: Generation) -> None:
    """Let a set of memories count, all of which are stored."""
    warehouse.execute(
        """
        INSERT INTO memory_generations VALUES (
            {memory_type:String}, {task_type:String}, {day:Date}, {generation:String}, {memories:UInt32},
            {sources:UInt32}, {made_at:DateTime64(3, 'UTC')}
        )
        """,
        asdict(mark),
    )


def delete_memories(warehouse: Warehouse, ids: Sequence[str]) -> None:
    """Delete rows of memories by their ids; it is done when this returns."""
    for start in range(0, len(ids), 500):
        some = {"ids": list(ids[start : start + 500])}
        warehouse.execute("ALTER TABLE memories DELETE WHERE id IN {ids:Array(String)}", some, {"mutations_sync": 2})


def _kept(warehouse: Warehouse, day: date) -> dict[str, str]:
    found = warehouse.query(
        """
        SELECT id, hash FROM memories FINAL
        WHERE memory_type = 'episodic' AND origin = 'lineage' AND day = {day:Date}
        """,
        {"day": day},
    )
    return dict(found.iter_rows())
