"""Frames of signals for tests: rows say what matters to them, every other column has a default."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import polars as pl

_TEXTS = (
    "trajectory_id", "stream", "session_id", "agent_id", "framework", "model", "model_version", "task_id", "task_type",
    "domain", "user", "status", "lint_from", "tests_from", "tests_doubt",
)  # fmt: skip
_COUNTS = (
    "subtasks", "turns", "calls", "distinct_calls", "failed_calls", "redundant_calls", "empty_results",
    "code_snippets", "code_unparsable", "corrections_shown", "ingest_revision",
)  # fmt: skip
_COUNTS_OR_NULL = ("tests_passed", "tests_total", "security_critical", "rounds", "votes", "votes_right", "restarts")
_NUMBERS_OR_NULL = (
    "completion", "lint_score", "answer_structure", "answer_depth", "answer_similarity",
    "usual_turns", "usual_turns_std", "usual_log_seconds", "usual_log_seconds_std",
    "usual_log_tokens", "usual_log_tokens_std",
)  # fmt: skip
_LISTS = {
    "feedback_kinds": pl.List(pl.String()),
    "feedback_ratings": pl.List(pl.UInt8()),
    "feedback_users": pl.List(pl.String()),
    "agents": pl.List(pl.String()),
    "credit_shares": pl.List(pl.Float64()),
    "sole_shares": pl.List(pl.Float64()),
    "turn_agents": pl.List(pl.String()),
    "turn_potentials": pl.List(pl.Float64()),
}

SCHEMA: dict[str, pl.DataType] = {
    **dict.fromkeys(_TEXTS, pl.String()),
    **dict.fromkeys(_COUNTS, pl.UInt32()),
    **dict.fromkeys(_COUNTS_OR_NULL, pl.UInt32()),
    **dict.fromkeys(_NUMBERS_OR_NULL, pl.Float64()),
    **_LISTS,
    "sequence": pl.UInt64(),
    "stream_time": pl.Datetime("ms", "UTC"),
    "is_late": pl.Boolean(),
    "subtasks_done": pl.Float64(),
    "seconds": pl.Float64(),
    "tokens": pl.UInt64(),
    "consensus": pl.Boolean(),
}
"""The columns that a term may read: those of the signals and those of the baseline."""

_DEFAULTS: dict[str, Any] = {
    **dict.fromkeys(_TEXTS, ""),
    **dict.fromkeys(_COUNTS, 0),
    **{name: [] for name in _LISTS},
    "stream_time": datetime(2025, 12, 8, tzinfo=UTC),
    "is_late": False,
    "subtasks_done": 0.0,
    "seconds": 0.0,
}


def term_batch(*rows: Mapping[str, Any]) -> pl.DataFrame:
    """A row for each mapping; what is not said is its default: null where a column has nulls, else empty or 0."""
    unknown = {name for row in rows for name in row} - set(SCHEMA)
    assert not unknown, f"no such columns: {unknown}"
    data = {
        name: [row.get(name, position + 1 if name == "sequence" else _DEFAULTS.get(name))
               for position, row in enumerate(rows)]
        for name in SCHEMA
    }  # fmt: skip
    return pl.DataFrame(data, schema=SCHEMA, strict=True)
