"""Suites whose items are tasks of a world: the model acts until the attempt ends, and success is the score."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from rl_pipeline.environments.environment import Task, World
from rl_pipeline.environments.playing import Conversation, play
from rl_pipeline.validation.answers import Answers
from rl_pipeline.validation.suite import Item

_MOST_SEED = 2**31
_STEP_OF_SEED = 7919


@dataclass(frozen=True)
class Episodes:
    """Plays an attempt at each item's task. The answer is JSON: `actions`, `success` and the sum of the `reward`s."""

    world: World
    max_tokens: int
    temperature: float

    def __call__(self, answers: Answers, items: Sequence[Item], seeds: Sequence[int]) -> list[str]:
        """All attempts at once: every turn is one call for those that still run."""
        turns = [0] * len(items)

        def act(conversations: Sequence[Conversation]) -> list[str]:
            drawn = []
            for conversation in conversations:
                number = conversation.number
                drawn.append((seeds[number] + _STEP_OF_SEED * turns[number]) % _MOST_SEED)
                turns[number] += 1
            return answers.answer(
                [conversation.messages for conversation in conversations],
                max_tokens=self.max_tokens,
                temperature=self.temperature,
                seeds=drawn,
            )

        episodes = play(self.world, [self.world.task(item.expected) for item in items], act)
        return [
            json.dumps(
                {
                    "actions": [message["content"] for message in episode.messages[1::2]],
                    "success": episode.success,
                    "reward": episode.total_reward,
                }
            )
            for episode in episodes
        ]


def item_of(task: Task, family: str) -> Item:
    """The task as an item; attempts at it share its id."""
    return Item(task.id, family, (), task.setup)


def reached_goal(_item: Item, answer: str) -> float:
    """1 for an attempt that reached its goal, else 0."""
    return float(json.loads(answer)["success"])
