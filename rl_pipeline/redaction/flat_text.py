"""Sensitive values in text that follow a sensitive name.

In text that nobody could parse, `named_values` takes all that follows, with no second look: a dead letter's excerpt may
be cut anywhere, so a quote, a bracket or a key's last line may be missing: what is open then reaches to the end of the
text. In JSON inside a string, `quoted_values` judges what it finds as in a tree.
"""

import re
from collections.abc import Iterator
from functools import lru_cache

from rl_pipeline.redaction.field_names import FieldName, sensitive_name
from rl_pipeline.redaction.field_values import is_sensitive_in_text, sensitive_spans
from rl_pipeline.redaction.passage import decoded, encoded

# A name, its closing quote, and what leads to the value: `"name": `, `name=`, `name => `, `--name value`.
_NAMED = re.compile(
    rb"(?P<name>[A-Za-z_][\w.-]{1,63}+)"
    rb"(?:(?:\\*[\"'`])?\s{0,8}(?::=|=>|==?|:)\s{0,8}|(?<=[\w-])\s{1,8}(?=[^\s:=,;)\]}]))"
)
_FLAG = re.compile(rb"-{1,2}\Z")
_PAIR = re.compile(
    rb"(?:name|key)\\*[\"']\s*:\s*\\*[\"'](?P<name>[\w.-]{2,64}+)\\*[\"']\s*,\s*\\*[\"']value\\*[\"']\s*:\s*",
    re.IGNORECASE,
)
_QUOTED_NAMES = re.compile(rb'"([A-Za-z_][\w.\x80-\xff-]*+\\*+)"\s*+:')
_VALUE_OPENS = re.compile(rb'\s*+(?P<escapes>\\*)"')
_BACKSLASH = ord("\\")
_QUOTED_NAME = re.compile(rb"[A-Za-z_][\w.\x80-\xff-]{1,63}")
# `x === 1 ? "secret" : "endpoint"`: a choice, no name.
_CHOICE = re.compile(rb"\?\s{0,8}\\*\Z")
# What may be kept from one call to the next: no secret is made of letters alone.
_PLAIN_NAME = re.compile(rb"[A-Za-z_-]{2,40}")
_OPENS = re.compile(rb"(?P<escapes>\\*)(?P<quote>[\"'`])")
_BARE = re.compile(rb"(?:(?:bearer|basic|token|digest|bot)\s+)?[^\s\x00,;&\"'`<>)\]}\\]+", re.IGNORECASE)
_PRIVATE_KEY_OPENS = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY")
_PRIVATE_KEY_CLOSES = re.compile(rb"-----END [A-Z0-9 ]{0,40}-----|\x00|\Z")
_LONGEST_PRIVATE_KEY = 20_000
_ESCAPED_ASCII = re.compile(r"\\u00([2-7][0-9a-fA-F])")


def unescaped(text: str) -> str:
    """The text with JSON's escapes of printable ASCII undone: they would hide a value from every rule."""
    return _ESCAPED_ASCII.sub(lambda match: chr(int(match[1], 16)), text)


def named_values(buffer: bytes) -> Iterator[tuple[int, int, str]]:
    """Start, end and kind of every value that follows a sensitive name; blanked placeholders (NUL) end a value."""
    for start, end in _private_keys(buffer):
        yield start, end, "PRIVATE_KEY"
    for pattern in (_PAIR, _NAMED):
        position = 0
        while match := pattern.search(buffer, position):
            position = match.end("name")
            name = sensitive_name(match["name"].decode())
            if name is None or (match[0][-1:].isspace() and not _leads(buffer, match)):
                continue
            start, end = _value(buffer, match.end())
            if buffer[start:end].strip():
                yield start, end, name.kind
                position = max(position, end)


def _private_keys(buffer: bytes) -> Iterator[tuple[int, int]]:
    """Each from its first line to its last, to a placeholder or to the end of the text, whichever is first."""
    end = closes = 0
    for opening in _PRIVATE_KEY_OPENS.finditer(buffer):
        if opening.start() < end:
            continue
        if closes < opening.end():  # else the same closing is next: it is looked for once, however many begin before it
            closing = _PRIVATE_KEY_CLOSES.search(buffer, opening.end())
            closes = closing.end() if closing else len(buffer)
        if closes - opening.end() <= _LONGEST_PRIVATE_KEY:
            end = closes
            yield opening.start(), end


