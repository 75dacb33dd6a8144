"""The four benchmarks for the embedded model, which knows the crafting world and speaks in its commands alone.

What they stand for there:

- `tool_usage`: goals of a few commands from nothing: the right command at the right time, and no other.
- `data_analysis`: starts with things at hand of which some are of use: what is there has to be counted in.
- `research_synthesis`: goals that take at least two other crafted things.
- `code_generation`: the commands of an attempt are a program, which is run once more from the start, behind walls, and
  has to craft the goal by itself.

Tasks are drawn by seed; a task that is drawn again is another attempt. Those of one goal are one family.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random

from rl_pipeline.environments.crafting import RECIPES, TIERS, CraftingWorld, next_command, things_at_hand
from rl_pipeline.validation.episodes import Episodes, item_of, reached_goal
from rl_pipeline.validation.scorers.programs import replays
from rl_pipeline.validation.suite import Item, Suite

TEMPERATURE = 1.0
"""As the policy acts in training; the likeliest words alone would loop."""
MAX_TOKENS = 16
WORLD = CraftingWorld()

_MOST_START = 1_000_000
_MINIMUM = 30
_PRELUDE = """\
from rl_pipeline.environments.crafting import CraftingWorld
_world = CraftingWorld()
_environment = _world.open(_world.task(SETUP))
do = _environment.step
"""
_CRAFTED = "assert _environment.inventory[_environment.goal] > 0"

Start = Callable[[str, Counter[str]], bool]


def crafting_benchmarks(*, seed: int, items: int) -> list[Suite]:
    """The four, with `items` tasks each."""
    playing = Episodes(WORLD, MAX_TOKENS, TEMPERATURE)
    short, joining = [*TIERS[1], *TIERS[2]], [goal for goal in RECIPES if crafted_parts(goal) >= 2]
    code = _tasks(short, items, f"code {seed}", lambda _, __: True)
    data = _tasks([*RECIPES], items, f"data {seed}", has_something_of_use)
    research = _tasks(joining, items, f"research {seed}", lambda _, __: True)
    tools = _tasks(short, items, f"tools {seed}", lambda _, things: not things)
    return [
        Suite("code_generation", "benchmark", code, replays(_PRELUDE, _CRAFTED), _MINIMUM, floor=0.15, ask=playing),
        Suite("data_analysis", "benchmark", data, reached_goal, _MINIMUM, floor=0.15, ask=playing),
        Suite("research_synthesis", "benchmark", research, reached_goal, _MINIMUM, floor=0.02, ask=playing),
        Suite("tool_usage", "benchmark", tools, reached_goal, _MINIMUM, floor=0.15, ask=playing),
    ]


def crafted_parts(goal: str) -> int:
    """How many things have to be crafted on the way to `goal`."""
    return sum(1 + crafted_parts(thing) for thing in RECIPES[goal] if thing in RECIPES)


def has_something_of_use(goal: str, things: Counter[str]) -> bool:
    """Whether `things` save a command on the way to `goal`."""
    return len(way_to(goal, things)) < len(way_to(goal, Counter()))


def way_to(goal: str, things: Counter[str]) -> list[str]:
    """The commands of a shortest way from `things` to `goal`."""
    at_hand, commands = things.copy(), []
    while at_hand[goal] == 0:
        commands.append(next_command(goal, at_hand))
        verb, _, thing = commands[-1].partition(" ")
        if verb == "craft":
            at_hand -= Counter(RECIPES[thing])
        at_hand[thing] += 1
    return commands


def _tasks(goals: Sequence[str], count: int, seed: str, fits: Start) -> list[Item]:
    """Tasks whose starts fit, every goal equally often, give or take one."""
    randomness = Random(f"crafting benchmark {seed}")  # noqa: S311 - to repeat it is the point
    drawn: list[Item] = []
    while len(drawn) < count:
        goal = goals[len(drawn) % len(goals)]
        things = things_at_hand(goal, randomness.randrange(_MOST_START))
        if fits(goal, Counter(things)):
            task = WORLD.task({"goal": goal, "have": things})
            drawn.append(replace(item_of(task, family=goal), id=f"{task.id} {len(drawn)}"))
    return drawn
