"""How rows leave the tables for good: out of every answer and every file."""

from collections.abc import Sequence
from datetime import datetime

from rl_pipeline.ingestion.feedback_rows import erase_feedback_rows
from rl_pipeline.ingestion.ledger import ERASED_REVISION
from rl_pipeline.stores.warehouse import Warehouse

# Whatever the ledger says was erased.
MARKED = """
    (stream, sequence) IN (
        SELECT stream, sequence FROM trajectory_ledger FINAL
        WHERE verdict = 'erased' AND revision = {revision:UInt32}
    )
"""
# What the stream stored of the users up to then.
_THEIRS = "(user IN {users:Array(String)} AND stream_time <= {until:DateTime64(3, 'UTC')})"
_ERASED = f"{_THEIRS} OR {MARKED}"

# A task that names several users is erased with any of them, as a trajectory is.
_REPORTED = """
    (user IN {users:Array(String)} OR multiSearchAny(metadata, {users:Array(String)}))
    AND created_at <= {until:DateTime64(3, 'UTC')}
"""

_REWARD_TABLES = {
    "rewards": MARKED,
    "reward_scores": MARKED,
    "reported_rewards": _REPORTED,
    "trajectory_signals": _ERASED,
}
"""What was made of trajectories, and which rows of it go; the signals last, because they tell whose the others are."""

# Done on every replica when it returns; each looks into the ledger or the tombstones, which they all have.
_EVERYWHERE = {"mutations_sync": 2, "allow_nondeterministic_mutations": 1}

# The ids of a query travel in its address, which has a limit.
_IDS_PER_QUERY = 500
# Rewards are stamped by the clock of whoever scores, erasures by the warehouse's.
_CLOCKS_DIFFER = "INTERVAL 1 MINUTE"


def trajectories_to_delete(warehouse: Warehouse, users: Sequence[str], until: datetime) -> list[str]:
    """The trajectories that `delete_rows` would delete."""
    found = warehouse.query(
        "SELECT DISTINCT trajectory_id FROM trajectories WHERE " + _ERASED + " ORDER BY trajectory_id",  # noqa: S608 - all of it is ours
        _parameters(users, until),
    )
    return list(found["trajectory_id"])


def delete_feedback(warehouse: Warehouse, users: Sequence[str], until: datetime) -> None:
    """Delete what the users said up to then, what was said of trajectories that are to go, and what is marked erased.

    It comes before `delete_rewards` and `delete_rows`, after which nobody knows which trajectories those were.
    """
    of_theirs = " UNION DISTINCT ".join(
        f"SELECT trajectory_id FROM {table} WHERE {_ERASED}"  # noqa: S608 - all of it is ours
        for table in ("trajectories", "trajectory_signals")
    )
    marked = "SELECT stream, sequence FROM trajectory_feedback WHERE revision = {revision:UInt32}"
    parameters = _parameters(users, until)
    erased = erase_feedback_rows(warehouse, f"trajectory_id IN ({of_theirs})", parameters, with_trajectory=True)
    erased += erase_feedback_rows(warehouse, f"{_THEIRS} OR (stream, sequence) IN ({marked})", parameters)
    if erased:
        remove_old_files(warehouse, "trajectory_feedback")


def delete_rewards(warehouse: Warehouse, users: Sequence[str], until: datetime) -> None:
    """Delete what was measured in, scored and awarded for the trajectories that `delete_rows` deletes.

    These rows outlive the trajectories', so they are found by themselves. Of other trajectories go the rewards that an
    erased opinion had a part in: the next scoring computes them anew, without it.
    """
    _delete_rewards_by_erased_opinions(warehouse)
    for table, condition in _REWARD_TABLES.items():
        # A mutation takes longer than a look.
        if warehouse.query(f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1", _parameters(users, until)).height:  # noqa: S608 - all of it is ours
            _delete(warehouse, table, condition, users, until)


def _delete_rewards_by_erased_opinions(warehouse: Warehouse) -> None:
    silenced = "SELECT trajectory_id FROM trajectory_feedback FINAL WHERE verdict = 'erased' AND trajectory_id != ''"
    # Also where there are no rewards: whoever scored was broken off, or this was, and has left the scores.
    found = warehouse.query(
        f"""
        SELECT trajectory_id FROM (
            SELECT trajectory_id, max(drained_at) AS erased_at FROM trajectory_feedback FINAL
            WHERE verdict = 'erased' AND trajectory_id != '' GROUP BY trajectory_id
        ) AS silenced
        LEFT JOIN (
            SELECT trajectory_id, min(scored_at) AS first_scored_at FROM rewards
            WHERE trajectory_id IN ({silenced}) GROUP BY trajectory_id
        ) AS rewarded USING (trajectory_id)
        WHERE first_scored_at <= erased_at + {_CLOCKS_DIFFER} ORDER BY trajectory_id
        """  # noqa: S608 - all of it is ours
    )
    ids = found["trajectory_id"].to_list()
    # The rewards last: by them it is known what was broken off.
    for table in ("reward_scores", "rewards"):
        for start in range(0, len(ids), _IDS_PER_QUERY):
            some = {"ids": ids[start : start + _IDS_PER_QUERY]}
            condition = "trajectory_id IN {ids:Array(String)}"
            if warehouse.query(f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1", some).height:  # noqa: S608 - all of it is ours
                warehouse.execute(f"ALTER TABLE {table} DELETE WHERE {condition}", some, {"mutations_sync": 2})
                remove_old_files(warehouse, table)


def delete_rows(warehouse: Warehouse, users: Sequence[str], until: datetime) -> None:
    """Delete what the stream stored of the users up to then, and whatever else the ledger says was erased.

    `users` are placeholders. The deleted rows' files are gone when this returns; on a cluster, those of other replicas
    within minutes.
    """
    _delete(warehouse, "trajectories", _ERASED, users, until)


def _delete(warehouse: Warehouse, table: str, condition: str, users: Sequence[str], until: datetime) -> None:
    warehouse.execute(
        f"ALTER TABLE {table} DELETE WHERE {condition}",
        _parameters(users, until),
        _EVERYWHERE,
    )
    remove_old_files(warehouse, table)


def delete_where(warehouse: Warehouse, table: str, condition: str) -> None:
    """Delete the rows of a table that a condition of ours is true of; their files are gone when this returns."""
    # A mutation takes longer than a look.
    if warehouse.query(f"SELECT 1 FROM {table} WHERE {condition} LIMIT 1").height:  # noqa: S608 - all of it is ours
        warehouse.execute(f"ALTER TABLE {table} DELETE WHERE {condition}", {}, _EVERYWHERE)
        remove_old_files(warehouse, table)


def _parameters(users: Sequence[str], until: datetime) -> dict[str, object]:
    return {"users": list(users), "until": until, "revision": ERASED_REVISION}


def remove_old_files(warehouse: Warehouse, table: str) -> None:
    """Have ClickHouse remove the files that its mutations and merges have replaced, which it keeps for 8 minutes.

    There is no command for it, but dropping a partition looks for them, even where there is no such partition.
    """
    warehouse.execute(f"ALTER TABLE {table} MODIFY SETTING old_parts_lifetime = 0")
    warehouse.execute(f"ALTER TABLE {table} DROP PARTITION ID '19700101'")
    warehouse.execute(f"ALTER TABLE {table} RESET SETTING old_parts_lifetime")
