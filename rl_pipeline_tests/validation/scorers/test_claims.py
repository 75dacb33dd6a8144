"""Texts that sum sources up."""

import json
from pathlib import Path

import pytest

from rl_pipeline.validation.item_files import InvalidItems
from rl_pipeline.validation.scorers.claims import coverage, load_claims
from rl_pipeline.validation.suite import Item

ITEM = Item("q", "q", expected={"required": ["crack", "20(?:16|17)"], "forbidden": ["collapsed"], "most_words": 12})


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("Cracks were found in 2016.", 1.0),
        ("Cracks were found.", 0.5),
        ("It collapsed in 2017 because of cracks.", 0.0),
        ("It collapsed.", 0.0),
        ("", 0.0),
        ("word " * 12 + "cracks 2016", 0.0),
    ],
)
def test_points_count_and_false_ones_count_against(answer: str, score: float) -> None:
    assert coverage(ITEM, answer) == score


@pytest.mark.parametrize(
    ("more", "complaint"),
    [({"required": ["(a"]}, "is no regular expression"), ({"required": []}, "something should be required")],
)
def test_claims_that_cannot_be_found_are_refused(more: dict[str, object], complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text(json.dumps({"id": "a", "prompt": "?", **more}))
    with pytest.raises(InvalidItems, match=complaint):
        load_claims(path)
