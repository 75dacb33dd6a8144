"""Numbers, words and letters."""

import json
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.validation.item_files import InvalidItems
from rl_pipeline.validation.scorers.closed_answers import is_right, load_closed
from rl_pipeline.validation.suite import Item, UnusableAnswer


def item(kind: str, answer: Any, tolerance: float = 0.0) -> Item:
    return Item("q", "q", expected={"kind": kind, "answer": answer, "tolerance": tolerance})


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("Answer: 1234.5", 1.0),
        ("The total of 3 and 4 is\n**Answer: $1,234.5**", 1.0),
        ("So we get 1,234.50", 1.0),
        ("The answer is 1234.6", 0.0),
        ("Answer: about twelve hundred, say 1234.5", 1.0),
        ("1234.5 is wrong. Answer: 7", 0.0),
        ("none", 0.0),
        ("", 0.0),
    ],
)
def test_a_number_is_the_one_that_the_answer_ends_with(answer: str, score: float) -> None:
    assert is_right(item("number", 1234.5, 0.01), answer) == score


def test_a_number_may_be_off_by_its_tolerance() -> None:
    assert is_right(item("number", 5.07, 0.011), "Answer: 5.08") == 1.0
    assert is_right(item("number", 5.07, 0.0), "Answer: 5.08") == 0.0
    assert is_right(item("number", -0.5), "Answer: -0.5") == 1.0


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("Answer: March.", 1.0),
        ("answer = MAR", 1.0),
        ("It is clearly\n\nMarch", 1.0),
        ("Answer: April", 0.0),
        ("", 0.0),
    ],
)
def test_words_are_compared_without_case_and_signs(answer: str, score: float) -> None:
    assert is_right(item("exact", "Mar|March"), answer) == score


@pytest.mark.parametrize(
    ("answer", "score"),
    [("Answer: B", 1.0), ("**Answer: (b)**", 1.0), ("A is tempting, but\nB", 1.0), ("Answer: C", 0.0), ("Both", 0.0)],
)
def test_a_choice_is_its_letter(answer: str, score: float) -> None:
    assert is_right(item("choice", "B"), answer) == score


def test_an_unknown_kind_is_no_score() -> None:
    with pytest.raises(UnusableAnswer):
        is_right(item("essay", "x"), "x")


def test_the_answer_has_to_be_of_its_kind(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps({"id": "a", "prompt": "?", "kind": "number", "answer": "7"}))
    with pytest.raises(InvalidItems, match="should be a number"):
        load_closed(path)
