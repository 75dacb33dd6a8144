"""Whether TRL gets what the loop got: its base model, its tasks, and as many steps of environments."""

import json
from pathlib import Path

import polars as pl
import torch

from rl_pipeline.demo.profile import DemoProfile
from rl_pipeline.environments.worlds import read_worlds
from rl_pipeline.training.plans.plan import DistributionPlan, OnlinePlan, OptimizationPlan, TrainingPlan
from rl_pipeline.training.small_model.building import WORLDS_FILE, build_small_model
from rl_pipeline_tests.training.equal_steps import SHARES_OF_RATE, Steps, compare, steps_of, tasks_of

PROFILE = DemoProfile(world="reasoning-gym:rotate_matrix")
PLAN = TrainingPlan(
    job_id="job",
    algorithm="rloo",
    base_model="embedded-small@reasoning-gym:rotate_matrix",
    distribution=DistributionPlan(processes=2),
    online=OnlinePlan(group_size=4, updates_per_iteration=2, max_new_tokens=3),
    optimization=OptimizationPlan(learning_rate=6e-4, schedule="constant", micro_batch=4, accumulation=2),
    worlds=read_worlds(WORLDS_FILE),
)
"""Sixteen episodes to an iteration."""


def a_run(home: Path) -> Path:
    """What a demo leaves of two trainings of three iterations each."""
    tasks = PROFILE.open_world().tasks(6, seed=1)
    for job, chosen in {"one": tasks[:4], "two": tasks[2:]}.items():
        attempt = home / "training" / job / "attempt-1"
        attempt.mkdir(parents=True)
        (attempt / "plan.json").write_text(PLAN.model_dump_json())
        curves = {"episode_turns": [[5, 1.0], [6, 1.0]]}
        (attempt / "result.json").write_text(json.dumps({"steps": 6, "curves": curves}))
        rows = [{"split": "train", "environment_task": json.dumps(dict(task.setup))} for task in chosen]
        held_out = [{**rows[0], "split": "holdout", "environment_task": "{}"}]
        files = home / "objects" / "trajectories" / "datasets" / f"{job}.r1" / "0123"
        files.mkdir(parents=True)
        pl.DataFrame(rows + held_out).write_parquet(files / "prompts.parquet")
    (home / "figures.json").write_text(json.dumps({"cycles": [{"promotion": {"turns": 20}}]}))
    return home


def test_the_steps_are_those_of_the_agents_and_of_the_trainings(tmp_path: Path) -> None:
    assert steps_of(a_run(tmp_path)) == Steps(recorded=20, trained=2 * 3 * 16)


def test_the_tasks_are_those_that_were_trained_on_each_once(tmp_path: Path) -> None:
    world = PROFILE.open_world()
    assert {task.id for task in tasks_of(a_run(tmp_path), world)} == {task.id for task in world.tasks(6, seed=1)}


def test_trl_makes_as_many_steps_up_to_a_whole_iteration(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    build_small_model(a_run(tmp_path) / "models" / "small", world=PROFILE.world, demonstrations=48)
    found = compare(tmp_path, PROFILE)
    assert (found["steps"], found["tasks"]) == ({"recorded": 20, "trained": 96}, 6)
    tried = found["trl"]
    assert isinstance(tried, list)
    assert [one["rate"] for one in tried] == [6e-4 * share for share in SHARES_OF_RATE]
    assert [one["steps"] for one in tried] == [112, 112]
    assert {one["measured"]["attempts"] for one in tried} == {PROFILE.measured}
