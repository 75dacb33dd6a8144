"""Made-up trajectories that look like an agent's, for trying the pipeline before an agent is connected."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from random import Random
from uuid import UUID

from rl_pipeline.contracts.trajectory import (
    Action,
    Domain,
    Observation,
    Result,
    TaskContext,
    Trajectory,
    TrajectoryMetadata,
    Turn,
)


@dataclass(frozen=True)
class _Task:
    domain: Domain
    task_type: str
    request: str
    tool: str
    call: str
    good: str
    bad: str


_TASKS = (
    _Task(
        *("coding", "implement_function", "Write a binary search and test it.", "code_execution"),
        *("python -m pytest test_search.py", "4 passed in 0.02s", "FAILED test_search.py::test_empty - IndexError"),
    ),
    _Task(
        *("data_analysis", "summarise_table", "Which region sold most last quarter?", "query_database"),
        *("SELECT region, sum(amount) FROM sales GROUP BY region", "north 1204, south 990", "column amount not found"),
    ),
    _Task(
        *("research", "find_source", "Who proved the four colour theorem, and when?", "search"),
        *("four colour theorem proof", "Appel and Haken, 1976", "no results"),
    ),
)


def sample_trajectories(count: int, *, now: datetime, randomness: Random) -> Iterator[Trajectory]:
    """`count` finished trajectories of a few agents; the same `now` and state of `randomness` give the same ones."""
    for _ in range(count):
        yield _trajectory(randomness.choice(_TASKS), now, randomness)


def _trajectory(task: _Task, now: datetime, randomness: Random) -> Trajectory:
    failures = randomness.choice((0, 0, 1, 2))
    succeeds = randomness.random() < 0.7
    outcomes = [False] * failures + [succeeds]
    start = now - timedelta(seconds=30 * (len(outcomes) + 1))
    turns = [_turn(task, number, start, success) for number, success in enumerate(outcomes, start=1)]
    return Trajectory(
        trajectory_id=str(UUID(int=randomness.getrandbits(128), version=4)),
        session_id=f"sample-{randomness.getrandbits(32):08x}",
        agent_id=f"sample-agent-{randomness.randrange(4)}",
        start_timestamp=start,
        end_timestamp=now,
        turns=turns,
        task_context=TaskContext(
            task_id=f"sample-{task.task_type}",
            instructions=task.request,
            domain=task.domain,
            task_type=task.task_type,
            task_status="success" if succeeds else "failed",
        ),
        metadata=TrajectoryMetadata(
            model="sample-model",
            model_version="sample-v1",
            temperature=0.7,
            total_tokens=randomness.randrange(400, 1200) * len(turns),
            framework="rl-pipeline-sample",
        ),
    )


def _turn(task: _Task, number: int, start: datetime, success: bool) -> Turn:
    seen = Observation(type="user_message", content=task.request)
    if number > 1:
        seen = Observation(type="tool_result", content=task.bad)
    return Turn(
        turn_id=number,
        timestamp=start + timedelta(seconds=30 * number),
        observation=seen,
        action=Action(type="tool_call", tool_name=task.tool, tool_args={"input": task.call}),
        result=Result(success=success, output=task.good if success else task.bad, execution_time_ms=120.0),
    )
