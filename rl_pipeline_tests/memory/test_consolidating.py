"""From stored trajectories to episodes, facts and procedures: reproducible, whole, and with what contradicts them."""

import signal
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.memory.consolidating import POINTS, ConsolidatedSet, consolidate
from rl_pipeline.memory.remembering import remember_day
from rl_pipeline.memory.system import carry_over
from rl_pipeline.stores.agent_memories import AgentMemories, AgentMemory
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.sqlite_memories import SqliteMemories
from rl_pipeline_tests.curation.stored import NOW, STREAM, name_of, store, store_rewards
from rl_pipeline_tests.memory.remembered import TODAY, crafted, remember_today, store_and_remember

BOW = ("get wood", "get wool", "craft string", "craft bow")
CRAFT_BOW = [f"crafting: {action}" for action in BOW]
ATTEMPTS = [
    crafted("bow", *BOW),
    crafted("bow", "craft axe", *BOW, useless=(0,)),
    crafted("bow", *BOW, done=False),
    crafted("bow", "get wood", "craft wood", done=False, useless=(1,)),
    crafted("axe", "get wood", "craft plank", "get stone", "craft axe"),
]


def consolidated(warehouse: ClickHouseWarehouse, memories: AgentMemories, kind: Any, **more: Any) -> ConsolidatedSet:
    [made] = consolidate(warehouse, memories, kind, day=TODAY, now=NOW, **more)
    return made


def kept(memories: AgentMemories, memory_type: Any, task_type: str = "crafting") -> list[AgentMemory]:
    return memories.get(memories.of(memory_type, task_type))


def about(found: list[AgentMemory], goal: str) -> list[AgentMemory]:
    return [memory for memory in found if f"Goal: {goal}." in memory.content["goal"]]


def test_a_day_is_remembered_once_and_what_is_rewarded_anew_says_so(
    warehouse: ClickHouseWarehouse, memories: SqliteMemories
) -> None:
    done = store_and_remember(warehouse, memories, ATTEMPTS)
    assert (done.episodes, done.changed, done.gone) == (5, 5, 0)
    again = remember_today(warehouse, memories)
    assert (again.episodes, again.changed, again.generation) == (5, 0, done.generation)
    [first] = [each for each in kept(memories, "episodic") if each.content["trajectory_id"] == name_of(1)]
    assert (first.content["actions"], first.content["outcome"]) == (CRAFT_BOW, "Have bow")
    assert (first.content["status"], first.content["reward"], first.agent_id) == ("success", 0.9, "main")
    store_rewards(warehouse, {1: 0.7}, revision=1)
    changed = remember_today(warehouse, memories)
    assert (changed.changed, changed.generation != done.generation) == (1, True)
    [first] = memories.get([first.id])
    assert first.content["reward"] == 0.7


def test_what_is_not_stored_any_more_is_remembered_no_longer(
    warehouse: ClickHouseWarehouse, memories: SqliteMemories
) -> None:
    store_and_remember(warehouse, memories, ATTEMPTS)
    gone = {"id": name_of(5)}
    warehouse.execute("ALTER TABLE trajectories DELETE WHERE trajectory_id = {id:String}", gone, {"mutations_sync": 2})
    assert remember_today(warehouse, memories).gone == 1
    assert memories.count() == warehouse.query("SELECT * FROM memories FINAL").height == 4


def test_what_worked_is_kept_with_how_often_it_did(warehouse: ClickHouseWarehouse, memories: SqliteMemories) -> None:
    store_and_remember(warehouse, memories, ATTEMPTS)
    consolidated(warehouse, memories, "procedural")
    found = kept(memories, "procedural")
    assert len(found) == 2, "what never worked is no procedure"
    [bow], [axe] = about(found, "bow"), about(found, "axe")
    assert bow.content["actions"] == CRAFT_BOW, "with and without attempts in between that did nothing"
    assert (bow.content["attempts"], bow.content["successes"]) == (3, 2)
    assert bow.content["success_rate"] == pytest.approx(2 / 3, abs=1e-6)
    assert bow.content["interval"] == [pytest.approx(0.208, abs=1e-3), pytest.approx(0.939, abs=1e-3)]
    assert axe.content["interval"] == [pytest.approx(0.207, abs=1e-3), 1.0], "one success of one says little"


