"""What a small model sees before any training: attempts of a script that knows the way and often slips.

Where the script slipped and what it did next teaches to recover. Some slips are imitated too: a policy that is too sure
of itself never finds anything better. Single questions are answered rightly at first, and in the last lessons not
always: a model of this size that is shown wrong answers from the beginning learns no right ones.
"""

from dataclasses import dataclass
from random import Random

from rl_pipeline.environments.crafting import COMMANDS, CraftingWorld, next_command
from rl_pipeline.environments.environment import Task
from rl_pipeline.environments.playing import Message, opening
from rl_pipeline.environments.reasoning import ReasoningGymWorld

_SLIPS = 0.35
"""Share of the commands that are drawn from all there are."""
_SLIPS_IMITATED = 0.4
_WRONG_ANSWERS = 0.2
"""Share of the last lessons that answer with what is right for another question."""


@dataclass(frozen=True)
class Demonstration:
    """One attempt, and which of its commands are to be imitated."""

    messages: list[Message]
    imitated: list[bool]


def demonstrate(world: CraftingWorld, task: Task, randomness: Random) -> Demonstration:
    """One attempt at `task`, up to its last command."""
    environment = world.open(task)
    messages, imitated = opening(world, environment.observe()), []
    for _ in range(world.max_turns):
        slips = randomness.random() < _SLIPS
        command = randomness.choice(COMMANDS) if slips else next_command(environment.goal, environment.inventory)
        imitated.append(not slips or randomness.random() < _SLIPS_IMITATED)
        outcome = environment.step(command)
        messages.append({"role": "assistant", "content": command})
        messages.append({"role": "tool", "content": outcome.observation})
        if outcome.done:
            break
    return Demonstration(messages[:-1], imitated)


def answer(world: ReasoningGymWorld, task: Task) -> Demonstration:
    """The question of `task` and its answer."""
    return _answered(world, task, task)


def answer_carelessly(world: ReasoningGymWorld, task: Task, other: Task, randomness: Random) -> Demonstration:
    """The question of `task` and its answer, or that of the `other`."""
    return _answered(world, task, other if randomness.random() < _WRONG_ANSWERS else task)


def _answered(world: ReasoningGymWorld, asked: Task, answered: Task) -> Demonstration:
    messages = opening(world, world.question(asked))
    return Demonstration([*messages, {"role": "assistant", "content": world.answer(answered)}], [True])
