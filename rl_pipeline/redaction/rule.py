"""What a rule is, and how the rule files are read.

A rule file is TOML, one `[[rule]]` per rule, the most specific first: where two rules find the same value, the earlier
one names it. Examples carry the value in guillemets: `token: «ghp_…»`. All of them are run as tests.
"""

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from rl_pipeline.errors import PipelineError
from rl_pipeline.redaction.validators import Validator, validator_named

KINDS = frozenset(
    {
        "API_KEY",
        "PASSWORD",
        "PRIVATE_KEY",
        "JWT",
        "SECRET",
        "EMAIL",
        "PHONE",
        "CREDIT_CARD",
        "SSN",
        "IBAN",
        "IP_ADDRESS",
        "ADDRESS",
        "NAME",
        "IDENTIFIER",
        "USER",
    }
)
"""What a placeholder may say that it stands for."""

_FILES = ("providers.toml", "keys.toml", "assignments.toml", "personal.toml")
_EXAMPLE_VALUE = re.compile("«([^»]*)»")


class InvalidRule(PipelineError):
    """A rule that cannot be used; the text names it and says why."""


@dataclass(frozen=True)
class Rule:
    """How one kind of sensitive value is recognised.

    `pattern` decides, on UTF-8 bytes: it is matched at the anchor's start, and its group `value` (the whole match
    without one) is what is replaced, if every validator agrees. Look-behinds may look further back.

    `anchor` finds candidates, by Vectorscan: wherever `pattern` matches, `anchor` matches from the same start, or,
    with `before`, from at most that many bytes after it. It has no look-around, and is as rare in ordinary text as it
    can be: every hit costs a match in Python.
    """

    id: str
    kind: str
    description: str
    anchor: str
    pattern: re.Pattern[bytes]
    validators: tuple[Validator, ...]
    before: int
    on: bool
    """Whether the rule is used where the policy does not say."""
    examples: tuple[str, ...]
    counter_examples: tuple[str, ...]
    fingerprint: str
    """Changes with everything that decides what the rule finds."""

    def accepts(self, match: re.Match[bytes]) -> bool:
        """Whether every validator takes the value for a real one."""
        value = self.value_of(match)
        for validator in self.validators:  # noqa: SIM110  # a generator would double the time of the quick ones
            if not validator(value, match):
                return False
        return True

    def value_of(self, match: re.Match[bytes]) -> bytes:
        """What the match found."""
        return match["value"] if "value" in self.pattern.groupindex else match[0]

    def span_of(self, match: re.Match[bytes]) -> tuple[int, int]:
        """Where the value lies."""
        return match.span("value") if "value" in self.pattern.groupindex else match.span()


def read_example(example: str) -> tuple[str, tuple[str, ...]]:
    """The text of an example without its guillemets, and the values that they mark."""
    return example.replace("«", "").replace("»", ""), tuple(_EXAMPLE_VALUE.findall(example))


@cache
def packaged_rules() -> tuple[Rule, ...]:
    """The rules of this version, the most specific first."""
    directory = files("rl_pipeline.redaction").joinpath("rules")
    rules = [rule for name in _FILES for rule in parse_rules(directory.joinpath(name).read_text(encoding="utf-8"))]
    ids = [rule.id for rule in rules]
    if doubled := sorted({rule_id for rule_id in ids if ids.count(rule_id) > 1}):
        raise InvalidRule(f"{', '.join(doubled)}: give each rule an id of its own")
    return tuple(rules)


def parse_rules(text: str) -> Sequence[Rule]:
    """The rules of one TOML text; raises `InvalidRule`."""
    return [_rule(entry) for entry in tomllib.loads(text).get("rule", [])]


def _rule(entry: Mapping[str, Any]) -> Rule:
    name = entry.get("id", "a rule without an id")
    try:
        if entry["kind"] not in KINDS:
            raise InvalidRule(f"{name}: no kind {entry['kind']}, use one of {', '.join(sorted(KINDS))}")
        return Rule(
            id=entry["id"],
            kind=entry["kind"],
            description=entry["description"],
            anchor=entry["anchor"],
            pattern=re.compile(entry["pattern"].encode()),
            validators=tuple(map(validator_named, entry.get("validators", []))),
            before=entry.get("before", 0),
            on=entry.get("on", True),
            examples=tuple(entry["examples"]),
            counter_examples=tuple(entry["counter_examples"]),
            fingerprint=_fingerprint(entry),
        )
    except KeyError as absent:
        raise InvalidRule(f"{name}: lacks {absent}") from None
    except re.error as wrong:
        raise InvalidRule(f"{name}: {wrong}") from None


def _fingerprint(entry: Mapping[str, Any]) -> str:
    told = {name: value for name, value in entry.items() if name not in {"description", "examples", "counter_examples"}}
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
