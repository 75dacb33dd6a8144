"""The memories of a process as it searches them: words, times, importance and vectors, without what they say.

Searching is a share of a millisecond at 100,000 memories, and everything waits for it: one lock is enough.
"""

import threading
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_pipeline.memory.bm25 import Bm25
from rl_pipeline.memory.query import LOOKS_THAT_COUNT, MemoryQuery, Weights
from rl_pipeline.memory.vectors import Vector, Vectors
from rl_pipeline.memory.words import windows_of, words_of
from rl_pipeline.stores.agent_memories import MEMORY_TYPES, NOBODY, AgentMemory

_FRACTION_GONE = 0.25
_LOOK_BACK = 256
_CANDIDATES_PER_RESULT = 8

_ROW = np.dtype(
    [
        ("agent", np.int32),
        ("kind", np.int8),
        ("task_type", np.int32),
        ("domain", np.int32),
        ("created", np.float64),
        ("looked", np.float64),
        ("looks", np.int32),
        ("importance", np.float32),
        ("gone", np.bool_),
        ("serial", np.int64),
    ]
)


class Hit(NamedTuple):
    """A memory that was found."""

    id: str
    score: float
    relevance: float


class MemoryIndex:
    """All memories of a store, to be searched. Threads may share it."""

    def __init__(self, dimensions: int | None = None) -> None:
        """With `dimensions`, embeddings of so many numbers are searched too."""
        self._lock = threading.Lock()
        self._dimensions = dimensions
        self._empty()

    def __len__(self) -> int:
        return len(self._numbers)

    def add(self, memories: Iterable[AgentMemory]) -> None:
        """Add memories; one that is there is replaced."""
        for memory in memories:
            texts = windows_of(memory.searched)
            with self._lock:
                self._remove(memory.id)
                self._add(memory, texts)

    def remove(self, ids: Iterable[str]) -> None:
        """Remove memories; what is left of them is removed with the next `purge`, or when enough are gone."""
        with self._lock:
            for each in ids:
                self._remove(each)
            if self._gone > _FRACTION_GONE * max(1024, len(self._ids)):
                self._purge()

    def purge(self) -> None:
        """Leave nothing in memory of what was removed."""
        with self._lock:
            if self._gone:
                self._purge()

    def touch(self, looks: Mapping[str, int], at: datetime) -> None:
        """Count looks, and when the last was."""
        with self._lock:
            for each, count in looks.items():
                if (number := self._numbers.get(each)) is not None:
                    self._rows["looks"][number] += count
                    self._rows["looked"][number] = at.timestamp()

    def best(self, query: MemoryQuery, weights: Weights, now: datetime, vector: Vector | None = None) -> list[Hit]:
        """The `k` best by their whole score, or as many as there are; those that match nothing come last."""
        with self._lock:
            matches = self._matches(query, weights, vector)
            found = self._ranked(matches, query, weights, now)
            if len(found) < query.k:
                found += self._unmatched(query, weights, now, {hit.id for hit in found})
        return found[: query.k]

    def newest(self, query: MemoryQuery) -> list[Hit]:
        """The `k` newest, whatever they say."""
        with self._lock:
            numbers: Iterable[int] = self._newest(query)
            return [Hit(self._ids[number], 0.0, 0.0) for number in numbers]

    # What follows is called with the lock.

    def _empty(self) -> None:
        self._words = Bm25()
        self._row_of_text = np.zeros(1024, np.int32)
        self._rows = np.zeros(1024, _ROW)
        self._ids: list[str] = []
        self._numbers: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._by_time: list[tuple[float, int]] = []
        self._gone = 0
        # Vectors are known by numbers that are never given again.
        self._vectors = Vectors(self._dimensions) if self._dimensions else None
        self._of_serial: dict[int, int] = {}
        self._serial = 0

    def _add(self, memory: AgentMemory, texts: Sequence[Sequence[str]]) -> None:
        number = len(self._ids)
        if number == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        created = memory.created_at.timestamp()
        self._rows[number] = (
            self._name(memory.agent_id),
            MEMORY_TYPES.index(memory.memory_type),
            self._name(memory.task_type),
            self._name(memory.domain),
            created,
            memory.last_accessed.timestamp() if memory.last_accessed else 0.0,
            memory.access_count,
            memory.importance,
            False,
            -1,
        )
        self._ids.append(memory.id)
        self._numbers[memory.id] = number
        insort(self._by_time, (created, number))
        for words in texts:
            text = self._words.add(words)
            if text == len(self._row_of_text):
                self._row_of_text = np.concatenate([self._row_of_text, np.zeros_like(self._row_of_text)])
            self._row_of_text[text] = number
        if self._vectors is not None and memory.embedding is not None:
            self._vectors.add(memory.agent_id, self._serial, memory.embedding)
            self._rows["serial"][number] = self._serial
            self._of_serial[self._serial] = number
            self._serial += 1

    def _remove(self, memory_id: str) -> None:
        number = self._numbers.pop(memory_id, None)
        if number is None:
            return
        self._rows["gone"][number] = True
        self._gone += 1
        key = (float(self._rows["created"][number]), number)
        del self._by_time[bisect_left(self._by_time, key)]
        serial = int(self._rows["serial"][number])
        if self._vectors is not None and self._of_serial.pop(serial, None) is not None:
            agents = list(self._names)
            self._vectors.remove(agents[self._rows["agent"][number]], serial)

    def _purge(self) -> None:
        gone = self._rows["gone"][: len(self._ids)]
        texts_gone = gone[self._row_of_text[: len(self._words)]]
        number_of = np.cumsum(~gone) - 1
        self._words = self._words.without(texts_gone)
        kept = self._row_of_text[: len(texts_gone)][~texts_gone]
        self._row_of_text = np.concatenate([number_of[kept].astype(np.int32), np.zeros(1024, np.int32)])
        self._of_serial = {serial: int(number_of[number]) for serial, number in self._of_serial.items()}
        self._rows = np.concatenate([self._rows[: len(gone)][~gone], np.zeros(1024, _ROW)])
        self._ids = [each for each, is_gone in zip(self._ids, gone, strict=True) if not is_gone]
        self._numbers = {each: number for number, each in enumerate(self._ids)}
        self._by_time = [(created, int(number_of[number])) for created, number in self._by_time]
        self._gone = 0

    def _name(self, name: str) -> int:
        return self._names.setdefault(name, len(self._names))

    def _in_scope(self, numbers: NDArray[np.int64], query: MemoryQuery) -> NDArray[np.bool_]:
        rows = self._rows
        scope = ~rows["gone"][numbers]
        if len(query.memory_types) < len(MEMORY_TYPES):
            scope &= np.isin(rows["kind"][numbers], [MEMORY_TYPES.index(each) for each in query.memory_types])
        if query.agent_id is not None:
            agents = rows["agent"][numbers]
            scope &= (agents == self._names.get(query.agent_id, -1)) | (agents == self._names.get(NOBODY, -1))
        if query.task_type is not None:
            scope &= rows["task_type"][numbers] == self._names.get(query.task_type, -1)
        if query.domain is not None:
            scope &= rows["domain"][numbers] == self._names.get(query.domain, -1)
        return scope

    def _matches(self, query: MemoryQuery, weights: Weights, vector: Vector | None) -> dict[int, float]:
        """The best matches, of those in scope, and the relevance of each."""
        most = max(50, _CANDIDATES_PER_RESULT * query.k)
        dense = weights.dense if vector is not None and self._vectors is not None else 0.0
        found: dict[int, float] = {}
        if dense < 1:
            texts, scores = self._words.find(words_of(query.text))
            rows = self._row_of_text[texts].astype(np.int64)
            inside = self._in_scope(rows, query) if len(rows) else np.zeros(0, np.bool_)
            rows, scores = rows[inside], scores[inside]
            if len(rows):
                # A memory is worth what its best window is; its windows follow each other.
                starts = np.flatnonzero(np.concatenate([[True], rows[1:] != rows[:-1]]))
                rows, scores = rows[starts], np.maximum.reduceat(scores, starts)
                best = _largest(scores, most)
                share = (1 - dense) / float(scores.max())
                found = dict(zip(rows[best].tolist(), (share * scores[best]).tolist(), strict=True))
        if dense and vector is not None and self._vectors is not None:
            agents = None if query.agent_id is None else [query.agent_id, NOBODY]
            for serial, cosine in self._vectors.nearest(vector, most, agents):
                number = self._of_serial[serial]
                if self._in_scope(np.asarray([number]), query)[0]:
                    found[number] = found.get(number, 0.0) + dense * max(0.0, cosine)
        return found

    def _ranked(self, relevance: Mapping[int, float], query: MemoryQuery, weights: Weights, now: datetime) -> list[Hit]:
        if not relevance:
            return []
        numbers = np.fromiter(relevance, np.int64, len(relevance))
        shares = np.fromiter(relevance.values(), np.float64, len(relevance))
        scores = weights.relevance * shares + self._standing(numbers, weights, now)
        order = np.lexsort((numbers, -self._rows["created"][numbers], -scores))[: query.k]
        return [Hit(self._ids[numbers[place]], float(scores[place]), float(shares[place])) for place in order]

    def _unmatched(self, query: MemoryQuery, weights: Weights, now: datetime, found: set[str]) -> list[Hit]:
        numbers = np.arange(len(self._ids))
        numbers = numbers[self._in_scope(numbers, query)]
        if not len(numbers):
            return []
        scores = self._standing(numbers, weights, now)
        best = _largest(scores.astype(np.float32), query.k + len(found))
        order = best[np.lexsort((numbers[best], -self._rows["created"][numbers[best]], -scores[best]))]
        rest = [Hit(self._ids[numbers[place]], float(scores[place]), 0.0) for place in order]
        return [hit for hit in rest if hit.id not in found]

    def _standing(self, numbers: NDArray[np.int64], weights: Weights, now: datetime) -> NDArray[np.float64]:
        """The shares of a score that have nothing to do with the query."""
        rows = self._rows[numbers]
        age = np.maximum(0.0, now.timestamp() - np.maximum(rows["created"], rows["looked"]))
        recency = np.exp2(-age / weights.half_life.total_seconds())
        important = rows["importance"].astype(np.float64)
        important += (1 - important) / 4 * np.minimum(rows["looks"], LOOKS_THAT_COUNT) / LOOKS_THAT_COUNT
        standing: NDArray[np.float64] = weights.recency * recency + weights.importance * important
        return standing

    def _newest(self, query: MemoryQuery) -> list[int]:
        # Mostly the newest of all are in scope; where they are not, all are looked at.
        for most in (_LOOK_BACK, len(self._by_time)):
            latest = self._by_time[-most:][::-1]
            numbers = np.fromiter((number for _, number in latest), np.int64, len(latest))
            found: list[int] = numbers[self._in_scope(numbers, query)][: query.k].tolist()
            if len(found) == query.k:
                break
        return found


def _largest(scores: NDArray[np.float32], count: int) -> NDArray[np.int64]:
    """The places of the largest, in order of their place."""
    if count >= len(scores):
        return np.arange(len(scores))
    return np.sort(np.argpartition(-scores, count - 1)[:count])
