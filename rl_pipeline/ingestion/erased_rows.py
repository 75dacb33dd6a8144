"""How rows leave the table of trajectories for good: out of every answer at once, and out of the files."""

from collections.abc import Sequence
from datetime import datetime

from rl_pipeline.ingestion.ledger import ERASED_REVISION
from rl_pipeline.stores.warehouse import Warehouse

# What the stream stored of the users up to then, and whatever else the ledger says was erased.
_ERASED = """
    (user IN {users:Array(String)} AND stream_time <= {until:DateTime64(3, 'UTC')}) OR (stream, sequence) IN (
        SELECT stream, sequence FROM trajectory_ledger FINAL
        WHERE verdict = 'erased' AND revision = {revision:UInt32}
    )
"""


def trajectories_to_delete(warehouse: Warehouse, users: Sequence[str], until: datetime) -> list[str]:
    """The trajectories that `delete_rows` would delete."""
    found = warehouse.query(
        "SELECT DISTINCT trajectory_id FROM trajectories WHERE " + _ERASED + " ORDER BY trajectory_id",  # noqa: S608 - all of it is ours
        _parameters(users, until),
    )
    return list(found["trajectory_id"])


def delete_rows(warehouse: Warehouse, users: Sequence[str], until: datetime) -> None:
    """Delete what the stream stored of the users up to then, and whatever else the ledger says was erased.

    `users` are placeholders. The deleted rows' files are gone when this returns; on a cluster, those of other replicas
    within minutes.
    """
    warehouse.execute(
        "ALTER TABLE trajectories DELETE WHERE " + _ERASED,
        _parameters(users, until),
        # Done on every replica when it returns; each looks into the ledger, which they all have.
        {"mutations_sync": 2, "allow_nondeterministic_mutations": 1},
    )
    _remove_old_files(warehouse)


def _parameters(users: Sequence[str], until: datetime) -> dict[str, object]:
    return {"users": list(users), "until": until, "revision": ERASED_REVISION}


def _remove_old_files(warehouse: Warehouse) -> None:
    """Have ClickHouse remove the files that its mutations and merges have replaced, which it keeps for 8 minutes.

    There is no command for it, but dropping a partition looks for them, even where there is no such partition.
    """
    warehouse.execute("ALTER TABLE trajectories MODIFY SETTING old_parts_lifetime = 0")
    warehouse.execute("ALTER TABLE trajectories DROP PARTITION ID '19700101'")
    warehouse.execute("ALTER TABLE trajectories RESET SETTING old_parts_lifetime")
