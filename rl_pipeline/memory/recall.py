"""Looking memories up: the store's memories, searched in this process, and kept level with it.

Every process has an index of its own. It hears of what others add, forget and erase from the store, by the number of
the last change; how often memories were looked up is counted here and told to the store together, so that a look does
not wait for a write. A process that dies forgets the looks of its last second.
"""

import logging
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime

from rl_pipeline.errors import PipelineError
from rl_pipeline.memory.embedding import Embedder
from rl_pipeline.memory.index import Hit, MemoryIndex
from rl_pipeline.memory.query import FoundMemory, MemoryQuery, Weights
from rl_pipeline.stores.agent_memories import AgentMemories, AgentMemory

_PER_READ = 2000
_BETWEEN_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Recall:
    """The memories of a store, to be looked up. Threads may share it."""

    def __init__(
        self,
        memories: AgentMemories,
        clock: Callable[[], datetime],
        *,
        weights: Weights | None = None,
        embedder: Embedder | None = None,
    ) -> None:
        """With an `embedder` and a share of it in `weights`, embeddings are searched beside words."""
        self.memories = memories
        self.index = MemoryIndex(embedder.dimensions if embedder else None)
        self._clock = clock
        self._weights = weights or Weights()
        self._embedder = embedder
        self._seen = 0
        self._refreshing = threading.Lock()
        self._looks: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def refresh(self) -> None:
        """Take in what has changed in the store. Raises `MemoriesUnavailable`."""
        with self._refreshing:
            is_level = False
            while not is_level:
                changes = self.memories.changes(self._seen, _PER_READ)
                self.index.remove(changes.removed)
                self.index.add(changes.memories)
                if changes.has_erased:
                    self.index.purge()
                self._seen, is_level = changes.last, changes.complete

    def retrieve(self, query: MemoryQuery) -> list[FoundMemory]:
        """The `k` best by relevance, recency and importance: exactly `k` where there are so many."""
        return self._found(query, self._best(query))

    def retrieve_for_task(self, query: MemoryQuery) -> list[FoundMemory]:
        """A third of the newest episodes, of the best, and of the best facts each, then the next best up to `k`.

        Each memory once; exactly `k` where there are so many. The best come first.
        """
        third = query.k // 3
        best = self._best(query)
        chosen: dict[str, Hit] = {hit.id: hit for hit in best[:third]}
        ranked = {hit.id: hit for hit in best}
        if third and "semantic" in query.memory_types:
            facts = self._best(replace(query, k=third, memory_types=("semantic",)))
            chosen |= {hit.id: hit for hit in facts if hit.relevance > 0}
        if third and "episodic" in query.memory_types:
            newest = self.index.newest(replace(query, k=third, memory_types=("episodic",)))
            chosen |= {hit.id: ranked.get(hit.id, hit) for hit in newest if hit.id not in chosen}
        for hit in best:
            if len(chosen) >= query.k:
                break
            chosen.setdefault(hit.id, hit)
        return self._found(query, sorted(chosen.values(), key=lambda hit: -hit.score))

    def keep_level(self) -> None:
        """Take in changes and tell looks from now on, in a thread of its own, until `close`."""
        self._thread = threading.Thread(target=self._keep_level, name="recall", daemon=True)
        self._thread.start()

    def tell_looks(self) -> None:
        """Tell the store what was looked up. Raises `MemoriesUnavailable`, and then tells it the next time."""
        with self._counting:
            looks, self._looks = self._looks, Counter()
        if looks:
            try:
                self.memories.touch(looks, self._clock())
            except PipelineError:
                with self._counting:
                    self._looks.update(looks)
                raise

    def close(self) -> None:
        """End the thread, and tell the last looks."""
        self._ended.set()
        if self._thread:
            self._thread.join()
        try:
            self.tell_looks()
        except PipelineError as away:
            _log.warning("the last looks at memories are not counted: %s", away)

    def _best(self, query: MemoryQuery) -> list[Hit]:
        vector = None
        if self._embedder is not None and self._weights.dense:
            vector = self._embedder.embed([query.text])[0]
        return self.index.best(query, self._weights, self._clock(), vector)

    def _found(self, query: MemoryQuery, hits: Sequence[Hit]) -> list[FoundMemory]:
        by_id = {memory.id: memory for memory in self.memories.get([hit.id for hit in hits])}
        found = [FoundMemory(by_id[hit.id], hit.score, hit.relevance) for hit in hits if hit.id in by_id]
        if len(found) < len(hits):
            # Some went since: what took their place is there.
            self.refresh()
            if any(hit.id not in by_id for hit in hits) and len(self.index) >= len(found):
                again = self._best(query)
                more = [hit for hit in again if hit.id not in by_id]
                by_id = {memory.id: memory for memory in self.memories.get([hit.id for hit in more])}
                found += [FoundMemory(by_id[hit.id], hit.score, hit.relevance) for hit in more if hit.id in by_id]
                found = found[: query.k]
        self._count([one.memory for one in found])
        return found

    def _count(self, found: Sequence[AgentMemory]) -> None:
        looks = {memory.id: 1 for memory in found}
        self.index.touch(looks, self._clock())
        with self._counting:
            self._looks.update(looks)

    def _keep_level(self) -> None:
        while not self._ended.wait(_BETWEEN_SECONDS):
            try:
                self.refresh()
                self.tell_looks()
            except PipelineError as away:
                _log.warning("the memories are as they were: %s", away)
