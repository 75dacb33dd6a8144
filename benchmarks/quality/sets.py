"""The labelled sets: those found in the directory of test data, in their two formats, as rows of one kind.

A row of secrets is `{rule, text, label}`: whether the text holds a secret of that rule. A row of personal data is
`{text, labels: [[start, end, entity]]}`. What the set is called is the file's stem.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

SECRET = "SECRET"
"""What stands for every kind of secret: the tools name them differently."""

PERSONAL = ("EMAIL_ADDRESS", "PHONE_NUMBER", "CREDIT_CARD", "US_SSN", "IBAN_CODE", "IP_ADDRESS")
"""What patterns can find of personal data, and every tool for it looks for."""


class Span(NamedTuple):
    """A stretch of a text, in characters, and what lies there."""

    start: int
    end: int
    entity: str


@dataclass(frozen=True)
class SpanRow:
    """A text with everything that is sensitive in it."""

    text: str
    labels: tuple[Span, ...]


@dataclass(frozen=True)
class SecretRow:
    """A text that holds a secret, or only looks like it."""

    rule: str
    text: str
    holds_secret: bool


@dataclass(frozen=True)
class SpanSet:
    """Texts with labelled stretches; `entities` are those that are scored together."""

    name: str
    rows: Sequence[SpanRow]
    entities: tuple[str, ...] = PERSONAL
    also: tuple[str, ...] = ()
    """Scored for themselves, and only where a tool looks for them."""


@dataclass(frozen=True)
class SecretSet:
    """Texts with and without secrets."""

    name: str
    rows: Sequence[SecretRow]


def sets_in(directory: Path) -> Iterator[SpanSet | SecretSet]:
    """Every set of a known format in the directory, by name."""
    for path in sorted(directory.glob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        if rows and {"text", "labels"} <= rows[0].keys():
            labelled = [SpanRow(row["text"], tuple(Span(*label) for label in row["labels"])) for row in rows]
            yield SpanSet(path.stem, labelled, also=("STREET_ADDRESS",))
        elif rows and {"rule", "text", "label"} <= rows[0].keys():
            yield SecretSet(path.stem, _unambiguous([SecretRow(r["rule"], r["text"], r["label"] == 1) for r in rows]))


def _unambiguous(rows: Sequence[SecretRow]) -> list[SecretRow]:
    """Without the negatives of one rule that are positives of another."""
    secrets = {row.text.strip() for row in rows if row.holds_secret}
    return [row for row in rows if row.holds_secret or row.text.strip() not in secrets]
