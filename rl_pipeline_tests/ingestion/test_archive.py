"""Redacted trajectories go to the archive by day, once each, and come back."""

import io
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import polars as pl
import pyarrow.parquet as pq
import pytest

from rl_pipeline.ingestion import archive_files
from rl_pipeline.ingestion.archive import (
    NotArchived,
    archive_days,
    archived_objects,
    prune_archive,
    prune_raw,
    restore_days,
)
from rl_pipeline.ingestion.archive_files import ArchiveUnreadable
from rl_pipeline.ingestion.holding import hold_for_dataset
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.objects import CorruptObject, Objects, StoredObject
from rl_pipeline.stores.s3 import S3Objects
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline_tests.ingestion.ingesting import KEY
from rl_pipeline_tests.ingestion.stored_rows import NOW, expire, rows, stored

YESTERDAY = NOW - timedelta(days=1)
LAST_WEEK = NOW - timedelta(days=7)


@pytest.fixture
def disk(tmp_path: Path) -> DiskObjects:
    return DiskObjects(tmp_path / "archive")


@pytest.fixture(params=["disk", "s3"])
def objects(request: pytest.FixtureRequest) -> Objects:
    if request.param == "disk":
        found: Objects = request.getfixturevalue("disk")
        return found
    bucket: str = request.getfixturevalue("s3_bucket")
    client: Any = request.getfixturevalue("s3_client")
    return S3Objects(client, bucket, "trajectories/archive/")


def keys(objects: Objects) -> list[str]:
    return sorted(stored.key for stored in objects.list())


def read(objects: Objects, key: str) -> pl.DataFrame:
    return pl.read_parquet(io.BytesIO(objects.get(key)))


def restore(warehouse: Warehouse, objects: Objects, first: datetime, last: datetime | None = None) -> dict[date, int]:
    report = restore_days(warehouse, objects, first.date(), (last or first).date(), keys=[KEY], now=NOW)
    return dict(report.restored)


def ingest(warehouse: Warehouse, made: pl.DataFrame, verdict: str = "accepted") -> None:
    """Store rows, and say so in the ledger."""
    if verdict == "accepted":
        warehouse.insert("trajectories", made)
    positions = made.select("stream", "sequence", "stream_time", "trajectory_id", "revision")
    warehouse.insert("trajectory_ledger", positions.with_columns(verdict=pl.lit(verdict)))


def write_tombstone(warehouse: Warehouse, user: str, until: datetime) -> None:
    warehouse.insert("erasures", pl.DataFrame({"user": [user], "erased_at": [NOW], "covers_until": [until]}))


def test_days_go_to_the_archive_and_come_back_as_they_were_after_their_rows_expired(
    warehouse: Warehouse, objects: Objects
) -> None:
    ingest(warehouse, rows(5, LAST_WEEK))
    ingest(warehouse, rows(3, YESTERDAY, first=6))
    before = stored(warehouse, "expires_at")
    report = archive_days(warehouse, objects, NOW)
    assert report.written == {LAST_WEEK.date(): 5, YESTERDAY.date(): 3}
    assert [key.partition("/")[0] for key in keys(objects)] == [f"day={LAST_WEEK.date()}", f"day={YESTERDAY.date()}"]

    expire(warehouse, [1, 2, 3, 4, 7])
    assert list(stored(warehouse)["sequence"]) == [5, 6, 8]
    assert restore(warehouse, objects, LAST_WEEK, YESTERDAY) == {LAST_WEEK.date(): 5, YESTERDAY.date(): 3}
    assert stored(warehouse, "expires_at").equals(before)
    assert set(stored(warehouse)["expires_at"]) == {NOW + timedelta(days=30)}


def test_a_day_that_has_not_changed_is_not_written_again(warehouse: Warehouse, objects: Objects) -> None:
    ingest(warehouse, rows(2, YESTERDAY))
    archive_days(warehouse, objects, NOW)
    (before,) = objects.list()
    ingest(warehouse, rows(2, YESTERDAY))  # as a repeated ingest would
    report = archive_days(warehouse, objects, NOW)
    assert (report.written, report.unchanged) == ({}, (YESTERDAY.date(),))
    assert list(objects.list()) == [before]


