"""The crafting world: its recipes, its tiers, its rules, and that it is the same for everybody."""

from collections import Counter
from random import Random

import pytest

from rl_pipeline.environments.crafting import (
    COMMANDS,
    MOST_OF_ONE_THING,
    RAW_THINGS,
    RECIPES,
    TIERS,
    CraftingEnvironment,
    CraftingWorld,
    next_command,
)
from rl_pipeline.environments.environment import InvalidTask, Task, UnknownWorld
from rl_pipeline.environments.worlds import WORLDS

WORLD = CraftingWorld()


def commands_needed(goal: str) -> int:
    """The commands from nothing to `goal`, counted by the recipes alone."""
    return 1 if goal in RAW_THINGS else 1 + sum(map(commands_needed, RECIPES[goal]))


def task_with(goal: str, things: Counter[str]) -> Task:
    """A task that starts with exactly these things."""
    return WORLD.task({"goal": goal, "have": list(things.elements())})


def empty_handed(goal: str) -> CraftingEnvironment:
    return WORLD.open(task_with(goal, Counter()))


def test_the_tiers_go_by_the_commands_that_a_goal_takes() -> None:
    spans = {tier: {commands_needed(goal) for goal in goals} for tier, goals in TIERS.items()}
    assert (min(spans[1]), max(spans[1])) == (2, 3)
    assert (min(spans[2]), max(spans[2])) == (4, 6)
    assert (min(spans[3]), max(spans[3])) == (7, WORLD.max_turns)
    assert sorted(goal for goals in TIERS.values() for goal in goals) == sorted(RECIPES)
    assert len(RECIPES) >= 16


@pytest.mark.parametrize("goal", RECIPES)
def test_the_script_reaches_every_goal_without_a_wasted_command(goal: str) -> None:
    environment = empty_handed(goal)
    for place in range(1, commands_needed(goal) + 1):
        outcome = environment.step(next_command(goal, environment.inventory))
        assert outcome.accepted
        assert outcome.done == outcome.success == (place == commands_needed(goal))
        assert outcome.reward == float(outcome.success)


@pytest.mark.parametrize("seed", range(20))
def test_progress_is_the_way_that_is_left_before_an_action_less_what_is_left_after_it(seed: int) -> None:
    randomness = Random(seed)
    [task] = WORLD.tasks(1, seed=seed, tiers=[2])
    environment = WORLD.open(task)
    start = shortest_way(environment)
    outcomes = []
    while not (outcomes and outcomes[-1].done):
        helps = randomness.random() < 0.6
        said = next_command(environment.goal, environment.inventory) if helps else randomness.choice(COMMANDS)
        outcomes.append(environment.step(said))
        assert outcomes[-1].progress > 0 or not helps
    assert 10 * sum(outcome.progress for outcome in outcomes) == pytest.approx(start - shortest_way(environment))
    assert environment.step("get wood").progress == 0, "after the end nothing comes nearer"


def shortest_way(environment: CraftingEnvironment) -> int:
    """How many commands the script takes from here."""
    copy = WORLD.open(WORLD.task({"goal": environment.goal, "have": []}))
    copy.inventory = Counter(environment.inventory)
    commands = 0
    while copy.inventory[copy.goal] == 0:
        copy.step(next_command(copy.goal, copy.inventory))
        commands += 1
    return commands


def test_the_script_uses_what_is_at_hand() -> None:
    environment = WORLD.open(task_with("window", Counter(glass=1)))
    said = []
    while not environment.observe().endswith("window"):
        said.append(next_command("window", environment.inventory))
        environment.step(said[-1])
    assert said == ["get wood", "craft plank", "craft window"]


def test_a_failed_command_says_what_is_missing_and_takes_nothing() -> None:
    environment = empty_handed("torch")
    environment.step("get wood")
    outcome = environment.step("craft torch")
    assert (outcome.observation, outcome.accepted, outcome.reward) == ("Missing coal", False, 0.0)
    assert environment.inventory == Counter(wood=1)


def test_what_is_crafted_consumes_what_it_is_made_of() -> None:
    environment = empty_handed("rope")
    for _ in range(2):
        environment.step("get wool")
    assert environment.step("craft string").observation == "Have string, wool"


