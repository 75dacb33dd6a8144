"""How structure, depth and likeness of an answer's text are measured, in plain Python.

Only content of its own counts: a heading with a section that it names and that says something new, a paragraph or
list item with words not used before, a reason with something on both sides of the "because". Every part saturates.
So repeated paragraphs, empty headings and filler words are worth nothing. The words that join reasons and announce
examples are English; in other languages those two parts stay 0.
"""

import re
from collections import Counter
from collections.abc import Iterator
from math import sqrt
from typing import NamedTuple

_READ = 20_000
"""Characters that are looked at: every part has saturated long before, and a huge answer must not cost seconds."""

_FENCE = re.compile(r"^[ \t]*(?:```|~~~)[^\n]*\n(.*?)(?:^[ \t]*(?:```|~~~)[ \t]*$|\Z)", re.MULTILINE | re.DOTALL)
_HEADING = re.compile(r"#{1,6}\s+(\S.*)")
_ITEM = re.compile(r"\s*(?:[-*•+]|\d{1,3}[.)])\s+(\S.*)")
_WORD = re.compile(r"[^\W\d_]{3,}")
_TOKEN = re.compile(r"\w+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+")
_SPECIFIC = re.compile(r"\d|`[^`]+`")
_EXAMPLE = re.compile(r"\b(?:for example|for instance|such as|e\.g\.|namely)", re.IGNORECASE)
_REASON = re.compile(
    r"\b(?:because|since|therefore|thus|hence|so that|consequently|which means|as a result|due to)\b", re.IGNORECASE
)

_EMPTY_WORDS = frozenset(
    _WORD.findall(
        """
        about above after again all also and another any are because been before being below best between both but can
        clearly conclude conclusion consequently could detail details did discuss does due during each especially
        essentially etc even every example few finally first following for from further furthermore generally given
        good had has have hence her here his how however important importantly instance into introduction its itself
        just key least let like made make many may means more moreover most much must namely near need next not note
        now off often once only other our out over overall own part particular point quite really reason reasoning
        result said same second section see several shall should since some still such summary than that the their
        them then there therefore these they thing things this those through thus too under until upon use used using
        various very was way well were what when where whether which while who why will with within without would yet
        you your
        """
    )
)
"""Words that say nothing about a subject, those that announce content without being it among them."""


class _Block(NamedTuple):
    kind: str
    """heading, item, paragraph or code."""
    text: str


def answer_structure(text: str) -> float:
    """0..0.3: up to 0.1 each for sections under headings (2), for list items (3) and for paragraphs (3)."""
    seen: set[str] = set()
    sections = items = paragraphs = 0
    title: set[str] = set()
    below: set[str] = set()
    gained = 0
    for block in _blocks(text):
        if block.kind == "heading":
            sections += _is_section(title, below, gained)
            title, below, gained = _stems(block.text), set(), 0
            continue
        new = _new_words(block.text, seen)
        below |= _stems(block.text)
        gained += new
        items += block.kind == "item" and new >= 2
        paragraphs += block.kind == "paragraph" and new >= 5
    sections += _is_section(title, below, gained)
    return 0.1 * (min(1.0, sections / 2) + min(1.0, items / 3) + min(1.0, paragraphs / 3))


def answer_depth(text: str) -> float:
    """0..0.4: up to 0.1 each for substance (40 different words), examples (1), reasons (2) and specifics (3).

    A sentence counts only with three words of its own. An example is a sentence that announces one and goes on, or a
    block of code; a reason has two different sides; a specific sentence has a number or a name in backquotes. Of the
    words the first count most (a square root), so a short answer is worth something and a long one little more.
    """
    seen: set[str] = set()
    examples = reasons = specifics = 0
    for block in _blocks(text):
        if block.kind == "heading":
            continue
        if block.kind == "code":
            examples += _new_words(block.text, seen) >= 3
            continue
        for sentence in _SENTENCE_END.split(block.text):
            if _new_words(sentence, seen) >= 3:
                examples += _announces_an_example(sentence)
                reasons += _gives_a_reason(sentence)
                specifics += _SPECIFIC.search(sentence) is not None
    parts = (sqrt(len(seen) / 40), float(examples), reasons / 2, specifics / 3)
    return 0.1 * sum(min(1.0, part) for part in parts)


def answer_similarity(text: str, reference: str) -> float:
    """0..0.3: the F1 of the words that text and reference share. Padding lowers its precision."""
    said, wanted = Counter(_TOKEN.findall(text.lower())), Counter(_TOKEN.findall(reference.lower()))
    total = said.total() + wanted.total()
    return 0.3 * (2 * (said & wanted).total() / total) if total else 0.0


def _blocks(text: str) -> Iterator[_Block]:
    """The parts of a Markdown text in order; a paragraph ends at an empty line, a heading, an item or code."""
    text = text[:_READ]
    position = 0
    for fence in _FENCE.finditer(text):
        yield from _prose(text[position : fence.start()])
        yield _Block("code", fence[1])
        position = fence.end()
    yield from _prose(text[position:])


def _prose(text: str) -> Iterator[_Block]:
    kind, lines = "paragraph", list[str]()
    for line in [*text.splitlines(), ""]:
        heading, item = _HEADING.match(line), _ITEM.match(line)
        if lines and (heading or item or not line.strip()):
            yield _Block(kind, " ".join(lines))
            kind, lines = "paragraph", []
        if heading:
            yield _Block("heading", heading[1])
        elif item:
            kind, lines = "item", [item[1]]
        elif line.strip():
            lines.append(line)


def _content_words(text: str) -> list[str]:
    return [word for word in _WORD.findall(text.lower()) if word not in _EMPTY_WORDS]


def _new_words(text: str, seen: set[str]) -> int:
    """How many different words of the text were not seen before; they are from now on."""
    new = set(_content_words(text)) - seen
    seen |= new
    return len(new)


def _stems(text: str) -> set[str]:
    return {word[:5] for word in _content_words(text)}


def _is_section(title: set[str], below: set[str], gained: int) -> bool:
    """Whether a heading has a section that says something new and that it names: any title fits no text."""
    return gained >= 5 and not title.isdisjoint(below)


def _announces_an_example(sentence: str) -> bool:
    return any(len(_content_words(sentence[found.end() :])) >= 2 for found in _EXAMPLE.finditer(sentence))


def _gives_a_reason(sentence: str) -> bool:
    """Whether one joining word, and only one, stands between two clauses: a row of them reasons about nothing."""
    clauses = _REASON.split(sentence)
    if len(clauses) != 2:
        return False
    effect, cause = (set(_content_words(clause)) for clause in clauses)
    return len(effect - cause) >= 2 and len(cause - effect) >= 2