def test_a_day_that_has_grown_or_was_ingested_anew_is_written_again_and_the_older_object_goes(
    warehouse: Warehouse, objects: Objects
) -> None:
    for change in (rows(2, YESTERDAY), rows(1, YESTERDAY, first=3), rows(3, YESTERDAY, revision=2)):
        ingest(warehouse, change)
        archive_days(warehouse, objects, NOW)
    (key,) = keys(objects)
    assert read(objects, key).sort("sequence").equals(stored(warehouse))
    assert set(read(objects, key)["revision"]) == {2}


def test_the_new_object_is_there_before_an_older_one_goes(warehouse: Warehouse, disk: DiskObjects) -> None:
    class OrderedObjects(DiskObjects):
        def delete(self, key: str) -> None:
            seen.append(len(keys(self)))
            super().delete(key)

    seen: list[int] = []

    ordered = OrderedObjects(disk.root)
    ingest(warehouse, rows(2, YESTERDAY))
    archive_days(warehouse, ordered, NOW)
    ingest(warehouse, rows(1, YESTERDAY, first=3))
    archive_days(warehouse, ordered, NOW)
    assert seen == [2]


def test_a_day_whose_rows_have_begun_to_expire_keeps_its_fuller_archive(
    warehouse: Warehouse, disk: DiskObjects
) -> None:
    ingest(warehouse, rows(4, YESTERDAY))
    archive_days(warehouse, disk, NOW)
    before = keys(disk)
    expire(warehouse, [1, 2])
    assert archive_days(warehouse, disk, YESTERDAY + timedelta(days=29)).written == {}
    assert keys(disk) == before
    assert archive_days(warehouse, disk, YESTERDAY + timedelta(days=28)).written == {YESTERDAY.date(): 2}


def test_a_day_that_the_archive_lacks_is_written_however_little_is_left_of_it(
    warehouse: Warehouse, disk: DiskObjects
) -> None:
    ingest(warehouse, rows(1, YESTERDAY))
    assert archive_days(warehouse, disk, YESTERDAY + timedelta(days=91)).written == {}
    assert archive_days(warehouse, disk, YESTERDAY + timedelta(days=90)).written == {YESTERDAY.date(): 1}


def test_any_reader_of_parquet_reads_the_archive(warehouse: Warehouse, disk: DiskObjects) -> None:
    ingest(warehouse, rows(3, YESTERDAY))
    archive_days(warehouse, disk, NOW)
    (key,) = keys(disk)
    assert read(disk, key).sort("sequence").equals(stored(warehouse))
    by_clickhouse = warehouse.query(
        f"SELECT * FROM file('{disk.root / key}', Parquet) ORDER BY sequence",
        settings={"schema_inference_make_columns_nullable": 0},
    )
    assert by_clickhouse.select("trajectory_id", "tools", "document", "stream_time").equals(
        stored(warehouse).select("trajectory_id", "tools", "document", "stream_time")
    )
    assert pq.ParquetFile(disk.root / key).metadata.row_group(0).column(0).compression == "ZSTD"


def test_a_day_of_any_size_passes_in_pieces(
    warehouse: Warehouse, disk: DiskObjects, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_files, "_GROUP_BYTES", 1 << 20)
    ingest(warehouse, rows(1500, YESTERDAY, bytes_each=20_000))
    before = stored(warehouse, "expires_at")
    archive_days(warehouse, disk, NOW)
    (key,) = keys(disk)
    with pq.ParquetFile(disk.root / key) as file:
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
    assert len(groups) >= 2
    assert max(group.total_byte_size for group in groups) < 16 << 20, "ClickHouse's own pieces are of some 10 MB"
    warehouse.execute("TRUNCATE TABLE trajectories")
    assert restore(warehouse, disk, YESTERDAY) == {YESTERDAY.date(): 1500}
    assert stored(warehouse, "expires_at").equals(before)


def test_restoring_twice_doubles_nothing_and_a_newer_revision_stays(warehouse: Warehouse, disk: DiskObjects) -> None:
    ingest(warehouse, rows(3, YESTERDAY))
    archive_days(warehouse, disk, NOW)
    ingest(warehouse, rows(1, YESTERDAY, first=2, revision=2))
    for _ in range(2):
        restore(warehouse, disk, YESTERDAY)
    assert list(stored(warehouse)["revision"]) == [1, 2, 1]


