"""Episodes as trajectories: valid, complete, and worth what they achieved."""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from random import Random
from typing import Any

import polars as pl

from rl_pipeline.contracts import serialize, validate_trajectory
from rl_pipeline.contracts.trajectory import Sampling
from rl_pipeline.curation.conversations import Conversation as CuratedConversation
from rl_pipeline.curation.conversations import conversation_of
from rl_pipeline.environments.crafting import COMMANDS, CraftingWorld, next_command
from rl_pipeline.environments.playing import Conversation, Episode, play
from rl_pipeline.environments.recording import Recorder
from rl_pipeline.rewards.configuration import RewardConfiguration
from rl_pipeline.rewards.scoring import History, score
from rl_pipeline.rewards.signals import SIGNALS, signals_of_one

WORLD = CraftingWorld()
NOW = datetime(2026, 1, 2, tzinfo=UTC)
RECORDER = Recorder(WORLD, agent_id="player", model="small", model_version="small-v1", temperature=1.0)


def clumsy_episodes(count: int) -> list[Episode]:
    """Attempts of a policy that knows the way and slips now and then."""
    tasks, randomness = WORLD.tasks(count, seed=8), Random(5)
    own = [WORLD.open(task) for task in tasks]

    def act(conversations: Sequence[Conversation]) -> list[str]:
        said = []
        for one in conversations:
            environment = own[one.number]
            slips = randomness.random() < 0.5
            said.append(randomness.choice(COMMANDS) if slips else next_command(environment.goal, environment.inventory))
            environment.step(said[-1])
        return said

    return play(WORLD, tasks, act)


def documents(episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    recorded = RECORDER.record(episodes, start=NOW, randomness=Random(1))
    return [json.loads(serialize(trajectory)) for trajectory in recorded]


def test_recorded_episodes_keep_the_contract_and_say_where_they_were_played() -> None:
    episodes = clumsy_episodes(60)
    for episode, document in zip(episodes, documents(episodes), strict=True):
        trajectory = validate_trajectory(document)
        task = document["task_context"]
        assert task["task_status"] == ("success" if episode.success else "failed")
        assert task["environment"] == "crafting"
        assert WORLD.task(task["environment_task"]) == episode.task
        assert task["task_id"] == task["group_id"] == episode.task.id
        assert len(trajectory.turns) == len(episode.outcomes)
        assert [turn.result.success for turn in trajectory.turns] == [one.accepted for one in episode.outcomes]


def test_what_curation_reads_is_the_conversation_that_was_played() -> None:
    episodes = clumsy_episodes(40)
    for episode, document in zip(episodes, documents(episodes), strict=True):
        curated = conversation_of(json.dumps(document), 10_000)
        assert isinstance(curated, CuratedConversation)
        told = [{"role": message["role"], "content": message["content"]} for message in curated.messages]
        assert told == episode.messages[:-1], "the last observation, which nobody answered, is left out"
        assert [message["trained"] for message in curated.messages] == [one["role"] == "assistant" for one in told]


def test_the_same_randomness_records_the_same_and_ids_are_unique() -> None:
    episodes = clumsy_episodes(30)
    assert documents(episodes) == documents(episodes)
    assert len({document["trajectory_id"] for document in documents(episodes)}) == 30


def test_a_success_is_worth_more_than_any_failure() -> None:
    episodes = clumsy_episodes(300)
    rows = [
        signals_of_one(document, None, {"sequence": place})
        for place, document in enumerate(documents(episodes), start=1)
    ]
    batch = pl.DataFrame(rows, SIGNALS).with_columns(revision=pl.lit(0, pl.UInt32))
    raw = score(batch, History.empty(), RewardConfiguration()).sort("sequence")["raw_total"]
    successes = [total for total, episode in zip(raw, episodes, strict=True) if episode.success]
    failures = [total for total, episode in zip(raw, episodes, strict=True) if not episode.success]
    assert min(successes) > max(failures)


def test_how_an_action_was_drawn_is_kept() -> None:
    episode = clumsy_episodes(1)[0]
    drawn = [
        Sampling(prompt_token_ids=[1, 2, 3], completion_token_ids=[4, 5], logprobs=[-0.1, -0.2])
        for _ in episode.outcomes
    ]
    trajectory = RECORDER.record([episode], start=NOW, randomness=Random(1), samplings=[drawn])[0]
    assert [turn.sampling for turn in trajectory.turns] == drawn
    assert trajectory.metadata.total_tokens == 5 * len(drawn)
