"""Releasing and fetching checkpoints, on a real disk and a real S3 server: what is handed over is what was signed."""

import hashlib
import json
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.objects import InvalidKey, Objects
from rl_pipeline.stores.s3 import S3Objects
from rl_pipeline.training.checkpoints.manifest import (
    MANIFEST,
    SIGNATURE,
    CheckpointCorrupt,
    CheckpointFile,
    write_manifest,
)
from rl_pipeline.training.checkpoints.releasing import (
    CheckpointNotReleased,
    ReleasedCheckpoint,
    ReleaseRefused,
    delete_released,
    download_checkpoint,
    prefix_of,
    release,
)
from rl_pipeline.training.checkpoints.signing import PublicKeys, SignatureRejected, SigningKey, new_signing_key
from rl_pipeline.training.checkpoints.storage import CheckpointStorageFailed, begin, saving, verify

PREFIX = "job-1/final"
KEY = new_signing_key()
TRUSTED = PublicKeys.parse(KEY.public_text())
FILES = {
    "model.safetensors": b"weights" * 100,
    "config.json": b"{}",
    "tokenizer/merges.txt": b"a b",
    "MODEL_CARD.md": b"# A model",
}


@pytest.fixture(scope="module")
def bucket(s3_client: Any) -> str:
    name = f"releases-{uuid4().hex}"
    s3_client.create_bucket(Bucket=name)
    return name


