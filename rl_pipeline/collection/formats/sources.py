"""Records out of files and directories, plain or gzipped, with their origin; never more than one in memory."""

import contextlib
import gzip
import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

from rl_pipeline.collection.formats.catalogue import format_of
from rl_pipeline.collection.formats.format import Format, Origin
from rl_pipeline.collection.formats.json_values import RawValue, Shape, raw_values, shape_of
from rl_pipeline.collection.formats.refusals import FILE_NAME
from rl_pipeline.collection.formats.values import as_number
from rl_pipeline.errors import PipelineError

_SUFFIXES = (".json", ".jsonl", ".ndjson", ".traj")
_LONGEST_REWARD = 65536
_INDEX = ("metadata", "trace_index.json")
"""MassGen's own table of its traces."""

Progress = Callable[[int], object]
"""Told how many bytes of files have been read since it was last told."""


class NothingToImport(PipelineError):
    """There is no file where one was named."""


@dataclass(frozen=True)
class SourceFile:
    """A file to read."""

    path: Path
    name: str
    """With its directory's, as it is told and kept."""
    is_named: bool
    """Whether it was named itself, rather than found in a directory."""
    size: int
    modified: datetime
    reward: float | None
    """What Harbor's verifier has written beside it."""

    def origin(self, raw: RawValue | None = None, model: str | None = None) -> Origin:
        """The origin of a value in it."""
        place, key = (raw.place, raw.key) if raw else ("", None)
        return Origin(self.name, self.modified, place, key, model, self.reward)


def source_files(paths: Iterable[Path]) -> Iterator[SourceFile]:
    """The files, and those below the directories that can hold trajectories, in order. Raises `NothingToImport`."""
    for path in paths:
        if path.is_dir():
            for directory, below, names in os.walk(path):
                below.sort()
                for name in sorted(names):
                    if _is_wanted(Path(directory) / name):
                        yield _source_file(Path(directory) / name, is_named=False)
        elif path.exists():
            yield _source_file(path, is_named=True)
        else:
            raise NothingToImport(f"there is no {path}: name files or directories with {', '.join(_SUFFIXES)} files")


def raw_records(source: SourceFile, wanted: Format | None, progress: Progress) -> Iterator[RawValue]:
    """The values of a file, each a record of some format. Raises what is `UNREADABLE` where it cannot be read on."""
    with source.path.open("rb") as file:
        is_packed = file.read(2) == b"\x1f\x8b"
        file.seek(0)
        content = cast("BinaryIO", gzip.GzipFile(fileobj=file)) if is_packed else file
        shape = _shape(content, source, wanted)
        told = 0
        for raw in raw_values(content, shape):
            yield raw
            progress(max(0, (at := _position(file)) - told))
            told = max(told, at)
        progress(max(0, source.size - told))


def _position(file: IO[bytes]) -> int:
    return file.tell()


def _shape(file: BinaryIO, source: SourceFile, wanted: Format | None) -> Shape:
    shape: Shape = shape_of(file)
    if source.name.removesuffix(".gz").endswith((".jsonl", ".ndjson")) and shape == "whole":
        return "lines"
    if shape == "items":
        first = _first(file, "items")
        # A list of messages is one conversation.
        return "whole" if isinstance(first, dict) and "role" in first and format_of(first) is None else "items"
    if shape == "whole" and (wanted is None or wanted.members):
        first = _first(file, "members")
        if isinstance(first, dict) and format_of(first, members=True) is not None:
            return "members"
    return shape


def _first(file: BinaryIO, shape: Shape) -> Any:
    raw = next(raw_values(file, shape), None)
    try:
        return json.loads(raw.text) if raw and not raw.fault else None
    except (ValueError, RecursionError):
        return None


def _is_wanted(path: Path) -> bool:
    is_index = (path.parent.name, path.name) == _INDEX
    name = path.name.removesuffix(".gz")
    return name.endswith(_SUFFIXES) and not name.startswith(".") and name != FILE_NAME and not is_index


def _source_file(path: Path, *, is_named: bool) -> SourceFile:
    # A file's name may be any bytes, and the contract's text may not.
    name = "/".join(path.absolute().parts[-2:]).encode("utf-8", "replace").decode()
    size, modified = _found(path)
    return SourceFile(path, name, is_named, size, datetime.fromtimestamp(modified, UTC), _verified(path))


def _found(path: Path) -> tuple[int, float]:
    """Size and time of a file, or of a link that leads nowhere: whoever opens it is told."""
    for look in (path.stat, path.lstat):
        with contextlib.suppress(OSError):
            found = look()
            return found.st_size, found.st_mtime
    return 0, 0.0


def _verified(path: Path) -> float | None:
    """The reward of a trial of Harbor, whose agent writes into `agent/` and whose verifier into `verifier/`."""
    if path.parent.name != "agent":
        return None
    for name in ("reward.json", "reward.txt"):
        try:
            with (path.parent.parent / "verifier" / name).open("rb") as file:
                told = json.loads(file.read(_LONGEST_REWARD))
        except (OSError, ValueError, RecursionError):
            continue
        return as_number(told.get("reward") if isinstance(told, dict) else told)
    return None
