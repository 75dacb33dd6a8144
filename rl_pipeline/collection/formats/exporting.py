"""Trajectories written out in a format, one after the other, as files that the format's own tools read."""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from rl_pipeline.collection.formats.format import Format
from rl_pipeline.collection.formats.values import JsonObject
from rl_pipeline.errors import PipelineError


class ExportRefused(PipelineError):
    """The place to write to is taken, or cannot be written to."""


def export_trajectories(trajectories: Iterable[JsonObject], into: Format, out: Path) -> int:
    """Write trajectories, as their documents are stored, and return how many they were. Raises `ExportRefused`.

    `out` is a file, or a directory for formats that have a file for each. A file is there whole or not at all.
    """
    try:
        if into.layout == "files":
            return _files(trajectories, into, out)
        if out.exists():
            raise ExportRefused(f"{out} is there already: name another file, or remove it")
        with _new_file(out) as file:
            return {"lines": _lines, "array": _array, "members": _members}[into.layout](trajectories, into, file)
    except OSError as error:
        raise ExportRefused(f"{out} cannot be written ({error.strerror}): name a place that can") from None


def _files(trajectories: Iterable[JsonObject], into: Format, out: Path) -> int:
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ExportRefused(f"{out} is no empty directory: {into.name} has a file for each trajectory; name a new one")
    out.mkdir(parents=True, exist_ok=True)
    count = 0
    for trajectory in trajectories:
        (record,) = into.write(trajectory)
        path = out / f"{into.name_of(trajectory)}{into.suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            path = path.with_name(f"{path.stem}-{trajectory['trajectory_id']}{into.suffix}")
        path.write_text(json.dumps(record, ensure_ascii=False, indent=2), encoding="utf-8")
        count += 1
    return count


def _lines(trajectories: Iterable[JsonObject], into: Format, file: IO[str]) -> int:
    count = 0
    for count, trajectory in enumerate(trajectories, start=1):  # noqa: B007 - the last is how many they were
        for record in into.write(trajectory):
            file.write(f"{_written(record)}\n")
    return count


def _array(trajectories: Iterable[JsonObject], into: Format, file: IO[str]) -> int:
    count = 0
    file.write("[")
    for count, trajectory in enumerate(trajectories, start=1):
        (record,) = into.write(trajectory)
        file.write(f"{',' if count > 1 else ''}\n{_written(record)}")
    file.write("\n]\n")
    return count


def _members(trajectories: Iterable[JsonObject], into: Format, file: IO[str]) -> int:
    used: set[str] = set()
    file.write("{")
    for trajectory in trajectories:
        (record,) = into.write(trajectory)
        name = into.name_of(trajectory)
        name = trajectory["trajectory_id"] if name in used else name
        file.write(f"{',' if used else ''}\n{_written(name)}: {_written(record)}")
        used.add(name)
    file.write("\n}\n")
    return len(used)


def _written(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@contextmanager
def _new_file(path: Path) -> Iterator[IO[str]]:
    new = path.with_name(f".{path.name}.new")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with new.open("w", encoding="utf-8") as file:
            yield file
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
