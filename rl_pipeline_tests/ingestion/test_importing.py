"""Files become messages like all others: nothing bypasses the stream, and a request cannot read what it likes."""

import gzip
import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random

import pytest

from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.contracts import serialize
from rl_pipeline.ingestion.importing import ImportFailed, files_below, files_in_store, import_trajectories
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream

LINES = [serialize(each) for each in sample_trajectories(5, now=datetime(2026, 1, 1, tzinfo=UTC), randomness=Random(3))]
IDS = {json.loads(line)["trajectory_id"] for line in LINES}


def stored_bodies(stream: JetStream) -> list[bytes]:
    last = stream.state("RL_TRAJECTORIES").last_sequence
    return [message.data for batch in stream.read("RL_TRAJECTORIES", 1, last, 100) for message in batch]


def imported_ids(warehouse: ClickHouseWarehouse) -> set[str]:
    return set(warehouse.query("SELECT trajectory_id FROM imported_trajectories WHERE job_id = 'job'")["trajectory_id"])


@pytest.fixture
def raw(tmp_path: Path) -> DiskObjects:
    return DiskObjects(tmp_path / "raw")


def test_every_trajectory_of_every_kind_of_file_is_in_the_stream_once(
    stream: JetStream, warehouse: ClickHouseWarehouse, raw: DiskObjects, tmp_path: Path
) -> None:
    directory = tmp_path / "imports"
    (directory / "more").mkdir(parents=True)
    (directory / "a.jsonl").write_bytes(b"\n".join(LINES[:2]) + b"\n\n")
    (directory / "one.json").write_bytes(LINES[2])
    (directory / "more" / "b.ndjson.gz").write_bytes(gzip.compress(b"\n".join(LINES[3:])))
    (directory / "notes.txt").write_text("not read")
    for expected in ((5, 0), (0, 5)):
        report = import_trajectories(
            files_below(directory, "."), stream, warehouse, job_id="job", raw_objects=lambda: raw
        )
        assert (report.published, report.repeated, report.last_sequence) == (*expected, 5)
    assert report.files == 3
    assert sorted(stored_bodies(stream)) == sorted(LINES)
    assert imported_ids(warehouse) == IDS


def test_what_breaks_the_contract_goes_to_the_stream_to_be_refused_there(
    stream: JetStream, warehouse: ClickHouseWarehouse, raw: DiskObjects
) -> None:
    broken = b'{"trajectory_id": "no-uuid"}'
    files = [("a.jsonl", LINES[0] + b"\n" + broken)]
    import_trajectories(files, stream, warehouse, job_id="job", raw_objects=lambda: raw)
    assert stored_bodies(stream) == [LINES[0], broken]


def test_what_is_no_json_object_fails_the_import_and_nothing_of_its_file_is_published(
    stream: JetStream, warehouse: ClickHouseWarehouse, raw: DiskObjects
) -> None:
    with pytest.raises(ImportFailed, match=r"a\.jsonl, document 2"):
        import_trajectories(
            [("a.jsonl", LINES[0] + b"\nroot:x:0:0\n")], stream, warehouse, job_id="job", raw_objects=lambda: raw
        )
    assert stream.state("RL_TRAJECTORIES").messages == 0


@pytest.mark.parametrize("path", ["../outside", "/etc/hostname", "link", "missing"])
def test_a_request_reads_nothing_outside_of_the_directory_of_imports(tmp_path: Path, path: str) -> None:
    directory, outside = tmp_path / "imports", tmp_path / "outside"
    directory.mkdir()
    outside.mkdir()
    (outside / "a.jsonl").write_bytes(LINES[0])
    (directory / "link").symlink_to(outside)
    with pytest.raises(ImportFailed, match="directory of imports"):
        list(files_below(directory, path))
    (directory / "linked.jsonl").symlink_to(outside / "a.jsonl")
    assert list(files_below(directory, ".")) == []


def test_files_of_an_object_store_are_read_by_their_names(tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path)
    objects.put("2026/a.jsonl", LINES[0])
    objects.put("2026/readme.md", b"not read")
    assert list(files_in_store(objects)) == [("2026/a.jsonl", LINES[0])]


def test_files_without_a_trajectory_are_an_error(
    stream: JetStream, warehouse: ClickHouseWarehouse, raw: DiskObjects
) -> None:
    def nothing() -> Iterator[tuple[str, bytes]]:
        yield "a.jsonl", b"\n"

    with pytest.raises(ImportFailed, match="no trajectory in 1 files"):
        import_trajectories(nothing(), stream, warehouse, job_id="job", raw_objects=lambda: raw)
