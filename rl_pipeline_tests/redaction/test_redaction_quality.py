"""The benchmark of redaction's quality measures what it says, and ours stays above its floors."""

import json
from pathlib import Path

import pytest

from benchmarks.quality.generated import generated_sets
from benchmarks.quality.scoring import Score, score_secrets, score_spans
from benchmarks.quality.sets import PERSONAL, SECRET, SecretRow, SecretSet, Span, SpanRow, SpanSet, sets_in
from benchmarks.quality.tools import Ours

OURS = Ours()


class Finds:
    """A tool that finds what it is told to."""

    name = "told"
    entities = frozenset({"EMAIL_ADDRESS", "PHONE_NUMBER", SECRET})

    def __init__(self, *findings: Span) -> None:
        self._findings = findings

    def findings(self, _text: str) -> tuple[Span, ...]:
        return self._findings


def test_half_of_a_label_found_is_found_and_less_is_missed() -> None:
    labelled = SpanSet("labelled", [SpanRow("0123456789", (Span(0, 10, "EMAIL_ADDRESS"),))])
    half, less = Finds(Span(5, 10, "EMAIL_ADDRESS")), Finds(Span(6, 10, "EMAIL_ADDRESS"))
    assert score_spans(half, labelled)[""] == Score(found=1)
    assert score_spans(less, labelled)[""] == Score(missed=1)


def test_a_finding_is_false_only_where_nothing_is_labelled() -> None:
    labelled = SpanSet("labelled", [SpanRow("0123456789", (Span(0, 4, "PERSON"),))])
    findings = Finds(Span(2, 5, "EMAIL_ADDRESS"), Span(5, 9, "PHONE_NUMBER"), Span(6, 10, "PHONE_NUMBER"))
    assert score_spans(findings, labelled)[""] == Score(false=1)


def test_a_text_counts_once_however_many_secrets_are_found_in_it() -> None:
    secrets = SecretSet("secrets", [SecretRow("any", "text", True), SecretRow("any", "text", False)])
    assert score_secrets(Finds(Span(0, 1, SECRET), Span(2, 3, SECRET)), secrets) == Score(found=1, false=1)
    assert score_secrets(Finds(Span(0, 1, "EMAIL_ADDRESS")), secrets) == Score(missed=1)


def test_both_formats_are_read_and_a_negative_that_is_a_positive_elsewhere_is_left_out(tmp_path: Path) -> None:
    rows = [{"rule": "a", "text": "x", "label": 1}, {"rule": "b", "text": "x", "label": 0}]
    (tmp_path / "secrets.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "people.jsonl").write_text(json.dumps({"text": "ab", "labels": [[0, 1, "PERSON"]]}))
    (tmp_path / "other.jsonl").write_text('{"question": 1}')
    people, secrets = sets_in(tmp_path)
    assert (people.name, people.rows) == ("people", [SpanRow("ab", (Span(0, 1, "PERSON"),))])
    assert (secrets.name, secrets.rows) == ("secrets", [SecretRow("a", "x", True)])


def test_the_labels_of_the_generated_sets_are_where_they_say() -> None:
    for each in generated_sets(200):
        for row in each.rows if isinstance(each, SpanSet) else ():
            for label in row.labels:
                value = row.text[label.start : label.end]
                assert value.strip(" \"'{}<>:,") == value
                assert label.entity in (SECRET, *PERSONAL)


def test_ours_finds_what_the_project_generates_and_little_else() -> None:
    personal, secrets, hard = generated_sets(200)
    assert (score_spans(OURS, personal)[""].f1 or 0) >= 0.98
    assert (score_secrets(OURS, secrets).f1 or 0) >= 0.95
    among_negatives = score_spans(OURS, hard)[""]
    assert (among_negatives.precision or 0) >= 0.98
    assert (among_negatives.recall or 0) >= 0.95


def test_ours_stays_above_the_floors_of_the_public_sets(test_data: Path) -> None:
    floors = {"gitleaks_static_cases": 0.92, "presidio_synth_even_templates": 0.98}
    measured = {}
    for each in sets_in(test_data / "redaction"):
        score = score_secrets(OURS, each) if isinstance(each, SecretSet) else score_spans(OURS, each)[""]
        measured[each.name] = score.f1 or 0
    below = {name: f1 for name, f1 in measured.items() if f1 < floors.get(name, 0.8)}
    if not measured:
        pytest.skip("the data has no sets for redaction")
    assert not below
