"""What a deployment decides about redaction: its key, its own names, and which rules are used."""

import hashlib
import hmac
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rl_pipeline.errors import PipelineError
from rl_pipeline.redaction.rule import Rule, packaged_rules

ENGINE_VERSION = 3
"""Raised with every change of the engine, its field names or its validators that changes what is found."""

DICTIONARY_KINDS = frozenset({"NAME", "IDENTIFIER"})
_SHORTEST_KEY = 32
_SHORTEST_DICTIONARY_ENTRY = 3
_KEY = re.compile(r"(?P<version>[A-Za-z0-9._-]{1,32}):(?P<secret>.+)", re.DOTALL)


class InvalidPolicy(PipelineError):
    """A policy that cannot be used; the text says what to change."""


@dataclass(frozen=True)
class RedactionKey:
    """What placeholders are keyed with: without it nobody can test a guess against a placeholder.

    Whoever holds it can guess values with few possibilities (phones, social security numbers), so the edge has another
    key than the pipeline.
    """

    version: str
    secret: bytes = field(repr=False)

    @classmethod
    def parse(cls, text: str) -> "RedactionKey":
        """Read `v1:<secret>`; a secret of hexadecimal digits is taken as the bytes that they stand for."""
        found = _KEY.fullmatch(text.strip())
        if found is None:
            raise InvalidPolicy("the redaction key has no version: write it as v1:<at least 32 characters>")
        if len(found["secret"]) < _SHORTEST_KEY:
            raise InvalidPolicy(f"the redaction key is too short: use {_SHORTEST_KEY} characters or more")
        try:
            secret = bytes.fromhex(found["secret"])
        except ValueError:
            secret = found["secret"].encode()
        return cls(found["version"], secret)


@dataclass(frozen=True)
class RedactionPolicy:
    """The rules of one deployment."""

    key: RedactionKey
    dictionary: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The deployment's own names and identifiers, and their kind; found as whole words, whatever their case."""
    allowed: frozenset[str] = field(default=frozenset(), repr=False)
    """Exact values that are never redacted."""
    rules_on: frozenset[str] = frozenset()
    rules_off: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if unfit := sorted(set(self.dictionary.values()) - DICTIONARY_KINDS):
            raise InvalidPolicy(f"the dictionary has the kind {unfit[0]}: use NAME or IDENTIFIER")
        if any(map(_is_too_short, self.dictionary)):
            raise InvalidPolicy(f"give the dictionary entries of {_SHORTEST_DICTIONARY_ENTRY} characters or more")
        if any("\ud800" <= character <= "\udfff" for literal in self.dictionary for character in literal):
            raise InvalidPolicy("the dictionary holds half a character: write it as UTF-8 again")
        if both := sorted(self.rules_on & self.rules_off):
            raise InvalidPolicy(f"the rule {both[0]} is switched both on and off: choose one")

    @property
    def revision(self) -> str:
        """Equal exactly where the packaged rules under this policy give equal results."""
        return self.revision_with(packaged_rules())

    def revision_with(self, rules: Sequence[Rule]) -> str:
        """The revision of other rules than the packaged ones."""
        content = {
            "engine": ENGINE_VERSION,
            "rules": [rule.fingerprint for rule in rules],
            "dictionary": dict(self.dictionary),
            "allowed": sorted(self.allowed),
            "on": sorted(self.rules_on),
            "off": sorted(self.rules_off),
            "key": self.key.version,
        }
        # Keyed, so that nobody can test a guess at the dictionary against it.
        written = json.dumps(content, sort_keys=True).encode()
        return hmac.new(self.key.secret, written, hashlib.sha256).hexdigest()[:16]

    def choose(self, rules: Sequence[Rule]) -> tuple[Rule, ...]:
        """The rules that are used; raises `InvalidPolicy` for an id that no rule has."""
        if unknown := sorted((self.rules_on | self.rules_off) - {rule.id for rule in rules}):
            raise InvalidPolicy(f"there is no redaction rule {unknown[0]}: take its id from the list of rules")
        return tuple(rule for rule in rules if rule.id not in self.rules_off and (rule.on or rule.id in self.rules_on))

    def kinds_switched_off(self) -> frozenset[str]:
        """The kinds of value of which the deployment has switched a rule off: it wants to keep some of them."""
        return frozenset(rule.kind for rule in packaged_rules() if rule.id in self.rules_off)


def _is_too_short(literal: str) -> bool:
    """Names of two characters are whole names only where an alphabet is no alphabet (`王芳`)."""
    plain = literal.strip()
    return len(plain) < (_SHORTEST_DICTIONARY_ENTRY if plain.isascii() else _SHORTEST_DICTIONARY_ENTRY - 1)
