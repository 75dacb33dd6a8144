"""Which memories are found, and in which order."""

from datetime import timedelta
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.memory.index import MemoryIndex
from rl_pipeline.memory.query import MemoryQuery, Weights
from rl_pipeline.memory.vectors import Vectors
from rl_pipeline_tests.memory.remembered import START, memory

NOW = START + timedelta(days=10)
WEIGHTS = Weights()


def index_of(*memories: Any) -> MemoryIndex:
    index = MemoryIndex()
    index.add(memories)
    return index


def found(index: MemoryIndex, text: str, weights: Weights = WEIGHTS, **query: Any) -> list[str]:
    return [hit.id for hit in index.best(MemoryQuery(text, **query), weights, NOW)]


def test_what_has_most_to_do_with_the_query_comes_first_and_the_rest_after_it() -> None:
    bow, both, other = memory("craft a bow"), memory("craft a bow of wood and wool"), memory("sort the numbers")
    index = index_of(other, bow, both)
    assert found(index, "how is a bow made of wool?") == [both.id, bow.id, other.id]
    hits = index.best(MemoryQuery("wool"), WEIGHTS, NOW)
    assert [hit.relevance for hit in hits] == [1.0, 0.0, 0.0]


def test_an_answer_is_found_by_the_words_of_the_turn_before_it() -> None:
    asked = memory("talk", searched=("Where did Ada move?", "To Lisbon.", "Nice.", "Shall we eat?"))
    other = memory("else", searched=("Ada eats.", "Fine.", "We move on.", "Yes."))
    assert found(index_of(other, asked), "Ada move Lisbon", k=1) == [asked.id]


def test_among_equals_the_new_the_important_and_the_often_looked_up_win() -> None:
    old, new = memory("bow", 0), memory("bow", 200)
    assert found(index_of(old, new), "bow") == [new.id, old.id]
    weighty = memory("bow", 0, importance=1.0)
    assert found(index_of(memory("bow", 1, importance=0.1), weighty), "bow") == [weighty.id, memory("bow", 1).id]
    index = index_of(old, memory("bow", 1))
    index.touch({old.id: 3}, START)
    assert found(index, "bow") == [old.id, memory("bow", 1).id]


def test_looks_count_only_so_far() -> None:
    one, other = memory("bow", 1), memory("bow", 0)
    index = index_of(one, other)
    index.touch({other.id: 10**6}, START)
    index.touch({one.id: 8}, START)
    assert found(index, "bow") == [one.id, other.id]


def test_filters_leave_out_what_is_not_asked_for_and_agents_share_what_is_nobodys() -> None:
    mine, theirs = memory("bow", agent_id="me"), memory("bow too", agent_id="you")
    fact = memory("bow fact", agent_id="", memory_type="semantic", task_type="crafting", domain="general")
    index = index_of(mine, theirs, fact)
    assert set(found(index, "bow", agent_id="me")) == {mine.id, fact.id}
    assert found(index, "bow", memory_types=("semantic",)) == [fact.id]
    assert found(index, "bow", task_type="crafting") == found(index, "bow", domain="general") == [fact.id]
    assert found(index, "bow", task_type="unheard of") == []
    assert found(index, "bow", agent_id="nobody knows me") == [fact.id]


@given(
    texts=st.lists(st.sampled_from(["bow", "bow axe", "axe", "tent rope", ""]), max_size=30),
    k=st.integers(1, 12),
    gone=st.sets(st.integers(0, 29)),
)
def test_there_are_exactly_k_where_there_are_so_many_and_each_once(texts: list[str], k: int, gone: set[int]) -> None:
    made = [memory(text, number) for number, text in enumerate(texts)]
    index = index_of(*made)
    index.remove([made[number].id for number in gone if number < len(made)])
    left = [one.id for number, one in enumerate(made) if number not in gone]
    ids = found(index, "bow rope", k=k)
    assert len(ids) == len(set(ids)) == min(k, len(left))
    newest = [hit.id for hit in index.newest(MemoryQuery("", k=k))]
    assert newest == left[::-1][:k]
    # Until then the words of what was removed count among how many have them.
    index.purge()
    fresh = index_of(*(one for one in made if one.id in left))
    assert found(index, "bow rope", k=k) == found(fresh, "bow rope", k=k)
    assert [hit.id for hit in index.newest(MemoryQuery("", k=k))] == newest


def test_what_was_removed_is_not_found_and_what_says_something_else_is_found_by_it() -> None:
    index = index_of(memory("bow"), memory("axe"))
    index.remove([memory("bow").id])
    assert found(index, "bow") == [memory("axe").id]
    index.add([memory("axe", searched=("tent",))])
    hits = index.best(MemoryQuery("axe"), WEIGHTS, NOW)
    assert (len(index), [hit.relevance for hit in hits]) == (1, [0.0])


def test_after_many_removals_the_same_is_found_as_in_a_fresh_index() -> None:
    luck = Random(3)
    words = [f"word{number}" for number in range(50)]
    made = [memory(" ".join(luck.choices(words, k=8)), number) for number in range(3000)]
    index = index_of(*made)
    index.remove([one.id for one in made[::2]])
    fresh = index_of(*made[1::2])
    for _ in range(20):
        query = " ".join(luck.choices(words, k=3))
        assert found(index, query) == found(fresh, query)


def test_words_and_embeddings_together_find_what_either_finds() -> None:
    weights = Weights(dense=0.5)
    index = MemoryIndex(dimensions=2)
    near = memory("craft a weapon", embedding=(1.0, 0.1))
    by_word = memory("bow", embedding=(0.0, 1.0))
    neither = memory("sort", embedding=(-1.0, 0.0))
    index.add([near, by_word, neither])
    query = MemoryQuery("bow", k=2)
    hits = index.best(query, weights, NOW, np.asarray([1.0, 0.0], np.float32))
    assert {hit.id for hit in hits} == {near.id, by_word.id}
    index.remove([near.id])
    index.purge()
    again = index.best(query, weights, NOW, np.asarray([1.0, 0.0], np.float32))
    assert [hit.id for hit in again] == [by_word.id, neither.id]


def vectors_of(rows: Any, exact_below: int) -> Vectors:
    vectors = Vectors(rows.shape[1], exact_below)
    for number, row in enumerate(rows):
        vectors.add("agent", number, row.tolist())
    return vectors


def test_few_vectors_are_searched_exactly_and_many_nearly_so() -> None:
    pytest.importorskip("usearch", reason="needs the wheel usearch")
    rows = np.random.default_rng(1).normal(size=(2000, 32)).astype(np.float32)
    exact, graph = vectors_of(rows, 50_000), vectors_of(rows, 1000)
    assert (exact.is_exact("agent"), graph.is_exact("agent")) == (True, False)
    hits = 0
    for query in rows[:50] + 0.1:
        wanted = np.argsort(-(rows @ query) / np.linalg.norm(rows, axis=1))[:10].tolist()
        assert [number for number, _ in exact.nearest(query, 10)] == wanted
        hits += len({number for number, _ in graph.nearest(query, 10)} & set(wanted))
    assert hits >= 450
    for number in range(0, 2000, 2):
        exact.remove("agent", number)
        graph.remove("agent", number)
    for vectors in (exact, graph):
        found_numbers = [number for number, _ in vectors.nearest(rows[7], 10)]
        assert found_numbers[0] == 7
        assert all(number % 2 for number in found_numbers)
