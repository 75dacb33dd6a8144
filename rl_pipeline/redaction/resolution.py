"""From findings that may overlap to the values that are replaced, and what one call knows of them.

Nothing of it outlives the call, but for a tree that comes in parts.
"""

import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from rl_pipeline.errors import PipelineError
from rl_pipeline.redaction.literals import (
    is_distinctive,
    is_short_secret,
    needs_boundaries,
    occurrences,
    tells_itself,
)
from rl_pipeline.redaction.passage import Passage, decoded, encoded
from rl_pipeline.redaction.rule import KINDS
from rl_pipeline.redaction.scanner import Finding, Source

KNOWN = "known"
REPEATED = "repeated"
SENSITIVE_FIELD = "sensitive-field"
"""What findings are counted as that no rule of the files made."""

FIELD_ORDER = 1 << 20
_REPEATED_ORDER = 1 << 21
_ESCAPED_IN_JSON = re.compile(rb"[\x00-\x1f\"\\\x80-\xff]")


def merged(findings: Iterable[Finding]) -> Iterator[Finding]:
    """One finding for each run of overlapping ones: the one that holds all others, else their union.

    The lowest order names the kind of a union, and of spans that are equal.
    """
    run: list[Finding] = []
    end = -1
    for finding in sorted(findings):
        if run and finding.start >= end:
            yield _union(run, end)
            run = []
        run.append(finding)
        end = finding.end if len(run) == 1 else max(end, finding.end)
    if run:
        yield _union(run, end)


def _union(run: list[Finding], end: int) -> Finding:
    start = run[0].start
    holders = [finding for finding in run if finding.start == start and finding.end == end]
    return Finding(start, end, min(finding.source for finding in holders or run))


class Knowledge:
    """The values that were found in one tree: where else they are looked for, and the one kind of each."""

    def __init__(self, known: Mapping[str, str]) -> None:
        if unknown := sorted(set(known.values()) - KINDS):
            raise PipelineError(f"no kind {unknown[0]}: use one of {', '.join(sorted(KINDS))}")
        self.counts: Counter[str] = Counter()
        self._known = {encoded(text): Source(-1, KNOWN, kind) for text, kind in known.items() if text}
        self._distinctive_known = [value for value in self._known if is_distinctive(value)]
        self._whole_texts = {text for text in known if text and encoded(text) not in self._distinctive_known}
        self._sources: dict[bytes, Source] = {}
        self._kinds: dict[bytes, str] = {}
        self._looked_for: dict[bytes, Source] = {}
        self._anywhere: set[bytes] = set()
        self._plain: dict[bytes, bytes] = {}

    @property
    def looked_for(self) -> int:
        """How many spellings of values are looked for elsewhere, too."""
        return len(self._looked_for)

    def known_in(self, passage: Passage) -> Iterator[Finding]:
        """Where the known values lie: everywhere if distinctive, else only where they are a whole text."""
        for start, end, value in _found_again(passage, self._distinctive_known):
            yield Finding(start, end, self._known[value])
        for text in self._whole_texts.intersection(passage.texts):
            for start, end, value in _found_again(passage, [encoded(text)]):
                if passage.text_span(start) == (start, end):
                    yield Finding(start, end, self._known[value])

    def learn(self, found: Iterable[tuple[bytes, Source]]) -> None:
        """Note values that were found; the lowest order names the kind of each."""
        for value, source in found:
            first = self._sources[value] = min(source, self._sources.get(value, source))
            if first.order >= FIELD_ORDER and not tells_itself(value, first.kind):
                continue  # `db-credentials` under `secret`
            if is_distinctive(value) or is_short_secret(value, first.kind):
                for spelling in _spellings(value):
                    if spelling != value:
                        self._plain.setdefault(spelling, value)
                    self._looked_for[spelling] = Source(_REPEATED_ORDER, REPEATED, first.kind)
                    if not needs_boundaries(spelling, first.kind):
                        self._anywhere.add(spelling)

    def kind(self, value: bytes, source: Source) -> str:
        """The kind of the value in this tree: what is once written stays."""
        return self._kinds.setdefault(value, self._sources.get(value, source).kind)

    def plain(self, value: bytes) -> bytes:
        """The value without the escapes that it is written with in JSON: both have the same digits."""
        return self._plain.get(value, value)

    def repeated_in(self, passage: Passage) -> Iterator[Finding]:
        """Where the values of all rounds lie."""
        if self._looked_for:
            for start, end, value in _found_again(passage, self._looked_for, self._anywhere):
                yield Finding(start, end, self._looked_for[value])

    def is_in_names(self, names: Iterable[str]) -> bool:
        """Whether a value is also (in) the name of a field."""
        values = {*self._distinctive_known, *filter(is_distinctive, self._looked_for)}
        if not values:
            return False
        return next(occurrences(Passage(list(names)).buffer, values, self._anywhere), None) is not None


def _found_again(
    passage: Passage, values: Collection[bytes], anywhere: Collection[bytes] = ()
) -> Iterator[tuple[int, int, bytes]]:
    """Where the values lie in one segment; the text with its escapes is searched too, where there are any."""
    buffers = [passage.buffer] if passage.buffer is passage.unblanked else [passage.buffer, passage.unblanked]
    for buffer in buffers:
        for start, end in occurrences(buffer, values, anywhere):
            if end <= passage.segment(start)[1]:
                yield start, end, buffer[start:end]


def _spellings(value: bytes) -> Iterator[bytes]:
    """The value, and how it is written in a string of JSON."""
    yield value
    if _ESCAPED_IN_JSON.search(value):
        text = decoded(value)
        yield from (encoded(json.dumps(text, ensure_ascii=only_ascii)[1:-1]) for only_ascii in (False, True))
