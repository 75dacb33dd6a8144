"""How much better an episode, or a turn of it, was than expected: all that tells the online algorithms apart.

Pure functions on tensors. Rewards are a matrix of episodes by turns, zero after an episode's end. An episode's return
is its rewards, discounted by turn. Nothing here knows models, tokens or processes.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_pipeline.contracts.training_request import Algorithm
from rl_pipeline.training.plans.plan import OnlinePlan

_SMALLEST_DEVIATION = 1e-4


@dataclass(frozen=True)
class Judgement:
    """Episodes by turns."""

    advantages: Tensor
    """On a scale of their own, about 0 with deviation 1."""
    returns: Tensor | None = None
    """What the values should have been, where there are values."""


def judge(
    algorithm: Algorithm,
    plan: OnlinePlan,
    *,
    rewards: Tensor,
    lengths: Tensor,
    groups: Tensor,
    values: Tensor | None = None,
) -> Judgement:
    """How much better each turn was than expected, by the algorithm's own estimate.

    `rewards` is episodes by turns, `lengths` the number of turns and `groups` the task of each episode; `values`, which
    PPO alone has, is shaped like `rewards`. Without values, all turns of an episode have its advantage, unless rewards
    are shaped: then each has its own, by what followed it.
    """
    played = played_turns(rewards, lengths)
    if values is not None:
        turns = generalised(values, rewards, lengths, plan.gamma, plan.gae_lambda)
        return Judgement(standardised(turns, played), turns + values)
    if not plan.shaping:
        return Judgement(
            _compared(algorithm, discounted_returns(rewards, plan.gamma), groups).unsqueeze(1).expand_as(rewards)
        )
    followed = generalised(torch.zeros_like(rewards), rewards, lengths, plan.gamma, plan.gae_lambda)
    advantages = torch.zeros_like(rewards)
    advantages[played] = _compared(algorithm, followed[played], groups.unsqueeze(1).expand_as(rewards)[played])
    return Judgement(advantages)


def _compared(algorithm: Algorithm, returns: Tensor, groups: Tensor) -> Tensor:
    """Returns of episodes or of turns, against what the algorithm compares them with."""
    if algorithm == "grpo":
        return group_normalised(returns, groups)
    compared = leave_one_out(returns, groups) if algorithm == "rloo" else above_the_mean(returns)
    return standardised(compared, torch.ones_like(compared, dtype=torch.bool))


def played_turns(rewards: Tensor, lengths: Tensor) -> Tensor:
    """Which of the episodes' turns were played."""
    return torch.arange(rewards.shape[1], device=rewards.device) < lengths.unsqueeze(1)


def discounted_returns(rewards: Tensor, gamma: float) -> Tensor:
    """Σₜ γᵗ rₜ of each episode."""
    return rewards @ gamma ** torch.arange(rewards.shape[1], dtype=rewards.dtype, device=rewards.device)


def leave_one_out(returns: Tensor, groups: Tensor) -> Tensor:
    """RLOO: an episode's return less the mean of the others on the same task (Ahmadian et al., 2024).

    An episode alone in its group has nothing to be compared with: 0.
    """
    sizes, means = _group_sizes(returns, groups), _group_means(returns, groups)
    return torch.where(sizes > 1, (returns - means) * sizes / (sizes - 1).clamp(min=1), torch.zeros_like(returns))


def group_normalised(returns: Tensor, groups: Tensor) -> Tensor:
    """GRPO: deviations from the group's mean in units of the group's standard deviation (Shao et al., 2024)."""
    deviations = returns - _group_means(returns, groups)
    degrees = (_group_sizes(returns, groups) - 1).clamp(min=1)
    variances = _group_sums(deviations.square(), groups) / degrees
    return deviations / (variances.sqrt() + _SMALLEST_DEVIATION)


def above_the_mean(returns: Tensor) -> Tensor:
    """REINFORCE with the batch's mean as its baseline."""
    return returns - returns.mean()


def generalised(values: Tensor, rewards: Tensor, lengths: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """PPO: advantages of turns by GAE (Schulman et al., 2016), Σₖ (γλ)ᵏ δₜ₊ₖ with δₜ = rₜ + gamma Vₜ₊₁ - Vₜ.

    `values` and `rewards` are episodes by turns, `lengths` the number of turns of each. Nothing follows the last turn.
    """
    played = played_turns(rewards, lengths)
    values = values * played
    following = torch.nn.functional.pad(values[:, 1:], (0, 1))
    surprises = (rewards + gamma * following - values) * played
    advantages = torch.zeros_like(values)
    running = torch.zeros_like(values[:, 0])
    for turn in reversed(range(values.shape[1])):
        running = surprises[:, turn] + gamma * gae_lambda * running
        advantages[:, turn] = running
    return advantages


def standardised(advantages: Tensor, counted: Tensor) -> Tensor:
    """Mean 0 and deviation 1 over the counted entries; 0 elsewhere, and everywhere if all are alike."""
    entries = advantages[counted]
    if entries.numel() < 2:
        return torch.zeros_like(advantages)
    return (advantages - entries.mean()) / (entries.std() + _SMALLEST_DEVIATION) * counted


def _group_sums(of: Tensor, groups: Tensor) -> Tensor:
    """The sum over its group, for each entry."""
    sums = torch.zeros(int(groups.max()) + 1, dtype=of.dtype, device=of.device).index_add_(0, groups, of)
    return sums[groups]


def _group_sizes(of: Tensor, groups: Tensor) -> Tensor:
    return _group_sums(torch.ones_like(of), groups)


def _group_means(of: Tensor, groups: Tensor) -> Tensor:
    return _group_sums(of, groups) / _group_sizes(of, groups)