def test_episodes_of_one_goal_are_one_fact_whose_contradictions_stay_visible(
    warehouse: ClickHouseWarehouse, memories: SqliteMemories
) -> None:
    store_and_remember(warehouse, memories, ATTEMPTS)
    made = consolidated(warehouse, memories, "semantic")
    assert (made.memories, made.sources, made.contradicted) == (2, 5, 1)
    [bow] = about(kept(memories, "semantic"), "bow")
    assert (bow.content["statement"], bow.content["support"]) == ("it was done: Have bow", 2)
    assert bow.content["contradictions"] == [{"statement": "it failed: I give up", "support": 2}]
    assert (bow.content["episodes"], bow.content["succeeded"], len(bow.content["sources"])) == (4, 2, 4)
    assert bow.agent_id == "", "all agents share it"


def test_the_same_day_makes_the_same_memories_and_keeps_their_counts(
    warehouse: ClickHouseWarehouse, memories: SqliteMemories
) -> None:
    store_and_remember(warehouse, memories, ATTEMPTS)
    made = consolidated(warehouse, memories, "procedural")
    before = kept(memories, "procedural")
    memories.touch({before[0].id: 3}, NOW)
    again = consolidated(warehouse, memories, "procedural")
    assert (made.is_new, again.is_new, again.generation) == (True, False, made.generation)
    assert kept(memories, "procedural")[0].access_count == 3
    store_and_remember(warehouse, memories, [crafted("bow", *BOW)], first=6)
    assert consolidated(warehouse, memories, "procedural").generation != made.generation
    [same] = memories.get([before[0].id])
    assert same.access_count == 3


def test_an_earlier_day_that_is_made_again_does_not_replace_what_counts(
    warehouse: ClickHouseWarehouse, memories: SqliteMemories
) -> None:
    store_and_remember(warehouse, memories, ATTEMPTS)
    consolidated(warehouse, memories, "procedural")
    today = kept(memories, "procedural")
    store(warehouse, [crafted("tent", "get reed", stream_time=NOW - timedelta(days=1))], 50)
    sql = "ALTER TABLE rewards UPDATE stream_time = stream_time - INTERVAL 1 DAY WHERE sequence = 50"
    warehouse.execute(sql, {}, {"mutations_sync": 2})
    yesterday = TODAY - timedelta(days=1)
    assert remember_day(warehouse, memories, stream=STREAM, day=yesterday, now=NOW).episodes == 1
    [made] = consolidate(warehouse, memories, "procedural", day=yesterday, now=NOW)
    assert (made.memories, made.sources) == (1, 1), "what came later is not in it"
    assert kept(memories, "procedural") == today


@pytest.mark.parametrize("point", POINTS)
def test_whoever_is_killed_while_consolidating_leaves_a_whole_set_and_the_next_one_ends_it(
    warehouse: ClickHouseWarehouse, memories: SqliteMemories, clickhouse_url: str, tmp_path: Path, point: str
) -> None:
    store_and_remember(warehouse, memories, ATTEMPTS[:4])
    consolidated(warehouse, memories, "procedural")
    whole = kept(memories, "procedural")
    store_and_remember(warehouse, memories, [ATTEMPTS[4], crafted("bow", *BOW)], first=5)
    program = [sys.executable, "-m", "rl_pipeline_tests.memory.consolidating_process"]
    place = [clickhouse_url, warehouse.database, str(tmp_path / "memories.sqlite"), str(TODAY), point]
    assert subprocess.run([*program, *place], check=False).returncode == -signal.SIGKILL
    if point != POINTS[-1]:
        assert kept(memories, "procedural") == whole
    consolidated(warehouse, memories, "procedural")
    assert len(kept(memories, "procedural")) == len(whole) + 1
    current = warehouse.query("SELECT id FROM current_memories WHERE memory_type = 'procedural' ORDER BY id")
    assert current["id"].to_list() == memories.of("procedural", "crafting")


def test_a_store_that_was_lost_is_made_anew_from_the_warehouse(
    warehouse: ClickHouseWarehouse, memories: SqliteMemories, tmp_path: Any
) -> None:
    store_and_remember(warehouse, memories, ATTEMPTS)
    consolidated(warehouse, memories, "procedural")
    consolidated(warehouse, memories, "semantic")
    new = SqliteMemories(tmp_path / "new.sqlite")
    assert carry_over(warehouse, new) == memories.count() == 9
    assert carry_over(warehouse, new) == 0
    for kind in ("episodic", "semantic", "procedural"):
        assert kept(new, kind) == kept(memories, kind)
    new.close()
