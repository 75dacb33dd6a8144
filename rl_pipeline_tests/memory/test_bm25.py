"""BM25: the sum that its documentation says, whatever was added before and taken out."""

from collections import Counter
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.memory.bm25 import Bm25
from rl_pipeline.memory.words import windows_around, windows_of, words_of

WORDS = st.sampled_from(["wood", "stone", "bow", "axe", "rope", "tent"])
TEXTS = st.lists(st.lists(WORDS, max_size=12), min_size=1, max_size=20)


def literal(texts: list[list[str]], query: list[str]) -> dict[int, float]:
    """Term by term, as it is written down."""
    mean = max(1.0, sum(map(len, texts)) / len(texts))
    scores: dict[int, float] = {}
    for number, text in enumerate(texts):
        counts = Counter(text)
        for word in query:
            having = sum(word in other for other in texts)
            if counts[word]:
                idf = log(1 + (len(texts) - having + 0.5) / (having + 0.5))
                saturated = counts[word] * 2.5 / (counts[word] + 1.5 * (0.25 + 0.75 * len(text) / mean))
                scores[number] = scores.get(number, 0.0) + idf * saturated
    return scores


def filled(texts: list[list[str]]) -> Bm25:
    index = Bm25()
    for number, text in enumerate(texts):
        assert index.add(text) == number
    return index


@given(texts=TEXTS, query=st.lists(WORDS, max_size=4))
def test_the_scores_are_those_of_the_formula(texts: list[list[str]], query: list[str]) -> None:
    found, scores = filled(texts).find(query)
    wanted = literal(texts, query)
    assert found.tolist() == sorted(wanted)
    assert scores.tolist() == pytest.approx([wanted[number] for number in sorted(wanted)], rel=1e-4)


@given(texts=TEXTS, query=st.lists(WORDS, min_size=1, max_size=4), gone=st.sets(st.integers(0, 19)))
def test_what_is_taken_out_leaves_nothing_behind(texts: list[list[str]], query: list[str], gone: set[int]) -> None:
    mask = np.asarray([number in gone for number in range(len(texts))])
    left = [text for number, text in enumerate(texts) if number not in gone]
    fewer, fresh = filled(texts).without(mask), filled(left)
    assert len(fewer) == len(left)
    for one, other in zip(fewer.find(query), fresh.find(query), strict=True):
        assert one.tolist() == pytest.approx(other.tolist())
    fewer.add(["wood"])
    fresh.add(["wood"])
    assert fewer.find(["wood"])[1].tolist() == pytest.approx(fresh.find(["wood"])[1].tolist())


def test_words_are_the_same_in_all_their_endings() -> None:
    assert words_of("The keys were rotated; rotating a KEY rotates nothing") == [
        "key", "rotat", "rotat", "key", "rotat", "noth",
    ]  # fmt: skip
    assert words_of("who is it") == ["who", "is", "it"], "a text of common words can be found too"


def test_a_window_has_three_turns() -> None:
    assert windows_of(["one", "two"]) == [["one", "two"]]
    assert windows_of(["one", "two", "three", "four"]) == [["one", "two", "thre"], ["two", "thre", "four"]]
    assert windows_of([]) == [[]]
    assert windows_around(["one", "two", "four"]) == [["one", "two"], ["one", "two", "four"], ["two", "four"]]
