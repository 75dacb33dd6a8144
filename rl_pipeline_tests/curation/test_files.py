"""Files and manifests: the same bytes for the same rows, and nothing that is not what the manifest says."""

from pathlib import Path

import pytest

from rl_pipeline.curation.files import PROMPTS, WrittenFile, read_rows, write_rows
from rl_pipeline.curation.manifest import Manifest, ManifestUnreadable, content_of, read_manifest
from rl_pipeline_tests.curation.frames import POLICY, criteria

ROWS = [
    {
        "task": f"task-{number}",
        "split": "train",
        "messages": "[]",
        "environment": None,
        "environment_task": None,
        "attempts": number,
        "mean_reward": 0.5,
        "reward_std": 0.0,
        "trajectory_id": "t",
    }
    for number in range(2500)
]
FILE = WrittenFile("conversations.parquet", 0, 4, "0" * 64)


def manifest(**changes: object) -> Manifest:
    content = content_of(criteria(), POLICY, [{"trajectory_id": "t", "role": "demonstration"}], [FILE])
    known = {"dataset_id": "job-1.r1", "job_id": "job-1", "revision": 1, "created_at": "2026-03-26"}
    return Manifest(**known | {"content": content, "summary": {}} | changes)  # type: ignore[arg-type]


def test_the_same_rows_are_the_same_bytes_and_are_read_as_they_were_written(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    one, other = (write_rows(place / PROMPTS, iter(ROWS)) for place in (tmp_path, tmp_path / "again"))
    assert one == other
    assert one.rows == 2500
    assert list(read_rows(tmp_path / PROMPTS)) == ROWS


def test_a_file_without_rows_has_its_columns(tmp_path: Path) -> None:
    assert write_rows(tmp_path / PROMPTS, []).rows == 0
    assert list(read_rows(tmp_path / PROMPTS)) == []


def test_the_hash_is_of_the_content_and_not_of_the_job_or_the_time() -> None:
    other_job = manifest(job_id="job-2", dataset_id="job-2.r7", revision=7, created_at="2031-01-01", summary={"a": 1})
    assert other_job.hash == manifest().hash
    other_files = content_of(criteria(), POLICY, [], [])
    assert manifest(content=other_files).hash != manifest().hash


def test_a_manifest_is_read_as_it_was_written() -> None:
    found = read_manifest(manifest().encoded(), "somewhere")
    assert (found.hash, found.files) == (manifest().hash, [FILE])


@pytest.mark.parametrize("broken", [b"", b"[]", b"{}", b'{"manifest_hash": 3}'])
def test_what_is_no_manifest_is_refused_by_its_address(broken: bytes) -> None:
    with pytest.raises(ManifestUnreadable, match="somewhere"):
        read_manifest(broken, "somewhere")


def test_a_manifest_that_was_changed_is_refused() -> None:
    with pytest.raises(ManifestUnreadable):
        read_manifest(manifest().encoded().replace(b"demonstration", b"Demonstration"), "somewhere")


def test_a_manifest_that_lists_files_elsewhere_is_refused() -> None:
    elsewhere = WrittenFile("../../etc/passwd", 0, 4, "0" * 64)
    content = content_of(criteria(), POLICY, [], [elsewhere])
    with pytest.raises(ManifestUnreadable):
        read_manifest(manifest(content=content).encoded(), "somewhere")
