"""The store of memories that an address names: `postgresql://…`, else a file of SQLite."""

from pathlib import Path

from rl_pipeline.stores.agent_memories import AgentMemories


def open_memories(address: str) -> AgentMemories:
    """Open it; the caller closes it. Raises `MemoriesUnavailable`."""
    if address.startswith(("postgresql://", "postgres://")):
        from rl_pipeline.stores.postgres_memories import PostgresMemories

        return PostgresMemories(address)
    from rl_pipeline.stores.sqlite_memories import SqliteMemories

    return SqliteMemories(Path(address))
