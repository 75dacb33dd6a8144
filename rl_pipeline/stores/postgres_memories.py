"""Memories in PostgreSQL with pgvector: the store that several machines share."""

import json
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rl_pipeline.stores.agent_memories import (
    DIMENSIONS,
    AgentMemory,
    MemoriesUnavailable,
    MemoryChanges,
    MemoryType,
    Removal,
    Standing,
)
from rl_pipeline.stores.embeddings import padded

if TYPE_CHECKING:
    import psycopg

_TABLES = f"""
CREATE EXTENSION IF NOT EXISTS vector;
CREATE TABLE IF NOT EXISTS agent_memories (
    id UUID PRIMARY KEY,
    agent_id VARCHAR(256) NOT NULL,
    memory_type VARCHAR(20) NOT NULL CHECK (memory_type IN ('episodic', 'semantic', 'procedural')),
    content JSONB NOT NULL,
    embedding VECTOR({DIMENSIONS}),
    importance FLOAT NOT NULL DEFAULT 0.5,
    access_count INTEGER NOT NULL DEFAULT 0,
    last_accessed TIMESTAMPTZ,
    created_at TIMESTAMPTZ NOT NULL DEFAULT CURRENT_TIMESTAMP,
    task_type TEXT NOT NULL DEFAULT '',
    domain TEXT NOT NULL DEFAULT '',
    searched TEXT[] NOT NULL DEFAULT '{{}}',
    change BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS idx_memories_agent_type ON agent_memories (agent_id, memory_type);
CREATE INDEX IF NOT EXISTS idx_memories_embedding ON agent_memories USING ivfflat (embedding vector_cosine_ops);
CREATE INDEX IF NOT EXISTS idx_memories_task_type ON agent_memories (task_type, memory_type);
CREATE INDEX IF NOT EXISTS idx_memories_change ON agent_memories (change);
CREATE TABLE IF NOT EXISTS removed_memories (id UUID PRIMARY KEY, why TEXT NOT NULL, change BIGINT NOT NULL);
CREATE INDEX IF NOT EXISTS idx_removed_change ON removed_memories (change);
CREATE TABLE IF NOT EXISTS memory_changes (number BIGINT NOT NULL);
INSERT INTO memory_changes SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM memory_changes);
"""  # noqa: S608 - all of it is ours
# Two processes that begin at once make the tables one after the other.
_MAKING_TABLES = "SELECT pg_advisory_xact_lock(7022010)"
_COLUMNS = (
    "id::text, agent_id, memory_type, content::text, embedding::text, importance, access_count, last_accessed, "
    "created_at, task_type, domain, searched"
)
_PUT = """
INSERT INTO agent_memories (id, agent_id, memory_type, content, embedding, importance, access_count, last_accessed,
    created_at, task_type, domain, searched, change)
SELECT %(id)s::uuid, %(agent_id)s, %(memory_type)s, %(content)s::jsonb, %(embedding)s::vector, %(importance)s,
    %(access_count)s, %(last_accessed)s, %(created_at)s, %(task_type)s, %(domain)s, %(searched)s, %(change)s
WHERE NOT EXISTS (SELECT 1 FROM removed_memories WHERE id = %(id)s::uuid AND why != 'replaced')
ON CONFLICT (id) DO UPDATE SET agent_id = excluded.agent_id, memory_type = excluded.memory_type,
    content = excluded.content, created_at = excluded.created_at, task_type = excluded.task_type,
    domain = excluded.domain, searched = excluded.searched, change = excluded.change,
    embedding = coalesce(
        excluded.embedding,
        CASE WHEN agent_memories.searched = excluded.searched THEN agent_memories.embedding END
    )
WHERE (agent_memories.content, agent_memories.created_at, agent_memories.searched, agent_memories.task_type,
        agent_memories.domain, agent_memories.agent_id, coalesce(excluded.embedding, agent_memories.embedding)::text)
    IS DISTINCT FROM (excluded.content, excluded.created_at, excluded.searched, excluded.task_type, excluded.domain,
        excluded.agent_id, agent_memories.embedding::text)
"""
_REMOVED = """
INSERT INTO removed_memories SELECT unnest(%(ids)s::uuid[]), %(why)s, %(change)s
ON CONFLICT (id) DO UPDATE SET change = excluded.change,
    why = CASE WHEN removed_memories.why = 'erased' THEN 'erased' ELSE excluded.why END
"""
_CONNECT_SECONDS = 5


