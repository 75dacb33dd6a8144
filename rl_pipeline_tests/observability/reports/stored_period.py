"""Rows of a day, as the pipeline stores them, for tests of what reports make of them."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline_tests.training.job_tables import CONFIGURATION, STREAM

# Yesterday: of what is much older the tables rid themselves.
END = (datetime.now(UTC) - timedelta(days=1)).replace(hour=8, minute=0, second=0, microsecond=0)
START = END - timedelta(days=1)
HOUR = timedelta(hours=1)


def store_ledger(warehouse: ClickHouseWarehouse, *verdicts: tuple[str, int, datetime], first: int = 1) -> None:
    """So many sequences of each verdict, each at its time."""
    rows = [(verdict, at) for verdict, count, at in verdicts for _ in range(count)]
    frame = pl.DataFrame(
        {
            "sequence": range(first, first + len(rows)),
            "trajectory_id": [f"trajectory-{number}" for number in range(first, first + len(rows))],
            "verdict": [verdict for verdict, _ in rows],
            "stream_time": [at for _, at in rows],
        },
        schema_overrides={"stream_time": pl.Datetime("ms", "UTC")},
    )
    warehouse.insert("trajectory_ledger", frame.with_columns(stream=pl.lit(STREAM), revision=pl.lit(1)))


def store_scored(
    warehouse: ClickHouseWarehouse, at: datetime, rows: Sequence[dict[str, Any]], *, first: int = 1
) -> None:
    """Trajectories as they are measured and scored: `session`, `raw`, `model`, and any signal."""
    ids = [f"trajectory-{number}" for number in range(first, first + len(rows))]
    common = {"stream": STREAM, "stream_time": at}
    rewards = [
        {
            **common,
            "trajectory_id": name,
            "sequence": number,
            "session_id": row.get("session", ""),
            "model_version": row.get("model", "model-1"),
            "raw_total": row.get("raw", 0.5),
            "configuration": CONFIGURATION,
            "revision": 0,
            "scored_at": at,
        }
        for number, (name, row) in enumerate(zip(ids, rows, strict=True), first)
    ]
    warehouse.insert("rewards", pl.DataFrame(rewards))
    signals = [
        {
            **common,
            "trajectory_id": name,
            "sequence": number,
            "ingest_revision": 1,
            "session_id": row.get("session", ""),
            "status": row.get("status", ""),
            "turns": row.get("turns", 1),
            "lint_score": row.get("lint"),
            "feedback_kinds": row.get("kinds", []),
            "feedback_ratings": row.get("ratings", []),
            "feedback_users": row.get("users", []),
            "measured_at": at,
        }
        for number, (name, row) in enumerate(zip(ids, rows, strict=True), first)
    ]
    lists = {
        "feedback_kinds": pl.List(pl.String),
        "feedback_ratings": pl.List(pl.UInt8),
        "feedback_users": pl.List(pl.String),
        "lint_score": pl.Float64,
    }
    warehouse.insert("trajectory_signals", pl.DataFrame(signals, schema_overrides=lists))
    configuration = {"hash": CONFIGURATION, "scores_hash": "s", "configuration": "{}"}
    warehouse.insert(
        "reward_configurations", pl.DataFrame([{**configuration, "first_used_at": at, "current_since": at}])
    )


def store_audit(warehouse: ClickHouseWarehouse, *changes: dict[str, Any]) -> None:
    """Generations from 1 on: `at`, `serving`, and what else differs."""
    rows = [
        {
            "generation": number,
            "hash": f"hash-{number}",
            "state": json.dumps(
                {
                    "serving": change["serving"],
                    "weights": change.get("weights", {change["serving"]: 1.0}),
                    "frozen": change.get("frozen"),
                }
            ),
            "event": change.get("event", "promoted"),
            "phase": change.get("phase", "steady"),
            "model_id": change.get("model_id", change["serving"]),
            "reason": change.get("reason", "because"),
            "by": change.get("by", "tester"),
            "at": change["at"],
            "deployment_id": change.get("deployment_id", ""),
        }
        for number, change in enumerate(changes, 1)
    ]
    warehouse.insert("deployment_audit", pl.DataFrame(rows))


def store_validation(warehouse: ClickHouseWarehouse, job_id: str, decision: str, at: datetime, *reasons: str) -> None:
    """What validation said of a job's checkpoint."""
    row = {
        "job_id": job_id,
        "manifest_sha256": "0" * 64,
        "shadow": False,
        "decision": decision,
        "reasons": list(reasons),
        "improvement": 0.04,
        "seconds": 60.0,
        "report_url": f"file:///reports/{job_id}",
        "validated_at": at,
    }
    warehouse.insert("validation_reports", pl.DataFrame([row], schema_overrides={"reasons": pl.List(pl.String)}))


def store_sessions(warehouse: ClickHouseWarehouse, model: str, at: datetime, *, good: int, failed: int) -> None:
    """Sessions that a gateway told of."""
    rows = [
        {
            "session_id": f"{model}-{number}",
            "generation": 1,
            "started_at": at,
            "stream_time": at,
            "sequence": number,
            "model_id": model,
            "ended_at": at,
            "failed": number <= failed,
            "feedback": "negative" if number <= failed else "",
        }
        for number in range(1, good + failed + 1)
    ]
    warehouse.insert("serving_outcomes", pl.DataFrame(rows))
