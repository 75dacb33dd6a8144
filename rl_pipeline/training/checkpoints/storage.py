"""Checkpoints on disk that are whole or not there: how they are written, verified, found again and pruned.

A checkpoint is a directory with a `manifest.json`, which names every file with its size and sha256. The states that a
training resumes from (`checkpoints/step-<8 digits>`) and the model that it delivers (`final`) have the same manifest.
Which tensors are in the files, and what signs or uploads them, is not known here.

Beside a checkpoint `<name>` there may be, for the time of a change or after a kill: `.saving-<name>`, not finished;
`.replaced-<name>`, which comes back unless its successor is in place; `.removing-<name>`, on its way out. A state that
fails its verification becomes `<name>.corrupt` and is never read again.

One process alone calls what changes a directory (all but `staging_of`, `states` and `verify`): rank 0, with a barrier
around it and the outcome broadcast. The other ranks write below `staging_of(target)` meanwhile.
"""

import errno
import hashlib
import logging
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from rl_pipeline.contracts.training_status import FailureCode
from rl_pipeline.errors import PipelineError
from rl_pipeline.training.checkpoints.manifest import (
    MANIFEST,
    SIGNATURE,
    CheckpointCorrupt,
    CheckpointFile,
    InvalidCheckpoint,
    Manifest,
    is_safe_name,
    parse_manifest,
    write_manifest,
)

_STATE = re.compile(r"step-(\d{8,})")
_CORRUPT = re.compile(r"step-(\d{8,})\.corrupt(?:-\d+)?")
# PyTorch and safetensors tell of a full disk in texts of their own.
_STORAGE_TEXT = re.compile(r"iostream error|inline_container|os error \d+|No space left|File too large|quota exceeded")
_ADVICE = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "raise the quota or free some space",
    errno.EFBIG: "raise the limit on the size of files",
    errno.EROFS: "mount it for writing",
    errno.EACCES: "let this user write there",
    errno.EPERM: "let this user write there",
}

_log = logging.getLogger(__name__)


class CheckpointStorageFailed(PipelineError):
    """The disk refused; whatever checkpoints were there before are as they were."""

    code: ClassVar[FailureCode] = "INFRA"


def state_directory(checkpoints: Path, step: int) -> Path:
    """Where the state after `step` steps lies."""
    return checkpoints / f"step-{step:08d}"


def staging_of(target: Path) -> Path:
    """Where the files of `target` are written before it exists; all ranks know it without asking."""
    return target.with_name(f".saving-{target.name}")


