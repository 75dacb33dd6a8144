"""Which trajectories a dataset holds: those do not expire while it exists.

`dataset_trajectories` is what holds; `held` on a trajectory's row says so to the table's TTL, which can look at nothing
but the row.
"""

from collections.abc import Iterable, Mapping, Sequence

from rl_pipeline.ingestion.ancestry import read_ancestry
from rl_pipeline.stores.warehouse import Warehouse

# The ids of a query travel in its address, which has a limit.
_IDS_PER_QUERY = 500
# Done on every replica when it returns. Replicas each look into `dataset_trajectories`, which they all have.
_MUTATION = {"mutations_sync": 2, "allow_nondeterministic_mutations": 1}


def hold_for_dataset(warehouse: Warehouse, dataset_id: str, trajectory_ids: Iterable[str]) -> None:
    """Keep the trajectories until the dataset is released. Doing it again, or with more of them, is harmless."""
    import polars as pl

    ids = sorted(set(trajectory_ids))
    rows = pl.DataFrame({"trajectory_id": ids}, schema={"trajectory_id": pl.String})
    warehouse.insert("dataset_trajectories", rows.with_columns(dataset_id=pl.lit(dataset_id)))
    warehouse.execute(
        """
        ALTER TABLE trajectories UPDATE held = true WHERE NOT held
            AND trajectory_id IN (SELECT trajectory_id FROM dataset_trajectories WHERE dataset_id = {dataset:String})
        """,
        {"dataset": dataset_id},
        _MUTATION,
    )


def release_from_dataset(warehouse: Warehouse, dataset_id: str, trajectory_ids: Sequence[str]) -> None:
    """Let these trajectories of the dataset expire, except those that another holds. Doing it again is harmless.

    What is past its time already is gone soon afterwards.
    """
    for start in range(0, len(trajectory_ids), _IDS_PER_QUERY):
        warehouse.execute(
            """
            ALTER TABLE dataset_trajectories DELETE
            WHERE dataset_id = {dataset:String} AND trajectory_id IN {ids:Array(String)}
            """,
            {"dataset": dataset_id, "ids": list(trajectory_ids[start : start + _IDS_PER_QUERY])},
            _MUTATION,
        )
    # Of every dataset, so that it also mends a release that was broken off.
    warehouse.execute(
        """
        ALTER TABLE trajectories UPDATE held = false WHERE held
            AND trajectory_id NOT IN (SELECT trajectory_id FROM dataset_trajectories)
        """,
        settings=_MUTATION,
    )


def held_by(warehouse: Warehouse, dataset_id: str) -> list[str]:
    """The trajectories that the dataset holds."""
    found = warehouse.query(
        "SELECT DISTINCT trajectory_id FROM dataset_trajectories WHERE dataset_id = {dataset:String}",
        {"dataset": dataset_id},
    )
    return sorted(found["trajectory_id"])


def checkpoints_of(warehouse: Warehouse, dataset_ids: Sequence[str]) -> tuple[str, ...]:
    """The checkpoints that learnt from any of the datasets, and all that were trained from those."""
    found = warehouse.query(
        "SELECT DISTINCT checkpoint_id FROM checkpoint_datasets WHERE dataset_id IN {datasets:Array(String)}",
        {"datasets": list(dataset_ids)},
    )
    return tuple(sorted(read_ancestry(warehouse).with_descendants(set(found["checkpoint_id"]))))


def datasets_holding(warehouse: Warehouse, trajectory_ids: Sequence[str]) -> Mapping[str, tuple[str, ...]]:
    """The datasets that hold each of the trajectories; those that none holds are left out."""
    holding: dict[str, tuple[str, ...]] = {}
    for start in range(0, len(trajectory_ids), _IDS_PER_QUERY):
        found = warehouse.query(
            """
            SELECT trajectory_id, arraySort(groupUniqArray(dataset_id)) AS datasets
            FROM dataset_trajectories WHERE trajectory_id IN {ids:Array(String)}
            GROUP BY trajectory_id
            """,
            {"ids": list(trajectory_ids[start : start + _IDS_PER_QUERY])},
        )
        holding |= {trajectory_id: tuple(datasets) for trajectory_id, datasets in found.iter_rows()}
    return holding