def test_what_newer_rules_refused_or_judged_anew_is_not_restored(warehouse: Warehouse, disk: DiskObjects) -> None:
    ingest(warehouse, rows(5, YESTERDAY))
    archive_days(warehouse, disk, NOW)
    warehouse.execute("TRUNCATE TABLE trajectories")
    for number, verdict in enumerate(("refused", "duplicate", "opted_out"), start=1):
        ingest(warehouse, rows(1, YESTERDAY, first=number, revision=1 if verdict == "duplicate" else 2), verdict)
    ingest(warehouse, rows(1, YESTERDAY, first=4, revision=2))
    warehouse.execute("TRUNCATE TABLE trajectories")
    report = restore_days(warehouse, disk, YESTERDAY.date(), YESTERDAY.date(), keys=[KEY], now=NOW)
    assert (report.restored, report.erased, report.outdated) == ({YESTERDAY.date(): 1}, 0, 4)
    assert list(warehouse.query("SELECT sequence FROM trajectories")["sequence"]) == [5]


def test_a_row_of_which_a_newer_version_is_present_is_not_restored(warehouse: Warehouse, disk: DiskObjects) -> None:
    ingest(warehouse, rows(2, YESTERDAY))
    archive_days(warehouse, disk, NOW)
    # Stored by an ingest that died before its ledger.
    warehouse.insert("trajectories", rows(1, YESTERDAY, revision=2))
    warehouse.execute("ALTER TABLE trajectories DELETE WHERE revision = 1", {}, {"mutations_sync": 2})
    report = restore_days(warehouse, disk, YESTERDAY.date(), YESTERDAY.date(), keys=[KEY], now=NOW)
    assert (report.restored, report.outdated) == ({YESTERDAY.date(): 1}, 1)
    found = warehouse.query("SELECT sequence, revision FROM trajectories ORDER BY sequence")
    assert found.rows() == [(1, 2), (2, 1)]


def test_restored_rows_are_held_where_a_dataset_holds_them(warehouse: Warehouse, disk: DiskObjects) -> None:
    ingest(warehouse, rows(3, YESTERDAY))
    archive_days(warehouse, disk, NOW)
    hold_for_dataset(warehouse, "dataset-1", [stored(warehouse)["trajectory_id"][1]])
    restore(warehouse, disk, YESTERDAY)
    assert list(stored(warehouse)["held"]) == [False, True, False]


def test_erased_users_are_neither_archived_nor_restored(warehouse: Warehouse, disk: DiskObjects) -> None:
    ingest(warehouse, rows(3, YESTERDAY, user="erased"))
    ingest(warehouse, rows(2, YESTERDAY, user="other", first=4))
    ingest(warehouse, rows(1, YESTERDAY + timedelta(milliseconds=2), user="erased", first=6))
    archive_days(warehouse, disk, NOW)
    warehouse.execute("TRUNCATE TABLE trajectories")
    write_tombstone(warehouse, "erased", YESTERDAY + timedelta(milliseconds=1))
    report = restore_days(warehouse, disk, YESTERDAY.date(), YESTERDAY.date(), keys=[KEY], now=NOW)
    assert (sum(report.restored.values()), report.erased) == (3, 3)
    assert list(stored(warehouse)["sequence"]) == [4, 5, 6]

    ingest(warehouse, rows(3, YESTERDAY, user="erased"))
    archive_days(warehouse, disk, NOW)
    (key,) = keys(disk)
    assert sorted(read(disk, key)["sequence"]) == [4, 5, 6]


def test_who_is_erased_while_a_day_is_archived_or_restored_is_in_neither(
    warehouse: Warehouse, disk: DiskObjects
) -> None:
    class ErasingMeanwhile(DiskObjects):
        user = ""

        def upload(self, key: str, path: Path) -> StoredObject:
            write_tombstone(warehouse, self.user, NOW)
            return super().upload(key, path)

        def download(self, key: str, path: Path) -> None:
            write_tombstone(warehouse, self.user, NOW)
            super().download(key, path)

    erasing = ErasingMeanwhile(disk.root)
    erasing.user = "one"
    for number, user in enumerate(("one", "two", "three"), start=1):
        ingest(warehouse, rows(1, YESTERDAY, user=user, first=number))
    archive_days(warehouse, erasing, NOW)
    (key,) = keys(disk)
    assert sorted(read(disk, key)["user"]) == ["three", "two"]
    erasing.user = "two"
    restore(warehouse, erasing, YESTERDAY)
    assert "two" not in set(warehouse.query("SELECT user FROM trajectories")["user"])


