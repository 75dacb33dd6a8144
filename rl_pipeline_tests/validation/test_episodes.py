"""Attempts in a world as answers."""

import json

from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.validation.episodes import Episodes, item_of, reached_goal
from rl_pipeline_tests.validation.scripted import always, crafter

WORLD = CraftingWorld()
TASK = WORLD.task({"goal": "plank", "have": []})
ITEM = item_of(TASK, "plank")
PLAYING = Episodes(WORLD, max_tokens=16, temperature=1.0)


def test_an_answer_tells_what_was_done_and_what_came_of_it() -> None:
    [won, lost] = [PLAYING(model, [ITEM], [1])[0] for model in (crafter(1.0), always("hello"))]
    assert json.loads(won) == {"actions": ["get wood", "craft plank"], "success": True, "reward": 1.0}
    assert json.loads(lost) == {"actions": ["hello"] * 3, "success": False, "reward": 0.0}
    assert (reached_goal(ITEM, won), reached_goal(ITEM, lost)) == (1.0, 0.0)


def test_every_turn_of_an_attempt_has_a_seed_of_its_own_that_can_be_had_again() -> None:
    first, second = crafter(1.0), crafter(1.0)
    PLAYING(first, [ITEM, ITEM], [5, 2**31 - 1])
    PLAYING(second, [ITEM, ITEM], [5, 2**31 - 1])
    assert first.seeds == second.seeds
    assert len(set(first.seeds)) == 4
    assert all(0 <= seed < 2**31 for seed in first.seeds)
