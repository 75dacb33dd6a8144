"""`Objects` on a local disk: each object is a plain file at its key below one directory.

Beside the files, under `.rl-objects/`:

- `writing/` holds what is being written. Its writer keeps it locked, so what is there unlocked was left by a crash;
  opening the store removes it.
- `sha256/` holds one seal per object, in the format of `sha256sum`: `cat .rl-objects/sha256/* | sha256sum --check`
  verifies a whole store. While an object is replaced its seal names the new and the old bytes, so that a crash between
  the two renames leaves either of them valid.
- `lock` is held for the moment in which a finished write becomes visible. Readers take no lock.
"""

import errno
import fcntl
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from stat import S_ISREG
from tempfile import TemporaryDirectory
from typing import BinaryIO, TypeVar
from uuid import uuid4

from rl_pipeline.stores.objects import (
    CorruptObject,
    InvalidKey,
    ObjectExists,
    ObjectMissing,
    ObjectsUnavailable,
    StoredObject,
    check_key,
    check_prefix,
    is_key,
)

CHUNK_BYTES = 1 << 20
# How the file system says that a key has no file: nothing there, a file where a directory would be, or the reverse.
_NO_OBJECT = (FileNotFoundError, NotADirectoryError, IsADirectoryError)

_ADVICE = {
    errno.EACCES: "let this user write there, or choose another directory",
    errno.EPERM: "let this user write there, or choose another directory",
    errno.EROFS: "it is mounted read-only; choose another directory",
    errno.ENOSPC: "the disk is full; free some space",
    errno.EDQUOT: "the quota is used up; free some space",
}

T = TypeVar("T")


class DiskObjects:
    """A directory as an object store; it is made by the first write. All of it must be on one file system."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self._writing = self.root / ".rl-objects" / "writing"
        self._seals = self.root / ".rl-objects" / "sha256"
        self._lock = self.root / ".rl-objects" / "lock"
        self._remove_leftovers()

    def put(self, key: str, data: bytes) -> StoredObject:
        check_key(key)
        return self._store(key, lambda file: _write(file, data), replace=True)

    def create(self, key: str, data: bytes) -> StoredObject:
        check_key(key)
        return self._store(key, lambda file: _write(file, data), replace=False)

    def upload(self, key: str, path: Path) -> StoredObject:
        check_key(key)
        with files_at(path):
            source = path.open("rb")
        with source:
            return self._store(key, lambda file: _copy(source, file), replace=True)

    def get(self, key: str) -> bytes:
        check_key(key)

        def read(path: Path) -> tuple[bytes, str]:
            data = path.read_bytes()
            return data, hashlib.sha256(data).hexdigest()

        return self._verified(key, read)

    def download(self, key: str, path: Path) -> None:
        check_key(key)
        with replacing(path) as temporary:

            def read(stored: Path) -> tuple[None, str]:
                with stored.open("rb") as source, files_at(path), temporary.open("wb") as file:
                    return None, _copy(source, file)

            self._verified(key, read)

    def stat(self, key: str) -> StoredObject:
        check_key(key)
        with self._reading(key):
            while True:
                seal = self._seal(key)
                status = self._path(key).stat()
                if not S_ISREG(status.st_mode):
                    raise ObjectMissing(self.url(key))
                if self._seal(key) == seal:
                    digests = _digests(seal)
                    return _described(key, status, digests[0] if len(digests) == 1 else None)

    def exists(self, key: str) -> bool:
        check_key(key)
        with files_at(self.root):
            return self._path(key).is_file()

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        check_prefix(prefix)
        with files_at(self.root):
            yield from _walk(self.root, "", prefix)

    def delete(self, key: str) -> None:
        if not self.exists(key):
            return
        with files_at(self.root), self._locked():
            path = self._path(key)
            with suppress(*_NO_OBJECT):
                path.unlink()
            self._seal_path(key).unlink(missing_ok=True)
            directory = path.parent
            with suppress(OSError):  # the first directory that is not empty ends the climb
                while directory != self.root:
                    directory.rmdir()
                    directory = directory.parent
            _sync_directory(directory)

    def url(self, key: str) -> str:
        check_key(key)
        return self._path(key).as_uri()

    def _path(self, key: str) -> Path:
        return self.root / key

    def _seal_path(self, key: str) -> Path:
        # Flat and hashed, so that seals never stand in each other's way as files and directories.
        return self._seals / hashlib.sha256(key.encode()).hexdigest()

    @contextmanager
    def _reading(self, key: str) -> Iterator[None]:
        with files_at(self.root):
            try:
                yield
            except _NO_OBJECT:
                raise ObjectMissing(self.url(key)) from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._lock.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _store(self, key: str, write: Callable[[BinaryIO], str], *, replace: bool) -> StoredObject:
        """Have `write` fill a temporary file and return its sha256; then make it the object, in one step."""
        with files_at(self.root), self._staged() as file:
            sha256 = write(file)
            file.flush()
            os.fsync(file.fileno())
            with self._locked():
                path = self._path(key)
                if path.is_dir():
                    raise InvalidKey(f"There are objects below {self.url(key)}: choose a key that is not a directory.")
                if not replace and path.exists():
                    raise ObjectExists(self.url(key))
                self._make_room(key)
                before = _digests(self._seal(key))
                self._write_seal(key, (sha256, *before))
                Path(file.name).replace(path)
                _sync_directory(path.parent)
                if before:
                    self._write_seal(key, (sha256,))
            return _described(key, os.fstat(file.fileno()), sha256)

    def _make_room(self, key: str) -> None:
        try:
            _make_directory(self._path(key).parent)
        except (FileExistsError, NotADirectoryError):
            raise InvalidKey(f"Part of {self.url(key)} is an object: choose a key that is not below one.") from None

    @contextmanager
    def _staged(self) -> Iterator[BinaryIO]:
        """A locked temporary file, gone at the end unless it was moved away."""
        _make_directory(self._writing)
        _make_directory(self._seals)
        while True:
            with (self._writing / uuid4().hex).open("xb") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                if not os.fstat(file.fileno()).st_nlink:
                    continue  # a process that opened the store took it for a leftover before it was locked
                try:
                    yield file
                finally:
                    Path(file.name).unlink(missing_ok=True)
                return

    def _remove_leftovers(self) -> None:
        # Leftovers are never visible, so a store that can only be read is as good with them.
        with suppress(OSError):
            for leftover in self._writing.iterdir():
                with suppress(OSError), leftover.open("r+b") as file:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    leftover.unlink()

    def _seal(self, key: str) -> str:
        try:
            return self._seal_path(key).read_text()
        except _NO_OBJECT:
            return ""

    def _write_seal(self, key: str, digests: Iterable[str]) -> None:
        new = self._seals / ".new"
        with new.open("w") as file:
            # The first line makes every seal unlike every other, so that readers notice each replacement.
            file.write(f"# {uuid4().hex}\n")
            file.writelines(f"{digest}  {key}\n" for digest in digests)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self._seal_path(key))
        _sync_directory(self._seals)

    def _verified(self, key: str, read: Callable[[Path], tuple[T, str]]) -> T:
        """What `read` makes of the object's file, once the sha256 that it returns with it is a sealed one."""
        with self._reading(key):
            while True:
                seal = self._seal(key)
                value, sha256 = read(self._path(key))
                digests = _digests(seal)
                if not digests or sha256 in digests:
                    return value
                if self._seal(key) == seal:  # otherwise the object was replaced between the two reads
                    raise CorruptObject(self.url(key))


