"""JSON values out of a file of any size, one at a time.

A file holds one value, one value a line, or its values as the items of an array or the members of an object. What
cannot be read is told where it stands, and whatever can still be read after it follows.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Literal

from rl_pipeline.contracts.validation import CLAIMED_LIMITS

Shape = Literal["whole", "lines", "items", "members"]

LARGEST_VALUE = 2 * CLAIMED_LIMITS.max_bytes
"""A trajectory may have half of it; what is around it in its own format may be as much again."""

_CHUNK = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_SPACE = b" \t\r\n"
_NOT_SPACE = re.compile(rb"[^ \t\r\n]")
_BRACKET = re.compile(rb'["{}\[\]]')
_IN_STRING = re.compile(rb'["\\]')
_AFTER_SCALAR = re.compile(rb"[,\]}\s]")


@dataclass(frozen=True, slots=True)
class RawValue:
    """A value as it stands in the file, or why there is none."""

    text: bytes
    place: str
    """In words: `line 3`, `item 3`, `key "3"`; empty for a file that is one value."""
    key: str | None = None
    """The name of a member."""
    fault: str | None = None
    """`max_bytes` for a value that is too large, `not_json` for what is none; then there is no text."""


def shape_of(file: BinaryIO) -> Literal["whole", "lines", "items"]:
    """How the file holds its values, as far as brackets tell; it is read from its beginning, and left there.

    Of a line of any length no more than its beginning is held.
    """
    file.seek(0)
    head = file.read(len(_BYTE_ORDER_MARK))
    if head != _BYTE_ORDER_MARK:
        file.seek(0)
    first = file.readline(_CHUNK)
    while first and not first.strip():
        first = file.readline(_CHUNK)
    if first.endswith(b"\n"):
        is_line = _is_balanced(first.strip()) and _next_of(file) != b""
    else:
        is_line = _is_closed_by(file, LARGEST_VALUE) and _next_of(file) in (b"{", b"[")
    file.seek(0)
    if is_line:
        return "lines"
    return "items" if first.lstrip(_SPACE).startswith(b"[") else "whole"


def raw_values(file: BinaryIO, shape: Shape, largest: int = LARGEST_VALUE) -> Iterator[RawValue]:
    """The values of the file, from its beginning."""
    file.seek(0)
    if file.read(len(_BYTE_ORDER_MARK)) != _BYTE_ORDER_MARK:
        file.seek(0)
    match shape:
        case "lines":
            yield from _lines(file, largest)
        case "whole":
            text = file.read(largest + 1)
            yield RawValue(b"", "", fault="max_bytes") if len(text) > largest else RawValue(text, "")
        case _:
            yield from _Scanner(file, largest).children()


def _is_balanced(text: bytes) -> bool:
    depth, position = 0, 0
    while found := _BRACKET.search(text, position):
        position = found.end()
        if found[0] == b'"':
            position = _end_of_string(text, position)
            if position < 0:
                return False
        else:
            depth += 1 if found[0] in b"{[" else -1
    return depth == 0


def _is_closed_by(file: BinaryIO, most: int) -> bool:
    """Whether the rest of a long line closes something: a next one then opens something only if it is another value."""
    last, passed = b"", 0
    while passed < most and (part := file.readline(_CHUNK)):
        passed += len(part)
        last = part.rstrip(_SPACE)[-1:] or last
        if part.endswith(b"\n"):
            return last in (b"}", b"]")
    return False


def _next_of(file: BinaryIO) -> bytes:
    """The next character that is no space; none at the file's end."""
    while part := file.read(_CHUNK):
        if found := part.lstrip(_SPACE)[:1]:
            return found
    return b""


def _lines(file: BinaryIO, largest: int) -> Iterator[RawValue]:
    number = 0
    while line := file.readline(largest + 1):
        number += 1
        place = f"line {number}"
        if len(line) > largest:
            while line and not line.endswith(b"\n"):
                line = file.readline(_CHUNK)
            yield RawValue(b"", place, fault="max_bytes")
        elif line.strip():
            yield RawValue(line.strip(), place)


def _end_of_string(text: bytes | bytearray, position: int) -> int:
    """The place after the closing quote of the string in which `position` is, or -1 where it is not closed."""
    while found := _IN_STRING.search(text, position):
        if found[0] == b'"':
            return found.end()
        position = found.end() + 1
    return -1


class _Broken(Exception):
    """The file is no JSON from here on."""


class _Scanner:
    """Walks through one array or object, and holds one of its children at a time."""

    def __init__(self, file: BinaryIO, largest: int) -> None:
        self._file = file
        self._largest = largest
        self._text = bytearray()
        self._at = 0
        self._dropped = 0

    def children(self) -> Iterator[RawValue]:
        """The items or members, in order; the rest of a broken file is one fault."""
        number = 0
        try:
            closing = {b"[": b"]", b"{": b"}"}.get(self._next(), b"")
            self._expect(closing)
            self._at += 1
            while self._next() != closing:
                if number:
                    self._expect(self._text.startswith(b","))
                    self._at += 1
                    self._next()
                number += 1
                key = self._key() if closing == b"}" else None
                text = self._value()
                place = f"item {number}" if key is None else f'key "{key}"'
                yield RawValue(text or b"", place, key, None if text is not None else "max_bytes")
        except _Broken:
            yield RawValue(b"", f"after {number} values", fault="not_json")

    @staticmethod
    def _expect(found: object) -> None:
        if not found:
            raise _Broken

    def _fill(self) -> None:
        chunk = self._file.read(_CHUNK)
        if not chunk:
            raise _Broken
        self._text += chunk

    def _next(self) -> bytes:
        """The next character that is no space; what was before it is forgotten."""
        while not (found := _NOT_SPACE.search(self._text, self._at)):
            self._text.clear()
            self._at = 0
            self._fill()
        character = bytes(found[0])  # before the text moves: a match looks again where it has matched
        del self._text[: found.start()]
        self._at = 0
        return character

    def _key(self) -> str:
        self._expect(self._text.startswith(b'"'))
        name = self._value() or b'""'
        self._expect(self._next() == b":")
        self._at = 1
        self._next()
        try:
            return str(json.loads(name))
        except ValueError:
            raise _Broken from None

    def _value(self) -> bytes | None:
        """The value that begins here; None for one that is too large, which is passed over."""
        self._dropped = 0
        first = bytes(self._text[:1])
        self._at = 1
        if first == b'"':
            self._pass_string()
        elif first in (b"{", b"["):
            depth = 1
            while depth:
                found = self._search(_BRACKET)
                if found == b'"':
                    self._pass_string()
                else:
                    depth += 1 if found in b"{[" else -1
        else:
            self._search(_AFTER_SCALAR)
            self._at -= 1
        whole = None if self._dropped else bytes(self._text[: self._at])
        return whole if whole is None or len(whole) <= self._largest else None

    def _pass_string(self) -> None:
        while self._search(_IN_STRING) != b'"':
            while self._at >= len(self._text):
                self._fill()
            self._at += 1

    def _search(self, pattern: re.Pattern[bytes]) -> bytes:
        while not (found := pattern.search(self._text, self._at)):
            self._at = len(self._text)
            if self._at > self._largest:
                self._dropped += self._at
                self._text.clear()
                self._at = 0
            self._fill()
        self._at = found.end()
        return bytes(found[0])
