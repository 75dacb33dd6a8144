"""Erased trajectories leave the datasets that hold them."""

import json
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl
import pytest

from rl_pipeline.curation.curating import curate
from rl_pipeline.curation.datasets import DatasetMissing, fetch_dataset, newest_dataset
from rl_pipeline.curation.files import CONVERSATIONS, PAIRS, PROMPTS
from rl_pipeline.curation.forgetting import (
    DatasetsNotForgotten,
    datasets_with_erased,
    drop_erased,
    erased_of,
    forget_erased,
)
from rl_pipeline.curation.policy import CurationPolicy
from rl_pipeline.curation.scratch import SCRATCH
from rl_pipeline.ingestion.erased_rows import delete_rows
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.objects import Objects, ObjectsUnavailable, StoredObject
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline_tests.curation.frames import request
from rl_pipeline_tests.curation.stored import NOW, Attempt, store

JANE = "[REDACTED:USER:0123456789ab]"


@pytest.fixture
def objects(tmp_path: Path) -> DiskObjects:
    return DiskObjects(tmp_path / "objects")


def curated(warehouse: Warehouse, objects: Objects, algorithm: Any, job_id: str = "job-1") -> Any:
    with TemporaryDirectory() as work:
        return curate(
            warehouse,
            objects,
            job_id=job_id,
            request=request(),
            accepted_at=NOW,
            algorithm=algorithm,
            revision=1,
            now=NOW,
            watermark=10**6,
            policy=CurationPolicy(source_share=1.0, user_share=1.0),
            work=Path(work),
        )


def attempts() -> list[Attempt]:
    """Three attempts at each of four tasks; Jane made the first of each, and nobody else tried the last task."""
    return [
        Attempt(
            f"task-{task}",
            (f"{'jane' if tried == 0 or task == 3 else 'john'} tries {tried}",),
            reward=0.1 + 0.4 * tried,
            columns={"user": JANE if tried == 0 or task == 3 else "[REDACTED:USER:ba9876543210]"},
        )
        for task in range(4)
        for tried in range(3)
    ]


def tombstone(warehouse: Warehouse) -> None:
    row = {"user": JANE, "keys": [["k"]], "erased_at": NOW, "covers_until": NOW + timedelta(hours=1)}
    warehouse.insert("erasures", pl.DataFrame(row))


def erase(warehouse: Warehouse) -> None:
    tombstone(warehouse)
    delete_rows(warehouse, [JANE], NOW + timedelta(hours=1))


def stored_bytes(objects: DiskObjects, directory: Path) -> str:
    """Everything that the object store has, as text."""
    texts = []
    for found in list(objects.list("job-1.r1/")):
        path = directory / found.key.replace("/", "-")
        objects.download(found.key, path)
        texts.append(str(pl.read_parquet(path).to_dicts()) if path.suffix == ".parquet" else path.read_text())
    return "\n".join(texts)


@pytest.mark.parametrize("algorithm", ["sft", "dpo", "rloo"])
def test_nothing_of_an_erased_user_is_left_in_a_dataset(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path, algorithm: str
) -> None:
    ids = store(warehouse, attempts())
    before = curated(warehouse, objects, algorithm)
    janes = {ids[number] for number in range(12) if number % 3 == 0 or number > 8}
    held = janes & {one["trajectory_id"] for one in before.manifest.content["trajectories"]}
    assert any(one in stored_bytes(objects, tmp_path) for one in held), "else this test shows nothing"
    erase(warehouse)
    assert set(erased_of(warehouse, before.dataset_id)) == held
    forgotten = drop_erased(warehouse, objects, before.dataset_id, NOW, copies=tmp_path)
    assert forgotten.trajectories == len(held)
    text = stored_bytes(objects, tmp_path)
    assert not any(one in text for one in janes)
    assert "jane tries" not in text
    row = newest_dataset(warehouse, "job-1")
    assert row.manifest_hash == forgotten.manifest_hash != before.manifest_hash
    assert row.summary["left_out"]["erased"] >= len(held)
    assert row.summary["kept"] + sum(row.summary["left_out"].values()) == row.summary["offered"]
    fetch_dataset(objects, row, tmp_path / "dataset")
    assert drop_erased(warehouse, objects, before.dataset_id, NOW, copies=tmp_path).trajectories == 0


