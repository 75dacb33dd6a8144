"""What every `Objects` adapter does, on a real disk and a real S3 server. What one adapter does alone is not here."""

import hashlib
import random
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.objects import (
    CorruptObject,
    InvalidKey,
    ObjectExists,
    ObjectMissing,
    Objects,
    ObjectsUnavailable,
    StoredObject,
)
from rl_pipeline.stores.s3 import S3Objects

TWENTY_MEGABYTES = 20 << 20


@dataclass(frozen=True)
class Store:
    """An adapter and the back door through which a test spoils or plants what it stores."""

    objects: Objects
    write_behind: Callable[[str, bytes], None]


@pytest.fixture(scope="module")
def bucket(s3_client: Any) -> str:
    name = f"conformance-{uuid4().hex}"
    s3_client.create_bucket(Bucket=name)
    return name


@pytest.fixture(params=["disk", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "disk":
        root = tmp_path / "objects"
        return Store(DiskObjects(root), lambda key, data: _write_file(root / key, data))
    client, bucket = request.getfixturevalue("s3_client"), request.getfixturevalue("bucket")
    prefix = f"{uuid4().hex}/"

    def write_behind(key: str, data: bytes) -> None:
        name = {"Bucket": bucket, "Key": prefix + key}
        try:
            metadata = client.head_object(**name)["Metadata"]
        except client.exceptions.ClientError:
            metadata = {}
        client.put_object(**name, Body=data, Metadata=metadata)

    return Store(S3Objects(client, bucket, prefix, page_size=7), write_behind)


@pytest.fixture
def objects(store: Store) -> Objects:
    return store.objects


def _write_file(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _keys(found: Iterator[StoredObject]) -> list[str]:
    return [stored.key for stored in found]


@pytest.fixture(scope="module")
def large_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "weights"
    path.write_bytes(random.Random(20).randbytes(TWENTY_MEGABYTES))
    return path


@pytest.mark.parametrize("data", [b"", b"\0", b"{}\n", bytes(range(256)) * 1000], ids=len)
def test_what_is_put_is_what_is_got(objects: Objects, data: bytes) -> None:
    objects.put("claims/2026-01-01/a", data)
    assert objects.get("claims/2026-01-01/a") == data


def test_writing_tells_what_was_stored_and_stat_agrees(objects: Objects, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"from a file")
    written = [objects.put("put", b"abc"), objects.create("create", b""), objects.upload("up", tmp_path / "file")]
    assert [stored.size for stored in written] == [3, 0, 11]
    assert written[0].sha256 == hashlib.sha256(b"abc").hexdigest()
    for stored in written:
        found = objects.stat(stored.key)
        assert (found.key, found.size, found.sha256) == (stored.key, stored.size, stored.sha256)
        assert abs(found.modified - stored.modified) < timedelta(minutes=1)
        assert abs(found.modified - datetime.now(UTC)) < timedelta(hours=1)


def test_put_replaces_and_stat_follows(objects: Objects) -> None:
    objects.put("a", b"first, and longer")
    objects.put("a", b"second")
    assert objects.get("a") == b"second"
    assert objects.stat("a").size == 6
    assert objects.stat("a").sha256 == hashlib.sha256(b"second").hexdigest()


def test_create_refuses_a_key_that_is_taken_and_changes_nothing(objects: Objects) -> None:
    objects.create("a", b"first")
    with pytest.raises(ObjectExists, match="already there"):
        objects.create("a", b"second")
    assert objects.get("a") == b"first"
    objects.delete("a")
    objects.create("a", b"third")
    assert objects.get("a") == b"third"


def test_of_eight_threads_that_create_the_same_key_exactly_one_wins(objects: Objects) -> None:
    barrier = threading.Barrier(8)

    def create(key: str, own: bytes) -> bytes | None:
        barrier.wait()
        try:
            objects.create(key, own)
        except ObjectExists:
            return None
        return own

    with ThreadPoolExecutor(8) as pool:
        for key in ("race/0", "race/1"):
            owns = [str(n).encode() * 1000 for n in range(8)]
            winners = [won for won in pool.map(create, [key] * 8, owns) if won is not None]
            assert winners == [objects.get(key)]


def test_readers_see_the_whole_old_or_the_whole_new_while_it_is_replaced(objects: Objects, tmp_path: Path) -> None:
    contents = [b"a" * 300_000, b"b" * 200_000]
    objects.put("a", contents[0])
    finished = threading.Event()

    def read(reader: int) -> set[bytes]:
        seen = set()
        while not finished.is_set():
            seen.add(objects.get("a"))
            objects.download("a", tmp_path / str(reader))
            seen.add((tmp_path / str(reader)).read_bytes())
            stored = objects.stat("a")
            assert stored.sha256 in (None, *(hashlib.sha256(c).hexdigest() for c in contents if len(c) == stored.size))
        return seen

    def write(start: int) -> None:
        for turn in range(40):
            objects.put("a", contents[(start + turn) % 2])

    with ThreadPoolExecutor(4) as pool:
        readers = [pool.submit(read, reader) for reader in range(2)]
        writers = [pool.submit(write, start) for start in range(2)]
        try:
            for writer in writers:
                writer.result()
        finally:
            finished.set()
        assert readers[0].result() | readers[1].result() == set(contents)


def test_a_large_file_goes_up_and_comes_down_unchanged(objects: Objects, large_file: Path, tmp_path: Path) -> None:
    stored = objects.upload("checkpoints/step-10/model.safetensors", large_file)
    objects.download("checkpoints/step-10/model.safetensors", tmp_path / "new" / "directory" / "weights")
    with large_file.open("rb") as file:
        assert stored.sha256 == hashlib.file_digest(file, "sha256").hexdigest()
    assert stored.size == TWENTY_MEGABYTES
    assert (tmp_path / "new" / "directory" / "weights").read_bytes() == large_file.read_bytes()
    assert [path.name for path in (tmp_path / "new" / "directory").iterdir()] == ["weights"]


def test_what_is_not_there_is_missing(objects: Objects, tmp_path: Path) -> None:
    objects.put("directory/a", b"")
    for key in ("nothing", "directory", "directory/a/below", "director"):
        with pytest.raises(ObjectMissing, match="no object"):
            objects.get(key)
        with pytest.raises(ObjectMissing):
            objects.stat(key)
        with pytest.raises(ObjectMissing):
            objects.download(key, tmp_path / "target" / "file")
        assert not objects.exists(key)
    assert list((tmp_path / "target").iterdir()) == []
    assert objects.exists("directory/a")


def test_an_upload_without_its_file_says_so_and_stores_nothing(objects: Objects, tmp_path: Path) -> None:
    with pytest.raises(ObjectsUnavailable, match="No such file"):
        objects.upload("a", tmp_path / "absent")
    assert not objects.exists("a")


def test_delete_removes_and_may_be_repeated(objects: Objects) -> None:
    objects.put("a/b/c", b"1")
    objects.put("a/d", b"2")
    objects.delete("a/b/c")
    objects.delete("a/b/c")
    objects.delete("never/was")
    assert not objects.exists("a/b/c")
    assert _keys(objects.list()) == ["a/d"]
    objects.put("a/b", b"a directory before, an object now")
    assert _keys(objects.list()) == ["a/b", "a/d"]


def test_list_finds_every_key_of_a_prefix_once_and_in_order(objects: Objects) -> None:
    numbers = [f"{n:02}" for n in range(23)]
    keys = [*(f"a/{n}" for n in numbers), *(f"a/{n}x/y" for n in numbers), "a-b", "b", "B"]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: objects.put(key, key.encode()), random.Random(3).sample(keys, len(keys))))
    assert sorted(_keys(objects.list())) == sorted(keys)
    assert _keys(objects.list("a/")) == sorted(key for key in keys if key.startswith("a/"))
    assert _keys(objects.list("a/1")) == sorted(key for key in keys if key.startswith("a/1"))
    assert _keys(objects.list("a/07x/")) == ["a/07x/y"]
    assert _keys(objects.list("c")) == []
    assert {stored.size for stored in objects.list("a/07x/")} == {len("a/07x/y")}


def test_list_may_be_left_half_way(objects: Objects) -> None:
    for key in "abcdefghij":
        objects.put(key, b"")
    found = objects.list()
    assert [next(found).key, next(found).key] == ["a", "b"]


def test_an_empty_store_lists_nothing_and_deletes_nothing(objects: Objects) -> None:
    assert _keys(objects.list()) == []
    objects.delete("a")


BAD_KEYS = [
    "",
    "/",
    "/a",
    "a/",
    "a//b",
    ".",
    "..",
    "../a",
    "a/../b",
    "a/./b",
    ".hidden",
    "a/.rl-objects",
    "a b",
    "a\n",
    "a\\b",
    "a\0b",
    "a%2e",
    "ключ",
    "é",
    "e\u0301",
    "x" * 256,
    "/".join(["x" * 204] * 5 + ["y"]),
]


@pytest.mark.parametrize("key", BAD_KEYS, ids=lambda key: ascii(key)[:20])
def test_a_bad_key_is_refused_by_every_method(objects: Objects, tmp_path: Path, key: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: objects.put(key, b""),
        lambda: objects.create(key, b""),
        lambda: objects.get(key),
        lambda: objects.upload(key, tmp_path / "file"),
        lambda: objects.download(key, tmp_path / "file"),
        lambda: objects.stat(key),
        lambda: objects.exists(key),
        lambda: objects.delete(key),
        lambda: objects.url(key),
    ]
    for call in calls:
        with pytest.raises(InvalidKey) as caught:
            call()
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("prefix", ["/", "a//", "../", "a b", "é", ".rl-objects/"])
def test_a_bad_prefix_is_refused(objects: Objects, prefix: str) -> None:
    with pytest.raises(InvalidKey):
        next(objects.list(prefix))


def test_the_longest_and_the_oddest_keys_are_accepted(objects: Objects) -> None:
    keys = ["x" * 255, "/".join(["y" * 199] * 4), "A-Z_0.9:=+@-/=", "-", "a..b/c."]
    for key in keys:
        objects.put(key, key.encode())
        assert objects.get(key) == key.encode()
    assert sorted(_keys(objects.list())) == sorted(keys)


def test_spoilt_bytes_are_noticed_and_never_handed_out(store: Store, tmp_path: Path) -> None:
    store.objects.put("a", b"what was written")
    store.write_behind("a", b"what was writtem")
    (tmp_path / "target").write_bytes(b"as before")
    with pytest.raises(CorruptObject, match="does not match its sha256"):
        store.objects.get("a")
    with pytest.raises(CorruptObject):
        store.objects.download("a", tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"as before"
    store.objects.put("a", b"written again")
    assert store.objects.get("a") == b"written again"


def test_what_another_program_stored_can_be_read_and_is_listed_if_its_key_is_valid(store: Store) -> None:
    store.write_behind("dataset/part-0.jsonl", b"{}")
    store.write_behind("dataset/not a key", b"{}")
    assert store.objects.get("dataset/part-0.jsonl") == b"{}"
    assert store.objects.stat("dataset/part-0.jsonl").sha256 is None
    assert _keys(store.objects.list()) == ["dataset/part-0.jsonl"]


def test_a_download_that_cannot_be_written_says_so(objects: Objects, tmp_path: Path) -> None:
    objects.put("a", b"1")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ObjectsUnavailable, match="Cannot use the files at"):
        objects.download("a", tmp_path / "file" / "below")