@contextmanager
def files_at(place: Path) -> Iterator[None]:
    """Turn what the file system refuses at `place` into `ObjectsUnavailable`."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        advice = _ADVICE.get(error.errno or 0, "check the path and the disk")
        raise ObjectsUnavailable(f"Cannot use the files at {place} ({reason}): {advice}.") from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write a file to, which then takes the place of `path` in one step, durably.

    After an error, `path` is as it was and nothing is left beside it.
    """
    with files_at(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".download-", dir=path.parent) as directory:
            temporary = Path(directory) / "object"
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.replace(path)
            _sync_directory(path.parent)


def _walk(directory: Path, parent: str, prefix: str) -> Iterator[StoredObject]:
    try:
        with os.scandir(directory) as found:
            # A directory sorts as the beginning of the keys below it, slash and all.
            entries = sorted((entry.name + "/" * entry.is_dir(), entry) for entry in found)
    except _NO_OBJECT:
        return
    for name, entry in entries:
        key = parent + name
        if name.startswith("."):
            continue
        if name.endswith("/"):
            if key.startswith(prefix) or prefix.startswith(key):
                yield from _walk(directory / name, key, prefix)
        elif key.startswith(prefix) and is_key(key):
            with suppress(*_NO_OBJECT):
                yield _described(key, entry.stat(), None)


def _described(key: str, status: os.stat_result, sha256: str | None) -> StoredObject:
    return StoredObject(key, status.st_size, sha256, datetime.fromtimestamp(status.st_mtime, UTC))


def _digests(seal: str) -> tuple[str, ...]:
    """The sha256 that an object may have: one; more if a crash interrupted its replacement; none if it has no seal."""
    return tuple(line.split()[0] for line in seal.splitlines() if not line.startswith("#"))


def _write(file: BinaryIO, data: bytes) -> str:
    file.write(data)
    return hashlib.sha256(data).hexdigest()


def _copy(source: BinaryIO, file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while chunk := source.read(CHUNK_BYTES):
        digest.update(chunk)
        file.write(chunk)
    return digest.hexdigest()


def _make_directory(path: Path) -> None:
    if not path.is_dir():
        _make_directory(path.parent)
        path.mkdir(exist_ok=True)
        _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