class PostgresMemories:
    """The `AgentMemories` of a database. Every thread has a connection of its own."""

    def __init__(self, url: str) -> None:
        """Connect, and make what is missing. Raises `MemoriesUnavailable`."""
        self._url = url
        self._mine = threading.local()
        self._opened: list[psycopg.Connection[Any]] = []
        self._opening = threading.Lock()
        with self._transaction() as connection:
            connection.execute(_MAKING_TABLES)
            connection.execute(_TABLES)

    def put(self, memories: Sequence[AgentMemory], replacing: Iterable[str] = ()) -> int:
        """See `AgentMemories`."""
        gone = sorted(set(replacing) - {each.id for each in memories})
        if not memories and not gone:
            return 0
        with self._transaction() as connection:
            change = _next_change(connection)
            _take_out(connection, gone, "replaced", change)
            changed = sum(connection.execute(_PUT, _row(each) | {"change": change}).rowcount for each in memories)
            ids = [each.id for each in memories]
            connection.execute("DELETE FROM removed_memories WHERE why = 'replaced' AND id = ANY(%s::uuid[])", (ids,))
        return changed

    def get(self, ids: Sequence[str]) -> list[AgentMemory]:
        """See `AgentMemories`."""
        sql = f"SELECT {_COLUMNS} FROM agent_memories WHERE id = ANY(%s::uuid[])"  # noqa: S608 - all of it is ours
        found = {row[0]: row for row in self._rows(sql, (list(ids),))}
        return [_memory(found[each]) for each in ids if each in found]

    def count(self) -> int:
        """See `AgentMemories`."""
        return int(self._rows("SELECT count(*) FROM agent_memories")[0][0])

    def changes(self, since: int, limit: int) -> MemoryChanges:
        """See `AgentMemories`."""
        with self._transaction() as connection:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            last = _one(connection, "SELECT number FROM memory_changes")
            # A change is taken whole, so that the number after it leaves nothing out.
            sql = "SELECT change FROM agent_memories WHERE change > %s ORDER BY change LIMIT 1 OFFSET %s"
            beyond = connection.execute(sql, (since, limit - 1)).fetchone()
            until = int(beyond[0]) if beyond else last
            within = "WHERE change > %s AND change <= %s"
            rows = connection.execute(
                f"SELECT {_COLUMNS} FROM agent_memories {within} ORDER BY change, id",  # noqa: S608
                (since, until),
            ).fetchall()
            removed = connection.execute(
                f"SELECT id::text, why FROM removed_memories {within} ORDER BY id",  # noqa: S608
                (since, until),
            ).fetchall()
        has_erased = any(why == "erased" for _, why in removed)
        gone = [row[0] for row in removed]
        return MemoryChanges([_memory(row) for row in rows], gone, has_erased, until, until == last)

    def touch(self, looks: Mapping[str, int], at: datetime) -> None:
        """See `AgentMemories`."""
        with self._transaction() as connection, connection.cursor() as cursor:
            # In one order everywhere: two processes that count the same memories wait for each other only one way.
            cursor.executemany(
                "UPDATE agent_memories SET access_count = access_count + %s, last_accessed = %s WHERE id = %s::uuid",
                [(count, at, each) for each, count in sorted(looks.items())],
            )

    def weigh(self, importances: Mapping[str, float]) -> None:
        """See `AgentMemories`."""
        with self._transaction() as connection, connection.cursor() as cursor:
            change = _next_change(connection)
            cursor.executemany(
                "UPDATE agent_memories SET importance = %s, change = %s WHERE id = %s::uuid",
                [(importance, change, each) for each, importance in sorted(importances.items())],
            )

    def remove(self, ids: Iterable[str], why: Removal) -> int:
        """See `AgentMemories`."""
        gone = sorted(set(ids))
        if not gone:
            return 0
        with self._transaction() as connection:
            removed = _take_out(connection, gone, why, _next_change(connection))
        if why == "erased":
            with self._answering() as connection:
                # Else the deleted rows stay in the table's file until something is written over them.
                connection.execute("VACUUM (FULL) agent_memories")
        return removed

    def of(self, memory_type: MemoryType, task_type: str) -> list[str]:
        """See `AgentMemories`."""
        sql = "SELECT id::text FROM agent_memories WHERE memory_type = %s AND task_type = %s ORDER BY id"
        return [row[0] for row in self._rows(sql, (memory_type, task_type))]

    def agents_over(self, budget: int) -> list[str]:
        """See `AgentMemories`."""
        sql = 'SELECT agent_id FROM agent_memories GROUP BY agent_id HAVING count(*) > %s ORDER BY agent_id COLLATE "C"'
        return [row[0] for row in self._rows(sql, (budget,))]

    def standings(self, agent_id: str) -> list[Standing]:
        """See `AgentMemories`."""
        sql = """
            SELECT id::text, importance, access_count, last_accessed, created_at FROM agent_memories
            WHERE agent_id = %s ORDER BY id
        """
        return [Standing(*row[:3], *map(_utc, row[3:])) for row in self._rows(sql, (agent_id,))]

    def close(self) -> None:
        """See `AgentMemories`."""
        with self._opening:
            for connection in self._opened:
                connection.close()
            self._opened.clear()

    def _rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        with self._answering() as connection:
            return connection.execute(sql, parameters).fetchall()

    @contextmanager
    def _answering(self) -> "Iterator[psycopg.Connection[Any]]":
        try:
            import psycopg
        except ImportError:
            raise MemoriesUnavailable("memories in PostgreSQL need psycopg: install rl-pipeline[postgres]") from None
        try:
            yield self._connection()
        except psycopg.Error as error:
            raise MemoriesUnavailable(
                f"PostgreSQL does not answer, or refuses ({type(error).__name__}): see MEMORY_STORE and the rights of "
                "its user"
            ) from None

    def _connection(self) -> "psycopg.Connection[Any]":
        import psycopg

        connection: psycopg.Connection[Any] | None = getattr(self._mine, "connection", None)
        if connection is None or connection.closed:
            connection = psycopg.connect(self._url, autocommit=True, connect_timeout=_CONNECT_SECONDS)
            connection.execute("SET TIME ZONE 'UTC'")
            with self._opening:
                self._opened = [each for each in self._opened if not each.closed]
                self._opened.append(connection)
            self._mine.connection = connection
        return connection

    @contextmanager
    def _transaction(self) -> "Iterator[psycopg.Connection[Any]]":
        """It is undone where the block raises."""
        with self._answering() as connection, connection.transaction():
            yield connection


