"""Which released checkpoints go, and that nothing else does."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.training.checkpoints.releasing import release
from rl_pipeline.training.checkpoints.retention import RecordedCheckpoint, prune_released, to_prune
from rl_pipeline.training.checkpoints.signing import new_signing_key
from rl_pipeline.training.checkpoints.storage import saving

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def recorded(name: str, *, days: float, best: bool = False, deployed: bool = False) -> RecordedCheckpoint:
    return RecordedCheckpoint(name, f"file:///{name}", NOW - timedelta(days=days), best, deployed)


def ids(found: list[RecordedCheckpoint]) -> list[str]:
    return [each.id for each in found]


def test_ninety_days_are_the_life_of_a_checkpoint() -> None:
    rows = [recorded("young", days=90), recorded("old", days=90.001), recorded("older", days=200)]
    assert ids(to_prune(rows, NOW)) == ["older", "old"]


def test_the_best_and_the_deployed_stay_for_ever() -> None:
    rows = [recorded("best", days=900, best=True), recorded("deployed", days=900, deployed=True)]
    assert to_prune(rows, NOW) == []


def test_what_is_gone_is_not_due_again() -> None:
    gone = RecordedCheckpoint("gone", "file:///gone", NOW - timedelta(days=100), False, False, NOW)
    assert to_prune([gone], NOW) == []


ROWS = st.lists(
    st.builds(
        RecordedCheckpoint,
        id=st.uuids().map(str),
        url=st.just("file:///x"),
        created_at=st.integers(0, 200).map(lambda days: NOW - timedelta(days=days)),
        is_best=st.booleans(),
        deployed=st.booleans(),
    ),
    max_size=30,
)


@given(ROWS)
def test_whatever_the_rows_only_what_is_old_and_not_protected_is_due(rows: list[RecordedCheckpoint]) -> None:
    due = set(ids(to_prune(rows, NOW)))
    for row in rows:
        protected = row.is_best or row.deployed
        assert (row.id in due) == (not protected and NOW - row.created_at > timedelta(days=90))


@pytest.fixture
def objects(tmp_path: Path) -> DiskObjects:
    return DiskObjects(tmp_path / "objects")


def stored(
    warehouse: ClickHouseWarehouse, objects: DiskObjects, name: str, *, days: int, url: str | None = None, **flags: bool
) -> None:
    """A checkpoint that was released `days` ago, with its row."""
    directory = objects.root.parent / name
    created = NOW - timedelta(days=days)
    with saving(directory, {"job_id": name, "step": 10, "created": created}) as staging:
        (staging / "model.safetensors").write_text(name)
    released = release(directory, objects, f"{name}/final", new_signing_key())
    row = {
        "id": name,
        "agent_id": "policy",
        "checkpoint_path": url or released.url,
        "performance_metrics": '{"success": 0.5}',
        "training_iteration": 10,
        "created_at": created,
        "job_id": name,
        "attempt": 1,
        "manifest_sha256": released.manifest_sha256,
        "key_id": released.key_id,
        "version": 3,
        **({"is_best": False, "deployed": False} | flags),
    }
    warehouse.insert("model_checkpoints", pl.DataFrame([row]))


def present(objects: DiskObjects) -> set[str]:
    return {each.key.partition("/")[0] for each in objects.list()}


def test_pruning_removes_the_files_and_says_so_in_the_row(warehouse: ClickHouseWarehouse, objects: DiskObjects) -> None:
    stored(warehouse, objects, "old", days=100)
    stored(warehouse, objects, "young", days=1)
    stored(warehouse, objects, "best", days=100, is_best=True)
    stored(warehouse, objects, "deployed", days=100, deployed=True)
    stored(warehouse, objects, "moved", days=100, url="s3://earlier-bucket/moved/final")
    report = prune_released(warehouse, objects, NOW)
    assert (report.pruned, report.elsewhere) == (("old",), ("moved",))
    assert present(objects) == {"young", "best", "deployed", "moved"}
    rows = warehouse.query("SELECT * FROM model_checkpoints FINAL WHERE pruned_at IS NOT NULL").to_dicts()
    assert [(row["id"], row["pruned_at"], row["version"]) for row in rows] == [("old", NOW, 4)]
    assert (rows[0]["performance_metrics"], rows[0]["training_iteration"]) == ('{"success": 0.5}', 10)
    assert prune_released(warehouse, objects, NOW).pruned == ()


class _DeploysMeanwhile:
    """A store whose first removal lasts until a rollout of another checkpoint has begun."""

    def __init__(self, objects: DiskObjects, warehouse: ClickHouseWarehouse) -> None:
        self._objects = objects
        self._warehouse = warehouse

    def __getattr__(self, name: str) -> object:
        if name == "delete":
            self._warehouse.execute(
                "INSERT INTO model_checkpoints SELECT * REPLACE (true AS deployed, version + 1 AS version)"
                " FROM model_checkpoints FINAL WHERE id = 'second'"
            )
        return getattr(self._objects, name)


def test_a_checkpoint_that_is_deployed_while_others_are_pruned_stays(
    warehouse: ClickHouseWarehouse, objects: DiskObjects
) -> None:
    stored(warehouse, objects, "first", days=102)
    stored(warehouse, objects, "second", days=101)
    report = prune_released(warehouse, _DeploysMeanwhile(objects, warehouse), NOW)
    assert report.pruned == ("first",)
    assert present(objects) == {"second"}
