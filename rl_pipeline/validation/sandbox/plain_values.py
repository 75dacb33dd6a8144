"""Plain values as lines of JSON between a program and its test: what is read is never more than data.

A value that was read has exactly the type that it says: nothing that a program returns can compare itself as it likes.
"""

import json
from typing import Any

_SEQUENCES: dict[str, type[Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}


class NotPlain(TypeError):
    """A value that is more than data."""


def to_line(value: object) -> bytes:
    """The value as one line. Raises `NotPlain`."""
    return json.dumps(_told(value)).encode() + b"\n"


def from_line(line: bytes) -> Any:
    """What `to_line` wrote; any other line raises `ValueError`, `TypeError`, `LookupError` or `RecursionError`."""
    return _read(json.loads(line))


def _told(value: object) -> object:  # noqa: PLR0911 - one for each kind
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, complex):
        return ["complex", [value.real, value.imag]]
    if isinstance(value, bytes | bytearray):
        return ["bytes", value.hex()]
    if isinstance(value, dict):
        return ["dict", [[_told(key), _told(one)] for key, one in value.items()]]
    for name, kind in _SEQUENCES.items():
        if isinstance(value, kind):
            return [name, [_told(one) for one in value]]
    raise NotPlain(f"a {type(value).__name__} is no plain value")


def _read(told: Any) -> Any:
    if not isinstance(told, list):
        if isinstance(told, dict):
            raise TypeError("an object stands for nothing")
        return told
    name, content = told
    if name == "dict":
        return {_read(key): _read(one) for key, one in content}
    if name == "bytes":
        return bytes.fromhex(content)
    if name == "complex":
        real, imaginary = content
        return complex(float(real), float(imaginary))
    return _SEQUENCES[name](_read(one) for one in content)
