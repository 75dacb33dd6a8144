"""Whatever an agent handles, as JSON can hold it.

A copy: what the agent changes afterwards is recorded as it was. Nothing here raises for a strange value, because an
agent must not fail for being watched.
"""

import dataclasses
import math
from collections.abc import Callable, Collection, Mapping, Set
from datetime import date
from enum import Enum
from pathlib import PurePath
from typing import Any
from uuid import UUID

from pydantic import BaseModel

_DEEPEST = 48
"""A message may nest 64 levels, and a value lies a few below its top."""
_LONGEST_REPRESENTATION = 10_000
_LARGEST_INTEGER = 10**300
_TOO_DEEP = "…"


def plain(value: Any) -> Any:
    """`value` made of objects, arrays, text, numbers, true, false and null only.

    Numbers that JSON lacks become text, bytes their length, and objects that have no plain form what `repr` shows.
    """
    try:
        return _plain(value, 0)
    except Exception:  # noqa: BLE001 - anybody's code is called to look at a value
        return f"<{type(value).__name__}>"


def _plain(value: Any, depth: int) -> Any:
    scalar = _SCALARS.get(type(value))
    if scalar is not None:
        return scalar(value)
    if depth >= _DEEPEST:
        return _TOO_DEEP
    if isinstance(value, Mapping):
        return {
            _text(key if isinstance(key, str) else str(key)): _plain(part, depth + 1) for key, part in value.items()
        }
    if isinstance(value, list | tuple | Set):
        return list(value) if _are_numbers(value) else [_plain(part, depth + 1) for part in value]
    return _plain(_simplified(value), depth + 1)


def _are_numbers(values: Collection[Any]) -> bool:
    """Whether all are numbers that JSON has, of one type: token ids and log-probabilities are many."""
    kinds = set(map(type, values))
    if kinds == {int}:
        return bool(max(values) < _LARGEST_INTEGER and min(values) > -_LARGEST_INTEGER)
    return kinds == {float} and all(map(math.isfinite, values))


def _simplified(value: Any) -> Any:
    """What is neither text, number nor collection, a step nearer to being one."""
    for kinds, simpler in _SIMPLER:
        if isinstance(value, kinds):
            return simpler(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if callable(getattr(value, "tolist", None)):  # arrays, and the numbers in them
        return value.tolist()
    return repr(value)[:_LONGEST_REPRESENTATION]


def _text(text: str) -> str:
    """Whole characters only: half a surrogate pair has no UTF-8."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


_SCALARS: dict[type, Callable[[Any], Any]] = {
    type(None): lambda nothing: nothing,
    bool: lambda flag: flag,
    str: _text,
    int: lambda number: number if -_LARGEST_INTEGER < number < _LARGEST_INTEGER else hex(number),
    float: lambda number: number if math.isfinite(number) else str(number),
}

_SIMPLER: tuple[tuple[type | tuple[type, ...], Callable[[Any], Any]], ...] = (
    ((bytes, bytearray, memoryview), lambda data: f"{memoryview(data).nbytes} bytes"),
    (Enum, lambda member: member.value),
    (str, str),
    (int, int),
    (float, float),
    (date, lambda moment: moment.isoformat()),
    ((PurePath, UUID), str),
    (BaseModel, lambda model: model.model_dump()),
)
"""Subclasses of text and numbers among them: libraries have their own."""
