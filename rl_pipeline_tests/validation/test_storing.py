"""Reports in the real warehouse: which checkpoints wait for one, and what was said of each."""

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import polars as pl
import pytest

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.validation.report_text import to_markdown
from rl_pipeline.validation.storing import (
    NothingToValidate,
    NotValidated,
    candidate_of,
    job_of_checkpoint,
    report_of,
    waiting_checkpoints,
)
from rl_pipeline_tests.training.job_tables import emptied, migrated_database
from rl_pipeline_tests.validation.stored_reports import (
    MANIFEST,
    NOW,
    a_report,
    store_a_report,
    store_checkpoint,
    store_job,
    without_control,
)


@pytest.fixture(scope="module")
def database(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def tables(database: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(database)


def trained(tables: ClickHouseWarehouse, job: str, hours: int = 0, **more: object) -> None:
    store_job(tables, job)
    store_checkpoint(tables, job, created_at=NOW + timedelta(hours=hours), **more)


def released(tables: ClickHouseWarehouse, job: str) -> None:
    given = {"training_job_id": job, "number": 1, "state": "started", "released_at": NOW, "changed_at": NOW}
    tables.insert("model_releases", pl.DataFrame([given]))


def test_the_checkpoint_of_a_job_is_found_by_the_job_and_by_its_address(tables: ClickHouseWarehouse) -> None:
    path = store_checkpoint(tables, "job", shadow=True)
    found = candidate_of(tables, "job")
    assert (found.job_id, found.checkpoint_path, found.manifest_sha256) == ("job", path, MANIFEST)
    assert (found.base_model, found.shadow) == ("embedded-small", True)
    assert job_of_checkpoint(tables, f"{path}/") == "job"
    for unknown in ("other", path.replace("job", "other")):
        with pytest.raises(NothingToValidate):
            candidate_of(tables, unknown)
        with pytest.raises(NothingToValidate):
            job_of_checkpoint(tables, unknown)


def test_a_checkpoint_that_was_pruned_is_there_no_more(tables: ClickHouseWarehouse) -> None:
    trained(tables, "job")
    path = store_checkpoint(tables, "job", version=2, pruned_at=NOW)
    with pytest.raises(NothingToValidate, match="rl-pipeline jobs job"):
        candidate_of(tables, "job")
    with pytest.raises(NothingToValidate):
        job_of_checkpoint(tables, path)
    assert waiting_checkpoints(tables) == []


def test_a_report_is_kept_beside_the_checkpoint_and_read_back_whole(
    tables: ClickHouseWarehouse, tmp_path: Path
) -> None:
    store_checkpoint(tables, "job")
    report, objects = a_report(), DiskObjects(tmp_path)
    url = store_a_report(tables, tmp_path, "job", report)
    assert url == objects.url("job/validation/report.json")
    assert json.loads(objects.get("job/validation/report.json"))["decision"] == "deploy"
    assert objects.get("job/validation/report.md").decode() == to_markdown(report)
    stored = report_of(tables, "job")
    assert (stored.report, stored.control, stored.manifest_sha256) == (report, "old", MANIFEST)
    [row] = tables.query("SELECT * FROM validation_reports FINAL").to_dicts()
    assert (row["decision"], row["reasons"], row["seconds"]) == ("deploy", ["every suite passed"], 12.5)
    assert (row["improvement"], row["report_url"]) == (pytest.approx(0.08), url)


def test_the_newer_report_counts_whichever_was_written_last(tables: ClickHouseWarehouse, tmp_path: Path) -> None:
    store_checkpoint(tables, "job")
    store_a_report(tables, tmp_path, "job", a_report("refuse"), NOW + timedelta(hours=1))
    store_a_report(tables, tmp_path, "job", without_control(a_report("deploy")), NOW)
    assert report_of(tables, "job").report.decision == "refuse"


def test_what_nobody_has_validated_is_told(tables: ClickHouseWarehouse) -> None:
    with pytest.raises(NotValidated, match="materialize validation_reports"):
        report_of(tables, "job")


def test_the_oldest_checkpoint_waits_in_front(tables: ClickHouseWarehouse) -> None:
    for job, hours in (("b", 2), ("a", 3), ("c", 1)):
        trained(tables, job, hours)
    assert waiting_checkpoints(tables) == ["c", "b", "a"]


def test_what_is_refused_released_or_only_shadowed_waits_no_more(tables: ClickHouseWarehouse, tmp_path: Path) -> None:
    for job in ("refused", "released", "passed", "open", "never judged"):
        trained(tables, job)
    trained(tables, "shadow", shadow=True)
    store_checkpoint(tables, "unfinished")
    store_job(tables, "unfinished", "running")
    assert "shadow" in waiting_checkpoints(tables), "it is validated, too"
    for job, decision in (("refused", "refuse"), ("released", "deploy"), ("passed", "deploy"), ("shadow", "deploy")):
        store_a_report(tables, tmp_path, job, a_report(decision))  # type: ignore[arg-type]
    store_a_report(tables, tmp_path, "open", a_report("ask_a_person"))
    released(tables, "released")
    assert waiting_checkpoints(tables) == ["never judged", "open", "passed"]
