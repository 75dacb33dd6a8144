"""Tasks that are not trained on, played by the policy before and after it was trained: the measures that count.

Every process plays its share and gets the same answer; every process has to come here.
"""

from collections.abc import Sequence
from math import ceil

import torch
from transformers import PreTrainedTokenizerBase, Trainer

from rl_pipeline.environments.environment import Task
from rl_pipeline.environments.worlds import WORLDS, Worlds
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.program.episodes import generator_of
from rl_pipeline.training.program.policy_gradient import PolicyGradientTrainer
from rl_pipeline.training.program.prompts import Prompt
from rl_pipeline.training.program.readable import readable_policy
from rl_pipeline.training.program.rollouts import in_a_world, play_in_worlds, task_of

_EVALUATION = 2**40
"""Keeps this randomness apart from that of any iteration."""


def measure_success(
    trainer: Trainer, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], plan: TrainingPlan
) -> dict[str, float]:
    """How often the goal is reached, sampled as in training and with the likeliest words alone.

    Tasks are repeated up to the planned number of episodes, where there are fewer. The likeliest words are the same
    every time: with them each task is played once. Nothing where no prompt comes from a world.
    """
    worlds = Worlds(plan.worlds)
    in_worlds = [prompt for prompt in prompts if in_a_world(prompt, worlds)]
    if not in_worlds:
        return {}
    greedy = in_worlds[: plan.evaluation.episodes][trainer.args.process_index :: trainer.args.world_size]
    with readable_policy(trainer, plan) as policy:
        share, randomness = _share(trainer, in_worlds, plan), _randomness(trainer, plan)
        drawn = play_in_worlds(plan, policy, tokenizer, share, randomness, worlds=worlds)
        likeliest = play_in_worlds(plan, policy, tokenizer, greedy, None, worlds=worlds)
    sampled = [rollout.episode for rollout in drawn]
    return {
        "success_sampled": _mean(trainer, [episode.success for episode in sampled]),
        "success_greedy": _mean(trainer, [rollout.episode.success for rollout in likeliest]),
        "reward_mean": _mean(trainer, [episode.total_reward for episode in sampled]),
    }


def further_tasks(
    held_out: Sequence[Prompt], trained: Sequence[Prompt], count: int, worlds: Worlds = WORLDS
) -> list[Prompt]:
    """The held-out prompts, and up to `count` what their worlds set beside them: as hard, and not trained on.

    A dataset may hold out a few tasks only, and by what it was made for: who imitates keeps what was solved once, which
    are the easier ones. What a world sets by itself is the same for every job, so that jobs can be compared.
    """
    known = {task.id for prompt in (*trained, *held_out) if (task := _task(prompt, worlds))}
    tiers: dict[str, set[int]] = {}
    for prompt in held_out:
        if task := _task(prompt, worlds):
            tiers.setdefault(str(prompt.environment), set()).add(task.tier)
    drawn = list(held_out)
    for name, wanted in sorted(tiers.items()):
        missing = max(0, count - len(held_out)) // len(tiers)
        tasks = worlds.find(name).tasks(missing, seed=_EVALUATION, tiers=sorted(wanted))
        fresh = {task.id: Prompt(task.id, (), name, task.setup) for task in tasks}
        drawn += [prompt for task_id, prompt in fresh.items() if task_id not in known]
    return drawn


def measure_reward(trainer: PolicyGradientTrainer, prompts: Sequence[Prompt], plan: TrainingPlan) -> dict[str, float]:
    """The mean reward of what the policy makes of `prompts`, as it is rewarded in training."""
    playable = [prompt for prompt in prompts if trainer.rollouts.can_play(prompt)]
    if not playable:
        return {}
    with readable_policy(trainer, plan) as policy:
        episodes = trainer.rollouts.play(policy, _share(trainer, playable, plan), _randomness(trainer, plan))
    return {"reward_mean": _mean(trainer, [sum(episode.rewards) for episode in episodes])}


def _task(prompt: Prompt, worlds: Worlds) -> Task | None:
    world = worlds.get(prompt.environment)
    return task_of(prompt, world) if world and in_a_world(prompt, worlds) else None


def _share(trainer: Trainer, prompts: Sequence[Prompt], plan: TrainingPlan) -> list[Prompt]:
    """This process's share of the planned number of episodes: as many as any other's."""
    processes = trainer.args.world_size
    count = ceil(plan.evaluation.episodes / processes) * processes
    return [prompts[place % len(prompts)] for place in range(trainer.args.process_index, count, processes)]


def _randomness(trainer: Trainer, plan: TrainingPlan) -> torch.Generator:
    return generator_of(trainer.args.device, plan.seed, _EVALUATION, trainer.args.process_index)


def _mean(trainer: Trainer, values: Sequence[float]) -> float:
    """Over all processes, of which some may have none."""
    sums = torch.tensor([sum(values), len(values)], dtype=torch.float64, device=trainer.args.device)
    total, count = trainer.accelerator.reduce(sums, reduction="sum").tolist()
    return float(total / count)
