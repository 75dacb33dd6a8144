"""Checkpoints that leave the machine: uploaded with their manifest and its signature, and fetched only when all of it
holds.

Below its prefix a released checkpoint has the files of its manifest, `manifest.sig.json`, and `manifest.json`, which is
written last: where it is, the checkpoint is complete, and it never changes afterwards. It holds no pickles, because
loading one runs whatever code is in it.
"""

import fcntl
import hashlib
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import unquote

from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.objects import CorruptObject, ObjectExists, ObjectMissing, Objects, check_key
from rl_pipeline.training.checkpoints.manifest import MANIFEST, SIGNATURE, CheckpointCorrupt, Manifest, parse_manifest
from rl_pipeline.training.checkpoints.signing import PublicKeys, SignatureRejected, SigningKey
from rl_pipeline.training.checkpoints.storage import begin, discard, place, storage_failures, verify

RELEASED_SUFFIXES = frozenset({".jinja", ".json", ".md", ".model", ".png", ".safetensors", ".txt"})
"""Files that are data and nothing else. What is not in this list (.bin, .pt, .pth, .pkl, .py …) may run code."""


class ReleaseRefused(PipelineError):
    """A checkpoint that must not be released, or not to this place; nothing was changed."""


class CheckpointNotReleased(PipelineError):
    """There is no complete checkpoint at this address."""

    def __init__(self, url: str) -> None:
        super().__init__(f"There is no complete checkpoint at {url}: check the address, or release it first.")


@dataclass(frozen=True, slots=True)
class ReleasedCheckpoint:
    """A checkpoint in the object store, as `model_checkpoints` records it."""

    url: str
    prefix: str
    key_id: str
    manifest_sha256: str
    size: int
    """In bytes, all files together."""
    manifest: Manifest


def release(directory: Path, objects: Objects, prefix: str, signing_key: SigningKey) -> ReleasedCheckpoint:
    """Verify the checkpoint in `directory`, upload it below `prefix` and sign it; repeated, it ends what was begun.

    Raises, before anything is uploaded, `CheckpointCorrupt`, `InvalidKey` for names that no store can hold, and
    `ReleaseRefused` for files that may run code and for a prefix at which another checkpoint was released.
    """
    manifest = verify(directory)
    _refuse_code(manifest)
    keys = {name: f"{prefix}/{name}" for name in manifest.files}
    for key in keys.values():
        check_key(key)
    with storage_failures(directory):
        written = (directory / MANIFEST).read_bytes()
    if written != (_read(objects, f"{prefix}/{MANIFEST}") or written):
        raise _taken(objects, prefix)
    _remove_strays(objects, prefix, keys)
    for name, key in keys.items():
        if objects.upload(key, directory / name).sha256 != manifest.files[name].sha256:
            raise CheckpointCorrupt(directory, f"{name!r} changed while it was uploaded")
    objects.put(f"{prefix}/{SIGNATURE}", signing_key.sign(written))
    try:
        objects.create(f"{prefix}/{MANIFEST}", written)
    except ObjectExists:
        if objects.get(f"{prefix}/{MANIFEST}") != written:
            raise _taken(objects, prefix) from None
    return ReleasedCheckpoint(
        objects.url(prefix),
        prefix,
        signing_key.key_id,
        hashlib.sha256(written).hexdigest(),
        sum(entry.size for entry in manifest.files.values()),
        manifest,
    )


