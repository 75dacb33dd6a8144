"""Memories as Dagster makes them: what is due, what a day leaves behind, and what is forgotten."""

from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rl_pipeline.assets.memories import episodic_memories, procedural_memories, semantic_memories
from rl_pipeline.automation.memories_due import forget_memories, memories_due
from rl_pipeline.resources.memories import MemoriesResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.rewards.storing import remember_configuration
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.sqlite_memories import SqliteMemories
from rl_pipeline_tests.curation.stored import NOW, name_of, store
from rl_pipeline_tests.memory.remembered import TODAY, crafted, memory

ATTEMPTS = [crafted("bow", "get wood", "craft bow"), crafted("bow", "get wood", "craft bow", done=False)]


@pytest.fixture
def resources(clickhouse_url: str, warehouse: ClickHouseWarehouse, tmp_path: Path) -> dict[str, Any]:
    return {
        "warehouse": WarehouseResource(url=clickhouse_url, database=warehouse.database),
        "memories": MemoriesResource(store=str(tmp_path / "memories.sqlite"), budget=3),
    }


def made(resources: dict[str, Any]) -> dict[str, Any]:
    """What a day shows, asset by asset."""
    result = dg.materialize(
        [episodic_memories, semantic_memories, procedural_memories], partition_key=str(TODAY), resources=resources
    )
    assert result.success
    assert all(check.passed for check in result.get_asset_check_evaluations())
    shown = {}
    for event in result.get_asset_materialization_events():
        told = event.materialization
        shown[told.asset_key.to_user_string()] = {name: value.value for name, value in told.metadata.items()}
        shown[told.asset_key.to_user_string()]["version"] = (told.tags or {})["dagster/data_version"]
    return shown


def due(resources: dict[str, Any]) -> list[str | None]:
    with dg.DagsterInstance.ephemeral() as instance:
        context = dg.build_sensor_context(instance=instance, resources=resources)
        evaluated = memories_due(context)
    assert isinstance(evaluated, dg.SensorResult)
    return [run.partition_key for run in evaluated.run_requests or []]


def test_a_day_is_due_until_it_is_remembered_and_made_again_it_is_the_same(
    warehouse: ClickHouseWarehouse, resources: dict[str, Any]
) -> None:
    assert due(resources) == []
    store(warehouse, ATTEMPTS)
    remember_configuration(warehouse, "c1", "", "{}", NOW)
    assert due(resources) == [str(TODAY)]
    first = made(resources)
    assert [first[name]["dagster/row_count"] for name in sorted(first)] == [2, 1, 1]
    assert "| crafting | 1 | 2 | 1 |" in first["semantic_memories"]["sets"]
    assert due(resources) == []
    again = made(resources)
    assert {name: shown["version"] for name, shown in again.items()} == {
        name: shown["version"] for name, shown in first.items()
    }
    assert again["episodic_memories"]["changed_now"] == again["procedural_memories"]["changed_sets"] == 0


def test_what_was_erased_and_is_still_remembered_fails_its_check(
    warehouse: ClickHouseWarehouse, resources: dict[str, Any]
) -> None:
    [identity] = store(warehouse, ATTEMPTS[:1])
    remember_configuration(warehouse, "c1", "", "{}", NOW)
    assert identity == name_of(1)
    warehouse.execute(
        "INSERT INTO trajectory_ledger (stream, sequence, verdict, revision, stream_time) "
        "VALUES ('RL_TRAJECTORIES', 1, 'erased', 4294967295, now64(3))"
    )
    result = dg.materialize([episodic_memories], partition_key=str(TODAY), resources=resources, raise_on_error=False)
    failed = [check.check_name for check in result.get_asset_check_evaluations() if not check.passed]
    assert failed == ["nothing_erased_is_remembered"]


def test_every_night_agents_forget_what_is_worth_least(resources: dict[str, Any]) -> None:
    now = datetime.now(UTC)
    with closing(SqliteMemories(Path(resources["memories"].store))) as kept:
        given = [memory(str(n), importance=n / 10, created_at=now - timedelta(days=1)) for n in range(6)]
        old = memory("old", importance=1.0, created_at=now - timedelta(days=400))
        kept.put([*given, old, memory("another's", agent_id="other", created_at=now)])
        kept.touch({given[2].id: 1}, now)
        for _ in range(2):
            assert forget_memories.execute_in_process(resources=resources).success
            left = {each.id for each in kept.get([each.id for each in [*given, old]])}
            assert left == {given[3].id, given[4].id, given[5].id}
        assert kept.count() == 4
        assert kept.put([given[0]]) == 0, "what was forgotten does not come back"
