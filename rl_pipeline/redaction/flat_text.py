"""Sensitive values in text that nobody could parse: all that follows a sensitive name, with no second look.

A dead letter's excerpt may be cut anywhere, so a quote, a bracket or a key's last line may be missing: what is open
then reaches to the end of the text.
"""

import re
from collections.abc import Iterator

from rl_pipeline.redaction.field_names import sensitive_name

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
_OPENS = re.compile(rb"(?P<escapes>\\*)(?P<quote>[\"'`])")
_BARE = re.compile(rb"(?:(?:bearer|basic|token|digest|bot)\s+)?[^\s\x00,;&\"'`<>)\]}\\]+", re.IGNORECASE)
_PRIVATE_KEY = re.compile(
    rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY[^\x00]{0,20000}?(?:-----END [A-Z0-9 ]{0,40}-----|\x00|\Z)"
)
_ESCAPED_ASCII = re.compile(r"\\u00([2-7][0-9a-fA-F])")


def unescaped(text: str) -> str:
    """The text with JSON's escapes of printable ASCII undone: they would hide a value from every rule."""
    return _ESCAPED_ASCII.sub(lambda match: chr(int(match[1], 16)), text)


def named_values(buffer: bytes) -> Iterator[tuple[int, int, str]]:
    """Start, end and kind of every value that follows a sensitive name; blanked placeholders (NUL) end a value."""
    for key in _PRIVATE_KEY.finditer(buffer):
        yield key.start(), key.end(), "PRIVATE_KEY"
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
