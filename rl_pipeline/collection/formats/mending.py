"""JSON as programs write it, made into JSON as the contract takes it, where nothing of meaning is lost by it.

Terminals and cut texts leave halves of characters (lone surrogates), which become U+FFFD; Python writes NaN and
infinity, which become texts of these names.
"""

import json
import re
from typing import Any

_HALF = re.compile("[\ud800-\udfff]")


def load_mended(text: bytes) -> tuple[Any, bool]:
    """The value of a JSON text, and whether anything had to be mended. Raises `ValueError` and `RecursionError`."""
    constants: list[str] = []

    def named(constant: str) -> str:
        constants.append(constant)
        return constant

    value = json.loads(text, parse_constant=named)
    if b"\\ud" not in text and b"\\uD" not in text:
        return value, bool(constants)
    whole = _whole(value)
    return whole, bool(constants) or whole != value


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, dict):
        return {_HALF.sub("\ufffd", name): _whole(item) for name, item in value.items()}
    return value