def test_useless_commands_in_a_row_end_the_attempt_and_a_useful_one_forgives_them() -> None:
    environment = empty_handed("plank")
    useless = ["craft plank", "dance", "get gold"]
    for command in [*useless[:2], "get coal", *useless[:2]]:
        assert not environment.step(command).done
    last = environment.step(useless[2])
    assert last.done
    assert not last.success
    assert environment.step("get wood") == last._replace(accepted=False), "nothing happens after the end"
    assert environment.inventory == Counter(coal=1)


def test_nobody_can_hoard() -> None:
    environment = empty_handed("plank")
    for _ in range(MOST_OF_ONE_THING):
        assert environment.step("get coal").accepted
    assert environment.step("get coal").observation == "Enough coal"


@pytest.mark.parametrize("said", ["Get Wood", "I will get wood.", "get wood\ncraft plank", " get  wood "])
def test_the_first_command_in_an_answer_is_obeyed(said: str) -> None:
    assert empty_handed("plank").step(said).observation == "Have wood"


def test_reset_starts_over_and_observe_changes_nothing() -> None:
    task, other = WORLD.tasks(2, seed=3)
    environment = WORLD.open(task)
    first = environment.observe()
    environment.step("get sand")
    assert environment.observe() == environment.observe() != first
    assert environment.reset(task) == environment.observe() == first
    assert environment.reset(other) == WORLD.open(other).observe()


def test_a_goal_is_never_at_hand_from_the_start() -> None:
    assert not any(WORLD.open(task).inventory[task.setup["goal"]] for task in WORLD.tasks(2000, seed=1))


def test_tasks_are_the_same_for_the_same_seed_balanced_over_goals_and_known_by_their_setup() -> None:
    tasks = WORLD.tasks(170, seed=4)
    assert tasks == WORLD.tasks(170, seed=4) != WORLD.tasks(170, seed=5)
    assert set(Counter(task.setup["goal"] for task in tasks).values()) == {10}
    assert [WORLD.task(task.setup) for task in tasks] == tasks
    assert {task.tier for task in WORLD.tasks(40, seed=4, tiers=[2, 3])} == {2, 3}


def test_who_has_the_same_and_wants_the_same_has_the_same_task() -> None:
    tasks = WORLD.tasks(2000, seed=4)
    opened = {(task.setup["goal"], WORLD.open(task).observe()): task for task in tasks}
    assert len({task.id for task in tasks}) == len(opened) < len(tasks)
    assert WORLD.task({"goal": "axe", "have": ["wood", "coal"]}) == WORLD.task(
        {"goal": "axe", "have": ["coal", "wood"]}
    )


@pytest.mark.parametrize(
    "setup",
    [
        {},
        {"goal": "axe"},
        {"goal": "gold", "have": []},
        {"goal": ["axe"], "have": []},
        {"goal": "axe", "have": "wood"},
        {"goal": "axe", "have": ["gold"]},
        {"goal": "axe", "have": [["wood"]]},
        {"goal": "axe", "have": ["wood", "wood", "wood", "wood"]},
        {"goal": "plank", "have": ["plank"]},
    ],
)
def test_a_setup_that_is_no_task_is_refused(setup: dict[str, object]) -> None:
    with pytest.raises(InvalidTask, match="crafting"):
        WORLD.task(setup)


def test_no_sequence_of_commands_breaks_the_world() -> None:
    randomness = Random(11)
    for task in WORLD.tasks(300, seed=6):
        environment = WORLD.open(task)
        for _ in range(WORLD.max_turns):
            outcome = environment.step(randomness.choice((*COMMANDS, "", "get", "craft \x00", "get get wood")))
            assert all(count >= 0 for count in environment.inventory.values())
            assert outcome.success == (environment.inventory[environment.goal] > 0)


def test_worlds_are_found_by_name() -> None:
    assert WORLDS.find("crafting") is WORLDS.get("crafting")
    assert WORLDS.names == ["crafting"]
    with pytest.raises(UnknownWorld, match="crafting"):
        WORLDS.find("atlantis")
