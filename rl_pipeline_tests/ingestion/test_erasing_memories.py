"""A user who is erased is remembered by nobody: not in rows, not in the store's files, not in a process's index."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.memory.consolidating import consolidate
from rl_pipeline.memory.query import MemoryQuery
from rl_pipeline.memory.recall import Recall
from rl_pipeline.memory.remembering import remember_day
from rl_pipeline.memory.telling import MemoryTeller, Telling, UserErased
from rl_pipeline.redaction.policy import RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.rewards.storing import remember_configuration, write_rewards
from rl_pipeline_tests.ingestion.erasing import ERIN, FAYE, KEY, RULES_OFF, STREAM, Erasing
from rl_pipeline_tests.ingestion.ingesting import document
from rl_pipeline_tests.rewards.stored_frames import CONFIGURATION, rewards


def trajectory(seed: int, user: str, thing: str) -> dict[str, Any]:
    """What was done for a user."""
    return document(seed, user_id=user, instructions=f"Paint the {thing}.", task_type="painting", task_status="success")


def remembered(erasing: Erasing, seeds: int) -> datetime:
    """Reward and remember what is stored, and consolidate it."""
    erasing.drain()
    now = datetime.now(UTC)
    remember_configuration(erasing.warehouse, CONFIGURATION, "", "{}", now)
    stored = erasing.ingesting.stored()
    assert len(stored) == seeds
    made = [
        {"sequence": row["sequence"], "trajectory_id": row["trajectory_id"], "stream_time": row["stream_time"]}
        for row in stored
    ]
    write_rewards(erasing.warehouse, STREAM, rewards(*made), now)
    for day in sorted({row["stream_time"].date() for row in stored}):
        remember_day(erasing.warehouse, erasing.memories, stream=STREAM, day=day, now=now)
        for kind in ("semantic", "procedural"):
            consolidate(erasing.warehouse, erasing.memories, kind, day=day, now=now)  # type: ignore[arg-type]
    return now


def teller(erasing: Erasing) -> MemoryTeller:
    redactor = Redactor(RedactionPolicy(KEY, rules_off=RULES_OFF))
    return MemoryTeller(lambda: erasing.warehouse, erasing.memories, lambda: redactor, lambda: datetime.now(UTC))


def bytes_of(directory: Path) -> bytes:
    return b"".join(path.read_bytes() for path in directory.rglob("*") if path.is_file())


def test_an_erased_user_is_in_no_memory_no_file_and_no_index_and_others_keep_theirs(
    erasing: Erasing, tmp_path: Path
) -> None:
    erasing.ingesting.publish(
        trajectory(1, ERIN, "xylophone"), trajectory(2, FAYE, "windmill"), trajectory(3, FAYE, "xylophone")
    )
    remembered(erasing, 3)
    telling = teller(erasing)
    telling.tell(Telling("agent", "semantic", {"user_id": ERIN, "fact": "Erin likes vermilion"}))
    telling.tell(Telling("agent", "semantic", {"user_id": FAYE, "fact": "Faye likes turquoise"}))
    telling.tell(Telling("agent", "semantic", {"seen_with": {"user": [FAYE, ERIN]}, "fact": "They met in ochre"}))
    recall = Recall(erasing.memories, lambda: datetime.now(UTC))
    recall.refresh()
    before = len(recall.index)
    assert erasing.erase().memories == 3, "an episode, a fact of one, and one of both"
    recall.refresh()
    found = recall.retrieve(MemoryQuery("vermilion ochre xylophone turquoise windmill", k=100))
    said = str([one.memory.content for one in found])
    assert ("vermilion" in said, "ochre" in said, "turquoise" in said, "windmill" in said) == (False, False, True, True)
    assert [one.memory.memory_type for one in found if "xylophone" in str(one.memory.content)] == ["episodic"]
    assert len(recall.index) < before
    assert b"vermilion" not in bytes_of(tmp_path / "memory")
    rows = str(erasing.warehouse.query("SELECT * FROM memories").to_dicts())
    assert ("vermilion" in rows, "ochre" in rows) == (False, False)
    assert {hit.id for hit in recall.index.newest(MemoryQuery("", k=100))} == {one.memory.id for one in found}
    telling.close()


def test_what_others_did_too_is_a_fact_again_without_the_erased(erasing: Erasing) -> None:
    erasing.ingesting.publish(trajectory(1, ERIN, "xylophone"), trajectory(1, FAYE, "xylophone"))
    second = trajectory(3, FAYE, "xylophone")
    erasing.ingesting.publish(second)
    now = remembered(erasing, 2)
    [fact] = erasing.memories.get(erasing.memories.of("semantic", "painting"))
    assert fact.content["episodes"] == 2
    erasing.erase()
    assert erasing.memories.of("semantic", "painting") == []
    consolidate(erasing.warehouse, erasing.memories, "semantic", day=now.date(), now=now + timedelta(seconds=1))
    [again] = erasing.memories.get(erasing.memories.of("semantic", "painting"))
    assert (again.id, again.content["episodes"]) == (fact.id, 1)


def test_of_who_opted_out_nothing_is_remembered(erasing: Erasing) -> None:
    erasing.erase(ERIN, opt_out=True)
    telling = teller(erasing)
    with pytest.raises(UserErased):
        telling.tell(Telling("agent", "semantic", {"user_id": ERIN, "fact": "Erin likes vermilion"}))
    telling.close()
    assert erasing.memories.count() == erasing.warehouse.query("SELECT * FROM memories").height == 0
