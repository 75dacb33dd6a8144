"""Finds given values again: word boundaries, and which values are distinctive enough to be looked for."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator

from rl_pipeline.redaction.randomness import is_hash, is_uuid, surprise

_SECRETS = frozenset({"API_KEY", "PASSWORD", "PRIVATE_KEY", "JWT", "SECRET"})
_ONE_WORD = re.compile(rb"[^\W\d_]+", re.ASCII)
_DIGIT = re.compile(rb"[0-9]")
_LETTERS_AND_DIGITS = re.compile(rb"(?=.*[0-9])(?=.*[A-Za-z]).+", re.DOTALL)
_PATH_OR_SELECTOR = re.compile(rb"[\w.~#@:-]*(?:[/\\][\w.~-]*)+|[\w-]+\.[a-z0-9]{2,4}|[#.][A-Za-z][\w-]*", re.ASCII)
_SIGNS_OF_A_PASSWORD = re.compile(rb"(?=.*[a-z])(?=.*[A-Z])(?=.*[!$%^&*+=?~|@]).+", re.DOTALL)
_WORD_BYTES = bytes(byte for byte in range(256) if byte >= 0x80 or chr(byte).isalnum() or byte == 0x5F)
_WORD = frozenset(_WORD_BYTES)
# How characters begin, in UTF-8, that no word goes on with: signs, and the scripts that put no spaces between words.
_ALONE = frozenset({0xC2, 0xE2, *range(0xE3, 0xF5)})
# Where a whole word or a sign begins: the only places to look when there are too many values to look for each.
_TOKEN_START = re.compile(
    rb"(?<![\w\x80-\xff])[\w\x80-\xff]|[^\w\x80-\xff\s]|(?<=[\x80-\xbf])[\w\xc2-\xf4]|[\xc2\xe2-\xf4]"
)
_PREFIX = 8
LONG = 64
"""From here on a value is the same value inside a longer word too, and need not be compared byte by byte again."""
# Up to here (bytes times values) one search for each value is quicker than a look at each word.
_WORK_OF_SEARCHES = 1 << 27


def is_bounded(buffer: bytes, start: int, end: int) -> bool:
    """Whether no word goes on across either end."""
    if start > 0 and _is_word(buffer, start) and _is_word(buffer, start - 1):
        return False
    return not (end < len(buffer) and _is_word(buffer, end - 1) and _is_word(buffer, end))


def _is_word(buffer: bytes, offset: int) -> bool:
    """Whether the character that holds the byte belongs to words that have boundaries."""
    while offset > 0 and buffer[offset] & 0xC0 == 0x80:
        offset -= 1
    return buffer[offset] in _WORD and buffer[offset] not in _ALONE


def is_distinctive(value: bytes) -> bool:
    """Whether `value` found elsewhere means the same: neither short, nor an ordinary word or number."""
    if len(value) < 8:
        return False
    if value.isdigit():
        return len(value) >= 9
    if _ONE_WORD.fullmatch(value):
        return len(value) >= 16 and not (value.islower() or value.isupper() or value.istitle())
    return any(byte in _WORD for byte in value)


def is_short_secret(value: bytes, kind: str) -> bool:
    """Whether `value` is too short to be distinctive, but a secret that nobody writes by accident (`hunter2`)."""
    return kind in _SECRETS and 6 <= len(value) < 8 and _LETTERS_AND_DIGITS.fullmatch(value) is not None


def tells_itself(value: bytes, kind: str) -> bool:
    """Whether a value that only its field's name told of is a secret elsewhere too, and no word, name or path."""
    if kind not in _SECRETS or is_short_secret(value, kind) or is_uuid(value) or is_hash(value):
        return True
    if value.count(b" ") >= 3:
        return True
    drawn = surprise(value)
    if not _LETTERS_AND_DIGITS.fullmatch(value):
        return drawn >= 0.27 or (kind == "PASSWORD" and _SIGNS_OF_A_PASSWORD.fullmatch(value) is not None)
    return drawn >= 0.2 or (kind == "PASSWORD" and not _PATH_OR_SELECTOR.fullmatch(value))


def needs_boundaries(value: bytes, kind: str) -> bool:
    """A long secret is one inside a longer word too (`%3Asecret%40`)."""
    return not (kind in _SECRETS and len(value) >= 16 and _DIGIT.search(value) is not None and not value.isdigit())


def occurrences(
    buffer: bytes, values: Collection[bytes], anywhere: Collection[bytes] = ()
) -> Iterator[tuple[int, int]]:
    """Where the values lie as whole words, and those of `anywhere` also inside of words."""
    if len(buffer) * len(values) > _WORK_OF_SEARCHES:
        yield from _at_token_starts(buffer, values)
        return
    for value in values:
        everywhere = len(value) >= LONG or value in anywhere
        start = buffer.find(value)
        while start >= 0:
            end = start + len(value)
            if everywhere or is_bounded(buffer, start, end):
                yield start, end
            start = buffer.find(value, start + 1 if len(value) < LONG else end)


def _at_token_starts(buffer: bytes, values: Collection[bytes]) -> Iterator[tuple[int, int]]:
    by_prefix: dict[bytes, list[bytes]] = defaultdict(list)
    for value in sorted(values, key=len, reverse=True):
        by_prefix[value[:_PREFIX]].append(value)
    sizes = sorted({len(prefix) for prefix in by_prefix})
    reached = 0
    for token in _TOKEN_START.finditer(buffer):
        start = token.start()
        if start < reached:
            continue
        for size in sizes:
            for value in by_prefix.get(buffer[start : start + size], ()):
                end = start + len(value)
                if buffer.startswith(value, start) and (len(value) >= LONG or is_bounded(buffer, start, end)):
                    yield start, end
                    reached = max(reached, end)
                    break
