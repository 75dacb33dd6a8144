"""How memories of erased users go: what is remembered of them, what they told, and what was made of either.

What was made goes first, because only what it was made of tells which that is; whoever dies in between finds it again.
A fact that others bear out too comes back with the next consolidation, without them.
"""

from collections.abc import Sequence
from datetime import datetime

from rl_pipeline.ingestion.erased_rows import MARKED, remove_old_files
from rl_pipeline.ingestion.ledger import ERASED_REVISION
from rl_pipeline.stores.agent_memories import AgentMemories
from rl_pipeline.stores.warehouse import Warehouse

# Of the lineage what the ledger says was erased, and whatever is the users' or names them.
_THEIRS = f"""
    generation = '' AND (
        (stream != '' AND {MARKED})
        OR (
            (user IN {{users:Array(String)}} OR multiSearchAny(content, {{users:Array(String)}}))
            AND stream_time <= {{until:DateTime64(3, 'UTC')}}
        )
    )
"""
_MADE_OF_THEM = "generation != '' AND hasAny(sources, {ids:Array(String)})"
_IDS_PER_QUERY = 500
_DONE = {"mutations_sync": 2, "allow_nondeterministic_mutations": 1}


def erase_memories(warehouse: Warehouse, memories: AgentMemories, users: Sequence[str], until: datetime) -> int:
    """Erase the users' memories up to then from the store, its files and the warehouse; return how many there were.

    `users` are placeholders. Processes that look memories up hear of it from the store. Raises `MemoriesUnavailable`
    before anything is changed where the store does not answer.
    """
    parameters = {"users": list(users), "until": until, "revision": ERASED_REVISION}
    found = warehouse.query(f"SELECT DISTINCT id FROM memories WHERE {_THEIRS} ORDER BY id", parameters)  # noqa: S608 - all of it is ours
    theirs = found["id"].to_list()
    if not theirs:
        memories.count()
        return 0
    made: set[str] = set()
    parts = [theirs[start : start + _IDS_PER_QUERY] for start in range(0, len(theirs), _IDS_PER_QUERY)]
    for ids in parts:
        made |= set(warehouse.query(f"SELECT DISTINCT id FROM memories WHERE {_MADE_OF_THEM}", {"ids": ids})["id"])  # noqa: S608
    # It may come back, of what others did; the erasure after it clears the files of both.
    memories.remove(made, "replaced")
    memories.remove(theirs, "erased")
    if made:
        for ids in parts:
            warehouse.execute(f"ALTER TABLE memories DELETE WHERE {_MADE_OF_THEM}", {"ids": ids}, _DONE)
    warehouse.execute(f"ALTER TABLE memories DELETE WHERE {_THEIRS}", parameters, _DONE)
    remove_old_files(warehouse, "memories")
    return len(theirs)
