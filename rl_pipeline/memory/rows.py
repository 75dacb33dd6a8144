"""The warehouse's rows of memories: written once, read as episodes, as memories, or as what was told."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from rl_pipeline.memory.consolidated import Consolidated
from rl_pipeline.memory.episodes import Episode, Step
from rl_pipeline.memory.facts import Claim
from rl_pipeline.stores.agent_memories import NOBODY, AgentMemory, MemoryType
from rl_pipeline.stores.warehouse import Warehouse

if TYPE_CHECKING:
    import polars as pl

RETENTION = timedelta(days=180)
_MOST_PER_INSERT = 20_000


@dataclass(frozen=True, slots=True)
class Told:
    """What somebody had remembered by the service, redacted."""

    id: str
    agent_id: str
    memory_type: MemoryType
    content: Mapping[str, Any]
    searched: tuple[str, ...]
    at: datetime
    task_type: str
    domain: str
    user: str
    """The placeholder of the user; empty where none was named."""
    importance: float


Row = dict[str, Any]


def row_of_episode(episode: Episode, retention: timedelta) -> Row:
    """The row of what happened."""
    return _row(
        id=episode.id,
        memory_type="episodic",
        agent_id=episode.agent_id,
        task_type=episode.task_type,
        domain=episode.domain,
        stream=episode.stream,
        sequence=episode.sequence,
        at=episode.at,
        user=episode.user,
        content=episode.content(),
        searched=episode.searched,
        importance=episode.importance,
        retention=retention,
    )


def row_of_consolidated(made: Consolidated, retention: timedelta) -> Row:
    """The row of a fact or a procedure, without its generation and its day."""
    return _row(
        id=made.id,
        memory_type=made.memory_type,
        task_type=made.task_type,
        domain=made.domain,
        at=made.at,
        content=made.content,
        searched=made.searched,
        importance=made.importance,
        sources=made.sources,
        retention=retention,
    )


def row_of_told(told: Told, retention: timedelta) -> Row:
    """The row of what was told."""
    return _row(
        id=told.id,
        memory_type=told.memory_type,
        origin="told",
        agent_id=told.agent_id,
        task_type=told.task_type,
        domain=told.domain,
        at=told.at,
        user=told.user,
        content=told.content,
        searched=told.searched,
        importance=told.importance,
        retention=retention,
    )


def _row(
    *,
    at: datetime,
    content: Mapping[str, Any],
    searched: Sequence[str],
    sources: Sequence[str] = (),
    retention: timedelta,
    **given: Any,
) -> Row:
    row = {
        "origin": "lineage",
        "generation": "",
        "agent_id": NOBODY,
        "stream": "",
        "sequence": 0,
        "user": "",
        **given,
        "day": at.date(),
        "stream_time": at,
        "content": json.dumps(content, sort_keys=True, ensure_ascii=False),
        "searched": list(searched),
        "sources": list(sources),
    }
    said = json.dumps({**row, "day": str(row["day"]), "stream_time": at.isoformat()}, sort_keys=True)
    return {**row, "hash": sha256(said.encode()).hexdigest()[:32], "expires_at": at + retention}


def insert_rows(warehouse: Warehouse, rows: Sequence[Row]) -> None:
    """Add rows; those of one id and generation replace the earlier ones."""
    import polars as pl

    times = {name: pl.Datetime("ms", "UTC") for name in ("stream_time", "expires_at")}
    lists = {name: pl.List(pl.String) for name in ("searched", "sources")}
    for start in range(0, len(rows), _MOST_PER_INSERT):
        some = rows[start : start + _MOST_PER_INSERT]
        warehouse.insert("memories", pl.DataFrame(some, schema_overrides={**times, **lists, "sequence": pl.UInt64}))


def memory_of(row: Mapping[str, Any]) -> AgentMemory:
    """The memory that a row is."""
    return AgentMemory(
        id=row["id"],
        agent_id=row["agent_id"],
        memory_type=row["memory_type"],
        content=json.loads(row["content"]),
        created_at=row["stream_time"],
        searched=tuple(row["searched"]),
        task_type=row["task_type"],
        domain=row["domain"],
        importance=row["importance"],
    )


def current_memories(warehouse: Warehouse) -> "Iterator[pl.DataFrame]":
    """All memories that count, in pieces."""
    return warehouse.stream(
        "SELECT * FROM current_memories ORDER BY stream_time, id", settings={"max_block_size": 8192}
    )


def stored_episodes(warehouse: Warehouse, stream: str, day: date) -> "Iterator[pl.DataFrame]":
    """The trajectories of a day that have a reward, in the order of the stream, in pieces."""
    return warehouse.stream(
        """
        SELECT trajectory_id, stream, sequence, stream_time, agent_id, user, task_type, domain, task_status, document,
            raw_total
        FROM trajectories FINAL
        INNER JOIN (
            SELECT trajectory_id, raw_total FROM trajectory_rewards
            WHERE stream = {stream:String} AND toDate(stream_time) = {day:Date}
        ) AS rewarded USING (trajectory_id)
        WHERE stream = {stream:String} AND toDate(stream_time) = {day:Date}
        ORDER BY sequence
        """,
        {"stream": stream, "day": day},
        {"max_block_size": 1024},
    )


def remembered_episodes(
    warehouse: Warehouse, task_type: str, first: date, last: date, most: int
) -> list[tuple[str, Episode]]:
    """The newest episodes of a type of task between two days, the oldest first, each with the hash of its row.

    Told ones are among them, as far as they say what an episode needs.
    """
    found = warehouse.query(
        """
        SELECT * FROM (
            SELECT * FROM memories FINAL
            WHERE memory_type = 'episodic' AND task_type = {task_type:String}
                AND day BETWEEN {first:Date} AND {last:Date} AND expires_at > now64(3)
            ORDER BY stream_time DESC, sequence DESC, id LIMIT {most:UInt32}
        ) ORDER BY stream_time, sequence, id
        """,
        {"task_type": task_type, "first": first, "last": last, "most": most},
    )
    return [(row["hash"], episode) for row in found.iter_rows(named=True) if (episode := _episode(row))]


def told_statements(warehouse: Warehouse, task_type: str, first: date, last: date) -> list[tuple[str, str, Claim]]:
    """The facts that were told, the oldest first, each with the hash of its row and its domain."""
    found = warehouse.query(
        """
        SELECT id, hash, domain, searched, stream_time FROM memories FINAL
        WHERE memory_type = 'semantic' AND origin = 'told' AND task_type = {task_type:String}
            AND day BETWEEN {first:Date} AND {last:Date} AND expires_at > now64(3)
        ORDER BY stream_time, id
        """,
        {"task_type": task_type, "first": first, "last": last},
    )
    return [
        (row["hash"], row["domain"], Claim(row["id"], " ".join(row["searched"]), row["stream_time"]))
        for row in found.iter_rows(named=True)
    ]


def task_types_of(warehouse: Warehouse, day: date) -> list[str]:
    """The types of task of which something was remembered on a day."""
    found = warehouse.query(
        """
        SELECT DISTINCT task_type FROM memories FINAL
        WHERE day = {day:Date} AND generation = '' ORDER BY task_type
        """,
        {"day": day},
    )
    return list(found["task_type"])


def _episode(row: Mapping[str, Any]) -> Episode | None:
    content = json.loads(row["content"])
    actions, goal = content.get("actions"), content.get("goal")
    if not isinstance(goal, str) or not isinstance(actions, list) or not all(isinstance(each, str) for each in actions):
        return None
    failed = content.get("failed_actions")
    useless = set(_numbers(failed)) if isinstance(failed, list) else set()
    reward, status, outcome = content.get("reward"), content.get("status"), content.get("outcome")
    return Episode(
        id=row["id"],
        trajectory_id=str(content.get("trajectory_id", "")),
        stream=row["stream"],
        sequence=row["sequence"],
        at=row["stream_time"],
        agent_id=row["agent_id"],
        user=row["user"],
        task_type=row["task_type"],
        domain=row["domain"],
        goal=goal,
        status=status if isinstance(status, str) else "",
        reward=float(reward) if isinstance(reward, int | float) else 0.0,
        steps=tuple(Step(action, place not in useless) for place, action in enumerate(actions)),
        outcome=outcome if isinstance(outcome, str) else "",
        searched=tuple(row["searched"]),
    )


def _numbers(values: Iterable[Any]) -> Iterator[int]:
    return (value for value in values if isinstance(value, int))