def download_checkpoint(
    objects: Objects, prefix: str, directory: Path, public_keys: PublicKeys, manifest_sha256: str | None = None
) -> Manifest:
    """Fetch the checkpoint below `prefix` into `directory`, which must be missing, empty, or hold it already.

    Before anything appears there, a trusted key must have signed the manifest, the manifest must be the one that
    `manifest_sha256` names (where given, it keeps one signed checkpoint from being passed off as another), and the
    files must be exactly those of the manifest, byte for byte. After any error nothing was changed. Raises
    `SignatureRejected`, `CheckpointCorrupt`, `CheckpointNotReleased`, `ReleaseRefused`, `CheckpointStorageFailed`.
    """
    url = objects.url(prefix)
    written, signature = _signed_manifest(objects, prefix)
    public_keys.verify(written, signature)
    if manifest_sha256 is not None and hashlib.sha256(written).hexdigest() != manifest_sha256:
        raise SignatureRejected(f"{url} holds another checkpoint than the one that was recorded: do not use it.")
    manifest = parse_manifest(written, url)
    _refuse_code(manifest)
    _compare_listing(objects, prefix, manifest)
    with _alone_beside(directory):
        if directory.exists() and any(directory.iterdir()):
            if not (directory / MANIFEST).exists() or verify(directory) != manifest:
                raise ReleaseRefused(f"There is something else in {directory}: choose another, or empty it.")
            return manifest
        staging = begin(directory)
        try:
            for name in manifest.files:
                _download(objects, f"{prefix}/{name}", staging / name)
            (staging / MANIFEST).write_bytes(written)
            (staging / SIGNATURE).write_bytes(signature)
            verify(staging)
            place(staging, directory)
        except BaseException:
            discard(staging)
            raise
    return manifest


def delete_released(objects: Objects, prefix: str) -> None:
    """Remove a released checkpoint, the manifest first: what is left after a kill is no checkpoint. May be repeated."""
    objects.delete(f"{prefix}/{MANIFEST}")
    for stored in list(objects.list(f"{prefix}/")):
        objects.delete(stored.key)


def prefix_of(objects: Objects, url: str) -> str | None:
    """The prefix of a released checkpoint from its address; None when it lies in another store."""
    root = objects.url("x").removesuffix("x")
    return unquote(url.removeprefix(root)) if url.startswith(root) else None


@contextmanager
def _alone_beside(directory: Path) -> Iterator[None]:
    """Let one process at a time download into the parent of `directory`."""
    with storage_failures(directory):
        directory.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(directory.parent, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _refuse_code(manifest: Manifest) -> None:
    for name in manifest.files:
        if PurePosixPath(name).suffix.lower() not in RELEASED_SUFFIXES:
            raise ReleaseRefused(
                f"The file {name!r} may run code when it is loaded: release safetensors, JSON and text only."
            )


def _read(objects: Objects, key: str) -> bytes | None:
    try:
        return objects.get(key)
    except ObjectMissing:
        return None


def _remove_strays(objects: Objects, prefix: str, keys: Mapping[str, str]) -> None:
    """Remove what an earlier release left that was killed before its manifest was written."""
    expected = {*keys.values(), f"{prefix}/{MANIFEST}", f"{prefix}/{SIGNATURE}"}
    for stored in list(objects.list(f"{prefix}/")):
        if stored.key not in expected:
            objects.delete(stored.key)


def _signed_manifest(objects: Objects, prefix: str) -> tuple[bytes, bytes]:
    url = objects.url(prefix)
    try:
        written, signature = _read(objects, f"{prefix}/{MANIFEST}"), _read(objects, f"{prefix}/{SIGNATURE}")
    except CorruptObject as error:
        raise CheckpointCorrupt(url, "its manifest or signature was changed in the store") from error
    if written is None:
        raise CheckpointNotReleased(url)
    if signature is None:
        raise SignatureRejected(f"The checkpoint {url} is not signed: do not use it; release it again with a key.")
    return written, signature


def _compare_listing(objects: Objects, prefix: str, manifest: Manifest) -> None:
    start = f"{prefix}/"
    sizes = {stored.key.removeprefix(start): stored.size for stored in objects.list(start)}
    for name in (MANIFEST, SIGNATURE):
        sizes.pop(name, None)
    for name in sorted(sizes.keys() ^ manifest.files.keys()):
        problem = "not in the manifest" if name in sizes else "missing"
        raise CheckpointCorrupt(objects.url(prefix), f"{name!r} is {problem}")
    for name, entry in manifest.files.items():
        if sizes[name] != entry.size:
            raise CheckpointCorrupt(objects.url(prefix), f"{name!r} does not have its {entry.size} bytes")


def _download(objects: Objects, key: str, path: Path) -> None:
    try:
        objects.download(key, path)
    except (CorruptObject, ObjectMissing) as error:
        raise CheckpointCorrupt(objects.url(key), "it was changed or removed in the store") from error


def _taken(objects: Objects, prefix: str) -> ReleaseRefused:
    return ReleaseRefused(f"Another checkpoint was released at {objects.url(prefix)}: choose another prefix.")