def _one(connection: "psycopg.Connection[Any]", sql: str) -> int:
    row = connection.execute(sql).fetchone()
    return int(row[0]) if row else 0


def _next_change(connection: "psycopg.Connection[Any]") -> int:
    """The number of this change. Its row is locked until the end: changes are seen in the order of their numbers."""
    return _one(connection, "UPDATE memory_changes SET number = number + 1 RETURNING number")


def _take_out(connection: "psycopg.Connection[Any]", ids: Sequence[str], why: Removal, change: int) -> int:
    removed = connection.execute("DELETE FROM agent_memories WHERE id = ANY(%s::uuid[])", (list(ids),)).rowcount
    connection.execute(_REMOVED, {"ids": list(ids), "why": why, "change": change})
    return removed


def _row(memory: AgentMemory) -> dict[str, Any]:
    return {
        "id": memory.id,
        "agent_id": memory.agent_id,
        "memory_type": memory.memory_type,
        "content": json.dumps(memory.content, sort_keys=True, ensure_ascii=False),
        "embedding": str(padded(memory.embedding)) if memory.embedding else None,
        "importance": memory.importance,
        "access_count": memory.access_count,
        "last_accessed": memory.last_accessed,
        "created_at": memory.created_at,
        "task_type": memory.task_type,
        "domain": memory.domain,
        "searched": list(memory.searched),
    }


def _memory(row: Sequence[Any]) -> AgentMemory:
    return AgentMemory(
        id=row[0],
        agent_id=row[1],
        memory_type=row[2],
        content=json.loads(row[3]),
        embedding=tuple(json.loads(row[4])) if row[4] else None,
        importance=row[5],
        access_count=row[6],
        last_accessed=_utc(row[7]),
        created_at=row[8].astimezone(UTC),
        task_type=row[9],
        domain=row[10],
        searched=tuple(row[11]),
    )


def _utc(at: datetime | None) -> Any:
    return at.astimezone(UTC) if at else None