def test_a_day_on_which_everybody_is_erased_while_it_is_archived_is_not_in_the_archive(
    warehouse: Warehouse, disk: DiskObjects
) -> None:
    class ErasingMeanwhile(DiskObjects):
        def upload(self, key: str, path: Path) -> StoredObject:
            write_tombstone(warehouse, "one", NOW)
            return super().upload(key, path)

    ingest(warehouse, rows(2, YESTERDAY, user="one"))
    assert archive_days(warehouse, ErasingMeanwhile(disk.root), NOW).written == {}
    assert keys(disk) == []


def test_a_day_that_is_not_in_the_archive_is_named_and_nothing_is_restored(
    warehouse: Warehouse, disk: DiskObjects
) -> None:
    with pytest.raises(NotArchived, match=f"lacks every day from {LAST_WEEK.date()} to {YESTERDAY.date()}: choose"):
        restore(warehouse, disk, LAST_WEEK, YESTERDAY)
    ingest(warehouse, rows(1, YESTERDAY))
    archive_days(warehouse, disk, NOW)
    warehouse.execute("TRUNCATE TABLE trajectories")
    assert restore(warehouse, disk, LAST_WEEK, YESTERDAY) == {YESTERDAY.date(): 1}, "nothing happened on the others"

    ledger = pl.DataFrame({"stream": ["RL_TRAJECTORIES"], "sequence": [9], "stream_time": [LAST_WEEK]})
    warehouse.insert("trajectory_ledger", ledger.with_columns(verdict=pl.lit("accepted")))
    warehouse.execute("TRUNCATE TABLE trajectories")
    with pytest.raises(NotArchived, match=f"lacks {LAST_WEEK.date()}: choose"):
        restore(warehouse, disk, LAST_WEEK, YESTERDAY)
    assert stored(warehouse).is_empty()


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.99])
def test_a_broken_object_is_named_and_nothing_is_lost(warehouse: Warehouse, disk: DiskObjects, kept: float) -> None:
    ingest(warehouse, rows(50, YESTERDAY))
    archive_days(warehouse, disk, NOW)
    (key,) = keys(disk)
    whole = disk.get(key)
    disk.put(key, whole[: int(len(whole) * kept)])
    with pytest.raises(ArchiveUnreadable, match=r"parquet is no whole Parquet file: put a copy of it back"):
        restore(warehouse, disk, YESTERDAY)
    assert stored(warehouse).height == 50
    assert keys(disk) == [key]


def test_an_object_that_was_changed_on_the_disk_is_refused(warehouse: Warehouse, disk: DiskObjects) -> None:
    ingest(warehouse, rows(50, YESTERDAY))
    archive_days(warehouse, disk, NOW)
    (key,) = keys(disk)
    content = bytearray((disk.root / key).read_bytes())
    content[len(content) // 2] ^= 1
    (disk.root / key).write_bytes(content)
    with pytest.raises(CorruptObject):
        restore(warehouse, disk, YESTERDAY)
    assert keys(disk) == [key]


def test_the_archive_keeps_ninety_days(objects: Objects) -> None:
    for age in (0, 89, 90, 91, 400):
        objects.put(f"day={(NOW - timedelta(days=age)).date()}/1-{uuid4().hex}.parquet", b"")
    objects.put("notes.txt", b"not ours")
    assert prune_archive(objects, NOW) == 2
    assert {(NOW.date() - day).days for day, _ in archived_objects(objects)} == {0, 89, 90}
    assert objects.exists("notes.txt")


def test_claims_go_when_no_message_can_refer_to_them_any_more(objects: Objects) -> None:
    for name in ("2020-01-01/a.json", "b.json"):
        objects.put(name, b"{}")
    written = [claim.modified for claim in objects.list()]
    assert prune_raw(objects, min(written) + timedelta(days=30)) == 0
    assert prune_raw(objects, max(written) + timedelta(days=30, seconds=1)) == 2
    assert keys(objects) == []
