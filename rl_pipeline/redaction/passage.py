"""Many texts as one run of bytes, so that one scan sees them all and no rule matches from one into the next."""

import re
from collections.abc import Iterator, Sequence

from rl_pipeline.redaction.placeholders import PLACEHOLDER_BYTES

_NUL = b"\x00"
_SEPARATOR = "\n\x00\n"
_BETWEEN_NULS = re.compile(rb"[^\x00]+")
_PLACEHOLDER_OPENS = b"[REDACTED:"
# Each begins with its own sign: there, and only there, `re` searches as quickly as a buffer is read.
_COLOUR = re.compile(rb"\x1b\[[0-9;:?]{0,20}[A-Za-z]")
_WRITTEN_COLOUR = re.compile(rb"\\(?:u001[bB]|x1[bB]|033|e)\[[0-9;:?]{0,20}[A-Za-z]")
_ESCAPED_LINE_END = re.compile(rb"\\[nr]")
_ESCAPED_TAB = re.compile(rb"\\t")
_ESCAPED_ASCII = re.compile(rb"\\(?:u00[0-7]|x[2-7])[0-9a-fA-F]")
# Of signs that no value is written with: `%2B` and `%2F` belong to base64, `%40` to an address.
_ESCAPED_SIGN = re.compile(rb"%(?:0[9ADad]|2[0-9ACac]|3[A-Fa-f]|5[BDbd]|7[BDbd])(?=[0-9A-Za-z])")


def encoded(text: str) -> bytes:
    """The text as UTF-8; half characters, which JSON can carry, keep their code."""
    return text.encode("utf-8", "surrogatepass")


def decoded(text: bytes) -> str:
    """What `encoded` wrote."""
    return text.decode("utf-8", "surrogatepass")


class Passage:
    """The texts in one buffer, for scanning: only there, placeholders and escapes are blanked.

    NUL ends a segment: findings lie between two of them, that is in one text, between its placeholders.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        self._written = self._apart = encoded(_SEPARATOR.join(texts))
        if self._apart.count(_NUL) >= len(texts) > 0:
            self._apart = encoded(_SEPARATOR.join(text.replace("\x00", "\x01") for text in texts))
        self.buffer = self._apart
        if _PLACEHOLDER_OPENS in self.buffer:
            self.buffer = PLACEHOLDER_BYTES.sub(_blank, self.buffer)
        self.unblanked = self.buffer
        """The buffer with all escapes: a value may be written with what looks like one (`C:\\new`)."""
        self.buffer = _without_escapes(self.buffer)

    def texts_between(self, start: int, end: int) -> int:
        """How many texts end from `start` to `end`: 0 if both lie in the same."""
        return self._apart.count(_NUL, start, end)

    def text_span(self, offset: int) -> tuple[int, int]:
        """Start and end of the text that holds the byte at `offset`."""
        return _between_nuls(self._apart, offset)

    def value(self, start: int, end: int) -> bytes:
        """What the texts hold there."""
        return self._written[start:end]

    def segment(self, offset: int) -> tuple[int, int]:
        """The segment around `offset`; one that does not hold it, if it lies between two."""
        return _between_nuls(self.buffer, offset)

    def segments(self) -> Iterator[tuple[int, int]]:
        """All segments that are not empty."""
        for run in _BETWEEN_NULS.finditer(self.buffer):
            start, end = run.start() + (run.start() > 0), run.end() - (run.end() < len(self.buffer))
            if start < end:
                yield start, end

    def whole(self, start: int, end: int) -> tuple[int, int]:
        """The span, widened to whole characters: rules count bytes and may cut one."""
        while start > 0 and self.buffer[start] & 0xC0 == 0x80:
            start -= 1
        while end < len(self.buffer) and self.buffer[end] & 0xC0 == 0x80:
            end += 1
        return start, end


def _between_nuls(buffer: bytes, offset: int) -> tuple[int, int]:
    """Where the bytes around `offset` lie, without the line ends that belong to the NULs."""
    start, end = buffer.rfind(_NUL, 0, offset), buffer.find(_NUL, offset)
    return 0 if start < 0 else start + 2, len(buffer) if end < 0 else end - 1


def _blank(placeholder: re.Match[bytes]) -> bytes:
    return b"\n" + bytes(len(placeholder[0]) - 2) + b"\n"


def _spaces(colour: re.Match[bytes]) -> bytes:
    return b" " * len(colour[0])


def _no_letters(escape: re.Match[bytes]) -> bytes:
    return b"\\" + b"\x01" * (len(escape[0]) - 1)


def _without_escapes(buffer: bytes) -> bytes:
    """The buffer with blanks for escapes, each as long: their letters and digits would seem to begin the value."""
    if b"\x1b" in buffer:
        buffer = _COLOUR.sub(_spaces, buffer)
    if b"\\" in buffer:
        buffer = _WRITTEN_COLOUR.sub(_spaces, buffer)
        buffer = _ESCAPED_LINE_END.sub(rb"\\" b"\n", buffer)
        buffer = _ESCAPED_TAB.sub(rb"\\" b"\t", buffer)
        buffer = _ESCAPED_ASCII.sub(_no_letters, buffer)
    return _ESCAPED_SIGN.sub(b"\x01" * 3, buffer) if b"%" in buffer else buffer
