"""Tasks that are reported when they end, stored for each agent."""

import asyncio
from datetime import UTC, datetime
from typing import Any

from rl_pipeline.rewards.integrator import RewardSignalIntegrator
from rl_pipeline.rewards.reported import StoredRewardSignals
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def test_a_reported_task_is_in_the_history_of_each_agent_once(warehouse: ClickHouseWarehouse) -> None:
    integrator = RewardSignalIntegrator(StoredRewardSignals(warehouse), {"task_completion": 1.0}, clock=lambda: NOW)
    result: dict[str, Any] = {
        "task_type": "fix",
        "output": "done",
        "agents": ["main", "helper"],
        "metadata": {"task_status": "success"},
        "steps": [],
    }
    for _ in range(2):
        asyncio.run(integrator.process_task_completion("task-1", result))
    history = warehouse.query("SELECT * FROM reward_history WHERE task_id = 'task-1' ORDER BY agent_id")
    assert history["agent_id"].to_list() == ["helper", "main"]
    assert history["raw_reward"].to_list() == [1.0, 1.0]
    assert sum(history["credit_assigned"]) == 1.0
    assert history["created_at"].to_list() == [NOW, NOW]