def begin(target: Path) -> Path:
    """An empty staging directory for `target`, free of what a killed save left there. Ends with `commit` or `discard`.

    Raises `CheckpointStorageFailed`.
    """
    staging = staging_of(target)
    with storage_failures(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _settle(target)
        _remove(staging)
        staging.mkdir()
    return staging


def commit(staging: Path, target: Path, meta: Mapping[str, Any]) -> Manifest:
    """Make the files below `staging` the checkpoint `target`, durably and in one step, replacing one of that name.

    `meta` has `job_id`, `step`, `created` (a datetime with its zone) and may have `metrics` (numbers by name) and
    anything else that JSON holds. After a kill at any moment, either the old `target` or all of the new one is found.
    Raises `CheckpointStorageFailed` when the disk refuses (call `discard`; the old state is intact) and
    `InvalidCheckpoint` for links, no files at all, names that no manifest may hold, and a `meta` without the above.
    """
    with storage_failures(target):
        found = _files_below(staging)
        found.pop(MANIFEST, None)
        for name, path in found.items():
            if not (is_safe_name(name) and _is_plain(path)):
                raise InvalidCheckpoint(
                    f"{name!r} cannot be part of the checkpoint {target.name}: write plain files under plain names."
                )
        if not found:
            raise InvalidCheckpoint(f"There is nothing to save in {staging}: write the files first.")
        manifest = write_manifest(meta, _hashed(found))
        (staging / MANIFEST).write_bytes(manifest)
    place(staging, target)
    return parse_manifest(manifest, target)


def place(staging: Path, target: Path) -> None:
    """Make a staging directory that has its manifest the checkpoint `target`, as `commit` does."""
    replaced = target.with_name(f".replaced-{target.name}")
    with storage_failures(target):
        for directory, _, names in os.walk(staging, topdown=False):
            for name in (*names, "."):
                _sync(Path(directory, name))
        if target.exists():
            target.rename(replaced)  # no directory can be renamed onto one that has files
        staging.rename(target)
        _sync(target.parent)
        _remove(replaced)


def discard(staging: Path) -> None:
    """Give up a save: its files are removed, and what it would have replaced stays. Nothing there is fine."""
    shutil.rmtree(staging, ignore_errors=True)  # what stays is cleared by the next save


@contextmanager
def saving(target: Path, meta: Mapping[str, Any]) -> Iterator[Path]:
    """`begin`, then `commit` what the body wrote into the directory it is given, or `discard` when the body raises.

    For one process; several ranks call the three themselves. A body that the disk stopped raises
    `CheckpointStorageFailed`, whichever library was writing.
    """
    staging = begin(target)
    try:
        with storage_failures(target):
            yield staging
        commit(staging, target, meta)
    except BaseException:
        discard(staging)
        raise


def amend(directory: Path, files: Mapping[str, bytes]) -> Manifest:
    """Add or replace small files of a checkpoint, as durably as `commit`; the others are verified, not copied."""
    staging = begin(directory)
    try:
        manifest = verify(directory)
        with storage_failures(directory):
            for name in manifest.files.keys() - files.keys():
                (staging / name).parent.mkdir(parents=True, exist_ok=True)
                os.link(directory / name, staging / name)
            for name, content in files.items():
                (staging / name).write_bytes(content)
        return commit(staging, directory, manifest.meta.model_dump())
    except BaseException:
        discard(staging)
        raise


@contextmanager
def storage_failures(target: Path) -> Iterator[None]:
    """Turn what the disk refuses, to us or to PyTorch or safetensors, into `CheckpointStorageFailed` (class INFRA)."""
    try:
        yield
    except PipelineError:
        raise
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise _refused(target, reason, _ADVICE.get(error.errno or 0, "check the disk")) from error
    except Exception as error:
        found = _STORAGE_TEXT.search(f"{error} {error.__context__ or ''}")
        if found is None:
            raise
        raise _refused(target, f"{type(error).__name__}: {found.group()}", "free some space") from error


def verify(directory: Path) -> Manifest:
    """The manifest of a checkpoint of which every byte is as it was committed.

    Raises `CheckpointCorrupt` when a file is missing, added, changed or a link, or when the manifest is not intact, and
    `CheckpointStorageFailed` when the disk refuses to show it.
    """
    with storage_failures(directory):
        if not directory.is_dir() or directory.is_symlink():
            raise CheckpointCorrupt(directory, "it is not a directory")
        try:
            return _verified(directory)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            raise CheckpointCorrupt(directory, "the disk cannot read it any more") from error


def states(checkpoints: Path) -> list[Path]:
    """The states below `checkpoints`, newest first, verified or not; none where the directory is missing."""
    return _by_step(checkpoints, _STATE)


def newest_verified(
    checkpoints: Path, report: Callable[[CheckpointCorrupt], None] = lambda corrupt: _log.warning("%s", corrupt)
) -> Path | None:
    """The newest state that is whole, or None when there is none: the training then starts at its beginning.

    Clears what killed saves left behind. A state that fails is renamed to `<name>.corrupt`, given to `report`, and the
    next older one is tried. Raises `CheckpointStorageFailed` when the disk cannot be read at all.
    """
    with storage_failures(checkpoints):
        _clear_leftovers(checkpoints)
        for directory in states(checkpoints):
            try:
                _verify_state(directory)
            except CheckpointCorrupt as corrupt:
                _set_aside(directory)
                report(corrupt)
            else:
                return directory
    return None


def prune(checkpoints: Path, keep: int, best: Path | None = None) -> list[Path]:
    """Remove all but the `keep` newest states and the `best` one; returns what was removed, newest first.

    Corrupt states go once a newer one was saved: until then somebody may want to look at them.
    """
    if keep < 1:
        raise InvalidCheckpoint("A training that keeps no state cannot resume: keep 1 or more.")
    with storage_failures(checkpoints):
        present = states(checkpoints)
        newest = _step_of(present[0], _STATE) if present else 0
        surplus = [state for state in present[keep:] if best is None or state.name != best.name]
        surplus += [state for state in _by_step(checkpoints, _CORRUPT) if _step_of(state, _CORRUPT) < newest]
        for state in surplus:
            _retire(state)
    return surplus


def _verified(directory: Path) -> Manifest:
    found = _files_below(directory)
    for name, path in found.items():
        if not _is_plain(path):
            raise CheckpointCorrupt(directory, f"{name!r} is not a plain file")
    if MANIFEST not in found:
        raise CheckpointCorrupt(directory, f"{MANIFEST} is missing")
    manifest = parse_manifest(found.pop(MANIFEST).read_bytes(), directory)
    found.pop(SIGNATURE, None)
    for name in sorted(found.keys() ^ manifest.files.keys()):
        raise CheckpointCorrupt(directory, f"{name!r} is {'not in the manifest' if name in found else 'missing'}")
    for name, entry in manifest.files.items():  # quick, and what a kill or a full disk leaves
        if found[name].stat().st_size != entry.size:
            raise CheckpointCorrupt(directory, f"{name!r} does not have its {entry.size} bytes")
    hashed = _hashed(found)
    for name, entry in manifest.files.items():
        if hashed[name] != entry:
            raise CheckpointCorrupt(directory, f"{name!r} does not match its sha256")
    return manifest


def _verify_state(directory: Path) -> None:
    if verify(directory).meta.step != _step_of(directory, _STATE):
        raise CheckpointCorrupt(directory, f"{MANIFEST} is that of another step")


def _clear_leftovers(checkpoints: Path) -> None:
    """Undo or finish what killed processes left half done; never while another process saves there."""
    if not checkpoints.is_dir():
        return
    for path in checkpoints.glob(".replaced-*"):
        _settle(path.with_name(path.name.removeprefix(".replaced-")))
    for pattern in (".saving-*", ".removing-*"):
        for path in checkpoints.glob(pattern):
            _remove(path)


def _files_below(directory: Path) -> dict[str, Path]:
    """Everything below that is not a directory, links to directories too, by relative path."""
    return {
        path.relative_to(directory).as_posix(): path
        for path in sorted(directory.rglob("*"))
        if path.is_symlink() or not path.is_dir()
    }


def _is_plain(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _hashed(files: Mapping[str, Path]) -> dict[str, CheckpointFile]:
    def described(path: Path) -> CheckpointFile:
        with path.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
            return CheckpointFile(size=file.tell(), sha256=sha256)

    # Hashing leaves Python's lock alone: several large files go as fast as the disk.
    with ThreadPoolExecutor(max_workers=4) as threads:
        return dict(zip(files, threads.map(described, files.values()), strict=True))


def _settle(target: Path) -> None:
    """Finish a replacement of `target` that was killed: its predecessor comes back unless the successor is there."""
    replaced = target.with_name(f".replaced-{target.name}")
    if target.exists():
        _remove(replaced)
    elif replaced.exists():
        replaced.rename(target)
        _sync(target.parent)


def _set_aside(directory: Path) -> None:
    aside = directory.with_name(f"{directory.name}.corrupt")
    number = 1
    while aside.exists():
        number += 1
        aside = directory.with_name(f"{directory.name}.corrupt-{number}")
    directory.rename(aside)
    _sync(directory.parent)


def _retire(directory: Path) -> None:
    """Remove a checkpoint; killed half way it is a leftover, not a corrupt checkpoint."""
    removing = directory.with_name(f".removing-{directory.name}")
    _remove(removing)
    directory.rename(removing)
    _sync(directory.parent)
    _remove(removing)


def _by_step(checkpoints: Path, name: re.Pattern[str]) -> list[Path]:
    if not checkpoints.is_dir():
        return []
    found = [path for path in checkpoints.iterdir() if name.fullmatch(path.name)]
    return sorted(found, key=lambda path: (_step_of(path, name), path.name), reverse=True)


def _step_of(path: Path, name: re.Pattern[str]) -> int:
    found = name.fullmatch(path.name)
    return int(found[1]) if found else 0


def _remove(path: Path) -> None:
    if path.exists():
        shutil.rmtree(path)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _refused(target: Path, reason: str, advice: str) -> CheckpointStorageFailed:
    return CheckpointStorageFailed(
        f"The disk refused at {target} ({reason}): {advice} and try again; earlier checkpoints are as they were."
    )
