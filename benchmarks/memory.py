"""How fast are memories found, by 100 agents at once, while others are written, and what do they take?

100,000 memories of 100 agents in one SQLite store, in sentences of a few thousand words as common as words are. Each
agent asks as agents do, every half a second or so (exponential pauses), in turns among its own memories and among all;
a request's time counts from when it was due, so that a stall costs all that it delays. Meanwhile two more threads write
new memories, together 50 a second, which are found from then on. `p99_ms` is of all requests, `p99_own_ms` and
`p99_all_ms` of either kind; `cpu_ms` is the CPU time of a question with its share of the writes, which other work on
the machine does not change; `mb_per_100k` is what the process grew by, the store's pages in memory included.

`--dense` adds embeddings of 384 numbers to all of it, drawn at random: MiniLM's own time (some ms a query) is not in
it.
"""

import argparse
import gc
import json
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random
from uuid import UUID

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))  # for its neighbours, when started as a script

from rl_pipeline.memory.query import MemoryQuery, Weights
from rl_pipeline.memory.recall import Recall
from rl_pipeline.stores.agent_memories import AgentMemory
from rl_pipeline.stores.sqlite_memories import SqliteMemories

AGENTS = 100
PAUSE_SECONDS = 0.5
WRITES_PER_SECOND, WRITERS = 50, 2
WORDS, TURNS, WORDS_PER_TURN = 8000, 3, 12
DIMENSIONS = 384
START = datetime(2026, 1, 1, tzinfo=UTC)


class Speaker:
    """Says things in words that are as common as words are: the n-th with 1/n."""

    def __init__(self, seed: int) -> None:
        self._luck = np.random.default_rng(seed)
        self._shares = np.cumsum(1 / np.arange(1, WORDS + 1))
        self._shares /= self._shares[-1]

    def text(self, words: int) -> str:
        places = np.searchsorted(self._shares, self._luck.random(words))
        return " ".join(f"word{place}" for place in places)

    def vector(self) -> tuple[float, ...]:
        return tuple(self._luck.normal(size=DIMENSIONS).tolist())


class RandomEmbedder:
    """Stands for MiniLM, whose own time is not measured."""

    dimensions = DIMENSIONS

    def embed(self, texts: Sequence[str]) -> list["np.typing.NDArray[np.float32]"]:
        return [np.random.default_rng(len(text)).normal(size=DIMENSIONS).astype(np.float32) for text in texts]


def memories(count: int, seed: int, dense: bool) -> Iterator[AgentMemory]:
    speaker, luck = Speaker(seed), Random(seed)
    for number in range(count):
        turns = tuple(speaker.text(WORDS_PER_TURN) for _ in range(TURNS))
        kind = ("episodic", "episodic", "semantic", "procedural")[number % 4]
        yield AgentMemory(
            id=str(UUID(int=luck.getrandbits(128), version=4)),
            agent_id=f"agent-{number % AGENTS}",
            memory_type=kind,  # type: ignore[arg-type]
            content={"turns": list(turns)},
            created_at=START + timedelta(seconds=number),
            searched=turns,
            task_type=f"type-{number % 7}",
            importance=luck.random(),
            embedding=speaker.vector() if dense else None,
        )


def filled(store: SqliteMemories, count: int, dense: bool) -> None:
    batch: list[AgentMemory] = []
    for memory in memories(count, 1, dense):
        batch.append(memory)
        if len(batch) == 5000:
            store.put(batch)
            batch.clear()
    store.put(batch)


