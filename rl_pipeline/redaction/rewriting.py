"""Writes the placeholders of one call, round by round until nothing more is found."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from rl_pipeline.redaction.field_values import sensitive_spans
from rl_pipeline.redaction.leaves import SensitiveField
from rl_pipeline.redaction.passage import Passage, decoded, encoded
from rl_pipeline.redaction.placeholders import PLACEHOLDER, placeholder
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.redaction.resolution import FIELD_ORDER, SENSITIVE_FIELD, Knowledge, merged
from rl_pipeline.redaction.scanner import UNSCANNABLE, Finding, Source

_MOST_ROUNDS = 8
_IN_NUMBER = re.compile(rb"[0-9-]")
_NOT_NUL = re.compile(rb"[^\x00]+")
_PLACEHOLDERS = re.compile(f"({PLACEHOLDER.pattern})")


class Rewriting:
    """One call of the redactor; `look` gives what is to be replaced in a passage."""

    def __init__(
        self,
        key: RedactionKey,
        allowed: Collection[bytes],
        knowledge: Knowledge,
        look: Callable[[Passage], Sequence[Finding]],
    ) -> None:
        self._key = key
        self._allowed = allowed
        self._knowledge = knowledge
        self._look = look

    def tree(
        self, passage: Passage, found: Sequence[Finding], fields: Sequence[SensitiveField]
    ) -> tuple[dict[int, str], dict[tuple[int, str | int], str]]:
        """The new texts of a tree, by number in the passage, and those of its sensitive fields, by place."""
        pieces = [(field, self._pieces(field)) for field in fields]
        self._knowledge.learn((encoded(piece), source) for _, split in pieces for piece, source in split if source)
        texts = self.texts(passage, found)
        return texts, {
            (field.container, field.key): "".join(
                self._placeholder(encoded(piece), source) if source else piece for piece, source in split
            )
            for field, split in pieces
            if any(source for _, source in split)
        }

    def texts(self, passage: Passage, found: Sequence[Finding]) -> dict[int, str]:
        """The new texts of those that change, by their number in the passage."""
        texts = list(passage.texts)
        changed: dict[int, str] = {}
        for _ in range(_MOST_ROUNDS):
            found = [_whole(passage, finding) for finding in found]
            self._knowledge.learn((passage.value(finding.start, finding.end), finding.source) for finding in found)
            repeated = (_whole(passage, finding) for finding in self._knowledge.repeated_in(passage))
            written = self._written(passage, merged([*found, *repeated]))
            changed |= written
            if not written or not self._look(Passage(list(written.values()))):
                return changed
            for number, text in written.items():
                texts[number] = text
            passage = Passage(texts)
            found = self._look(passage)
        for number in {passage.texts_between(0, finding.start) for finding in found}:
            changed[number] = self._placeholder(encoded(texts[number]), Source(FIELD_ORDER, UNSCANNABLE, "SECRET"))
        return changed

    def _written(self, passage: Passage, findings: Iterable[Finding]) -> dict[int, str]:
        """The texts that hold findings, with placeholders in their place; the findings come in order."""
        written: dict[int, str] = {}
        number, position = 0, 0
        for (text_start, text_end), group in _by_text(passage, findings):
            number += passage.texts_between(position, text_start)
            position = written_to = text_start
            pieces: list[bytes] = []
            for start, end, source in group:
                stands = self._placeholder(passage.value(start, end), source)
                pieces += passage.value(written_to, start), stands.encode()
                written_to = end
            written[number] = decoded(b"".join([*pieces, passage.value(written_to, text_end)]))
        return written

    def _pieces(self, field: SensitiveField) -> list[tuple[str, Source | None]]:
        """A field's text in pieces, the secret ones with their source: not placeholders, not the name of a scheme."""
        split = _PLACEHOLDERS.split(field.text)
        source = Source(FIELD_ORDER, SENSITIVE_FIELD, field.kind)
        pieces: list[tuple[str, Source | None]] = []
        for number, piece in enumerate(split):
            written = 0
            for start, end in () if number % 2 else sensitive_spans(field.kind, piece):
                secret = piece[start:end]
                # Between placeholders, signs are only signs.
                told = len(split) == 1 or any(map(str.isalnum, secret))
                shown = not told or encoded(secret) in self._allowed
                pieces += (piece[written:start], None), (secret, None if shown else source)
                written = end
            pieces.append((piece[written:], None))
        return pieces

    def _placeholder(self, value: bytes, source: Source) -> str:
        self._knowledge.counts[source.rule_id] += 1
        plain = self._knowledge.plain(value)
        return placeholder(self._key, self._knowledge.kind(plain, source), plain)


def _by_text(passage: Passage, findings: Iterable[Finding]) -> Iterator[tuple[tuple[int, int], list[Finding]]]:
    """The findings of each text, with its span."""
    span, group = (0, 0), list[Finding]()
    for finding in findings:
        if group and finding.start >= span[1]:
            yield span, group
            group = []
        if not group:
            span = passage.text_span(finding.start)
        group.append(finding)
    if group:
        yield span, group


def _whole(passage: Passage, finding: Finding) -> Finding:
    """The finding, widened to whole characters, and to a whole number where its text is one; NULs end it."""
    start, end = passage.whole(finding.start, finding.end)
    value = passage.value(start, end)
    if b"\x00" in value and finding.source.rule_id != UNSCANNABLE and finding.source.kind != "PRIVATE_KEY":
        start, end = _between_nuls(start, value)
    around = passage.buffer[max(start - 1, 0) : start] + passage.buffer[end : end + 1]
    if _IN_NUMBER.search(around) and passage.buffer[start:end].isdigit():
        text_start, text_end = passage.text_span(start)
        if passage.buffer[text_start:text_end].lstrip(b"-").isdigit():
            start, end = text_start, text_end
    return Finding(start, end, finding.source)


def _between_nuls(start: int, value: bytes) -> tuple[int, int]:
    """The first part of the value that has no NUL, which separates variables: what follows is looked at again."""
    parts = _NOT_NUL.search(value)
    return (start + parts.start(), start + parts.end()) if parts else (start, start + len(value))
