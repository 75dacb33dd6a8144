"""Models that do as they are told, in place of real ones."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from rl_pipeline.environments.crafting import COMMANDS, RECIPES, next_command
from rl_pipeline.environments.playing import Message
from rl_pipeline.validation.suite import Item, Suite

_GOAL = re.compile(r"Goal: ([a-z ]+)\.")
_HAVE = re.compile(r"Have (.+)$", re.MULTILINE)


@dataclass
class Scripted:
    """Says what `say` makes of a conversation and its seed; keeps what it was asked."""

    say: Callable[[list[Message], int], str]
    calls: list[int] = field(default_factory=list)
    seeds: list[int] = field(default_factory=list)

    def answer(
        self, conversations: Sequence[list[Message]], *, max_tokens: int, temperature: float, seeds: Sequence[int]
    ) -> list[str]:
        assert max_tokens > 0
        assert temperature >= 0
        self.calls.append(len(conversations))
        self.seeds += seeds
        return [self.say(messages, seed) for messages, seed in zip(conversations, seeds, strict=True)]


def always(words: str) -> Scripted:
    return Scripted(lambda _messages, _seed: words)


def crafter(skill: float, chance: str = "") -> Scripted:
    """Takes the right command with probability `skill`, else any; models of another `chance` slip at other times."""

    def say(messages: list[Message], seed: int) -> str:
        randomness = Random(f"{seed} {chance}")
        goal, have = goal_of(messages), things_in(messages)
        if goal not in RECIPES or randomness.random() >= skill:
            return randomness.choice(COMMANDS)
        return next_command(goal, have)

    return Scripted(say)


def goal_of(messages: list[Message]) -> str:
    found = _GOAL.search(messages[0]["content"])
    assert found is not None
    return found.group(1)


def things_in(messages: list[Message]) -> Counter[str]:
    """What is at hand, as the last listing has it."""
    listings = [found for message in messages if (found := _HAVE.findall(message["content"]))]
    things: Counter[str] = Counter()
    for part in listings[-1][-1].split(", "):
        count, _, thing = part.rpartition(" ")
        if part != "nothing":
            things[thing] += int(count or 1)
    return things


def coin_suite(name: str, families: int = 40, items: int = 800, **more: object) -> Suite:
    """Items that a `coin` answers with 0 or 1; half of them are hard."""
    made = [
        Item(f"{name} {number}", str(number % families), ({"role": "user", "content": str(number)},))
        for number in range(items)
    ]
    settings = {"kind": "benchmark", "scorer": lambda _, answer: float(answer), "minimum": 20, "floor": 0.2} | more
    return Suite(name, items=made, **settings)  # type: ignore[arg-type]


def coin(shift: float, chance: int) -> Scripted:
    """Is right in 85 % of the easy and 15 % of the hard items, and by `shift` more often than that."""

    def say(messages: list[Message], seed: int) -> str:
        likely = (0.85, 0.15)[int(messages[0]["content"]) * 7919 % 101 % 2] + shift
        drawn = (seed * (2 * chance + 1) * 2654435761 + chance * 97) % 2**31 / 2**31
        return str(int(drawn < likely))

    return Scripted(say)
