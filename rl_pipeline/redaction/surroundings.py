"""The text around a value, for validators: what leads to it, what follows, and the digits in it.

Texts and blanked placeholders are told apart by the NUL bytes of a passage. No find may depend on a word beyond a
placeholder, or redacting twice would find more.
"""

import re

NEAR = 80
"""How many bytes to either side of a value are looked at."""
_NO_DIGITS = bytes(set(range(256)) - set(b"0123456789"))


def before(match: re.Match[bytes]) -> bytes:
    """The text that leads to the value."""
    start = value_span(match)[0]
    return match.string[max(0, start - NEAR) : start].rpartition(b"\x00")[2]


def after(match: re.Match[bytes]) -> bytes:
    """The text that follows the value."""
    end = value_span(match)[1]
    return match.string[end : end + NEAR].partition(b"\x00")[0]


def lead_on_line(match: re.Match[bytes]) -> bytes:
    """What stands before the value on its line, or on the line of the label above it."""
    return before(match).rstrip().rpartition(b"\n")[2] + b" "


def is_beside_a_placeholder(match: re.Match[bytes]) -> bool:
    """Whether a blank begins or ends where another group of digits might have stood; one NUL alone parts two texts."""
    start, end = value_span(match)
    return b"\x00\x00" in match.string[max(0, start - 4) : start] or b"\x00\x00" in match.string[end : end + 4]


def value_span(match: re.Match[bytes]) -> tuple[int, int]:
    """Where the value lies: the group of that name, or the whole match."""
    return match.span("value") if "value" in match.re.groupindex else match.span()


def digits_of(value: bytes) -> bytes:
    """The digits alone."""
    return value.translate(None, _NO_DIGITS)


def words(text: str) -> frozenset[bytes]:
    """The words of a text, to look values up in."""
    return frozenset(text.encode().split())