class Asking:
    """The agents, and what each request took."""

    def __init__(self, recall: Recall, seconds: float) -> None:
        self._recall = recall
        self._end = time.monotonic() + seconds
        self.own: list[float] = []
        self.all: list[float] = []
        self.due = 0
        self._counting = threading.Lock()

    def agent(self, number: int) -> None:
        luck, speaker = Random(number), Speaker(1000 + number)
        own: list[float] = []
        everywhere: list[float] = []
        due = time.monotonic() + luck.expovariate(1 / PAUSE_SECONDS)
        asked = 0
        while due < self._end:
            time.sleep(max(0.0, due - time.monotonic()))
            mine = asked % 2 == 0
            query = MemoryQuery(speaker.text(8), 10, agent_id=f"agent-{number}" if mine else None)
            found = self._recall.retrieve_for_task(query)
            (own if mine else everywhere).append(time.monotonic() - due)
            if len(found) != 10:
                raise AssertionError(f"asked for 10, found {len(found)}")
            asked += 1
            due += luck.expovariate(1 / PAUSE_SECONDS)
        with self._counting:
            self.own += own
            self.all += everywhere
            self.due += asked

    def writer(self, number: int, store: SqliteMemories, dense: bool, written: list[int]) -> None:
        pause = WRITERS / WRITES_PER_SECOND
        due = time.monotonic()
        count = 0
        for memory in memories(10**9, 100 + number, dense):
            due += pause
            if due >= self._end:
                break
            time.sleep(max(0.0, due - time.monotonic()))
            store.put([memory])
            self._recall.index.add([memory])
            count += 1
        written.append(count)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="20,000 memories for eight seconds")
    parser.add_argument("--dense", action="store_true", help="search embeddings too")
    chosen = parser.parse_args()
    count, seconds = (20_000, 8.0) if chosen.quick else (100_000, 60.0)
    process = psutil.Process()
    with tempfile.TemporaryDirectory() as directory, closing(SqliteMemories(Path(directory) / "m.sqlite")) as store:
        began = time.perf_counter()
        filled(store, count, chosen.dense)
        storing = time.perf_counter() - began
        gc.collect()
        before = process.memory_info().rss
        began = time.perf_counter()
        embedder = RandomEmbedder() if chosen.dense else None
        weights = Weights(dense=0.3 if chosen.dense else 0.0)
        recall = Recall(store, lambda: datetime.now(UTC), weights=weights, embedder=embedder)
        recall.refresh()
        loading = time.perf_counter() - began
        gc.collect()
        grown = process.memory_info().rss - before
        recall.keep_level()
        asking = Asking(recall, seconds)
        written: list[int] = []
        crew = [threading.Thread(target=asking.agent, args=(number,)) for number in range(AGENTS)]
        crew += [
            threading.Thread(target=asking.writer, args=(number, store, chosen.dense, written))
            for number in range(WRITERS)
        ]
        cpu = time.process_time()
        for thread in crew:
            thread.start()
        for thread in crew:
            thread.join()
        cpu = time.process_time() - cpu
        recall.close()
    print(f"stored in {storing:.1f} s, loaded in {loading:.1f} s, {cpu / seconds:.0%} of a core while asked")
    tell(asking, seconds, {"memories": count, "writes": sum(written), "grown": grown, "cpu": cpu})


def tell(asking: Asking, seconds: float, told: dict[str, float]) -> None:
    count, written = int(told["memories"]), int(told["writes"])
    everything = asking.own + asking.all

    def p(values: list[float], share: float) -> float:
        return round(1000 * float(np.quantile(values, share)), 2) if values else float("nan")

    print(f"{count:,} memories, {AGENTS} agents, {asking.due:,} questions and {written:,} writes in {seconds:g} s")
    print("| memories | p50 ms | p99 ms |\n|---|---|---|")
    for name, values in (("an agent's own", asking.own), ("everybody's", asking.all)):
        print(f"| {name} | {p(values, 0.5)} | {p(values, 0.99)} |")
    figures = {
        "p99_ms": p(everything, 0.99),
        "agents": AGENTS,
        "mb_per_100k": round(told["grown"] / 1e6 * 100_000 / count, 1),
        "cpu_ms": round(1000 * told["cpu"] / max(1, asking.due), 2),
        "p50_ms": p(everything, 0.5),
        "p99_own_ms": p(asking.own, 0.99),
        "p99_all_ms": p(asking.all, 0.99),
        "memories": count,
        "questions": asking.due,
        "writes": written,
        "questions_per_s": round(asking.due / seconds, 1),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
