"""One trajectory at once, as a tool or a service scores it."""

import json
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest

from rl_pipeline.collection.samples import sample_trajectories
from rl_pipeline.contracts import serialize
from rl_pipeline.rewards.configuration import RewardConfiguration
from rl_pipeline.rewards.linting import CodeChecker
from rl_pipeline.rewards.single import reward_of
from rl_pipeline.trainer_tools import compute_reward

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def documents(count: int) -> list[dict[str, Any]]:
    return [json.loads(serialize(one)) for one in sample_trajectories(count, now=NOW, randomness=Random(7))]


def test_a_trajectory_is_compared_with_those_before_it() -> None:
    every = documents(300)
    alone = reward_of(every[-1], [], RewardConfiguration(), checker=CodeChecker(), now=NOW)
    among = reward_of(every[-1], every[:-1], RewardConfiguration(), checker=CodeChecker(), now=NOW)
    assert alone.total_reward == pytest.approx(0.5)
    assert among.total_reward != alone.total_reward
    assert "efficiency" in among.reward_components.by_name()
    assert "efficiency" not in alone.reward_components.by_name()


def test_the_trainers_tool_gives_a_valid_message() -> None:
    every = documents(3)
    made = compute_reward(every[2], every[:2], weights={"task_completion": 1.0})
    assert set(made["reward_components"]) == {"task_completion"}
    assert made["trajectory_id"] == every[2]["trajectory_id"]
    assert made["metadata"]["raw_total"] == made["reward_components"]["task_completion"]["score"]
