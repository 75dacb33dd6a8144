"""Leads a policy through many attempts at once: every turn, one call answers for all that are still running."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from rl_pipeline.environments.environment import Environment, StepOutcome, Task, World

Ending = Literal["goal", "stuck", "turns"]


class Message(TypedDict):
    """One message of a conversation, as chat templates take it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


@dataclass
class Conversation:
    """What was said in one attempt so far; it ends with what the policy must answer."""

    number: int
    """Place among the tasks that are played, the same in every turn."""
    messages: list[Message]


Act = Callable[[Sequence[Conversation]], Sequence[str]]
"""A policy: one action for each conversation. The conversations grow from call to call, and those that ended leave."""


@dataclass
class Episode:
    """One attempt at a task, from the first observation to the end."""

    task: Task
    messages: list[Message]
    """The user's message, then an action and its observation in turn; the last observation closes it."""
    outcomes: list[StepOutcome] = field(default_factory=list)
    """Of each action."""
    ended: Ending = "turns"

    @property
    def success(self) -> bool:
        """Whether the goal was reached."""
        return self.ended == "goal"

    @property
    def rewards(self) -> list[float]:
        """The reward of each action."""
        return [outcome.reward for outcome in self.outcomes]

    @property
    def progress(self) -> list[float]:
        """By how much each action brought the goal nearer."""
        return [outcome.progress for outcome in self.outcomes]

    @property
    def total_reward(self) -> float:
        """The sum of all rewards."""
        return sum(self.rewards)


def opening(world: World, first_observation: str) -> list[Message]:
    """The conversation before the first action: one message of the user, which every chat template can show."""
    return [{"role": "user", "content": f"{world.instructions}\n{first_observation}"}]


def play(
    world: World, tasks: Sequence[Task], act: Act, *, max_turns: int | None = None, at_once: int = 256
) -> list[Episode]:
    """Attempts at the tasks in their order, `at_once` at a time if the world allows it; to play a task twice, name it
    twice."""
    episodes: list[Episode] = []
    at_once = min(at_once, world.max_at_once)
    for first in range(0, len(tasks), at_once):
        episodes += _play_together(world, tasks[first : first + at_once], act, max_turns or world.max_turns, first)
    return episodes


def _play_together(world: World, tasks: Sequence[Task], act: Act, max_turns: int, first: int) -> list[Episode]:
    environments = [world.open(task) for task in tasks]
    episodes = [
        Episode(task, opening(world, environment.observe()))
        for task, environment in zip(tasks, environments, strict=True)
    ]
    running = list(range(len(tasks)))
    for _ in range(max_turns):
        actions = act([Conversation(first + place, episodes[place].messages) for place in running])
        for place, action in zip(running, actions, strict=True):
            _step(episodes[place], environments[place], action)
        running = [place for place in running if not episodes[place].outcomes[-1].done]
        if not running:
            break
    return episodes


def _step(episode: Episode, environment: Environment, action: str) -> None:
    outcome = environment.step(action)
    episode.messages.append({"role": "assistant", "content": action})
    episode.messages.append({"role": "tool", "content": outcome.observation})
    episode.outcomes.append(outcome)
    if outcome.done:
        episode.ended = "goal" if outcome.success else "stuck"
