"""How well findings agree with labels.

A labelled stretch is found when findings of its entity cover at least half of it. A finding is false when it overlaps
no label of any entity: what a tool names differently is neither found nor false. A text of a secret set is found when
the tool finds any secret in it, and false when it does so without there being one.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .sets import SECRET, SecretSet, Span, SpanRow, SpanSet
from .tools import Tool


@dataclass
class Score:
    """Counts, and the three figures made of them; None where there is nothing to divide by."""

    found: int = 0
    missed: int = 0
    false: int = 0

    @property
    def precision(self) -> float | None:
        return self.found / (self.found + self.false) if self.found + self.false else None

    @property
    def recall(self) -> float | None:
        return self.found / (self.found + self.missed) if self.found + self.missed else None

    @property
    def f1(self) -> float | None:
        weight = 2 * self.found + self.missed + self.false
        return 2 * self.found / weight if weight else None

    def __add__(self, other: "Score") -> "Score":
        return Score(self.found + other.found, self.missed + other.missed, self.false + other.false)


def score_secrets(tool: Tool, secrets: SecretSet) -> Score:
    """By text: whether the tool finds any secret in it."""
    score = Score()
    for row in secrets.rows:
        seen = any(finding.entity == SECRET for finding in tool.findings(row.text))
        if row.holds_secret:
            score.found += seen
            score.missed += not seen
        else:
            score.false += seen
    return score


def score_spans(tool: Tool, spans: SpanSet) -> dict[str, Score]:
    """By entity, of those that the tool looks for; under the empty name, all that are scored together."""
    scores: dict[str, Score] = defaultdict(Score)
    for row in spans.rows:
        _score_row(tool.findings(row.text), row, scores)
    asked = [entity for entity in (*spans.entities, *spans.also) if entity in tool.entities]
    together = sum((scores[entity] for entity in asked if entity in spans.entities), Score())
    return {"": together} | {entity: scores[entity] for entity in asked}


def _score_row(findings: Sequence[Span], row: SpanRow, scores: dict[str, Score]) -> None:
    for label in row.labels:
        covered = _covered(label, (finding for finding in findings if finding.entity == label.entity))
        if 2 * covered >= label.end - label.start:
            scores[label.entity].found += 1
        else:
            scores[label.entity].missed += 1
    for finding in _merged(findings):
        if not any(label.start < finding.end and finding.start < label.end for label in row.labels):
            scores[finding.entity].false += 1


def _covered(label: Span, findings: Iterable[Span]) -> int:
    return len({at for f in findings for at in range(max(f.start, label.start), min(f.end, label.end))})


def _merged(findings: Sequence[Span]) -> list[Span]:
    """Findings of one entity that overlap count once."""
    merged: list[Span] = []
    for finding in sorted(findings, key=lambda each: (each.entity, each.start)):
        if merged and merged[-1].entity == finding.entity and finding.start < merged[-1].end:
            merged[-1] = merged[-1]._replace(end=max(merged[-1].end, finding.end))
        else:
            merged.append(finding)
    return merged
