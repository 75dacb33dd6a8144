"""Puts placeholders in the place of everything sensitive in a tree or a text.

What was changed is scanned again until nothing more is found, because a replaced neighbour can uncover a value: so
redacting twice changes nothing.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from rl_pipeline.errors import PipelineError
from rl_pipeline.redaction.flat_text import named_values, quoted_values, unescaped
from rl_pipeline.redaction.leaves import Leaves, NameCache, SensitivePart
from rl_pipeline.redaction.passage import Passage, encoded
from rl_pipeline.redaction.placeholders import PLACEHOLDER, placeholder
from rl_pipeline.redaction.policy import RedactionPolicy
from rl_pipeline.redaction.resolution import FIELD_ORDER, SENSITIVE_FIELD, Knowledge
from rl_pipeline.redaction.rewriting import Rewriting
from rl_pipeline.redaction.rule import KINDS, Rule, packaged_rules
from rl_pipeline.redaction.scanner import Finding, Source, open_scanner

__all__ = ["PLACEHOLDER", "Redacted", "RedactedText", "Redactor", "SensitiveKey"]

Finder = Callable[[Passage], Iterable[Finding]]
_BETWEEN_TEXTS = len(Passage(["", ""]).buffer)
_NOTHING_KNOWN: Mapping[str, str] = MappingProxyType({})


class SensitiveKey(PipelineError):
    """The name of a field is itself sensitive, and names never change: the tree must be refused."""

    def __init__(self) -> None:
        super().__init__("the name of a field holds a secret or personal data: publish it as a value, not as a name")


@dataclass(frozen=True)
class Redacted:
    """A tree without what was found in it."""

    tree: Any
    counts: dict[str, int]
    """How many values each rule replaced."""


@dataclass(frozen=True)
class RedactedText:
    """A text without what was found in it."""

    text: str
    counts: dict[str, int]
    """How many values each rule replaced."""


class Redactor:
    """One deployment's policy, ready to use; may be shared by threads.

    The rules take a second to compile: hand `compiled()` to another process that uses the same rules.
    """

    def __init__(
        self, policy: RedactionPolicy, rules: Sequence[Rule] | None = None, *, compiled: bytes | None = None
    ) -> None:
        every = packaged_rules() if rules is None else rules
        self.revision = policy.revision_with(every)
        self._key = policy.key
        self._allowed = frozenset(map(encoded, policy.allowed))
        self._scanner = open_scanner(policy.choose(every), policy.dictionary, compiled)
        self._names = NameCache()

    def compiled(self) -> bytes | None:
        """What another process needs to begin at once: the rules and the dictionary, but not the key."""
        return self._scanner.compiled()

    def placeholder(self, kind: str, value: str) -> str:
        """What stands for `value` in everything that this redactor writes."""
        if kind not in KINDS:
            raise PipelineError(f"no kind {kind}: use one of {', '.join(sorted(KINDS))}")
        return placeholder(self._key, kind, encoded(value))

    def redact(
        self, tree: Any, known: Mapping[str, str] = _NOTHING_KNOWN, *, memory: Knowledge | None = None
    ) -> Redacted:
        """The tree with placeholders; `known` are further values of this tree with their kinds, as its user's id.

        A tree that comes in parts has one `memory` for all of them: what was found in one is found in the others, and
        `known` is what the memory was made with. Raises `SensitiveKey` where the name of a field would have to change.
        """
        leaves = Leaves(tree, self._names)
        new_names = list(leaves.new_names)
        passage = Passage([*leaves.texts, *new_names])
        found = self._found(passage)
        found += self._fit(passage, _in_quotes)
        if leaves.parts:
            found += self._fit(passage, lambda passage: _parts_in(passage, leaves.parts))
        if new_names:
            if any(passage.texts_between(0, finding.start) >= len(leaves.texts) for finding in found):
                raise SensitiveKey
            self._names.add(new_names)
            passage = Passage(leaves.texts)
        knowledge = Knowledge(known) if memory is None else memory
        if not (found or leaves.fields or known or knowledge.looked_for):
            return Redacted(tree, {})
        found += self._fit(passage, knowledge.known_in)
        texts, fields = dict[int, str](), dict[tuple[int, str | int], str]()
        if found or leaves.fields or knowledge.looked_for:
            rewriting = Rewriting(self._key, self._allowed, knowledge, self._with(knowledge.known_in, _in_quotes))
            texts, fields = rewriting.tree(passage, found, leaves.fields)
        if knowledge.is_in_names(leaves.all_names()):
            raise SensitiveKey
        return Redacted(leaves.rewritten(texts, fields), dict(knowledge.counts))

    def redact_text(self, text: str) -> RedactedText:
        """The text with placeholders, also for all that follows a sensitive name: for texts that nobody could parse."""
        plain = unescaped(text)
        knowledge = Knowledge(_NOTHING_KNOWN)
        look = self._with(_after_names)
        passage = Passage([plain])
        texts = Rewriting(self._key, self._allowed, knowledge, look).texts(passage, look(passage))
        return RedactedText(texts.get(0, plain), dict(knowledge.counts))

    def _found(self, passage: Passage) -> list[Finding]:
        return self._fit(passage, self._scanner.findings)

    def _with(self, *more: Finder) -> Callable[[Passage], list[Finding]]:
        """Finds what the rules and `more` find."""
        finders = (self._scanner.findings, *more)
        return lambda passage: [one for finder in finders for one in self._fit(passage, finder)]

    def _fit(self, passage: Passage, finder: Finder) -> list[Finding]:
        """What a finder finds, but for the values that the policy allows."""
        if not self._allowed:
            return list(finder(passage))
        return [one for one in finder(passage) if passage.value(one.start, one.end) not in self._allowed]


def _after_names(passage: Passage) -> Iterator[Finding]:
    for start, end, kind in named_values(passage.buffer):
        yield Finding(start, end, Source(FIELD_ORDER, SENSITIVE_FIELD, kind))


def _in_quotes(passage: Passage) -> Iterator[Finding]:
    for start, end, kind in quoted_values(passage.buffer):
        yield Finding(start, end, Source(FIELD_ORDER, SENSITIVE_FIELD, kind))


def _parts_in(passage: Passage, parts: Iterable[SensitivePart]) -> Iterator[Finding]:
    """Where the parts of texts lie; they come in the order of the texts."""
    offset, reached = 0, 0
    for number, start, kind in parts:
        offset += sum(len(encoded(text)) + _BETWEEN_TEXTS for text in passage.texts[reached:number])
        reached, text = number, passage.texts[number]
        source = Source(FIELD_ORDER, SENSITIVE_FIELD, kind)
        yield Finding(offset + len(encoded(text[:start])), offset + len(encoded(text)), source)
