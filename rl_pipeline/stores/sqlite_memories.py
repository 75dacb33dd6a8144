"""Memories in one SQLite file: the store of one machine, which its processes share."""

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rl_pipeline.stores.agent_memories import (
    AgentMemory,
    MemoriesUnavailable,
    MemoryChanges,
    MemoryType,
    Removal,
    Standing,
)
from rl_pipeline.stores.embeddings import embedding_bytes, embedding_floats

_TABLES = """
CREATE TABLE IF NOT EXISTS agent_memories (
    id TEXT PRIMARY KEY,
    agent_id VARCHAR(256) NOT NULL,
    memory_type VARCHAR(20) NOT NULL CHECK (memory_type IN ('episodic', 'semantic', 'procedural')),
    content TEXT NOT NULL,
    embedding BLOB,
    importance FLOAT NOT NULL DEFAULT 0.5,
    access_count INTEGER NOT NULL DEFAULT 0,
    last_accessed TEXT,
    created_at TEXT NOT NULL,
    task_type TEXT NOT NULL,
    domain TEXT NOT NULL,
    searched TEXT NOT NULL,
    change INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS idx_memories_agent_type ON agent_memories (agent_id, memory_type);
CREATE INDEX IF NOT EXISTS idx_memories_task_type ON agent_memories (task_type, memory_type);
CREATE INDEX IF NOT EXISTS idx_memories_change ON agent_memories (change);
CREATE TABLE IF NOT EXISTS removed_memories (
    id TEXT PRIMARY KEY, why TEXT NOT NULL, change INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS idx_removed_change ON removed_memories (change);
CREATE TABLE IF NOT EXISTS memory_changes (number INTEGER NOT NULL);
INSERT INTO memory_changes SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM memory_changes);
"""
_COLUMNS = (
    "id, agent_id, memory_type, content, embedding, importance, access_count, last_accessed, created_at, task_type, "
    "domain, searched"
)
_PUT = f"""
INSERT INTO agent_memories ({_COLUMNS}, change)
SELECT :id, :agent_id, :memory_type, :content, :embedding, :importance, :access_count, :last_accessed, :created_at,
    :task_type, :domain, :searched, :change
WHERE NOT EXISTS (SELECT 1 FROM removed_memories WHERE id = :id AND why != 'replaced')
ON CONFLICT (id) DO UPDATE SET agent_id = excluded.agent_id, memory_type = excluded.memory_type,
    content = excluded.content, created_at = excluded.created_at,
    task_type = excluded.task_type, domain = excluded.domain, searched = excluded.searched, change = excluded.change,
    embedding = coalesce(excluded.embedding, CASE WHEN searched = excluded.searched THEN embedding END)
WHERE (content, created_at, searched, task_type, domain, agent_id, coalesce(excluded.embedding, embedding))
    IS NOT (excluded.content, excluded.created_at, excluded.searched, excluded.task_type, excluded.domain,
        excluded.agent_id, embedding)
"""  # noqa: S608 - all of it is ours
_WAIT_SECONDS = 10.0
_IDS_PER_QUERY = 500


