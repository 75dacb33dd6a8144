"""Runs all rules over a passage.

`AnchorScanner` lets Vectorscan find the anchors of all rules in one pass and asks a rule's pattern only there.
`PlainScanner` asks every pattern everywhere: it says what is right in tests, and serves where Vectorscan is missing.
Both take, for each rule and segment from left to right, every accepted match that does not begin inside an earlier one.
"""

import hashlib
import re
import threading
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from re import _parser  # type: ignore[attr-defined]  # the only reader of a pattern's width
from typing import TYPE_CHECKING, NamedTuple, Protocol

from rl_pipeline.redaction.literals import LONG, is_bounded, occurrences
from rl_pipeline.redaction.passage import Passage
from rl_pipeline.redaction.rule import InvalidRule, Rule

if TYPE_CHECKING:
    import hyperscan

UNSCANNABLE = "unscannable"
DICTIONARY = "dictionary"
"""What findings are counted as that no rule of the files made."""

_GLOBAL_FLAGS = re.compile(rb"\A\(\?[aimsx]+\)")
_FIRST_WORDS = re.compile(r"(?:\(\?(?P<flag>i)\))?(?P<words>\(\?:[\w|]+\)|[\w:/-]+)(?![?*{|+])")
_CHOICE_OF_WORDS = re.compile(r"(\(\?i\))?\(\?:([\w |-]+\|[\w |-]+)\)(.+)", re.DOTALL)
_WIDEST_VARIATION = 1024
_INDENTS = ("", " ", "  ", "    ", "        ", "\t")
_BREAKS = (*(end + indent for end in ("\n", "\\\n") for indent in _INDENTS), "\r\n", "\\\n\\\n")
_BETWEEN_WORDS = (" ", "  ", "   ", "\t", "\u00a0", ".", "_", "-", "+", "%20", "\x01\x01\x01", *_BREAKS)
"""What may stand between the words of an entry of the dictionary, escapes as a passage shows them; one literal for
each: Vectorscan compiles twenty of them sooner than an expression for all."""
_APOSTROPHES = ("'", "\u2019")
_PATIENCE, _LEAST_PATIENCE = 8, 1 << 16
"""How many bytes a rule may match and reject in one segment, per byte of it and at least: a text made to be matched at
every place from there to its end would take hours, and is replaced as a whole instead."""


class Source(NamedTuple):
    """Who found something; the lowest order names the kind."""

    order: int
    rule_id: str
    kind: str


class Finding(NamedTuple):
    """Where in a passage's buffer something lies that is to be replaced."""

    start: int
    end: int
    source: Source


class Scanner(Protocol):
    """Finds what the rules and the dictionary name."""

    def findings(self, passage: Passage) -> list[Finding]:
        """Everything found, in no particular order; may overlap."""
        ...

    def compiled(self) -> bytes | None:
        """What takes long to make, for another process; None if there is nothing of the kind."""
        ...


def open_scanner(rules: Sequence[Rule], dictionary: Mapping[str, str], compiled: bytes | None = None) -> Scanner:
    """The quickest scanner that this machine can run."""
    try:
        import hyperscan  # noqa: F401  # asked for by name only
    except ImportError:
        return PlainScanner(rules, dictionary)
    return AnchorScanner(rules, dictionary, compiled)


class _Matcher:
    """One rule, ready to be tried."""

    def __init__(self, rule: Rule, order: int, reach: int = 0) -> None:
        self.rule = rule
        self.source = Source(order, rule.id, rule.kind)
        self.failure = Source(order, UNSCANNABLE, "SECRET")
        self.locator = _locator(rule, reach) if reach else rule.pattern
        self.attempt = self.locator.match
        """Gives None where nothing begins at a start or within reach of it."""

    def trial(self, buffer: bytes, segment: tuple[int, int], found: list[Finding]) -> "_Trial":
        """The rule in one segment; what it finds is added to `found`."""
        return _Trial(self, buffer, segment, found)


class _Trial:
    """One rule in one segment, from left to right."""

    def __init__(self, matcher: _Matcher, buffer: bytes, segment: tuple[int, int], found: list[Finding]) -> None:
        self._matcher = matcher
        self._buffer = buffer
        self._segment = segment
        self._found = found
        self._patience = _PATIENCE * (segment[1] - segment[0]) + _LEAST_PATIENCE

    def collect(self, low: int, high: int) -> int:
        """Add what begins from `low` to `high`; returns the first start that is still to be tried."""
        while low <= high:
            match = self._first(low, high)
            if match is None:
                return high + 1
            low = self._judge(match)
        return low

    def collect_all(self) -> None:
        """Add what lies in the segment, wherever it begins."""
        low, end = self._segment
        while match := self._matcher.rule.pattern.search(self._buffer, low, end):
            low = self._judge(match)

    def _first(self, low: int, high: int) -> re.Match[bytes] | None:
        """The first match that begins from `low` to `high`, which is no more than the locator's reach."""
        if low < high:
            located = self._matcher.locator.match(self._buffer, low, self._segment[1])
            if located is None or located.end() > high:
                return None
            low = located.end()
        return self._matcher.rule.pattern.match(self._buffer, low, self._segment[1])

    def _judge(self, match: re.Match[bytes]) -> int:
        """Add what the match found if it is accepted, the whole segment if nobody can tell; returns where to go on."""
        rule = self._matcher.rule
        try:
            accepted = rule.accepts(match)
        except Exception:  # noqa: BLE001  # a rule that fails must not let its value pass
            return self._give_up()
        if accepted:
            self._found.append(Finding(*rule.span_of(match), self._matcher.source))
            return max(match.end(), match.start() + 1)
        self._patience -= match.end() - match.start()
        return match.start() + 1 if self._patience > 0 else self._give_up()

    def _give_up(self) -> int:
        self._found.append(Finding(*self._segment, self._matcher.failure))
        return self._segment[1]


