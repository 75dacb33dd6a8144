"""What RLOO makes of the small models of single questions: ours, and TRL's with the same tasks, seeds and steps."""

from collections.abc import Callable
from math import hypot
from pathlib import Path
from statistics import fmean

import pytest
import torch
from transformers import AutoTokenizer, set_seed

from rl_pipeline.demo.population import Measured
from rl_pipeline.environments.environment import Task, World
from rl_pipeline.environments.worlds import Worlds, read_worlds
from rl_pipeline.training.plans.plan import OnlinePlan, OptimizationPlan, TrainingPlan
from rl_pipeline.training.program.prompts import Prompt
from rl_pipeline.training.small_model.building import WORLDS_FILE, build_small_model
from rl_pipeline.training.small_model.held_out import MOST_HELD_OUT, held_out_tasks
from rl_pipeline_tests.training.equal_steps import measured, trained_by_trl
from rl_pipeline_tests.training.in_process import loaded, trained_by_us

DEFINED = read_worlds(WORLDS_FILE)
WORLDS = [f"reasoning-gym:{family}" for family in DEFINED.reasoning_gym]
TRAINED_ON = 480
CERTAIN = 3.0
"""Standard errors of a difference."""


def plan_of(seed: int, iterations: int, accumulation: int, learning_rate: float = 6e-4) -> TrainingPlan:
    """As the preset of embedded models has it."""
    online = OnlinePlan(group_size=8, updates_per_iteration=2, kl_coefficient=0.02, gamma=1.0, max_new_tokens=12)
    return TrainingPlan(
        job_id="job",
        algorithm="rloo",
        base_model="base",
        seed=seed,
        online=online,
        optimization=OptimizationPlan(
            learning_rate=learning_rate,
            schedule="constant",
            micro_batch=32,
            accumulation=accumulation,
            max_steps=iterations * online.updates_per_iteration,
            max_tokens=400,
        ),
        worlds=DEFINED,
    )


def tasks_of(world: World, seed: int) -> list[Task]:
    held_out = {task.id for task in held_out_tasks(world, MOST_HELD_OUT)}
    return [task for task in world.tasks(TRAINED_ON, seed=1000 + seed) if task.id not in held_out]


def after_ours(base: Path, plan: TrainingPlan, world: World, directory: Path) -> Measured:
    set_seed(plan.seed)
    prompts = [Prompt(task.id, [], world.name, task.setup) for task in tasks_of(world, plan.seed)]
    trained = trained_by_us(base, plan, prompts, directory)
    return measured("ours", trained, AutoTokenizer.from_pretrained(base), plan, world)


@pytest.mark.soak
@pytest.mark.parametrize("name", WORLDS)
def test_a_small_model_learns_to_answer_what_it_was_never_shown(
    name: str,
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
    tmp_path: Path,
) -> None:
    """Held-out sampled success before and after. TRL may choose between two learning rates."""
    torch.set_num_threads(1)
    world = Worlds(DEFINED).find(name)
    base = build_small_model(tmp_path / "base", world=name, demonstrations=None if soak_count(0, 1) else 64)
    seeds, rates = range(soak_count(1, 3)), (6e-4, 2e-4)[: soak_count(1, 2)]
    iterations, accumulation = soak_count(1, 20), soak_count(1, 4)
    plans = [plan_of(seed, iterations, accumulation) for seed in seeds]
    before = [measured("base", loaded(base), AutoTokenizer.from_pretrained(base), plan, world) for plan in plans]
    ours = [after_ours(base, plan, world, tmp_path) for plan in plans]
    tried = [
        [
            trained_by_trl(base, plan_of(seed, iterations, accumulation, rate), world, tasks_of(world, seed))
            for seed in seeds
        ]
        for rate in rates
    ]
    theirs = max(tried, key=lambda of_rate: fmean(one.rate for one, _ in of_rate))
    for of_whom, found in {"base": before, "ours": ours, "TRL's": [one for one, _ in theirs]}.items():
        record_property(of_whom, " ".join(f"{one.rate:.3f} ± {one.error:.3f}" for one in found))
    record_property("steps", iterations * plans[0].global_batch)
    assert [steps for _, steps in theirs] == [plan.global_batch * iterations for plan in plans]
    if len(plans) > 1:
        for was, is_now in zip(before, ours, strict=True):
            assert is_now.rate - was.rate > CERTAIN * hypot(was.error, is_now.error)