class SqliteMemories:
    """The `AgentMemories` of a file. Every thread has a connection of its own."""

    def __init__(self, file: Path) -> None:
        """Open it, and make what is missing. Raises `MemoriesUnavailable`."""
        self._file = file
        self._mine = threading.local()
        self._opened: list[sqlite3.Connection] = []
        self._opening = threading.Lock()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MemoriesUnavailable(f"{file.parent} cannot be made ({error.strerror}): see MEMORY_STORE") from None
        with self._answering() as connection:
            connection.executescript(_TABLES)

    def put(self, memories: Sequence[AgentMemory], replacing: Iterable[str] = ()) -> int:
        """See `AgentMemories`."""
        gone = sorted(set(replacing) - {each.id for each in memories})
        if not memories and not gone:
            return 0
        with self._writing() as (connection, change):
            _take_out(connection, gone, "replaced", change)
            changed = sum(connection.execute(_PUT, _row(each) | {"change": change}).rowcount for each in memories)
            connection.executemany(
                "DELETE FROM removed_memories WHERE id = ? AND why = 'replaced'", [(each.id,) for each in memories]
            )
        return changed

    def get(self, ids: Sequence[str]) -> list[AgentMemory]:
        """See `AgentMemories`."""
        with self._answering() as connection:
            found = {row[0]: row for some in _parts(ids) for row in _by_ids(connection, _COLUMNS, some)}
        return [_memory(found[each]) for each in ids if each in found]

    def count(self) -> int:
        """See `AgentMemories`."""
        with self._answering() as connection:
            return int(connection.execute("SELECT count(*) FROM agent_memories").fetchone()[0])

    def changes(self, since: int, limit: int) -> MemoryChanges:
        """See `AgentMemories`."""
        with self._answering() as connection:
            connection.execute("BEGIN")
            try:
                last = connection.execute("SELECT number FROM memory_changes").fetchone()[0]
                # A change is taken whole, so that the number after it leaves nothing out.
                until = connection.execute(
                    "SELECT change FROM agent_memories WHERE change > ? ORDER BY change LIMIT 1 OFFSET ?",
                    (since, limit - 1),
                ).fetchone()
                until = until[0] if until else last
                rows = connection.execute(
                    f"SELECT {_COLUMNS} FROM agent_memories WHERE change > ? AND change <= ? ORDER BY change, id",  # noqa: S608
                    (since, until),
                ).fetchall()
                removed = connection.execute(
                    "SELECT id, why FROM removed_memories WHERE change > ? AND change <= ? ORDER BY id", (since, until)
                ).fetchall()
            finally:
                connection.execute("COMMIT")
        has_erased = any(why == "erased" for _, why in removed)
        gone = [row[0] for row in removed]
        return MemoryChanges([_memory(row) for row in rows], gone, has_erased, until, until == last)

    def touch(self, looks: Mapping[str, int], at: datetime) -> None:
        """See `AgentMemories`."""
        changed = [(count, _text(at), each) for each, count in looks.items()]
        with self._writing(numbered=False) as (connection, _):
            connection.executemany(
                "UPDATE agent_memories SET access_count = access_count + ?, last_accessed = ? WHERE id = ?", changed
            )

    def weigh(self, importances: Mapping[str, float]) -> None:
        """See `AgentMemories`."""
        with self._writing() as (connection, change):
            connection.executemany(
                "UPDATE agent_memories SET importance = ?, change = ? WHERE id = ?",
                [(importance, change, each) for each, importance in importances.items()],
            )

    def remove(self, ids: Iterable[str], why: Removal) -> int:
        """See `AgentMemories`."""
        gone = sorted(set(ids))
        if not gone:
            return 0
        with self._writing() as (connection, change):
            removed = _take_out(connection, gone, why, change)
        if why == "erased":
            with self._answering() as connection:
                # The deleted text is zeroed in the file (secure_delete); what the log still has of it goes here.
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        return removed

    def of(self, memory_type: MemoryType, task_type: str) -> list[str]:
        """See `AgentMemories`."""
        with self._answering() as connection:
            rows = connection.execute(
                "SELECT id FROM agent_memories WHERE memory_type = ? AND task_type = ? ORDER BY id",
                (memory_type, task_type),
            ).fetchall()
        return [row[0] for row in rows]

    def agents_over(self, budget: int) -> list[str]:
        """See `AgentMemories`."""
        with self._answering() as connection:
            rows = connection.execute(
                "SELECT agent_id FROM agent_memories GROUP BY agent_id HAVING count(*) > ? ORDER BY agent_id", (budget,)
            ).fetchall()
        return [row[0] for row in rows]

    def standings(self, agent_id: str) -> list[Standing]:
        """See `AgentMemories`."""
        with self._answering() as connection:
            rows = connection.execute(
                "SELECT id, importance, access_count, last_accessed, created_at FROM agent_memories "
                "WHERE agent_id = ? ORDER BY id",
                (agent_id,),
            ).fetchall()
        return [Standing(row[0], row[1], row[2], _time(row[3]), _sure_time(row[4])) for row in rows]

    def close(self) -> None:
        """See `AgentMemories`."""
        with self._opening:
            for connection in self._opened:
                connection.close()
            self._opened.clear()

    def _connection(self) -> sqlite3.Connection:
        connection: sqlite3.Connection | None = getattr(self._mine, "connection", None)
        if connection is None:
            connection = sqlite3.connect(
                self._file, timeout=_WAIT_SECONDS, isolation_level=None, check_same_thread=False
            )
            for pragma in ("journal_mode = WAL", "synchronous = NORMAL", "secure_delete = ON", "cache_size = -4000"):
                connection.execute(f"PRAGMA {pragma}").fetchall()
            with self._opening:
                self._opened.append(connection)
            self._mine.connection = connection
        return connection

    @contextmanager
    def _answering(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._connection()
        except sqlite3.Error as error:
            raise MemoriesUnavailable(
                f"{self._file} does not answer ({type(error).__name__}: {error}): see that its disk can be written"
            ) from None

    @contextmanager
    def _writing(self, *, numbered: bool = True) -> Iterator[tuple[sqlite3.Connection, int]]:
        """A transaction, and the number of the change that it is; it is undone where the block raises."""
        with self._answering() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                change = 0
                if numbered:
                    sql = "UPDATE memory_changes SET number = number + 1 RETURNING number"
                    change = connection.execute(sql).fetchall()[0][0]
                yield connection, change
            except BaseException:
                connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")


def _parts(ids: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(ids), _IDS_PER_QUERY):
        yield ids[start : start + _IDS_PER_QUERY]


def _by_ids(connection: sqlite3.Connection, columns: str, ids: Sequence[str]) -> list[Any]:
    places = ", ".join("?" * len(ids))
    return connection.execute(f"SELECT {columns} FROM agent_memories WHERE id IN ({places})", ids).fetchall()  # noqa: S608


def _take_out(connection: sqlite3.Connection, ids: Sequence[str], why: Removal, change: int) -> int:
    removed = sum(connection.execute("DELETE FROM agent_memories WHERE id = ?", (each,)).rowcount for each in ids)
    connection.executemany(
        """
        INSERT INTO removed_memories VALUES (?, ?, ?)
        ON CONFLICT (id) DO UPDATE SET change = excluded.change,
            why = CASE WHEN why = 'erased' THEN why ELSE excluded.why END
        """,
        [(each, why, change) for each in ids],
    )
    return removed


def _row(memory: AgentMemory) -> dict[str, Any]:
    return {
        "id": memory.id,
        "agent_id": memory.agent_id,
        "memory_type": memory.memory_type,
        "content": json.dumps(memory.content, sort_keys=True, ensure_ascii=False),
        "embedding": embedding_bytes(memory.embedding) if memory.embedding else None,
        "importance": memory.importance,
        "access_count": memory.access_count,
        "last_accessed": _text(memory.last_accessed) if memory.last_accessed else None,
        "created_at": _text(memory.created_at),
        "task_type": memory.task_type,
        "domain": memory.domain,
        "searched": json.dumps(memory.searched, ensure_ascii=False),
    }


def _memory(row: Sequence[Any]) -> AgentMemory:
    return AgentMemory(
        id=row[0],
        agent_id=row[1],
        memory_type=row[2],
        content=json.loads(row[3]),
        embedding=embedding_floats(row[4]) if row[4] else None,
        importance=row[5],
        access_count=row[6],
        last_accessed=_time(row[7]),
        created_at=_sure_time(row[8]),
        task_type=row[9],
        domain=row[10],
        searched=tuple(json.loads(row[11])),
    )


def _text(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(timespec="milliseconds")


def _sure_time(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _time(text: str | None) -> datetime | None:
    return _sure_time(text) if text else None
