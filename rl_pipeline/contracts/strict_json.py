"""Reads JSON without the liberties that parsers take, before any model sees it.

Python's `json` accepts NaN, turns `1e999` into infinity, keeps the last of two equal keys, lets lone surrogates through
and recurses until it dies; JSON Schema stops none of it. Two native readers share the work: pydantic's (bounded depth,
strict syntax and escapes) goes first, so that the standard library's (which shows every key pair) can never overflow
the stack. What belongs to a particular message is not checked here.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from rl_pipeline.contracts.errors import ContractError, PathPart, json_path, json_type

NO_NAMES: frozenset[str] = frozenset()

_POSITION = re.compile(r" at line (\d+) column (\d+)$")
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")
_WORD = b"+-.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class ParseLimits:
    """How much one message may ask of us. An integer of at most 308 digits always fits a finite double."""

    max_bytes: int = 1024 * 1024
    """NATS' default maximum payload."""
    max_depth: int = 64
    """Objects and arrays inside each other; the reader itself stops at 200."""
    max_integer_digits: int = 308


DEFAULT_LIMITS = ParseLimits()


@dataclass(frozen=True)
class _RepeatedKey:
    """Stands in the parsed tree for an object that has this key twice, so that its path can be told afterwards."""

    key: str


def parse_strict_json(data: bytes, limits: ParseLimits = DEFAULT_LIMITS, names: frozenset[str] = NO_NAMES) -> Any:
    """The value of `data`, which must be one UTF-8 JSON text within `limits`; anything else is a `ContractError`.

    `names` are the keys that may be shown in the error's path. Never raises anything but `ContractError`.
    """
    if len(data) > limits.max_bytes:
        raise ContractError("max_bytes", "$", "bytes", f"send at most {limits.max_bytes} bytes or a claim check")
    text = _decode(data)
    _check_syntax(data, limits, names)
    tree = _load(text, limits)
    if not _is_clean(tree, limits):
        raise find_offence(tree, limits, names) or ContractError("not_json", "$", "text", "send strict JSON")
    return tree


def find_offence(tree: Any, limits: ParseLimits, names: frozenset[str]) -> ContractError | None:
    """The first place in a tree of Python values that strict JSON cannot hold, or None."""
    integer_bound = 10**limits.max_integer_digits
    for parts, value in _nodes(tree, limits.max_depth):
        limit = _offence(value, len(parts), limits, integer_bound)
        if limit:
            where = (*parts, value.key) if isinstance(value, _RepeatedKey) else parts
            found = "object" if isinstance(value, _RepeatedKey) else json_type(value)
            return ContractError(limit, json_path(where, names), found, _advice(limit, limits))
    return None


def _decode(data: bytes) -> str:
    if data.startswith(_BYTE_ORDER_MARK):
        raise ContractError("byte_order_mark", "$", "bytes", "send UTF-8 without a byte order mark")
    # The errors of decoders and parsers carry the document: they are dropped before ours is raised, not chained to it.
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        position = error.start
    if re.match(rb"\xed[\xa0-\xbf][\x80-\xbf]", data[position : position + 3]):
        raise ContractError("lone_surrogate", "$", "bytes", f"remove the surrogate encoded at byte {position}")
    raise ContractError("not_utf8", "$", "bytes", f"send UTF-8; byte {position} is not")


def _check_syntax(data: bytes, limits: ParseLimits, names: frozenset[str]) -> None:
    """Refuse what is not one JSON text or nests beyond the reader's own bound, without recursing in Python."""
    try:
        from_json(data, cache_strings="keys")
    except ValueError as error:
        message = str(error)
    else:
        return
    position = _POSITION.search(message)
    line, column = (int(position[1]), int(position[2])) if position else (1, 1)
    at = sum(len(part) + 1 for part in data.split(b"\n", line - 1)[: line - 1]) + max(0, column - 1)
    # The reader stops somewhere between the escape and the end of what should have been its other half.
    surrogate = _SURROGATE_ESCAPE.search(data, max(0, at - 13), at + 6) if "hex escape" in message else None
    limit, found_type = "not_json", "text"
    if "recursion limit" in message:
        limit = "max_depth"
    elif "number out of range" in message:
        limit, found_type = "max_integer_digits", "integer"
    elif surrogate:
        limit, found_type, at = "lone_surrogate", "string", surrogate.start()
    parts = [] if "trailing characters" in message else _last_place(data[:at])
    advice = f"{_advice(limit, limits)}; stopped at line {line} column {column}"
    raise ContractError(limit, json_path(parts, names), found_type, advice)


