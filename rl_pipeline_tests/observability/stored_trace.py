"""A trajectory in the warehouse, with everything that can become of one."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from rl_pipeline.contracts import Trajectory
from rl_pipeline.redaction.placeholders import placeholder
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.rewards.computing import compute_rewards
from rl_pipeline.rewards.configuration import RewardConfiguration
from rl_pipeline.rewards.signals import SIGNALS, signals_of_one
from rl_pipeline.rewards.storing import remember_configuration, write_signals
from rl_pipeline.stores.warehouse import Warehouse

STREAM = "RL_TRAJECTORIES"
ID = "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f"
NOW = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3)
KEY = RedactionKey("v1", b"a key of redaction, for tests alone!")
MAIL = placeholder(KEY, "EMAIL", b"jane@example.org")
TOKEN = placeholder(KEY, "SECRET", b"a token")

_SEARCH = """def search(items: list[int], wanted: int) -> int | None:
    low, high = 0, len(items) - 1
    while low <= high:
        middle = (low + high) // 2
        if items[middle] == wanted:
            return middle
        if items[middle] < wanted:
            low = middle + 1
        else:
            high = middle
    return None
"""


def document() -> dict[str, Any]:
    """Four turns of two agents; one of them fails."""

    def turn(
        number: int, observed: tuple[str, Any], action: dict[str, Any], result: dict[str, Any], **more: Any
    ) -> Any:
        return {
            "turn_id": number,
            "timestamp": (NOW + timedelta(seconds=9 * number)).isoformat(),
            "observation": {"type": observed[0], "content": observed[1]},
            "action": action,
            "result": result,
            **more,
        }

    asked = f"Implement binary search in Python, test it, and mail the result to {MAIL}."
    failure = "E   Timeout: search([1, 3], 2) did not return\n1 failed, 5 passed in 2.31s"
    tests = {"runtime": "terminal", "code": "pytest -q test_search.py"}
    turns = [
        turn(
            1,
            ("user_message", asked),
            {"type": "tool_call", "tool_name": "write_file", "tool_args": {"path": "search.py", "text": _SEARCH}},
            {"success": True, "output": "search.py: 12 lines", "execution_time_ms": 41},
            thought_process=["Binary search first; then tests for the borders: empty list, first, last, absent."],
            agent_id="agent-zero-main",
        ),
        turn(
            2,
            ("tool_result", "search.py: 12 lines"),
            {"type": "tool_call", "tool_name": "code_exe", "tool_args": tests},
            {"success": False, "output": failure, "error": "exit code 1", "execution_time_ms": 2310},
            agent_id="tester",
        ),
        turn(
            3,
            ("tool_result", failure),
            {
                "type": "tool_call",
                "tool_name": "edit_file",
                "tool_args": {"path": "search.py", "edits": [{"line": 10, "new": "            high = middle - 1"}]},
                "raw_response": "`high = middle` never shrinks a span of one. I take one off.",
            },
            {"success": True, "output": {"changed": 1, "tests": "6 passed in 0.04s"}, "execution_time_ms": 388},
            thought_process=["The loop does not end when high stays where it is."],
            agent_id="agent-zero-main",
        ),
        turn(
            4,
            ("tool_result", {"changed": 1, "tests": "6 passed in 0.04s"}),
            {"type": "response", "raw_response": f"Done: 6 tests pass. Sent to {MAIL} with the token {TOKEN}."},
            {"success": True, "output": "", "execution_time_ms": 12},
            agent_id="agent-zero-main",
            sampling={
                "model_version": "agent-zero-rl-v2.3",
                "completion_token_ids": [5, 9, 2],
                "logprobs": [-0.1, -0.2, -0.3],
            },
        ),
    ]
    content = {
        "trajectory_id": ID,
        "session_id": "session-7",
        "agent_id": "agent-zero-main",
        "start_timestamp": NOW.isoformat(),
        "end_timestamp": (NOW + timedelta(seconds=47)).isoformat(),
        "turns": turns,
        "task_context": {
            "task_id": "task-81",
            "instructions": asked,
            "task_type": "implement_function",
            "domain": "coding",
            "task_status": "success",
            "subtasks": [{"subtask_id": "write-tests", "status": "success"}],
        },
        "metadata": {
            "model": "qwen2.5-32b-instruct",
            "model_version": "agent-zero-rl-v2.3",
            "total_tokens": 5120,
            "total_cost_usd": 0.0256,
            "framework": "agent-zero",
            "linter_results": {"tool": "pylint", "score": 9.0},
            "test_results": {"total": 6, "passed": 6},
            "feedback": [{"kind": "thumbs_up"}],
        },
    }
    Trajectory.model_validate(content)
    return content


def store_trace(warehouse: Warehouse) -> None:
    """Ingested, scored by the real terms, praised, and learnt from by two trainings, of which one was released; two
    generations descend from that, and one training from neither."""

    def insert(table: str, *rows: dict[str, Any]) -> None:
        warehouse.insert(table, pl.DataFrame(list(rows), infer_schema_length=None))

    content = document()
    insert(
        "trajectories",
        {
            "trajectory_id": ID,
            "stream": STREAM,
            "sequence": 1,
            "stream_time": NOW,
            "revision": 3,
            "version": 7,
            "agent_id": "agent-zero-main",
            "session_id": "session-7",
            "model": "qwen2.5-32b-instruct",
            "model_version": "agent-zero-rl-v2.3",
            "task_type": "implement_function",
            "domain": "coding",
            "task_status": "success",
            "started_at": NOW,
            "ended_at": NOW + timedelta(seconds=47),
            "turns": 4,
            "failed_turns": 1,
            "total_tokens": 5120,
            "total_cost_usd": 0.0256,
            "document": json.dumps(content),
            "redaction_rules": ["email", "github-token"],
            "redaction_counts": [3, 1],
            "expires_at": NOW + timedelta(days=30),
        },
    )
    known = {"sequence": 1, "stream": STREAM, "stream_time": NOW, "task_type": "implement_function"}
    write_signals(warehouse, pl.DataFrame([signals_of_one(content, None, known)], SIGNALS), NOW)
    configuration = RewardConfiguration()
    compute_rewards(warehouse, stream=STREAM, first=1, last=1, configuration=configuration, now=NOW)
    remember_configuration(warehouse, configuration.hash, configuration.scores_hash, configuration.as_json(), NOW)
    insert(
        "trajectory_feedback",
        {
            "stream": "RL_FEEDBACK",
            "sequence": 1,
            "stream_time": NOW + timedelta(minutes=5),
            "verdict": "accepted",
            "feedback_id": "f-1",
            "trajectory_id": ID,
            "kind": "stars",
            "rating": 4,
            "text": "Works, but the first try hung.",
            "turn_id": 2,
            "channel": "web",
        },
    )
    for job, algorithm, roles in (("job-7", "dpo", ("chosen",)), ("job-8", "rloo", ("prompt", "scored"))):
        insert(
            "dataset_provenance",
            *(
                {"dataset_id": f"{job}.r1", "trajectory_id": ID, "role": role, "split": "train", "raw_total": 0.8}
                for role in roles
            ),
        )
        insert(
            "datasets",
            {
                "dataset_id": f"{job}.r1",
                "job_id": job,
                "revision": 1,
                "algorithm": algorithm,
                "trajectories": 10_000,
                "created_at": NOW + timedelta(hours=1),
            },
        )
        insert(
            "model_checkpoints",
            {
                "id": f"{job}/final",
                "job_id": job,
                "attempt": 1,
                "dataset_id": f"{job}.r1",
                "base_model": "qwen2.5-32b-instruct",
                "algorithm": algorithm,
                "checkpoint_path": f"s3://models/{job}/final",
                "deployed": job == "job-7",
                "created_at": NOW + timedelta(hours=2),
                "version": 1,
            },
        )
    for job, start in (("job-9", "job-7"), ("job-10", "job-9"), ("job-11", "elsewhere")):
        insert(
            "model_checkpoints",
            {
                "id": f"{job}/final",
                "job_id": job,
                "attempt": 1,
                "dataset_id": f"{job}.r1",
                "base_model": f"s3://models/{start}/final/",
                "algorithm": "rloo",
                "checkpoint_path": f"s3://models/{job}/final",
                "created_at": NOW + timedelta(hours=2, minutes=int(job.removeprefix("job-"))),
                "version": 1,
            },
        )
    insert(
        "model_releases",
        {
            "training_job_id": "job-7",
            "number": 24,
            "model_id": "agent-zero-rl-v24",
            "state": "started",
            "released_at": NOW + timedelta(hours=2),
            "changed_at": NOW + timedelta(hours=2),
            "version": 1,
        },
    )
