"""Addresses of object stores, and what the port costs to import."""

import subprocess
import sys
from pathlib import Path

import pytest

from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.object_addresses import InvalidObjectsUrl, ObjectsLocation, open_objects, parse_objects_url


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("s3://pmoves-models/rl-checkpoints/", ObjectsLocation("s3", "pmoves-models", "rl-checkpoints/")),
        ("s3://pmoves-models/rl-checkpoints", ObjectsLocation("s3", "pmoves-models", "rl-checkpoints/")),
        ("s3://bucket", ObjectsLocation("s3", "bucket", "")),
        ("s3://bucket/", ObjectsLocation("s3", "bucket", "")),
        ("s3://bucket/a/b/", ObjectsLocation("s3", "bucket", "a/b/")),
        ("file:///var/objects", ObjectsLocation("file", "/var/objects", "")),
        ("file:///var/with%20space", ObjectsLocation("file", "/var/with space", "")),
        ("/var/objects", ObjectsLocation("file", "/var/objects", "")),
        ("data/objects", ObjectsLocation("file", str(Path("data/objects").absolute()), "")),
    ],
)
def test_an_address_is_a_bucket_or_a_directory(url: str, location: ObjectsLocation) -> None:
    assert parse_objects_url(url) == location


@pytest.mark.parametrize(
    "url",
    [
        "",
        "~/objects",
        "gs://bucket/prefix",
        "https://bucket.s3.amazonaws.com/",
        "s3:bucket",
        "s3://",
        "s3:///prefix",
        "s3://b",
        "s3://bucket/../other",
        "s3://bucket/a//b",
        "s3://bucket/a?versionId=1",
        "s3://bucket/a b",
        "s3://[bucket/",
        "file:relative",
        "file://host/directory",
        "file:///a#b",
    ],
)
def test_anything_else_is_refused_in_one_line_that_says_what_to_write(url: str) -> None:
    with pytest.raises(InvalidObjectsUrl, match="write s3://bucket/prefix/") as caught:
        parse_objects_url(url)
    assert "\n" not in str(caught.value)


def test_a_password_in_an_address_does_not_reach_the_error() -> None:
    with pytest.raises(InvalidObjectsUrl) as caught:
        parse_objects_url("s3://user:hunter2@bucket/prefix/")
    assert "hunter2" not in str(caught.value)


def test_a_path_opens_the_disk(tmp_path: Path) -> None:
    for url in (str(tmp_path / "a b"), (tmp_path / "a b").as_uri()):
        objects = open_objects(url)
        assert isinstance(objects, DiskObjects)
        objects.put("c", b"")
        assert Path(tmp_path / "a b" / "c").as_uri() == objects.url("c")


def test_the_port_and_the_disk_do_not_import_boto3(tmp_path: Path) -> None:
    program = (
        "import sys; from rl_pipeline.stores.object_addresses import open_objects;"
        "assert not {'rl_pipeline.stores.disk', 'rl_pipeline.stores.s3'} & set(sys.modules);"
        "open_objects(sys.argv[1]).put('a', b'');"
        "assert not {'boto3', 'botocore'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=True)
