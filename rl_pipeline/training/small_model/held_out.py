"""The tasks that models are measured on: of a world of single questions no lesson shows one.

Crafting has too few tasks for that: there the base model may have seen some, and only the loop learns from none.
"""

from rl_pipeline.environments.environment import Task, World

MOST_HELD_OUT = 2000
"""Of a world of single questions; the first of them are the same, however many are asked for."""
_SEED = 2**33


def held_out_tasks(world: World, count: int) -> list[Task]:
    """So many, always the same."""
    return world.tasks(count, seed=_SEED)
