"""How answers are measured, and that padding does not pay."""

import pytest

from rl_pipeline.rewards.formulas import answer_depth, answer_quality, answer_similarity, answer_structure

WELL_STRUCTURED = """\
## How the search works

Binary search keeps two borders of a sorted list and compares the middle element with the target. Each step halves the
range, because everything on the wrong side of the middle is thrown away.

## Cost of the search

A list of 1,000,000 elements needs at most 20 comparisons, so the cost grows with the logarithm of the length.

- sorted input is required, otherwise borders mislead
- duplicates return any matching position
- an empty list returns `-1`

For example, searching 7 in the list 1, 3, 7, 9 looks at 3 first and then finds 7:

```python
position = search([1, 3, 7, 9], 7)
```
"""
SHORT = "Use binary search on the sorted list, it halves the range each step."
PLAIN = """\
The service fails because its connection pool is exhausted while slow queries hold every slot.
Raise the pool from 10 to 40 connections and add an index on the orders table.
"""


def quality(text: str) -> float:
    worth = answer_quality(answer_structure(text), answer_depth(text), None)
    assert worth is not None
    return worth


def test_a_well_structured_answer_with_examples_is_worth_about_eight_tenths() -> None:
    """The example says +0.8. Structure: 2 sections 0.1, 3 items 0.1 and 2 of 3 paragraphs 0.067. Depth: the root
    of 39 of 40 words 0.099, an example 0.1, 1 of 2 reasons 0.05 and 2 of 3 specific sentences 0.067.
    Together 0.58 / 0.7 = 0.83."""
    assert 0.7 <= quality(WELL_STRUCTURED) <= 0.9


def test_a_short_answer_without_structure_is_worth_about_two_tenths() -> None:
    """The example says +0.2. One of 3 paragraphs 0.033 and the root of 7 of 40 words 0.042 are 0.075 / 0.7 = 0.11;
    with a reason (0.05) and two figures in a sentence (0.033) it is 0.26."""
    assert 0.1 <= quality(SHORT) <= quality(PLAIN) <= 0.3


@pytest.mark.parametrize("text", ["", "  \n\n \t", "#", "```\n```", "...", "- \n- "])
def test_an_empty_answer_is_worth_nothing(text: str) -> None:
    assert quality(text) == 0.0


def test_structure_and_depth_end_at_their_shares() -> None:
    """With 9 sections of words that no other section has, each with a list, an example, a reason and a number."""
    sections = (
        f"## {a}subject\n\n{a}subject {a}river {a}stone {a}cloud carries {a}light 3 times"
        f" because {a}wind moves {a}sand. For example {a}apple {a}grape {a}melon."
        f"\n\n- {a}iron {a}copper\n- {a}silver {a}gold"
        for a in "abcdefghi"
    )
    everything = "\n\n".join(sections)
    assert answer_structure(everything) == pytest.approx(0.3)
    assert answer_depth(everything) == pytest.approx(0.4)


@pytest.mark.parametrize("answer", [WELL_STRUCTURED, SHORT, PLAIN])
@pytest.mark.parametrize(
    "padded",
    [
        pytest.param(lambda text: text + "\n## Details\n\n## Analysis\n\n## Conclusion\n", id="headings below"),
        pytest.param(lambda text: "# Introduction\n\n## Overview\n\n" + text, id="headings above"),
        pytest.param(lambda text: text + "\nbecause therefore thus " * 50, id="filler words below"),
        pytest.param(lambda text: "Because, therefore, thus, hence. " * 20 + "\n\n" + text, id="filler words above"),
        pytest.param(lambda text: text.replace(". ", ". Therefore, "), id="a filler word before each sentence"),
        pytest.param(lambda text: f"{text}\n\n{text}", id="everything twice"),
        pytest.param(lambda text: text + "\n\n" + "\n\n".join(text.split("\n\n") * 5), id="repeated paragraphs"),
        pytest.param(lambda text: text + "\n" + "- the same\n- the same\n- and again the same\n" * 9, id="empty items"),
        pytest.param(lambda text: text + "\nFor example, for instance, such as, e.g. this. " * 9, id="empty examples"),
        pytest.param(lambda text: text + "\n" + " ".join(map(str, range(500))), id="bare numbers"),
        pytest.param(lambda text: text + "\n\n---\n\n***\n\n```\n```\n", id="empty marks"),
    ],
)
def test_padding_does_not_raise_the_quality(answer: str, padded) -> None:  # type: ignore[no-untyped-def]
    assert answer_structure(padded(answer)) <= answer_structure(answer)
    assert answer_depth(padded(answer)) <= answer_depth(answer)


def test_content_does_raise_the_quality() -> None:
    more = "\n\nFor instance, a report over 90 days scans the whole archive, because no partition is pruned."
    assert answer_depth(PLAIN + more) > answer_depth(PLAIN)
    assert answer_structure(PLAIN + more) > answer_structure(PLAIN)


def test_likeness_is_full_for_the_reference_itself_and_falls_with_padding() -> None:
    assert answer_similarity("The capital is Paris.", "the capital is paris") == pytest.approx(0.3)
    assert answer_similarity("Paris", "Rome") == 0.0
    assert answer_similarity("", "Rome") == answer_similarity("", "") == 0.0
    assert answer_similarity("It is Paris. " * 5, "It is Paris.") < answer_similarity("It is Paris.", "It is Paris.")
    assert answer_similarity("It is Paris. Rome, Berlin, Madrid.", "It is Paris.") < 0.3
