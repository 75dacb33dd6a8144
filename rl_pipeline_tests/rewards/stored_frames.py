"""Frames as measuring and scoring return them, for tests that store them."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import polars as pl

from rl_pipeline.rewards.signals import SIGNALS

STREAM = "RL_TRAJECTORIES"
TIME = datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC)
CONFIGURATION = "0123456789abcdef"

_EMPTY = {pl.String: "", pl.Boolean: False, pl.Float64: 0.25, pl.UInt32: 3, pl.UInt64: 3, pl.UInt8: 1}


def trajectory_id(number: int) -> str:
    return str(UUID(int=number))


def signals(*rows: dict[str, Any]) -> pl.DataFrame:
    """Signals that say something in every column; each row must have its sequence."""
    made = []
    for row in rows:
        default: dict[str, Any] = {
            name: [_EMPTY[type(kind.inner)]] * 2 if isinstance(kind, pl.List) else _EMPTY.get(type(kind))  # type: ignore[index]
            for name, kind in SIGNALS.items()
        }
        default |= {"stream": STREAM, "stream_time": TIME, "task_type": "fix", "ingest_revision": 1}
        default |= {"trajectory_id": trajectory_id(row["sequence"]), "agents": ["main", "helper"]}
        made.append(default | row)
    return pl.DataFrame(made, schema=SIGNALS)


def rewards(*rows: dict[str, Any]) -> pl.DataFrame:
    """Rewards with two terms and two agents over three turns; each row must have its sequence."""
    made = []
    for row in rows:
        number, revision = row["sequence"], row.get("revision", 0)
        default = {
            "trajectory_id": trajectory_id(number),
            "stream_time": TIME,
            "session_id": "session",
            "task_id": "",
            "task_type": "fix",
            "model_version": "v1",
            "revision": 0,
            "terms": ["task_completion", "user_feedback"],
            "scores": [1.0, 0.5],
            "units": [2**20, 2**19],
            "weights": [0.625, 0.375],
            "normalised": [0.75, 0.5],
            "means": [0.5, 0.5],
            "stds": [0.25, 0.0],
            "counts": [1000, 12],
            "evidences": ["success", "neutral: none given"],
            "raw_total": 0.8125,
            "total": 0.65625,
            "method": "z-score",
            "confidence": 0.5,
            "cold_start": True,
            "configuration": CONFIGURATION,
            "agents": ["main", "helper"],
            "credits": [0.6, 0.2125],
            "turn_agents": ["main", "helper", "main"],
            "turn_rewards": [0.25, 0.25, 0.3125],
        }
        made.append(default | row | {"reward_id": f"{row.get('configuration', CONFIGURATION)}-{number}-{revision}"})
    kinds = {"sequence": pl.UInt64, "revision": pl.UInt32, "stream_time": pl.Datetime("ms", "UTC")}
    lists = {"units": pl.List(pl.Int32), "counts": pl.List(pl.UInt32)}
    return pl.DataFrame(made, schema_overrides=kinds | lists)
