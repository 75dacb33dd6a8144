"""Tasks that are not trained on, played by the policy before and after it was trained: the measures that count.

Every process plays its share and gets the same answer; every process has to come here.
"""

import json
from collections.abc import Sequence
from math import ceil

import torch
from transformers import PreTrainedTokenizerBase, Trainer

from rl_pipeline.environments.worlds import find_world
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.program.episodes import generator_of
from rl_pipeline.training.program.policy_gradient import PolicyGradientTrainer
from rl_pipeline.training.program.prompts import Prompt
from rl_pipeline.training.program.readable import readable_policy
from rl_pipeline.training.program.rollouts import in_a_world, play_in_worlds

_EVALUATION = 2**40
"""Keeps this randomness apart from that of any iteration."""


def measure_success(
    trainer: Trainer, tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt], plan: TrainingPlan
) -> dict[str, float]:
    """How often the goal is reached, sampled as in training and with the likeliest words alone.

    Tasks are repeated up to the planned number of episodes, where there are fewer. The likeliest words are the same
    every time: with them each task is played once. Nothing where no prompt comes from a world.
    """
    in_worlds = [prompt for prompt in prompts if in_a_world(prompt)]
    if not in_worlds:
        return {}
    greedy = in_worlds[: plan.evaluation.episodes][trainer.args.process_index :: trainer.args.world_size]
    with readable_policy(trainer, plan) as policy:
        drawn = play_in_worlds(plan, policy, tokenizer, _share(trainer, in_worlds, plan), _randomness(trainer, plan))
        likeliest = play_in_worlds(plan, policy, tokenizer, greedy, None)
    sampled = [rollout.episode for rollout in drawn]
    return {
        "success_sampled": _mean(trainer, [episode.success for episode in sampled]),
        "success_greedy": _mean(trainer, [rollout.episode.success for rollout in likeliest]),
        "reward_mean": _mean(trainer, [episode.total_reward for episode in sampled]),
    }


def further_tasks(held_out: Sequence[Prompt], trained: Sequence[Prompt], count: int) -> list[Prompt]:
    """The held-out prompts, and up to `count` what their worlds set beside them: as hard, and not trained on.

    A dataset may hold out a few tasks only, and by what it was made for: who imitates keeps what was solved once, which
    are the easier ones. What a world sets by itself is the same for every job, so that jobs can be compared.
    """
    known = {_identity(prompt) for prompt in (*trained, *held_out)}
    tiers: dict[str, set[int]] = {}
    for prompt in (each for each in held_out if in_a_world(each)):
        world = find_world(str(prompt.environment))
        tiers.setdefault(world.name, set()).add(world.task(prompt.environment_task or {}).tier)
    drawn = list(held_out)
    for name, wanted in sorted(tiers.items()):
        missing = max(0, count - len(held_out)) // len(tiers)
        tasks = find_world(name).tasks(missing, seed=_EVALUATION, tiers=sorted(wanted))
        fresh = {_identity(prompt): prompt for prompt in (Prompt(task.id, (), name, task.setup) for task in tasks)}
        drawn += [prompt for identity, prompt in fresh.items() if identity not in known]
    return drawn


def measure_reward(trainer: PolicyGradientTrainer, prompts: Sequence[Prompt], plan: TrainingPlan) -> dict[str, float]:
    """The mean reward of what the policy makes of `prompts`, as it is rewarded in training."""
    playable = [prompt for prompt in prompts if trainer.rollouts.can_play(prompt)]
    if not playable:
        return {}
    with readable_policy(trainer, plan) as policy:
        episodes = trainer.rollouts.play(policy, _share(trainer, playable, plan), _randomness(trainer, plan))
    return {"reward_mean": _mean(trainer, [sum(episode.rewards) for episode in episodes])}


def _identity(prompt: Prompt) -> tuple[str | None, str]:
    return prompt.environment, json.dumps(prompt.environment_task, sort_keys=True)


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
