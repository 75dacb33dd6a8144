"""What TRL's RLOO makes of the base model of a demo, on the tasks that the demo learnt from, with as many steps.

A step is a call of `step` of an environment. The demo's are those of its agents' recorded attempts and those of its
trainings' own episodes; what any model is measured by, before, between and after, counts for nobody. TRL's are as in
`single_turn_trl.py`.

`python -m rl_pipeline_tests.training.equal_steps <home of the demo's run> <world> <seed>` prints it as JSON.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory

import polars as pl
import torch
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from rl_pipeline.demo.homes import FIGURES
from rl_pipeline.demo.population import Measured
from rl_pipeline.demo.profile import DemoProfile
from rl_pipeline.environments.environment import Task, World
from rl_pipeline.training.launching.exits import PLAN_FILE, RESULT_FILE
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.program.episodes import generator_of
from rl_pipeline.training.program.generation import play_with_model
from rl_pipeline.training.program.prompts import PROMPTS
from rl_pipeline.training.small_model.held_out import held_out_tasks
from rl_pipeline_tests.training.single_turn_trl import CPU, PlayedOut, train_with_rloo

SHARES_OF_RATE = (1.0, 1 / 3)
"""TRL may choose: what is a good learning rate for our trainer need not be one for it."""
_HELD_OUT = 99


@dataclass(frozen=True)
class Steps:
    """Of environments, by the end of a demo."""

    recorded: int
    """By agents in service, whose attempts became datasets."""
    trained: int
    """By trainings."""


def steps_of(run: Path) -> Steps:
    """What the demo whose home is `run` has made."""
    figures = json.loads((run / FIGURES).read_text())
    return Steps(figures["cycles"][-1]["promotion"]["turns"], round(sum(_trained(run))))


def _trained(run: Path) -> Iterator[float]:
    for file in (run / "training").glob(f"*/attempt-*/{RESULT_FILE}"):
        plan, result = _plan(file.parent), json.loads(file.read_text())
        turns = fmean(value for _, value in result["curves"]["episode_turns"])
        yield result["steps"] / plan.online.updates_per_iteration * plan.global_batch * turns


def tasks_of(run: Path, world: World) -> list[Task]:
    """All tasks that the trainings of the demo learnt from, each once."""
    trained = [
        pl.read_parquet(file).filter(pl.col("split") == "train")["environment_task"]
        for file in sorted((run / "objects" / "trajectories" / "datasets").rglob(PROMPTS))
    ]
    tasks = [world.task(json.loads(setup)) for setup in pl.concat(trained).unique().sort()]
    return list({task.id: task for task in tasks}.values())


def compare(run: Path, profile: DemoProfile) -> dict[str, object]:
    """For each learning rate how often what TRL has trained reaches its goal on the demo's held-out tasks."""
    world, steps = profile.open_world(), steps_of(run)
    base = next((run / "models").rglob("recipe.json")).parent
    plan = _plan(next((run / "training").glob(f"*/attempt-*/{RESULT_FILE}")).parent)
    tasks, most = tasks_of(run, world), steps.recorded + steps.trained
    found = []
    for share in SHARES_OF_RATE:
        rate = plan.optimization.learning_rate * share
        after, used = trained_by_trl(base, _alone(plan, profile.seed, rate, most), world, tasks)
        found.append({"rate": rate, "steps": used, "measured": asdict(after)})
    return {"steps": asdict(steps), "tasks": len(tasks), "trl": found}


def trained_by_trl(base: Path, plan: TrainingPlan, world: World, tasks: list[Task]) -> tuple[Measured, int]:
    """What became of `base`, and after how many steps of environments."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    judge = PlayedOut(world, base, tokenizer, plan)
    set_seed(plan.seed)
    with TemporaryDirectory() as directory:
        model = train_with_rloo(base, judge, judge.states(tasks), Path(directory), _most_steps(plan))
    return measured("TRL's RLOO", model, tokenizer, plan, world), judge.steps


def measured(
    name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, plan: TrainingPlan, world: World
) -> Measured:
    """How often the model reaches its goal on the demo's held-out tasks."""
    played = play_with_model(
        world,
        held_out_tasks(world, DemoProfile().measured),
        model,
        tokenizer,
        generator=generator_of(CPU, plan.seed, _HELD_OUT),
        max_new_tokens=plan.online.max_new_tokens,
    )
    return Measured(name, sum(one.episode.success for one in played), len(played))


def _most_steps(plan: TrainingPlan) -> int:
    return (plan.optimization.max_steps or 0) // plan.online.updates_per_iteration * plan.global_batch


def _alone(plan: TrainingPlan, seed: int, learning_rate: float, steps: int) -> TrainingPlan:
    """The plan in one process, with the same global batch, for at most so many episodes: none has less than a step."""
    micro_batch, updates = plan.optimization.micro_batch, plan.online.updates_per_iteration
    optimization = plan.optimization.model_copy(
        update={
            "learning_rate": learning_rate,
            "accumulation": plan.global_batch // micro_batch,
            "max_steps": max(1, steps // plan.global_batch) * updates,
        }
    )
    alone = plan.distribution.model_copy(update={"processes": 1})
    return plan.model_copy(update={"seed": seed, "optimization": optimization, "distribution": alone})


def _plan(attempt: Path) -> TrainingPlan:
    return TrainingPlan.model_validate_json((attempt / PLAN_FILE).read_text())


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(compare(Path(sys.argv[1]), DemoProfile(world=sys.argv[2], seed=int(sys.argv[3])))))
