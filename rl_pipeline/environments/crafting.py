"""A small world of crafting: gather raw things, craft what the goal needs, then the goal.

The recipes never change and are in no prompt: they are learnt by heart, or by trying, since a failed command names what
is missing. A task is a goal and a few things at hand: to have the same and to want the same is the same task. Tiers
go by the commands that a goal takes from nothing: 2-3, 4-6, and 7-10, where 10 is all there is.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from rl_pipeline.environments.environment import InvalidTask, StepOutcome, Task

RAW_THINGS = ("wood", "stone", "clay", "coal", "sand", "wool", "reed")
RECIPES: Mapping[str, tuple[str, ...]] = {
    "plank": ("wood",),
    "paper": ("reed",),
    "string": ("wool",),
    "brick": ("clay", "coal"),
    "glass": ("sand", "coal"),
    "torch": ("wood", "coal"),
    "bow": ("wood", "string"),
    "axe": ("plank", "stone"),
    "book": ("paper", "string"),
    "rope": ("string", "string"),
    "oven": ("brick", "stone"),
    "window": ("glass", "plank"),
    "lantern": ("glass", "torch"),
    "tent": ("rope", "wood"),
    "shelf": ("book", "plank"),
    "chimney": ("oven", "brick"),
    "greenhouse": ("window", "glass"),
}
TIERS: Mapping[int, tuple[str, ...]] = {
    1: ("plank", "paper", "string", "brick", "glass", "torch"),
    2: ("bow", "axe", "book", "rope", "oven", "window"),
    3: ("lantern", "tent", "shelf", "chimney", "greenhouse"),
}
COMMANDS = (*(f"get {thing}" for thing in RAW_THINGS), *(f"craft {thing}" for thing in RECIPES))

MOST_OF_ONE_THING = 3
USELESS_IN_A_ROW = 3
"""Commands without effect that end an attempt: a policy that repeats itself learns so at once."""

_AT_HAND = (*RAW_THINGS, *TIERS[1])
_MOST_AT_HAND = 3
_STARTS = 1_000_000
_COMMAND = re.compile(r"\b(get|craft)\s+([a-z]+)", re.IGNORECASE)


class CraftingWorld:
    """The world `crafting`. Its tasks are `{"goal": thing, "have": things at hand, in order}`."""

    name = "crafting"
    instructions = "Answer with a command: get THING or craft THING."
    max_turns = 10
    max_at_once = 256

    def tasks(self, count: int, *, seed: int, tiers: Sequence[int] = ()) -> list[Task]:
        """`count` tasks, every goal of the tiers equally often, give or take one."""
        goals = [goal for tier in sorted(tiers or TIERS) for goal in TIERS[tier]]
        randomness = Random(f"crafting tasks {seed}")  # noqa: S311 - to repeat it is the point
        chosen: list[Task] = []
        while len(chosen) < count:
            randomness.shuffle(goals)
            chosen += [_task(goal, things_at_hand(goal, randomness.randrange(_STARTS))) for goal in goals]
        return chosen[:count]

    def task(self, setup: Mapping[str, Any]) -> Task:
        """The task that `setup` describes."""
        goal, have = setup.get("goal"), setup.get("have")
        if (
            not isinstance(goal, str)
            or goal not in RECIPES
            or not isinstance(have, list | tuple)
            or len(have) > _MOST_AT_HAND
            or any(thing not in _AT_HAND or thing == goal for thing in have)
        ):
            raise InvalidTask(
                f'no task of the world "crafting": give {{"goal": what it can craft, "have": up to {_MOST_AT_HAND} '
                "other things that are raw or of the first tier}"
            )
        return _task(goal, have)

    def open(self, task: Task) -> "CraftingEnvironment":
        """An attempt at `task`."""
        return CraftingEnvironment(task)


class CraftingEnvironment:
    """One attempt: what is at hand, and how often in a row a command was useless."""

    goal: str
    inventory: Counter[str]

    def __init__(self, task: Task) -> None:
        self.reset(task)

    def reset(self, task: Task) -> str:
        """Start over with `task`."""
        self.goal = str(task.setup["goal"])
        self.inventory = Counter(task.setup["have"])
        self._useless = 0
        self._left = commands_left(self.goal, self.inventory)
        self._done = False
        self._observation = f"Goal: {self.goal}. {self._listing()}"
        return self._observation

    def observe(self) -> str:
        """The last observation."""
        return self._observation

    def step(self, action: str) -> StepOutcome:
        """Obey the first command in `action`."""
        if self._done:
            return StepOutcome(self._observation, 0.0, done=True, accepted=False, success=self._has_goal())
        complaint = self._obey(action)
        success = self._has_goal()
        before, self._left = self._left, commands_left(self.goal, self.inventory)
        self._useless = self._useless + 1 if complaint else 0
        self._done = success or self._useless >= USELESS_IN_A_ROW
        self._observation = complaint or self._listing()
        progress = (before - self._left) / CraftingWorld.max_turns
        return StepOutcome(self._observation, float(success), self._done, not complaint, success, progress)

    def _has_goal(self) -> bool:
        return self.inventory[self.goal] > 0

    def _obey(self, action: str) -> str:
        """Change the inventory; why it could not be done, else nothing."""
        command = _COMMAND.search(action)
        if command is None:
            return "No command"
        verb, thing = command.group(1).lower(), command.group(2).lower()
        if verb == "get":
            return self._get(thing)
        return self._craft(thing)

    def _get(self, thing: str) -> str:
        if thing not in RAW_THINGS:
            return f"No {thing} here"
        if self.inventory[thing] >= MOST_OF_ONE_THING:
            return f"Enough {thing}"
        self.inventory[thing] += 1
        return ""

    def _craft(self, thing: str) -> str:
        if thing not in RECIPES:
            return f"No {thing} here"
        missing = Counter(RECIPES[thing]) - self.inventory
        if missing:
            return f"Missing {_listed(missing)}"
        self.inventory -= Counter(RECIPES[thing])
        self.inventory[thing] += 1
        return ""

    def _listing(self) -> str:
        return f"Have {_listed(self.inventory) or 'nothing'}"


def things_at_hand(goal: str, seed: int) -> list[str]:
    """Up to three things with which an attempt at `goal` may begin, never the goal itself."""
    randomness = Random(f"crafting start {seed}")  # noqa: S311 - to repeat it is the point
    things = [thing for thing in _AT_HAND if thing != goal]
    return randomness.choices(things, k=randomness.randrange(_MOST_AT_HAND + 1))


def commands_left(goal: str, inventory: Mapping[str, int]) -> int:
    """How many commands a shortest way from `inventory` to `goal` takes."""
    spare = Counter(inventory)

    def needed(thing: str) -> int:
        if spare[thing] > 0:
            spare[thing] -= 1
            return 0
        return 1 + sum(needed(part) for part in RECIPES.get(thing, ()))

    return needed(goal)


def next_command(goal: str, inventory: Mapping[str, int]) -> str:
    """A command on a shortest way from `inventory` to `goal`: the script that a policy can be started from."""
    spare = Counter(inventory)
    for thing in RECIPES[goal]:
        if spare[thing] > 0:
            spare[thing] -= 1
        else:
            return next_command(thing, spare) if thing in RECIPES else f"get {thing}"
    return f"craft {goal}"


def _task(goal: str, have: Sequence[str]) -> Task:
    tier = next(tier for tier, goals in TIERS.items() if goal in goals)
    things = sorted(have)
    return Task(f"crafting-{goal}-{'.'.join(things) or 'nothing'}", tier, {"goal": goal, "have": things})


def _listed(things: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {thing}" if count > 1 else thing for thing, count in sorted(things.items()) if count)