def quoted_values(buffer: bytes) -> Iterator[tuple[int, int, str]]:
    """Start, end and kind of the texts that JSON inside a string holds under sensitive names, however often escaped."""
    names = {text: name for text in set(_QUOTED_NAMES.findall(buffer)) if (name := _name_of(text))}
    if not names:  # nearly always
        return
    unclosed: dict[int, int] = {}
    for quoted in _QUOTED_NAMES.finditer(buffer):
        text = quoted[1]
        if text not in names:
            continue
        name, plain = names[text], text.rstrip(b"\\")
        escapes = len(text) - len(plain)
        opening = _VALUE_OPENS.match(buffer, quoted.end())
        if opening is None or len(opening["escapes"]) != escapes:
            continue
        first, last = _quoted(buffer, opening.end(), escapes, unclosed)
        value = decoded(buffer[first:last])
        if value.lower() == decoded(plain).lower() or not is_sensitive_in_text(name, value):
            continue
        before = buffer[max(0, quoted.start() - 16) : quoted.start()]
        if b"?" in before and _CHOICE.search(before):
            continue
        for start, end in sensitive_spans(name.kind, value):
            yield first + len(encoded(value[:start])), last - len(encoded(value[end:])), name.kind


def _name_of(quoted_name: bytes) -> FieldName | None:
    name = quoted_name.rstrip(b"\\")
    if _PLAIN_NAME.fullmatch(name):
        return _name_of_letters(name)
    return sensitive_name(decoded(name)) if _QUOTED_NAME.fullmatch(name) else None


@lru_cache(maxsize=4096)
def _name_of_letters(name: bytes) -> FieldName | None:
    return sensitive_name(name.decode())


def _quoted(buffer: bytes, start: int, escapes: int, unclosed: dict[int, int]) -> tuple[int, int]:
    """The rest of a string whose own quotes have so many backslashes; nothing if it does not end in its segment.

    `unclosed` remembers up to where no such quote is left: a text of openings alone would be read again for each.
    """
    if start < unclosed.get(escapes, 0):
        return start, start
    quote = buffer.find(b'"', start)
    while quote >= 0:
        backslashes = quote
        while backslashes > start and buffer[backslashes - 1] == _BACKSLASH:
            backslashes -= 1
        if (quote - backslashes) % (2 * (escapes + 1)) == escapes:
            end = quote - escapes
            blank = buffer.find(b"\x00", start, end)
            if blank < 0:
                return start, end
            unclosed[escapes] = blank
            return start, start
        quote = buffer.find(b'"', quote + 1)
    unclosed[escapes] = len(buffer)
    return start, start


def _leads(buffer: bytes, match: re.Match[bytes]) -> bool:
    """Whether only spaces between name and value are enough: after a sign, or for an option of a command."""
    between = buffer[match.end("name") : match.end()]
    return not between.isspace() or _FLAG.search(buffer, max(0, match.start() - 2), match.start()) is not None


def _value(buffer: bytes, start: int) -> tuple[int, int]:
    opening = _OPENS.match(buffer, start)
    if opening:
        closing = buffer.find(opening[0], opening.end())
        return opening.end(), _until_placeholder(buffer, opening.end(), closing if closing >= 0 else len(buffer))
    if buffer[start : start + 1] in {b"{", b"["}:
        return start, _until_placeholder(buffer, start, _closing_bracket(buffer, start))
    bare = _BARE.match(buffer, start)
    return (start, bare.end()) if bare else (start, start)


def _until_placeholder(buffer: bytes, start: int, end: int) -> int:
    blank = buffer.find(b"\x00", start, end)
    return end if blank < 0 else blank


def _closing_bracket(buffer: bytes, start: int) -> int:
    depth = 0
    for bracket in re.finditer(rb"[\[{]|[\]}]", buffer[start:]):
        depth += 1 if bracket[0] in b"[{" else -1
        if depth == 0:
            return start + bracket.end()
    return len(buffer)