def _last_place(data: bytes) -> list[PathPart]:
    """The path of the value at which a text breaks off: the one that is open or missing, else the last whole one."""
    for completed in (data.rstrip(_WORD) + b"null", data):
        try:
            tree = from_json(completed, allow_partial="trailing-strings")
        except ValueError:
            continue
        parts: list[PathPart] = []
        while tree and isinstance(tree, dict | list):
            part = next(reversed(tree)) if isinstance(tree, dict) else len(tree) - 1
            parts.append(part)
            tree = tree[part]
        return parts
    return []


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _RepeatedKey:
    record = dict(pairs)
    if len(record) == len(pairs):
        return record
    seen: set[str] = set()
    for key, _ in pairs:
        if key in seen:
            break
        seen.add(key)
    return _RepeatedKey(key)


def _load(text: str, limits: ParseLimits) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError:
        limit = "not_json"
    except RecursionError:  # only when the caller has all but used up the stack
        limit = "max_depth"
    except ValueError:  # an integer beyond what this interpreter is set to convert
        limit = "max_integer_digits"
    raise ContractError(limit, "$", "text", _advice(limit, limits))


def _is_clean(tree: Any, limits: ParseLimits) -> bool:
    """Whether every value is within the limits; level by level, because this runs for every message."""
    bound = 10**limits.max_integer_digits
    level = [tree]
    for _ in range(limits.max_depth + 1):
        deeper: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is str:
                continue
            if kind is dict:
                deeper.extend(value.values() or (None,))  # an empty container is a level, too
            elif kind is list:
                deeper.extend(value or (None,))
            elif kind is float:
                if not math.isfinite(value):
                    return False
            elif kind is int:
                if not -bound < value < bound:
                    return False
            elif kind is _RepeatedKey:
                return False
        if not deeper:
            return True
        level = deeper
    return False


def _nodes(tree: Any, max_depth: int) -> Iterator[tuple[tuple[PathPart, ...], Any]]:
    """Every value with its path, parents first, one level beyond `max_depth` at most."""
    waiting: list[tuple[tuple[PathPart, ...], Any]] = [((), tree)]
    while waiting:
        parts, value = waiting.pop()
        yield parts, value
        if len(parts) > max_depth:
            continue
        if isinstance(value, dict):
            waiting.extend(((*parts, key), child) for key, child in reversed(value.items()))
        elif isinstance(value, list | tuple):
            waiting.extend(((*parts, index), child) for index, child in reversed(list(enumerate(value))))


def _offence(value: Any, depth: int, limits: ParseLimits, integer_bound: int) -> str | None:
    """The limit that `value` itself breaks, its children aside."""
    if isinstance(value, _RepeatedKey):
        return "duplicate_key"
    if isinstance(value, dict | list | tuple) and depth >= limits.max_depth:
        return "max_depth"
    if isinstance(value, float) and not math.isfinite(value):
        return "not_finite"
    if isinstance(value, int) and not -integer_bound < value < integer_bound:
        return "max_integer_digits"
    texts = value if isinstance(value, dict) else (value,)
    if any(isinstance(text, str) and not text.isascii() and _has_surrogate(text) for text in texts):
        return "lone_surrogate"
    return None


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= character <= "\udfff" for character in text)


def _advice(limit: str, limits: ParseLimits) -> str:
    return {
        "duplicate_key": "send each key of an object once",
        "lone_surrogate": "send whole characters: a UTF-16 surrogate has no meaning alone",
        "max_depth": f"nest at most {limits.max_depth} objects and arrays in each other",
        "max_integer_digits": f"send integers of at most {limits.max_integer_digits} digits, longer ones as strings",
        "not_finite": "send a finite number, or leave the field out",
        "not_json": "send one complete JSON text (RFC 8259)",
    }[limit]
