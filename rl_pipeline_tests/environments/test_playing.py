"""Many attempts at once, each as if it were alone."""

from collections.abc import Sequence
from random import Random

from rl_pipeline.environments.crafting import COMMANDS, CraftingWorld
from rl_pipeline.environments.playing import Conversation, Episode, play

WORLD = CraftingWorld()
TASKS = WORLD.tasks(120, seed=2)


def chance(conversations: Sequence[Conversation]) -> list[str]:
    """A policy whose answer depends on the conversation and on nothing else."""
    return [Random(f"{one.number} {len(one.messages)}").choice(COMMANDS) for one in conversations]


def test_an_episode_does_not_depend_on_how_many_are_played_at_once() -> None:
    assert play(WORLD, TASKS, chance, at_once=7) == play(WORLD, TASKS, chance) == play(WORLD, TASKS, chance, at_once=1)


def test_every_running_attempt_is_asked_once_a_turn_and_no_ended_one() -> None:
    asked: list[list[int]] = []

    def act(conversations: Sequence[Conversation]) -> list[str]:
        asked.append([conversation.number for conversation in conversations])
        return chance(conversations)

    episodes = play(WORLD, TASKS, act)
    assert asked[0] == list(range(len(TASKS)))
    assert len(asked) == WORLD.max_turns
    for turn, numbers in enumerate(asked):
        assert numbers == [number for number, episode in enumerate(episodes) if len(episode.outcomes) > turn]


def test_an_episode_tells_what_was_said_and_how_it_ended() -> None:
    episodes = play(WORLD, TASKS, chance)
    assert {episode.ended for episode in episodes} == {"goal", "stuck", "turns"}
    for episode in episodes:
        _check(episode)


def _check(episode: Episode) -> None:
    roles = [message["role"] for message in episode.messages]
    assert roles == ["user", *["assistant", "tool"] * len(episode.outcomes)]
    assert episode.messages[0]["content"].startswith(WORLD.instructions)
    observed = [message["content"] for message in episode.messages if message["role"] == "tool"]
    assert observed == [outcome.observation for outcome in episode.outcomes]
    assert episode.success == (episode.ended == "goal") == episode.outcomes[-1].success
    assert episode.total_reward == float(episode.success)
    assert (episode.ended == "turns") == (not episode.outcomes[-1].done)
    assert len(episode.outcomes) <= WORLD.max_turns


def test_fewer_turns_can_be_asked_for() -> None:
    assert max(len(episode.outcomes) for episode in play(WORLD, TASKS, chance, max_turns=4)) == 4