def test_the_copies_that_trainings_keep_are_forgotten_too(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    store(warehouse, attempts())
    curated(warehouse, objects, "sft")
    copy = tmp_path / "training" / "job-1" / "dataset"
    fetch_dataset(objects, newest_dataset(warehouse, "job-1"), copy)
    erase(warehouse)
    forget_erased(warehouse, objects, NOW, copies=tmp_path / "training")
    assert not copy.exists()
    assert not erased_of(warehouse, "job-1.r1")


def test_a_prompt_that_showed_an_erased_trajectory_shows_another_attempt_at_its_task(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    store(warehouse, attempts())
    curated(warehouse, objects, "rloo")
    erase(warehouse)
    drop_erased(warehouse, objects, "job-1.r1", NOW, copies=tmp_path)
    fetch_dataset(objects, newest_dataset(warehouse, "job-1"), tmp_path / "dataset")
    prompts = pl.read_parquet(tmp_path / "dataset" / PROMPTS)
    conversations = pl.read_parquet(tmp_path / "dataset" / CONVERSATIONS)
    assert prompts["task"].to_list() == ["task-0", "task-1", "task-2"], "nobody else tried the last task"
    assert set(prompts["trajectory_id"]) <= set(conversations["trajectory_id"])
    assert json.loads(prompts["messages"][0])[0]["content"] == "Please do task-0."


def test_pairs_with_an_erased_side_go(warehouse: Warehouse, objects: DiskObjects, tmp_path: Path) -> None:
    store(warehouse, attempts())
    before = curated(warehouse, objects, "dpo")
    erase(warehouse)
    drop_erased(warehouse, objects, "job-1.r1", NOW, copies=tmp_path)
    fetch_dataset(objects, newest_dataset(warehouse, "job-1"), tmp_path / "dataset")
    pairs = pl.read_parquet(tmp_path / "dataset" / PAIRS)
    conversations = pl.read_parquet(tmp_path / "dataset" / CONVERSATIONS)
    assert 0 < pairs.height < before.report.pairs
    assert {*pairs["chosen_id"], *pairs["rejected_id"]} <= set(conversations["trajectory_id"])


def test_the_others_stay_as_they_are_and_so_does_the_list_of_what_was_trained_on(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    store(warehouse, attempts())
    curated(warehouse, objects, "rloo")
    assert erased_of(warehouse, "job-1.r1") == []
    erase(warehouse)
    drop_erased(warehouse, objects, "job-1.r1", NOW, copies=tmp_path)
    provenance = warehouse.query("SELECT DISTINCT trajectory_id FROM dataset_provenance FINAL")
    held = warehouse.query("SELECT trajectory_id FROM dataset_trajectories FINAL")
    assert (provenance.height, held.height) == (6, 12)


def test_a_trajectory_that_merely_expired_stays(warehouse: Warehouse, objects: DiskObjects) -> None:
    ids = store(warehouse, attempts())
    curated(warehouse, objects, "rloo")
    rows = pl.DataFrame({"trajectory_id": ids, "sequence": range(1, 13)})
    times = {"stream": "RL_TRAJECTORIES", "stream_time": NOW, "measured_at": NOW}
    signals = rows.with_columns(pl.lit(value).alias(name) for name, value in times.items())
    warehouse.insert("trajectory_signals", signals)
    warehouse.execute("ALTER TABLE trajectories DELETE WHERE 1", settings={"mutations_sync": 2})
    assert erased_of(warehouse, "job-1.r1") == []


class BreaksOff:
    """An object store that dies at its n-th call that changes something."""

    def __init__(self, objects: DiskObjects, calls: int) -> None:
        self._objects = objects
        self._left = calls

    def __getattr__(self, name: str) -> Any:
        if name in ("upload", "put", "delete"):
            self._left -= 1
            if self._left < 0:
                raise ConnectionAbortedError
        return getattr(self._objects, name)


def test_whenever_it_is_broken_off_doing_it_again_finishes_it(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    store(warehouse, attempts())
    curated(warehouse, objects, "rloo")
    erase(warehouse)
    for calls in range(20):
        breaking: Any = BreaksOff(objects, calls)
        try:
            drop_erased(warehouse, breaking, "job-1.r1", NOW, copies=tmp_path)
        except ConnectionAbortedError:
            continue
        break
    assert calls > 3
    assert "jane tries" not in stored_bytes(objects, tmp_path)
    fetch_dataset(objects, newest_dataset(warehouse, "job-1"), tmp_path / "dataset")


def test_an_unknown_dataset_is_named(warehouse: Warehouse, objects: DiskObjects, tmp_path: Path) -> None:
    with pytest.raises(DatasetMissing, match=r"job-9\.r1"):
        drop_erased(warehouse, objects, "job-9.r1", NOW, copies=tmp_path)


class ErasingMeanwhile:
    """An object store during whose first write somebody is erased."""

    def __init__(self, objects: DiskObjects, warehouse: Warehouse) -> None:
        self._objects = objects
        self._warehouse = warehouse
        self.erased = False

    def upload(self, key: str, path: Path) -> StoredObject:
        if not self.erased:
            self.erased = True
            tombstone(self._warehouse)
        return self._objects.upload(key, path)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._objects, name)


def test_who_is_erased_while_a_dataset_is_made_is_not_in_it(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    store(warehouse, attempts())
    meanwhile: Any = ErasingMeanwhile(objects, warehouse)
    found = curated(warehouse, meanwhile, "rloo")
    assert meanwhile.erased
    assert found.report.left_out["erased"] == 6
    assert "jane tries" not in stored_bytes(objects, tmp_path)


def died_at(monkeypatch: pytest.MonkeyPatch, function: str, curate_it: Callable[[], Any]) -> None:
    """Curate up to one of the functions that `curating` calls, and die there."""

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(f"rl_pipeline.curation.curating.{function}", die)
        with pytest.raises(KeyboardInterrupt):
            curate_it()


@pytest.mark.parametrize("function", ["hold_for_dataset", "store_files", "store_row", "_forget_earlier"])
@pytest.mark.parametrize("before", [False, True], ids=["the first", "again"])
def test_whenever_a_curation_dies_its_files_are_found_by_an_erasure(  # noqa: PLR0917 - fixtures and parameters
    warehouse: Warehouse,
    objects: DiskObjects,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    function: str,
    before: bool,
) -> None:
    store(warehouse, attempts())
    if before:
        curated(warehouse, objects, "rloo")
    died_at(monkeypatch, function, lambda: curated(warehouse, objects, "sft"))
    erase(warehouse)
    forget_erased(warehouse, objects, NOW, copies=tmp_path / "training")
    assert "jane tries" not in stored_bytes(objects, tmp_path)
    curated(warehouse, objects, "sft")
    fetch_dataset(objects, newest_dataset(warehouse, "job-1"), tmp_path / "dataset")


def left_by_the_dead(work: Path) -> Path:
    """What a curation leaves that was killed: its files, and a lock that nobody holds."""
    directory = work / SCRATCH / "tmp1"
    directory.mkdir(parents=True)
    (directory / CONVERSATIONS).write_text("jane tries")
    directory.with_suffix(".lock").touch()
    return directory


def test_an_erasure_removes_what_killed_curations_left_even_if_it_breaks_off(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    store(warehouse, attempts())
    curated(warehouse, objects, "sft")
    erase(warehouse)
    left = left_by_the_dead(tmp_path / "training")
    breaking: Any = BreaksOff(objects, 0)
    with pytest.raises(ConnectionAbortedError):
        forget_erased(warehouse, breaking, NOW, copies=tmp_path / "training")
    assert not left.exists()
    forget_erased(warehouse, objects, NOW, copies=tmp_path / "training")
    assert list((tmp_path / "training" / SCRATCH).iterdir()) == []


def test_what_an_erasure_has_left_that_was_broken_off_is_forgotten_by_the_next_one(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    store(warehouse, attempts())
    curated(warehouse, objects, "sft")
    erase(warehouse)
    assert datasets_with_erased(warehouse) == ["job-1.r1"], "although no row of the user is left"
    forget_erased(warehouse, objects, NOW, copies=tmp_path / "training")
    assert datasets_with_erased(warehouse) == []
    assert "jane tries" not in stored_bytes(objects, tmp_path)


def test_a_damaged_dataset_is_deleted_and_told_and_does_not_keep_the_others_from_being_cleaned(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    store(warehouse, attempts())
    for job in ("job-0", "job-1"):
        curated(warehouse, objects, "sft", job)
    erase(warehouse)
    objects.delete("job-0.r1/manifest.json")
    with pytest.raises(DatasetsNotForgotten, match=r"job-0\.r1 were damaged"):
        forget_erased(warehouse, objects, NOW, copies=tmp_path / "training")
    assert list(objects.list("job-0.r1/")) == []
    assert "jane tries" not in stored_bytes(objects, tmp_path)
    forget_erased(warehouse, objects, NOW, copies=tmp_path / "training")


class Away(BreaksOff):
    """An object store that cannot be reached for one dataset."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._objects, name)

        def called(key: str, *more: Any) -> Any:
            if key.startswith("job-0."):
                raise ObjectsUnavailable("the store is away")
            return found(key, *more)

        return called


def test_a_store_that_is_away_for_one_dataset_does_not_keep_the_others_from_being_cleaned(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    store(warehouse, attempts())
    for job in ("job-0", "job-1"):
        curated(warehouse, objects, "sft", job)
    erase(warehouse)
    away: Any = Away(objects, 0)
    with pytest.raises(DatasetsNotForgotten, match=r"left in job-0\.r1 \(the store is away\)"):
        forget_erased(warehouse, away, NOW, copies=tmp_path / "training")
    assert "jane tries" not in stored_bytes(objects, tmp_path)
    assert datasets_with_erased(warehouse) == ["job-0.r1"]


def test_a_curation_that_replaces_a_dataset_while_it_is_cleaned_is_not_forgotten(
    warehouse: Warehouse, objects: DiskObjects, tmp_path: Path
) -> None:
    """The erasure cleans the earlier dataset, and forgets its provenance, before the next one's files are stored."""
    store(warehouse, attempts())
    curated(warehouse, objects, "sft")

    class Meanwhile(ErasingMeanwhile):
        def upload(self, key: str, path: Path) -> StoredObject:
            if not self.erased:
                self.erased = True
                tombstone(warehouse)
                drop_erased(warehouse, objects, "job-1.r1", NOW, copies=tmp_path)
            return objects.upload(key, path)

    meanwhile: Any = Meanwhile(objects, warehouse)
    curated(warehouse, meanwhile, "sft")
    assert meanwhile.erased
    assert "jane tries" not in stored_bytes(objects, tmp_path)
