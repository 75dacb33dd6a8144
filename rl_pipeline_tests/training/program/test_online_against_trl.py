"""Our trainer of whole episodes against TRL's RLOO and PPO, which train single turns; each gets as many episodes."""

from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel, set_seed

from rl_pipeline.contracts.training_request import Algorithm
from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.environments.worlds import WORLDS
from rl_pipeline.training.plans.plan import OnlinePlan, OptimizationPlan, TrainingPlan
from rl_pipeline.training.program.episodes import generator_of
from rl_pipeline.training.program.prompts import Prompt
from rl_pipeline.training.program.rollouts import play_in_worlds
from rl_pipeline_tests.training.in_process import loaded, trained_by_us
from rl_pipeline_tests.training.single_turn_trl import PlayedOut, train_with_ppo, train_with_rloo

WORLD = CraftingWorld()
HELD_OUT = 99


def prompts_of(count: int, seed: int) -> list[Prompt]:
    return [Prompt(task.id, [], WORLD.name, task.setup) for task in WORLD.tasks(count, seed=seed)]


def plan_of(algorithm: Algorithm, seed: int, iterations: int, accumulation: int, learning_rate: float) -> TrainingPlan:
    online = OnlinePlan(group_size=8, updates_per_iteration=2, gamma=1.0, max_new_tokens=12)
    return TrainingPlan(
        job_id="job",
        algorithm=algorithm,
        base_model="base",
        seed=seed,
        online=online,
        optimization=OptimizationPlan(
            learning_rate=learning_rate,
            schedule="constant",
            micro_batch=32,
            accumulation=accumulation,
            max_steps=iterations * online.updates_per_iteration,
        ),
    )


def trained_on(plan: TrainingPlan) -> list[Prompt]:
    return prompts_of(400, 1000 + plan.seed)


def success(model: PreTrainedModel, base: Path, plan: TrainingPlan, episodes: int) -> float:
    tokenizer = AutoTokenizer.from_pretrained(base)
    known = {prompt.task for prompt in trained_on(plan)}
    held_out = [prompt for prompt in prompts_of(2 * episodes, HELD_OUT) if prompt.task not in known][:episodes]
    rollouts = play_in_worlds(
        plan, model, tokenizer, held_out, generator_of(torch.device("cpu"), HELD_OUT), worlds=WORLDS
    )
    return fmean(rollout.episode.success for rollout in rollouts)


def our_training(base: Path, plan: TrainingPlan, directory: Path) -> PreTrainedModel:
    return trained_by_us(base, plan, trained_on(plan), directory)


def trained_by_trl(base: Path, plan: TrainingPlan, directory: Path) -> PreTrainedModel:
    tokenizer = AutoTokenizer.from_pretrained(base)
    judge = PlayedOut(WORLD, base, tokenizer, plan)
    states = judge.states(WORLD.tasks(100 * plan.optimization.accumulation, seed=1000 + plan.seed))
    if plan.algorithm == "rloo":
        model = train_with_rloo(base, judge, states, directory)
    else:
        model = train_with_ppo(base, judge, states, tokenizer, directory)
    assert judge.episodes == (plan.optimization.max_steps or 0) // plan.online.updates_per_iteration * plan.global_batch
    return model


@pytest.mark.soak
@pytest.mark.parametrize("algorithm", ["rloo", "ppo"])
def test_whole_episodes_teach_more_than_as_many_single_turns(
    algorithm: Algorithm,
    small_model: Path,
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
    tmp_path: Path,
) -> None:
    """Held-out sampled success after our trainer and after TRL's, which may choose between two learning rates."""
    seeds, rates = range(soak_count(1, 3)), (6e-4, 2e-4)[: soak_count(1, 2)]
    iterations, accumulation, episodes = soak_count(1, 20), soak_count(1, 4), soak_count(20, 400)
    torch.set_num_threads(1)

    def results(train: Callable[[Path, TrainingPlan, Path], PreTrainedModel], learning_rate: float) -> list[float]:
        found = []
        for seed in seeds:
            set_seed(seed)
            plan = plan_of(algorithm, seed, iterations, accumulation, learning_rate)
            found.append(success(train(small_model, plan, tmp_path), small_model, plan, episodes))
        return found

    base = success(loaded(small_model), small_model, plan_of(algorithm, 0, 1, 1, rates[0]), episodes)
    ours = results(our_training, rates[0])
    theirs = max((results(trained_by_trl, rate) for rate in rates), key=fmean)
    record_property("base", f"{base:.3f}")
    record_property("ours", " ".join(f"{each:.3f}" for each in ours))
    record_property("TRL's", " ".join(f"{each:.3f}" for each in theirs))
    assert len(ours) == len(theirs) == len(seeds)
    if len(seeds) > 1:
        assert min(ours) > base
        assert fmean(ours) >= 1.3 * base, "by a fiftieth of the thousand iterations that the specification allows"
        assert fmean(ours) > fmean(theirs)
