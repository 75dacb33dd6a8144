"""Reads items from files, strictly: what is wrong is named with its line, and nothing is skipped."""

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from rl_pipeline.contracts.errors import ContractError
from rl_pipeline.contracts.strict_json import parse_strict_json
from rl_pipeline.errors import PipelineError


class InvalidItems(PipelineError):
    """A file of items that cannot be used."""


class Line(BaseModel):
    """What one line of a file holds; a field that is not known is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


L = TypeVar("L", bound=Line)


def read_json_lines(path: Path, kind: type[L], key: str = "id") -> list[L]:
    """The lines of a JSON lines file, each with another `key`. Raises `InvalidItems`."""
    lines: list[L] = []
    for number, text in enumerate(_bytes_of(path).splitlines(), start=1):
        if not text.strip():
            continue
        try:
            lines.append(kind.model_validate(parse_strict_json(text)))
        except ContractError as error:
            raise InvalidItems(f"{path} line {number} is no JSON object: {error}") from None
        except ValidationError as error:
            raise InvalidItems(f"{path} line {number}: {_first(error)}") from None
    return _distinct(path, lines, key)


def read_table(path: Path, columns: Sequence[str]) -> list[Mapping[str, str]]:
    """The rows of a CSV file that has at least `columns`. Raises `InvalidItems`."""
    reader = csv.DictReader(_bytes_of(path).decode("utf-8-sig", "replace").splitlines(keepends=True), strict=True)
    missing = [column for column in columns if column not in (reader.fieldnames or ())]
    if missing:
        raise InvalidItems(f"{path} has no column {missing[0]!r}: is it the right file?")
    rows: list[Mapping[str, str]] = []
    try:
        for row in reader:
            if any(not isinstance(row.get(column), str) for column in columns):
                raise InvalidItems(f"{path} line {reader.line_num}: a column is missing")
            rows.append(row)
    except csv.Error as error:
        raise InvalidItems(f"{path} line {reader.line_num}: {error}") from None
    if not rows:
        raise InvalidItems(f"{path} has no items")
    return rows


def _bytes_of(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidItems(f"{path} cannot be read ({error.strerror}): give the path of a file of items") from None


def _distinct(path: Path, lines: list[L], key: str) -> list[L]:
    if not lines:
        raise InvalidItems(f"{path} has no items")
    seen: set[object] = set()
    for number, line in enumerate(lines, start=1):
        if getattr(line, key) in seen:
            raise InvalidItems(f"{path} item {number}: {key} {getattr(line, key)!r} was there before")
        seen.add(getattr(line, key))
    return lines


def _first(error: ValidationError) -> str:
    found = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, found['loc'])) or 'the object'}: {found['msg']}"