@pytest.fixture(params=["disk", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Objects:
    if request.param == "disk":
        return DiskObjects(tmp_path / "objects")
    bucket = request.getfixturevalue("bucket")
    return S3Objects(request.getfixturevalue("s3_client"), bucket, f"{uuid4().hex}/")


def delivered(directory: Path, files: dict[str, bytes] | None = None, step: int = 7) -> Path:
    """A checkpoint as the training program delivers it."""
    with saving(directory, {"job_id": "job-1", "step": step, "created": datetime(2026, 3, 1, tzinfo=UTC)}) as staging:
        for name, content in (files or FILES).items():
            (staging / name).parent.mkdir(parents=True, exist_ok=True)
            (staging / name).write_bytes(content)
    return directory


@pytest.fixture
def final(tmp_path: Path) -> Path:
    return delivered(tmp_path / "work" / "final")


@pytest.fixture
def released(final: Path, objects: Objects) -> ReleasedCheckpoint:
    return release(final, objects, PREFIX, KEY)


def keys_of(objects: Objects) -> set[str]:
    return {stored.key.removeprefix(f"{PREFIX}/") for stored in objects.list(f"{PREFIX}/")}


@dataclass(frozen=True)
class Shelf:
    """A directory to download to, and what is to be seen beside it."""

    directory: Path

    def is_untouched(self) -> bool:
        return not self.directory.exists() and list(self.directory.parent.iterdir()) == []


@pytest.fixture
def shelf(tmp_path: Path) -> Shelf:
    (tmp_path / "models").mkdir()
    return Shelf(tmp_path / "models" / "fetched")


def test_what_was_released_is_what_is_fetched(
    released: ReleasedCheckpoint, objects: Objects, shelf: Shelf, final: Path
) -> None:
    manifest = download_checkpoint(objects, PREFIX, shelf.directory, TRUSTED, released.manifest_sha256)
    assert {name: (shelf.directory / name).read_bytes() for name in FILES} == FILES
    assert verify(shelf.directory) == verify(final) == manifest == released.manifest
    assert {path.name for path in shelf.directory.parent.iterdir()} == {"fetched"}
    assert (released.url, released.key_id) == (objects.url(PREFIX), KEY.key_id)
    assert released.size == sum(map(len, FILES.values()))
    assert released.manifest_sha256 == hashlib.sha256((final / MANIFEST).read_bytes()).hexdigest()
    assert keys_of(objects) == {*FILES, MANIFEST, SIGNATURE}


def test_fetching_again_verifies_what_is_there_and_fetches_nothing(
    released: ReleasedCheckpoint, objects: Objects, shelf: Shelf
) -> None:
    download_checkpoint(objects, PREFIX, shelf.directory, TRUSTED)
    inode = (shelf.directory / "model.safetensors").stat().st_ino
    download_checkpoint(objects, PREFIX, shelf.directory, TRUSTED)
    assert (shelf.directory / "model.safetensors").stat().st_ino == inode
    (shelf.directory / "model.safetensors").write_bytes(b"Weights" * 100)
    with pytest.raises(CheckpointCorrupt, match=r"'model\.safetensors' does not match its sha256"):
        download_checkpoint(objects, PREFIX, shelf.directory, TRUSTED)


def test_a_directory_with_something_else_in_it_is_left_alone(
    released: ReleasedCheckpoint, objects: Objects, shelf: Shelf, tmp_path: Path
) -> None:
    shelf.directory.mkdir()
    download_checkpoint(objects, PREFIX, shelf.directory, TRUSTED)
    other = delivered(tmp_path / "other", step=8)
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letters").write_text("dear")
    for directory in (other, tmp_path / "home"):
        with pytest.raises(ReleaseRefused, match="something else"):
            download_checkpoint(objects, PREFIX, directory, TRUSTED)
    assert verify(other).meta.step == 8
    assert (tmp_path / "home" / "letters").read_text() == "dear"


def _flip(objects: Objects, name: str) -> None:
    content = bytearray(objects.get(f"{PREFIX}/{name}"))
    content[len(content) // 2] ^= 1
    objects.put(f"{PREFIX}/{name}", bytes(content))


def _sign(objects: Objects, manifest: bytes, key: SigningKey = KEY) -> None:
    objects.put(f"{PREFIX}/{MANIFEST}", manifest)
    objects.put(f"{PREFIX}/{SIGNATURE}", key.sign(manifest))


def _manifest_of(files: dict[str, bytes]) -> bytes:
    entries = {
        name: CheckpointFile(size=len(data), sha256=hashlib.sha256(data).hexdigest()) for name, data in files.items()
    }
    return write_manifest({"job_id": "job-1", "step": 7, "created": datetime(2026, 3, 1, tzinfo=UTC)}, entries)


def _replace(name: str, content: bytes) -> Callable[[Objects], object]:
    return lambda objects: objects.put(f"{PREFIX}/{name}", content)


def _remove(name: str) -> Callable[[Objects], object]:
    return lambda objects: objects.delete(f"{PREFIX}/{name}")


def _resign(files: dict[str, bytes], key: SigningKey = KEY) -> Callable[[Objects], object]:
    return lambda objects: _sign(objects, _manifest_of(files), key)


NOT_A_SIGNATURE = json.dumps({"key_id": KEY.key_id, "signature": ""}).encode()
ATTACKS: dict[str, tuple[Callable[[Objects], object], type[Exception], str]] = {
    "a changed file": (lambda objects: _flip(objects, "model.safetensors"), CheckpointCorrupt, "match its sha256"),
    "a shorter file": (_replace("config.json", b"{"), CheckpointCorrupt, "does not have its 2 bytes"),
    "a missing file": (_remove("tokenizer/merges.txt"), CheckpointCorrupt, "'tokenizer/merges.txt' is missing"),
    "a file more": (_replace("extra.json", b"{}"), CheckpointCorrupt, "'extra.json' is not in the manifest"),
    "a changed manifest": (lambda objects: _flip(objects, MANIFEST), SignatureRejected, "was changed"),
    "another manifest": (_replace(MANIFEST, _manifest_of(FILES | {"a.json": b""})), SignatureRejected, "was changed"),
    "no manifest": (_remove(MANIFEST), CheckpointNotReleased, "no complete checkpoint"),
    "no signature": (_remove(SIGNATURE), SignatureRejected, "is not signed"),
    "an empty signature file": (_replace(SIGNATURE, b""), SignatureRejected, "cannot be read"),
    "an empty signature": (_replace(SIGNATURE, NOT_A_SIGNATURE), SignatureRejected, "not that of the key"),
    "a stranger's signature": (_resign(FILES, new_signing_key()), SignatureRejected, "not trusted"),
    "a path that climbs": (_resign({"../../escaped.json": b"{}"}), CheckpointCorrupt, "may lie elsewhere"),
    "an absolute path": (_resign({"/tmp/escaped.json": b"{}"}), CheckpointCorrupt, "may lie elsewhere"),
    "a signed pickle": (_resign({"model.bin": b""}), ReleaseRefused, "may run code"),
    "no manifest, but signed": (lambda objects: _sign(objects, b"[]"), CheckpointCorrupt, "cannot be read"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_nothing_is_handed_over_that_is_not_exactly_what_was_signed(
    released: ReleasedCheckpoint, objects: Objects, shelf: Shelf, name: str
) -> None:
    attack, error, text = ATTACKS[name]
    attack(objects)
    with pytest.raises(error, match=text) as caught:
        download_checkpoint(objects, PREFIX, shelf.directory, TRUSTED)
    assert shelf.is_untouched()
    assert "\n" not in str(caught.value)


def test_another_signed_checkpoint_is_not_passed_off_as_the_recorded_one(
    released: ReleasedCheckpoint, objects: Objects, shelf: Shelf, tmp_path: Path
) -> None:
    other = release(delivered(tmp_path / "older", step=3), objects, "job-0/final", KEY)
    for name in [*FILES, MANIFEST, SIGNATURE]:
        objects.put(f"{PREFIX}/{name}", objects.get(f"job-0/final/{name}"))
    with pytest.raises(SignatureRejected, match="another checkpoint than the one that was recorded"):
        download_checkpoint(objects, PREFIX, shelf.directory, TRUSTED, released.manifest_sha256)
    assert shelf.is_untouched()
    assert download_checkpoint(objects, "job-0/final", shelf.directory, TRUSTED, other.manifest_sha256)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "optimizer.pt", "rng.pth", "a.PKL", "modeling.py", "weights"])
def test_files_that_may_run_code_are_not_released(objects: Objects, tmp_path: Path, name: str) -> None:
    final = delivered(tmp_path / "final", {**FILES, name: b"\x80\x04."})
    with pytest.raises(ReleaseRefused, match=name.replace(".", r"\.")):
        release(final, objects, PREFIX, KEY)
    assert keys_of(objects) == set()


def test_a_corrupt_checkpoint_is_not_released(objects: Objects, final: Path) -> None:
    (final / "model.safetensors").write_bytes(b"torn")
    with pytest.raises(CheckpointCorrupt):
        release(final, objects, PREFIX, KEY)
    assert keys_of(objects) == set()


def test_names_that_a_store_cannot_hold_are_refused_before_anything_is_uploaded(
    objects: Objects, tmp_path: Path
) -> None:
    final = delivered(tmp_path / "final", {**FILES, "with space.json": b""})
    with pytest.raises(InvalidKey):
        release(final, objects, PREFIX, KEY)
    assert keys_of(objects) == set()


class _Interrupted(Exception):
    pass


class _Stops:
    """A store of which a process gets no more than so many changes done before it dies."""

    def __init__(self, objects: Objects, changes: int) -> None:
        self._objects = objects
        self._left = changes

    def __getattr__(self, name: str) -> Any:
        if name in ("put", "create", "upload", "delete"):
            if self._left == 0:
                raise _Interrupted
            self._left -= 1
        return getattr(self._objects, name)


def test_a_release_that_was_broken_off_is_not_to_be_had_until_it_is_repeated(
    objects: Objects, tmp_path: Path, shelf: Shelf
) -> None:
    abandoned = delivered(tmp_path / "abandoned", {**FILES, "of_an_earlier_attempt.json": b"{}"}, step=6)
    final = delivered(tmp_path / "final")
    for changes in range(len(FILES) + 2):
        with pytest.raises(_Interrupted):
            release(abandoned, _Stops(objects, changes), PREFIX, KEY)
        with pytest.raises(CheckpointNotReleased):
            download_checkpoint(objects, PREFIX, shelf.directory, TRUSTED)
    release(final, objects, PREFIX, KEY)
    assert download_checkpoint(objects, PREFIX, shelf.directory, TRUSTED).meta.step == 7


def test_a_released_checkpoint_never_changes(
    released: ReleasedCheckpoint, objects: Objects, final: Path, tmp_path: Path, shelf: Shelf
) -> None:
    assert release(final, objects, PREFIX, KEY) == released
    with pytest.raises(ReleaseRefused, match="Another checkpoint was released"):
        release(delivered(tmp_path / "other", {**FILES, "config.json": b"[]"}), objects, PREFIX, KEY)
    download_checkpoint(objects, PREFIX, shelf.directory, TRUSTED)
    assert (shelf.directory / "config.json").read_bytes() == b"{}"


def test_a_released_checkpoint_is_deleted_so_that_no_half_of_it_is_taken_for_it(
    released: ReleasedCheckpoint, objects: Objects, shelf: Shelf
) -> None:
    objects.put("job-1/final-other/a", b"a neighbour")
    with pytest.raises(_Interrupted):
        delete_released(_Stops(objects, 1), PREFIX)
    with pytest.raises(CheckpointNotReleased):
        download_checkpoint(objects, PREFIX, shelf.directory, TRUSTED)
    delete_released(objects, PREFIX)
    delete_released(objects, PREFIX)
    assert [stored.key for stored in objects.list()] == ["job-1/final-other/a"]


def test_an_address_leads_back_to_its_prefix(objects: Objects) -> None:
    for prefix in ("job-1/final", "a:b=c+d@e/final"):
        assert prefix_of(objects, objects.url(prefix)) == prefix
    assert prefix_of(objects, "s3://elsewhere/job-1/final") is None


def test_a_file_that_rotted_in_the_store_is_not_handed_over(final: Path, tmp_path: Path, shelf: Shelf) -> None:
    objects = DiskObjects(tmp_path / "objects")
    release(final, objects, PREFIX, KEY)
    (objects.root / PREFIX / "model.safetensors").write_bytes(b"Weights" * 100)
    with pytest.raises(CheckpointCorrupt, match="changed or removed in the store"):
        download_checkpoint(objects, PREFIX, shelf.directory, TRUSTED)
    assert shelf.is_untouched()


def test_what_a_killed_download_left_is_not_part_of_the_next(
    released: ReleasedCheckpoint, objects: Objects, shelf: Shelf
) -> None:
    staging = begin(shelf.directory)
    (staging / "half.safetensors").write_text("half")
    download_checkpoint(objects, PREFIX, shelf.directory, TRUSTED)
    assert not (shelf.directory / "half.safetensors").exists()
    assert [path.name for path in shelf.directory.parent.iterdir()] == ["fetched"]


def _fetch(root: Path, directory: Path) -> None:
    download_checkpoint(DiskObjects(root), PREFIX, directory, TRUSTED)


def test_processes_that_fetch_into_one_directory_do_not_disturb_each_other(final: Path, tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path / "objects")
    release(final, objects, PREFIX, KEY)
    context = multiprocessing.get_context("fork")
    fetchers = [context.Process(target=_fetch, args=(objects.root, tmp_path / "models" / "a")) for _ in range(6)]
    for fetcher in fetchers:
        fetcher.start()
    for fetcher in fetchers:
        fetcher.join()
    assert [fetcher.exitcode for fetcher in fetchers] == [0] * 6
    assert verify(tmp_path / "models" / "a")
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["a"]


def test_a_directory_that_cannot_be_written_is_named(final: Path, tmp_path: Path) -> None:
    objects = DiskObjects(tmp_path / "objects")
    release(final, objects, PREFIX, KEY)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointStorageFailed, match="file/models"):
        download_checkpoint(objects, PREFIX, tmp_path / "file" / "models", TRUSTED)
