"""Documents of trajectories for tests: turns say what matters to them."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import orjson
import polars as pl

from rl_pipeline.rewards.document import Turn, turns_of

START = datetime(2025, 12, 8, 12, 0, tzinfo=UTC)
END = datetime(2025, 12, 8, 12, 5, 30, tzinfo=UTC)


def turn(
    action: Mapping[str, Any],
    *,
    success: bool = True,
    output: Any = None,
    error: str | None = None,
    agent: str | None = None,
    observed: str = "tool_result",
    content: Any = "",
) -> dict[str, Any]:
    return {
        "turn_id": 1,
        "timestamp": "2025-12-08T12:00:00Z",
        "observation": {"type": observed, "content": content},
        "action": dict(action),
        "result": {"success": success, "output": output, "error": error},
    } | ({"agent_id": agent} if agent else {})


def call(tool: str, arguments: Mapping[str, Any] | None = None, **rest: Any) -> dict[str, Any]:
    return turn({"type": "tool_call", "tool_name": tool, "tool_args": dict(arguments or {})}, **rest)


def says(text: str, **rest: Any) -> dict[str, Any]:
    return turn({"type": "response", "raw_response": text}, **rest)


def user_says(text: Any, answer: str = "Done.") -> dict[str, Any]:
    return says(answer, observed="user_message", content=text)


def document(turns: Sequence[Mapping[str, Any]], task: Any = None, metadata: Any = None) -> dict[str, Any]:
    return {
        "trajectory_id": "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f",
        "session_id": "session-7",
        "agent_id": "main",
        "start_timestamp": "2025-12-08T12:00:00Z",
        "end_timestamp": "2025-12-08T12:05:30Z",
        "turns": list(turns),
        "task_context": task if task is not None else {},
        "metadata": {"model": "m"} | metadata if isinstance(metadata, dict) else {"model": "m"},
    }


def read_turns(turns: Sequence[Mapping[str, Any]]) -> list[Turn]:
    return turns_of(document(turns))


def stored(documents: Sequence[Any]) -> pl.DataFrame:
    """Rows of the table `trajectories`, as far as signals read them."""
    rows = [
        {
            "trajectory_id": f"trajectory-{sequence}",
            "stream": "RL_TRAJECTORIES",
            "sequence": sequence,
            "stream_time": END,
            "revision": 3,
            "session_id": "session-7",
            "agent_id": "main",
            "framework": "agent-zero",
            "model": "m",
            "model_version": "v1",
            "task_id": "task-81",
            "task_type": "implement_function",
            "domain": "coding",
            "user": "[USER_1]",
            "task_status": "success",
            "started_at": START,
            "ended_at": END,
            "turns": 1,
            "failed_turns": 0,
            "total_tokens": 5000,
            "document": one if isinstance(one, str) else orjson.dumps(one).decode(),
        }
        for sequence, one in enumerate(documents, 1)
    ]
    return pl.DataFrame(rows, infer_schema_length=None)
