"""What the views over the rewards say."""

import json
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from rl_pipeline.rewards.storing import remember_configuration, write_rewards
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline_tests.rewards.stored_frames import CONFIGURATION, STREAM, TIME, rewards, trajectory_id

NOW = datetime(2026, 1, 3, tzinfo=UTC)


def test_the_reward_of_a_trajectory_is_its_newest_revision_under_the_configuration_chosen_last_that_scored_it(
    warehouse: ClickHouseWarehouse,
) -> None:
    write_rewards(warehouse, STREAM, rewards({"sequence": 1}, {"sequence": 1, "revision": 1}, {"sequence": 2}), NOW)
    write_rewards(warehouse, STREAM, rewards({"sequence": 1, "configuration": "another", "revision": 5}), NOW)
    sql = "SELECT sequence, revision, configuration FROM trajectory_rewards ORDER BY sequence"
    remember_configuration(warehouse, CONFIGURATION, "", "{}", NOW)
    assert warehouse.query(sql).rows() == [(1, 1, CONFIGURATION), (2, 0, CONFIGURATION)]
    remember_configuration(warehouse, "another", "", "{}", NOW)
    assert warehouse.query(sql).rows() == [(1, 5, "another"), (2, 0, CONFIGURATION)]


def test_the_trend_is_by_day_task_type_and_model_version(warehouse: ClickHouseWarehouse) -> None:
    remember_configuration(warehouse, CONFIGURATION, "", "{}", NOW)
    made = rewards(
        {"sequence": 1, "raw_total": 0.5, "total": 0.25},
        {"sequence": 2, "raw_total": 0.75, "total": 0.75},
        {"sequence": 3, "model_version": "v2"},
        {"sequence": 4, "task_type": "write"},
        {"sequence": 5, "stream_time": TIME + timedelta(days=1)},
        {"sequence": 2, "revision": 1, "raw_total": 1.0, "total": 0.75},
    )
    write_rewards(warehouse, STREAM, made, NOW)
    found = warehouse.query("SELECT * FROM reward_trend ORDER BY day, task_type, model_version")
    assert found.height == 4
    assert found.row(0)[:6] == (TIME.date(), "fix", "v1", 2, 0.75, 0.5)
    assert found["raw_stddev"].to_list() == [pytest.approx(0.125**0.5), None, None, None]


def test_the_history_has_a_row_for_each_revision_and_agent(warehouse: ClickHouseWarehouse) -> None:
    first = {"sequence": 1, "task_id": "task-1"}
    restated = {**first, "revision": 1, "turn_agents": ["main", "helper", "helper"]}
    write_rewards(warehouse, STREAM, rewards(first, restated, {"sequence": 2}), NOW)
    found = warehouse.query("SELECT * FROM reward_history ORDER BY metadata, agent_id")
    wanted = ["id", "task_id", "agent_id", "raw_reward", "shaped_reward", "credit_assigned", "metadata", "created_at"]
    assert found.columns == wanted
    assert found["id"].n_unique() == found.height == 6
    of_task = found.filter(pl.col("task_id") == "task-1")
    assert of_task.rows()[0][2:6] == ("helper", 0.8125, 0.25, 0.2125)
    assert of_task.rows()[1][2:6] == ("main", 0.8125, 0.5625, 0.6)
    assert of_task["shaped_reward"].to_list()[2:] == [0.5625, 0.25], "by the turns of that revision"
    assert [json.loads(row)["revision"] for row in of_task["metadata"]] == ["0", "0", "1", "1"]
    assert set(found["task_id"]) == {"task-1", trajectory_id(2)}
    assert set(found["created_at"]) == {NOW}


def test_the_transitions_are_the_turns_with_what_each_earned(warehouse: ClickHouseWarehouse) -> None:
    remember_configuration(warehouse, CONFIGURATION, "", "{}", NOW)
    turns = [
        {"observation": {"content": name}, "action": {"type": name}, "result": {"output": name}}
        for name in ("a", "b", "c")
    ]
    turns[1]["agent_id"] = "helper"  # type: ignore[assignment]
    document = json.dumps({"turns": turns}, separators=(",", ":"))
    stored = {"trajectory_id": trajectory_id(1), "stream": STREAM, "sequence": 1, "stream_time": datetime.now(UTC)}
    stored |= {"revision": 1, "version": 1, "agent_id": "main", "document": document}
    warehouse.insert("trajectories", pl.DataFrame([stored]))
    write_rewards(warehouse, STREAM, rewards({"sequence": 1}, {"sequence": 2}), NOW)
    sql = "SELECT * FROM training_transitions ORDER BY batch_id, state"
    found = warehouse.query(sql)
    wanted = ["id", "agent_id", "state", "action", "reward", "next_state", "done", "created_at", "batch_id"]
    assert found.columns == wanted
    assert found.drop("id", "created_at", "batch_id").rows() == [
        ("main", '{"content":"a"}', '{"type":"a"}', 0.25, '{"content":"b"}', False),
        ("helper", '{"content":"b"}', '{"type":"b"}', 0.25, '{"content":"c"}', False),
        ("main", '{"content":"c"}', '{"type":"c"}', 0.3125, '{"output":"c"}', True),
    ]
    assert set(found["batch_id"]) == {""}
    held = pl.DataFrame({"dataset_id": ["one", "two"], "trajectory_id": [trajectory_id(1)] * 2})
    warehouse.insert("dataset_trajectories", held)
    found = warehouse.query(sql)
    assert found["batch_id"].to_list() == ["one"] * 3 + ["two"] * 3
    assert found["id"].n_unique() == 6
