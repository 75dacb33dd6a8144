"""What a dataset holds outlives its time; the rest does not."""

from datetime import timedelta

import polars as pl

from rl_pipeline.ingestion.holding import checkpoints_of, datasets_holding, hold_for_dataset, release_from_dataset
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline_tests.ingestion.stored_rows import NOW, expire, rows, stored

YESTERDAY = NOW - timedelta(days=1)


def ids(warehouse: Warehouse) -> list[str]:
    return list(stored(warehouse)["trajectory_id"])


def sequences(warehouse: Warehouse) -> list[int]:
    return list(stored(warehouse)["sequence"])


def test_rows_that_a_dataset_holds_survive_their_time_and_the_others_expire(warehouse: Warehouse) -> None:
    warehouse.insert("trajectories", rows(6, YESTERDAY))
    hold_for_dataset(warehouse, "dataset-1", ids(warehouse)[:2])
    expire(warehouse, [1, 2, 3, 4])
    assert sequences(warehouse) == [1, 2, 5, 6]


def test_holding_again_and_with_more_holds_each_once(warehouse: Warehouse) -> None:
    warehouse.insert("trajectories", rows(3, YESTERDAY))
    one, two, _ = ids(warehouse)
    for held in ([one], [one], [one, two], []):
        hold_for_dataset(warehouse, "dataset-1", held)
    assert warehouse.query("SELECT trajectory_id FROM dataset_trajectories FINAL").height == 2
    assert list(stored(warehouse)["held"]) == [True, True, False]


def test_a_released_dataset_lets_go_what_no_other_dataset_holds(warehouse: Warehouse) -> None:
    warehouse.insert("trajectories", rows(3, YESTERDAY))
    one, two, three = ids(warehouse)
    hold_for_dataset(warehouse, "dataset-1", [one, two])
    hold_for_dataset(warehouse, "dataset-2", [two, three])
    release_from_dataset(warehouse, "dataset-1", [one, two])
    release_from_dataset(warehouse, "dataset-1", [one, two])
    assert list(stored(warehouse)["held"]) == [False, True, True]
    expire(warehouse, [1, 2, 3])
    assert sequences(warehouse) == [2, 3]


def test_the_datasets_of_each_trajectory_are_told(warehouse: Warehouse) -> None:
    hold_for_dataset(warehouse, "dataset-2", [f"trajectory-{number}" for number in range(1200)])
    hold_for_dataset(warehouse, "dataset-1", ["trajectory-7"])
    found = datasets_holding(warehouse, [f"trajectory-{number}" for number in range(1300)])
    assert len(found) == 1200
    assert (found["trajectory-7"], found["trajectory-1199"]) == (("dataset-1", "dataset-2"), ("dataset-2",))


def test_a_checkpoint_has_learnt_from_what_its_ancestors_learnt_from(warehouse: Warehouse) -> None:
    paths = [f"s3://models/{name}" for name in "abc"]
    family = {"id": list("abc"), "checkpoint_path": paths, "base_model": ["small", *paths[:2]], "created_at": [NOW] * 3}
    warehouse.insert("model_checkpoints", pl.DataFrame(family))
    warehouse.insert("checkpoint_datasets", pl.DataFrame({"checkpoint_id": list("abc"), "dataset_id": list("123")}))
    assert [checkpoints_of(warehouse, [dataset]) for dataset in "123"] == [("a", "b", "c"), ("b", "c"), ("c",)]
