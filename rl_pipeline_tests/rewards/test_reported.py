"""Tasks that are reported when they end, stored for each agent."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.rewards.integrator import RewardSignal, RewardSignalIntegrator
from rl_pipeline.rewards.reported import StoredRewardSignals
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse

NOW = datetime(2026, 1, 2, tzinfo=UTC)
KEY = RedactionKey.parse("v1:a key for tests, of enough characters")
SECRET = "AKIAZQ3DRSTUVWXY2345"  # of the form of an access key, and nobody's


def test_a_reported_task_is_in_the_history_of_each_agent_once(warehouse: ClickHouseWarehouse) -> None:
    store = StoredRewardSignals(warehouse, Redactor(RedactionPolicy(KEY)))
    integrator = RewardSignalIntegrator(store, {"task_completion": 1.0}, clock=lambda: NOW)
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


def test_nothing_sensitive_is_stored_of_a_reported_task_and_its_users_are_placeholders(
    warehouse: ClickHouseWarehouse,
) -> None:
    redactor = Redactor(RedactionPolicy(KEY))
    metadata = {"task_type": f"log in with {SECRET}", "user_id": "bob-smith", "raters": [{"user": 4711234}]}
    signal = RewardSignal("1", f"{SECRET} of bob-smith", "bob-smith", 1.0, 1.0, 1.0, metadata, NOW)
    asyncio.run(StoredRewardSignals(warehouse, redactor).store([signal]))
    [row] = warehouse.query("SELECT * FROM reported_rewards").to_dicts()
    for raw in (SECRET, "bob-smith", "4711234"):
        assert raw not in json.dumps(row, default=str)
    bob = redactor.placeholder("USER", "bob-smith")
    assert (row["user"], row["agent_id"]) == (bob, bob)
    kept = json.loads(row["metadata"])
    assert (kept["user_id"], kept["raters"]) == (bob, [{"user": redactor.placeholder("USER", "4711234")}])
    assert kept["task_type"].startswith("log in with [REDACTED:")
