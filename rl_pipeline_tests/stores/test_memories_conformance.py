"""What every store of memories promises, in SQLite and in PostgreSQL alike."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from rl_pipeline.stores.agent_memories import DIMENSIONS, AgentMemories, MemoriesUnavailable
from rl_pipeline.stores.opened_memories import open_memories
from rl_pipeline_tests.memory.remembered import START, id_of, memory

LATER = START + timedelta(days=400)


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "memories.sqlite")
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def store(place: str) -> Iterator[AgentMemories]:
    with closing(open_memories(place)) as opened:
        yield opened


def test_what_is_put_is_got_as_it_was_in_the_order_asked_for(store: AgentMemories) -> None:
    full = memory(
        "der Schlüssel 🗝", 1, task_type="fix", domain="coding", importance=0.25, searched=("one", "two"),
        content={"list": [1, None, {"deep": "\"'"}]}, memory_type="procedural", agent_id="a" * 256,
    )  # fmt: skip
    assert store.put([full, memory("another")]) == 2
    assert store.get([memory("another").id, full.id, id_of("missing")]) == [memory("another"), full]
    assert store.get([]) == []
    assert store.count() == 2


def test_put_again_it_says_what_is_new_and_keeps_its_counts(store: AgentMemories) -> None:
    first = memory("first")
    store.put([first])
    store.touch({first.id: 2, id_of("missing"): 1}, LATER)
    store.weigh({first.id: 0.9})
    assert store.put([first]) == 0
    assert store.put([replace(first, content={"text": "new"})]) == 1
    [found] = store.get([first.id])
    assert (found.access_count, found.last_accessed, found.importance) == (2, LATER, 0.9)
    assert found.content == {"text": "new"}


def test_an_embedding_stays_while_the_words_do(store: AgentMemories) -> None:
    first = memory("first", embedding=(0.5, -0.25))
    store.put([first])
    assert store.put([replace(first, embedding=None)]) == 0
    padded = (0.5, -0.25, *[0.0] * (DIMENSIONS - 2))
    assert store.get([first.id])[0].embedding == padded
    store.put([replace(first, embedding=None, searched=("other",))])
    assert store.get([first.id])[0].embedding is None
    assert store.put([replace(first, embedding=(1.0,), searched=("other",))]) == 1


def test_the_changes_are_told_whole_and_in_order(store: AgentMemories) -> None:
    store.put([memory("a"), memory("b")])
    store.put([memory("c")])
    first = store.changes(0, 1)
    assert {each.searched[0] for each in first.memories} == {"a", "b"}
    assert not first.complete
    rest = store.changes(first.last, 1)
    assert ([each.searched[0] for each in rest.memories], rest.complete) == (["c"], True)
    store.touch({memory("a").id: 1}, LATER)
    assert store.changes(rest.last, 10).memories == [], "a look changes nothing that is searched"
    store.remove([memory("a").id], "forgotten")
    gone = store.changes(rest.last, 10)
    assert (gone.memories, gone.removed, gone.has_erased) == ([], [memory("a").id], False)
    store.remove([memory("b").id], "erased")
    assert store.changes(gone.last, 10).has_erased
    assert len(store.changes(0, 10).memories) == 1


@pytest.mark.parametrize("why", ["forgotten", "erased"])
def test_what_was_forgotten_or_erased_does_not_come_back_even_if_it_was_never_there(
    store: AgentMemories, why: str
) -> None:
    store.put([memory("there")])
    assert store.remove([memory("there").id, memory("to come").id], why) == 1  # type: ignore[arg-type]
    assert store.put([memory("there"), memory("to come"), memory("other")]) == 1
    assert store.count() == 1


def test_what_was_replaced_may_come_back_unless_it_is_erased_meanwhile(store: AgentMemories) -> None:
    old, new = memory("old"), memory("new")
    store.put([old])
    assert store.put([new], replacing=[old.id, new.id]) == 1
    assert store.get([old.id, new.id]) == [new]
    assert store.put([old]) == 1
    store.remove([old.id], "erased")
    store.put([], replacing=[old.id])
    assert store.put([old]) == 0


def test_memories_are_found_by_type_and_agents_by_how_many_they_have(store: AgentMemories) -> None:
    facts = [memory(f"fact {n}", n, memory_type="semantic", task_type="fix", agent_id="") for n in range(3)]
    store.put([*facts, memory("other", task_type="fix"), memory("elsewhere", memory_type="semantic")])
    assert store.of("semantic", "fix") == sorted(fact.id for fact in facts)
    assert store.agents_over(1) == ["", "agent"]
    assert store.agents_over(2) == [""]
    store.touch({facts[1].id: 4}, LATER)
    standing = {each.id: each for each in store.standings("")}
    assert list(standing) == sorted(fact.id for fact in facts)
    assert (standing[facts[1].id].access_count, standing[facts[1].id].last_accessed) == (4, LATER)
    assert standing[facts[2].id].created_at == START + timedelta(hours=2)


def test_a_hundred_agents_write_and_read_at_once(place: str, store: AgentMemories) -> None:
    store.put([memory("shared")])

    def work(number: int) -> int:
        own = memory(f"of {number}", number, agent_id=f"agent-{number}")
        store.put([own])
        store.touch({memory("shared").id: 1}, LATER)
        return len(store.get([own.id, memory("shared").id]))

    with ThreadPoolExecutor(25) as crew:
        assert list(crew.map(work, range(100))) == [2] * 100
    assert store.get([memory("shared").id])[0].access_count == 100
    seen, since, complete = 0, 0, False
    while not complete:
        some = store.changes(since, 7)
        seen, since, complete = seen + len(some.memories), some.last, some.complete
    assert seen == 101


def test_every_change_is_heard_of_by_whoever_listens_meanwhile(place: str, store: AgentMemories) -> None:
    """Numbers of changes that are under way at once must not be seen out of their order."""
    heard: set[str] = set()
    with ThreadPoolExecutor(9) as crew, closing(open_memories(place)) as listening:
        writing = [crew.submit(_puts(store, start)) for start in range(0, 400, 50)]
        since = 0
        while not all(each.done() for each in writing):
            some = listening.changes(since, 20)
            heard, since = heard | {each.id for each in some.memories}, some.last
        heard |= {each.id for each in listening.changes(since, 1000).memories}
    assert heard == {memory("m", number).id for number in range(400)}


def _puts(store: AgentMemories, start: int) -> Callable[[], None]:
    def put() -> None:
        for number in range(start, start + 50):
            store.put([memory("m", number)])

    return put


def test_another_process_sees_what_was_put(place: str, store: AgentMemories) -> None:
    store.put([memory("first")])
    program = (
        "import sys, json\nfrom rl_pipeline.stores.opened_memories import open_memories\n"
        "print(json.dumps([m.content for m in open_memories(sys.argv[1]).changes(0, 9).memories]))"
    )
    done = subprocess.run([sys.executable, "-c", program, place], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [{"text": "first"}]


def test_a_change_that_fails_changes_nothing(store: AgentMemories) -> None:
    store.put([memory("first")])
    wrong = replace(memory("second"), memory_type="imagined")  # type: ignore[arg-type]
    with pytest.raises(MemoriesUnavailable):
        store.put([memory("third"), wrong], replacing=[memory("first").id])
    assert store.get([memory(name).id for name in ("first", "second", "third")]) == [memory("first")]


def test_the_table_has_the_architectures_columns_and_indexes_in_postgresql(postgres_url: str) -> None:
    import psycopg

    with closing(open_memories(postgres_url)), psycopg.connect(postgres_url) as connection:
        columns = connection.execute(
            "SELECT column_name, udt_name, column_default FROM information_schema.columns "
            "WHERE table_name = 'agent_memories' ORDER BY ordinal_position"
        ).fetchall()
        [dimensions] = connection.execute(
            "SELECT format_type(atttypid, atttypmod) FROM pg_attribute "
            "WHERE attrelid = 'agent_memories'::regclass AND attname = 'embedding'"
        ).fetchall()
        indexes = dict(connection.execute("SELECT indexname, indexdef FROM pg_indexes").fetchall())
    kinds = {name: kind for name, kind, _ in columns}
    wanted = [
        "id",
        "agent_id",
        "memory_type",
        "content",
        "embedding",
        "importance",
        "access_count",
        "last_accessed",
        "created_at",
    ]
    assert [name for name, _, _ in columns][:9] == wanted
    assert (kinds["id"], kinds["content"], dimensions) == ("uuid", "jsonb", ("vector(768)",))
    defaults = {name: default for name, _, default in columns}
    assert (defaults["importance"], defaults["access_count"]) == ("0.5", "0")
    assert "(agent_id, memory_type)" in indexes["idx_memories_agent_type"]
    assert "ivfflat (embedding vector_cosine_ops)" in indexes["idx_memories_embedding"]


def test_what_is_erased_is_in_no_file_of_sqlite(tmp_path: Path) -> None:
    file = tmp_path / "memories.sqlite"
    with closing(open_memories(str(file))) as store:
        store.put([memory(f"unmistakable-{number}", number) for number in range(50)])
        assert b"unmistakable-7" in b"".join(path.read_bytes() for path in tmp_path.iterdir())
        store.remove([memory(f"unmistakable-{number}", number).id for number in range(50)], "erased")
        assert b"unmistakable" not in b"".join(path.read_bytes() for path in tmp_path.iterdir())


def test_a_store_that_cannot_be_opened_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MemoriesUnavailable, match="MEMORY_STORE"):
        open_memories(str(tmp_path / "file" / "memories.sqlite"))
    with pytest.raises(MemoriesUnavailable, match="MEMORY_STORE"):
        open_memories("postgresql://postgres@127.0.0.1:9/none")
