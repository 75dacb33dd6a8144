"""The port to the object store: what `Objects` promises, its errors and its keys.

Claim checks, datasets and checkpoints go through it. The adapters are `disk.py` and `s3.py`; whatever they share by
contract is here, whatever one of them needs alone is not.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from rl_pipeline.errors import PipelineError

MAX_KEY_LENGTH = 1024
_SEGMENT = r"[A-Za-z0-9_:=+@-][A-Za-z0-9._:=+@-]{0,254}"
_KEY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
_PREFIX = re.compile(rf"(?:{_SEGMENT}/)*(?:{_SEGMENT})?")


class ObjectsUnavailable(PipelineError):
    """The store cannot be used as it is: unreachable, refused, no such bucket, not writable, full."""


class ObjectMissing(PipelineError):
    """There is no object under this key."""

    def __init__(self, url: str) -> None:
        super().__init__(f"There is no object {url}: check the key, or write it first.")


class ObjectExists(PipelineError):
    """`create` found an object under this key."""

    def __init__(self, url: str) -> None:
        super().__init__(f"The object {url} is already there: choose another key, or put to replace it.")


class CorruptObject(PipelineError):
    """The bytes of an object are not those that were written."""

    def __init__(self, url: str) -> None:
        super().__init__(f"The object {url} does not match its sha256: restore it from a copy, or write it again.")


class InvalidKey(PipelineError):
    """A key that one of the adapters could not hold, and so none accepts."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """What a store knows of an object without reading it.

    `sha256` is None in listings, and for objects that something else than this port has written.
    """

    key: str
    size: int
    sha256: str | None
    modified: datetime


class Objects(Protocol):
    """Bytes under keys. Any number of threads and processes may use one store at the same time.

    Keys are what `check_key` accepts; every method raises `InvalidKey` for others. A key that is a directory of
    another (`a` beside `a/b`) is not portable: the disk refuses it, S3 does not. The sha256 of an object is stored
    with it and checked whenever it is read. Every method raises `ObjectsUnavailable` when the store cannot answer;
    whether a write that ended so took place is then unknown, and `put`, `upload` and `delete` may simply be repeated.
    """

    def put(self, key: str, data: bytes) -> StoredObject:
        """Store `data`, replacing what was there. Atomic (readers see all of the old or all of the new) and durable
        when it returns."""
        ...

    def create(self, key: str, data: bytes) -> StoredObject:
        """As `put`, but raise `ObjectExists` and change nothing when the key is taken. Of any number of callers that
        create the same key at once, exactly one succeeds."""
        ...

    def get(self, key: str) -> bytes:
        """The bytes of the object. Raises `ObjectMissing`, `CorruptObject`."""
        ...

    def upload(self, key: str, path: Path) -> StoredObject:
        """As `put`, from a file of any size with bounded memory. The file must not change meanwhile."""
        ...

    def download(self, key: str, path: Path) -> None:
        """Write the object to the file `path`, of any size with bounded memory, making its directory.

        Atomic and durable at `path`: after an error it is as before. Raises `ObjectMissing`, `CorruptObject`.
        """
        ...

    def stat(self, key: str) -> StoredObject:
        """What is known of the object. Raises `ObjectMissing`."""
        ...

    def exists(self, key: str) -> bool:
        """Whether there is an object under the key."""
        ...

    def list(self, prefix: str = "") -> Iterator[StoredObject]:
        """The objects whose keys start with `prefix` (any part of a key), each once, fetched as they are consumed.

        Keys with the same parent come in lexical order; how a key sorts against deeper ones is the store's own. What
        is written or deleted meanwhile may or may not be seen. What is not under a valid key is left out.
        """
        ...

    def delete(self, key: str) -> None:
        """Remove the object, durably; no error when there is none."""
        ...

    def url(self, key: str) -> str:
        """The address of the object, for people and for other programs: `s3://…` or `file://…`."""
        ...


def check_key(key: str) -> None:
    """Raise `InvalidKey` unless every adapter can hold `key`.

    Segments of 1 to 255 characters out of `A-Z a-z 0-9 . _ : = + @ -`, joined by single slashes, 1,024 in all. No
    segment starts with a dot: that shuts out `.` and `..` and leaves dot names to the adapters.
    """
    if len(key) > MAX_KEY_LENGTH or not _KEY.fullmatch(key):
        raise InvalidKey(
            f"The key {key[:80]!r} is not valid: use segments of up to 255 characters out of A-Z a-z 0-9 . _ : = + @ -"
            f" that do not start with a dot, joined by single slashes, {MAX_KEY_LENGTH} characters in all."
        )


def is_key(name: str) -> bool:
    """Whether `name`, found in a store, is one that this port could have written."""
    return len(name) <= MAX_KEY_LENGTH and _KEY.fullmatch(name) is not None


def check_prefix(prefix: str) -> None:
    """Raise `InvalidKey` unless `prefix` is the beginning of a valid key, or empty."""
    if len(prefix) > MAX_KEY_LENGTH or not _PREFIX.fullmatch(prefix):
        raise InvalidKey(f"The prefix {prefix[:80]!r} starts no valid key: use the beginning of a key, or nothing.")
