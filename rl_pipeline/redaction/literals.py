"""Finds given values again: word boundaries, and which values are distinctive enough to be looked for."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator

_SECRETS = frozenset({"API_KEY", "PASSWORD", "PRIVATE_KEY", "JWT", "SECRET"})
_ONE_WORD = re.compile(rb"[^\W\d_]+", re.ASCII)
_WORD_BYTES = bytes(byte for byte in range(256) if byte >= 0x80 or chr(byte).isalnum() or byte == 0x5F)
_WORD = frozenset(_WORD_BYTES)
# Where a whole word or a sign begins: the only places to look when there are too many values to look for each.
_TOKEN_START = re.compile(rb"(?<![\w\x80-\xff])[\w\x80-\xff]|[^\w\x80-\xff\s]")
_PREFIX = 8
# Up to here (bytes times values) one search for each value is quicker than a look at each word.
_WORK_OF_SEARCHES = 1 << 27


def is_bounded(buffer: bytes, start: int, end: int) -> bool:
    """Whether no word goes on across either end."""
    if start > 0 and buffer[start] in _WORD and buffer[start - 1] in _WORD:
        return False
    return not (end < len(buffer) and buffer[end - 1] in _WORD and buffer[end] in _WORD)


def is_distinctive(value: bytes) -> bool:
    """Whether `value` found elsewhere means the same: neither short, nor an ordinary word or number."""
    if len(value) < 8:
        return False
    if value.isdigit():
        return len(value) >= 9
    if _ONE_WORD.fullmatch(value):
        return len(value) >= 16 and not (value.islower() or value.isupper() or value.istitle())
    return any(byte in _WORD for byte in value)


def needs_boundaries(value: bytes, kind: str) -> bool:
    """A long secret is one inside a longer word too (`%3Asecret%40`)."""
    mixed = any(48 <= byte <= 57 for byte in value) and not value.isdigit()
    return not (kind in _SECRETS and len(value) >= 16 and mixed)


def occurrences(
    buffer: bytes, values: Collection[bytes], anywhere: Collection[bytes] = ()
) -> Iterator[tuple[int, int]]:
    """Where the values lie as whole words, and those of `anywhere` also inside of words."""
    if len(buffer) * len(values) > _WORK_OF_SEARCHES:
        yield from _at_token_starts(buffer, values)
        return
    for value in values:
        start = buffer.find(value)
        while start >= 0:
            end = start + len(value)
            if value in anywhere or is_bounded(buffer, start, end):
                yield start, end
            start = buffer.find(value, start + 1)


def _at_token_starts(buffer: bytes, values: Collection[bytes]) -> Iterator[tuple[int, int]]:
    lengths: dict[bytes, set[int]] = defaultdict(set)
    for value in values:
        lengths[value[:_PREFIX]].add(len(value))
    shortest = min(map(len, lengths))
    for token in _TOKEN_START.finditer(buffer):
        start = token.start()
        for size in range(shortest, _PREFIX + 1):
            for length in lengths.get(buffer[start : start + size], ()):
                end = start + length
                if buffer[start:end] in values and is_bounded(buffer, start, end):
                    yield start, end