class PlainScanner:
    """Every pattern at every place."""

    def __init__(self, rules: Sequence[Rule], dictionary: Mapping[str, str]) -> None:
        self._matchers = [_Matcher(rule, order) for order, rule in enumerate(rules)]
        self._dictionary = _dictionary_sources(dictionary, len(rules))

    def compiled(self) -> None:
        """Nothing to compile."""

    def findings(self, passage: Passage) -> list[Finding]:
        found: list[Finding] = []
        segments = list(passage.segments())
        for matcher in self._matchers:
            for segment in segments:
                matcher.trial(passage.buffer, segment, found).collect_all()
        if self._dictionary:
            lowered = passage.buffer.lower()
            for start, end in occurrences(lowered, self._dictionary):
                if end <= passage.segment(start)[1]:
                    found.append(Finding(start, end, self._dictionary[lowered[start:end]]))
        return found


class _Expression(NamedTuple):
    """What Vectorscan looks for; the match it leads to begins between `most` and `least` bytes before its end."""

    text: bytes
    rule: int
    most: int
    least: int


class _Literal(NamedTuple):
    """An entry of the dictionary, which is found where it is seen as a whole word."""

    text: bytes
    source: Source

    def attempt(self, buffer: bytes, start: int, end: int) -> int | None:
        """Gives None where it is no whole word."""
        own_end = start + len(self.text)
        whole = len(self.text) >= LONG or is_bounded(buffer, start, own_end)
        return start if own_end <= end and whole else None

    def trial(self, _buffer: bytes, _segment: tuple[int, int], found: list[Finding]) -> "_LiteralTrial":
        """The entry in one segment; what it finds is added to `found`."""
        return _LiteralTrial(self, found)


class _LiteralTrial(NamedTuple):
    """One entry of the dictionary in one segment."""

    literal: _Literal
    found: list[Finding]

    def collect(self, _low: int, high: int) -> int:
        """Add it; returns the first start that is still to be tried."""
        self.found.append(Finding(high, high + len(self.literal.text), self.literal.source))
        return high + (1 if len(self.literal.text) < LONG else len(self.literal.text))


class AnchorScanner:
    """Patterns only where Vectorscan saw their anchor; `compiled` by a scanner of the same rules saves a second."""

    def __init__(self, rules: Sequence[Rule], dictionary: Mapping[str, str], compiled: bytes | None = None) -> None:
        self._rule_ids = [rule.id for rule in rules]
        self._expressions: list[_Expression] = []
        self._matchers: list[_Matcher | _Literal] = []
        for number, rule in enumerate(rules):
            expressions = _expressions(rule, number)
            self._expressions += expressions
            self._matchers.append(_Matcher(rule, number, reach=max(one.most - one.least for one in expressions)))
        for number, (text, source) in enumerate(_dictionary_sources(dictionary, len(rules)).items(), start=len(rules)):
            escaped = b"(?i)" + b"".join(b"\\x%02x" % byte for byte in text)
            self._rule_ids.append(DICTIONARY)
            self._expressions.append(_Expression(escaped, number, len(text), len(text)))
            self._matchers.append(_Literal(text, source))
        self.database = self._loaded(compiled) or _compiled(self._expressions, self._rule_ids)
        self._places = [(one.rule, one.most, one.least) for one in self._expressions]
        self._attempts = [matcher.attempt for matcher in self._matchers]
        self._of_thread = threading.local()

    def compiled(self) -> bytes:
        import hyperscan

        return self._fingerprint() + hyperscan.dumpb(self.database)

    def hits(self, buffer: bytes) -> list[tuple[int, int, int]]:
        """Every anchor that Vectorscan saw, in order: number of the rule, first and last start to try."""
        hits: list[tuple[int, int, int]] = []
        append, places = hits.append, self._places

        def on_hit(expression: int, _start: int, end: int, _flags: int, _context: object) -> None:
            rule, most, least = places[expression]
            append((rule, end - most, end - least))

        if places:
            self.database.scan(buffer, match_event_handler=on_hit, scratch=self._scratch())
        hits.sort()
        return hits

    def findings(self, passage: Passage) -> list[Finding]:
        found: list[Finding] = []
        buffer, attempts = passage.buffer, self._attempts
        current, untried, segment = -1, 0, (0, 0)
        trial: _Trial | _LiteralTrial | None = None
        for rule, low, high in self.hits(buffer):
            if rule != current:
                current, untried, trial = rule, 0, None
            if high < untried:
                continue
            if not segment[0] <= high < segment[1]:
                segment, trial = passage.segment(high), None
                if not segment[0] <= high < segment[1]:
                    continue
            first = max(low, segment[0], untried)
            if attempts[rule](buffer, first, segment[1]) is None:  # nearly always
                untried = high + 1
                continue
            if trial is None:
                trial = self._matchers[rule].trial(buffer, segment, found)
            untried = trial.collect(first, high)
        return found

    def _fingerprint(self) -> bytes:
        """Of what was compiled: another process must not load the anchors of other rules."""
        return hashlib.sha256(repr((version("hyperscan"), self._expressions)).encode()).digest()

    def _loaded(self, compiled: bytes | None) -> "hyperscan.Database | None":
        fingerprint = self._fingerprint()
        if compiled is None or not compiled.startswith(fingerprint):
            return None
        import hyperscan

        return hyperscan.loadb(compiled.removeprefix(fingerprint), hyperscan.HS_MODE_BLOCK)

    def _scratch(self) -> "hyperscan.Scratch":
        scratch: hyperscan.Scratch | None = getattr(self._of_thread, "scratch", None)
        if scratch is None:
            from hyperscan import Scratch

            scratch = self._of_thread.scratch = Scratch(self.database)
        return scratch


