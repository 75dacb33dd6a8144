"""What the views over the trajectories say."""

from datetime import UTC, datetime
from typing import Any

import polars as pl

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse

NOW = datetime.now(UTC)


def row(number: int, **columns: Any) -> dict[str, Any]:
    texts = ["stream", "publisher", "session_id", "subordinate_profile", "parent_trajectory_id", "user", "framework"]
    texts += ["model_version", "task_id", "group_id", "document"]
    return {
        **dict.fromkeys(texts, ""),
        "trajectory_id": f"trajectory-{number}",
        "sequence": number,
        "stream_time": NOW,
        "revision": 1,
        "version": 2**40 - number,
        "agent_id": "main",
        "model": "small",
        "task_type": "fix",
        "domain": "coding",
        "domain_is_inferred": False,
        "complexity": 0.5,
        "complexity_is_inferred": False,
        "task_status": "success",
        "started_at": NOW,
        "ended_at": NOW,
        "turns": 4,
        "failed_turns": 1,
        "agents": 1,
        "tools": ["read", "edit", "test"],
        "total_tokens": 100,
        "total_cost_usd": 0.5,
        "redaction_rules": ["email"],
        "redaction_counts": [2],
        **columns,
    }


def test_the_views_tell_how_agents_fare_what_they_do_next_and_what_was_redacted(
    warehouse: ClickHouseWarehouse,
) -> None:
    rows = [row(1), row(2, task_status="failed", tools=["read", "test"]), row(3, task_status="", redaction_counts=[5])]
    warehouse.insert("trajectories", pl.DataFrame([*rows, row(1)]))  # one of them twice
    [told] = warehouse.query("SELECT * FROM trajectory_statistics").iter_rows(named=True)
    assert (told["trajectories"], told["success_share"], told["failed_turns_share"]) == (3, 0.5, 0.25)
    assert (told["mean_tokens"], told["cost_usd"]) == (100, 1.5)
    steps = warehouse.query("SELECT tool, next_tool, trajectories, successful_trajectories FROM tool_transitions")
    counts = {(tool, following): seen for tool, following, *seen in steps.iter_rows()}
    assert counts["", "read"] == [3, 1]
    assert counts["read", "edit"] == [2, 1]
    assert counts["read", "test"] == [1, 0]
    assert counts["test", ""] == [3, 1]
    audit = warehouse.query("SELECT rule, redactions, trajectories FROM redaction_audit")
    assert audit.rows() == [("email", 9, 3)]
