"""What a small model sees before any training: attempts of a script that knows the way and often slips.

Where the script slipped and what it did next teaches to recover. Some slips are imitated too: a policy that is too sure
of itself never finds anything better. Of a single question all are: what is imitated there is to answer at all.
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
_WRONG_ANSWERS = 0.4
"""Share of the questions that are answered with what is right for another."""


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


def answer(world: ReasoningGymWorld, task: Task, other: Task, randomness: Random) -> Demonstration:
    """The question of `task` and its answer, or, where it slips, that of the `other`."""
    answered = other if randomness.random() < _WRONG_ANSWERS else task
    messages = opening(world, world.question(task))
    return Demonstration([*messages, {"role": "assistant", "content": world.answer(answered)}], [True])