def _expressions(rule: Rule, number: int) -> list[_Expression]:
    """The anchor, taken apart where it begins with a choice of words: Vectorscan is far quicker at many simple ones."""
    choice = _CHOICE_OF_WORDS.fullmatch(rule.anchor)
    flags, words, rest = choice.groups(default="") if choice else ("", rule.anchor, "")
    expressions = []
    for word in words.split("|") if choice else [words]:
        text = f"{flags}{word}{rest}".encode()
        least, most = _parser.parse(text).getwidth()
        if most - least > _WIDEST_VARIATION:
            raise InvalidRule(
                f"{rule.id}: bound the repeats of its anchor, which varies by over {_WIDEST_VARIATION} bytes"
            )
        expressions.append(_Expression(text, number, most + rule.before, least))
    return expressions


def _locator(rule: Rule, reach: int) -> re.Pattern[bytes]:
    """Ends where the pattern matches first, at most `reach` bytes on: a search with a bound on the start."""
    pattern = rule.pattern
    source = _GLOBAL_FLAGS.sub(b"", pattern.pattern)
    closing = b"\n)" if pattern.flags & re.VERBOSE else b")"
    # Most starts fail at the word that the anchor begins with, long before the pattern would.
    opening = _FIRST_WORDS.match(rule.anchor) if rule.before == 0 else None
    words = f"(?{opening['flag'] or ''}:{opening['words']})".encode() if opening else b""
    return re.compile(b"(?s:.{0,%d}?)(?=%s)(?=" % (reach, words) + source + closing, pattern.flags)


def _dictionary_sources(dictionary: Mapping[str, str], order: int) -> dict[bytes, Source]:
    """The spellings to look for, in ASCII's lower case: Vectorscan ignores the case of nothing else."""
    sources: dict[bytes, Source] = {}
    for literal, kind in dictionary.items():
        for plain in _ways_to_write(literal, is_name=kind == "NAME"):
            for spelling in (plain, plain.lower(), plain.upper(), plain.title(), plain.casefold()):
                sources.setdefault(spelling.encode().lower(), Source(order, DICTIONARY, kind))
    return sources


def _ways_to_write(literal: str, *, is_name: bool) -> set[str]:
    """The entry with all that may stand between its words, its apostrophes straight and curly; names also reversed."""
    words = literal.split()
    ways = {between.join(words) for between in _BETWEEN_WORDS}
    if is_name and len(words) > 1:
        ways |= {f"{words[-1]},{space}{' '.join(words[:-1])}" for space in ("", " ")}
    if any(apostrophe in literal for apostrophe in _APOSTROPHES):
        straight, curly = _APOSTROPHES
        ways |= {way.replace(straight, curly) for way in ways} | {way.replace(curly, straight) for way in ways}
    return ways


def _compiled(expressions: Sequence[_Expression], rule_ids: Sequence[str]) -> "hyperscan.Database":
    import hyperscan

    database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
    try:
        if expressions:
            database.compile([one.text for one in expressions], ids=list(range(len(expressions))))
    except hyperscan.error:
        if len(expressions) == 1:
            raise InvalidRule(f"{rule_ids[expressions[0].rule]}: Vectorscan cannot compile its anchor") from None
        for expression in expressions:
            _compiled([expression], rule_ids)
        raise
    return database
