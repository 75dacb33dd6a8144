"""The objective that the online algorithms share, as pure functions on tensors of episodes by tokens.

Episodes are length-normalised: each counts alike, however much the policy wrote in it.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rl_pipeline.training.plans.plan import OnlinePlan


@dataclass(frozen=True)
class Objective:
    """What is minimised, and what is told about it."""

    loss: Tensor
    kl: Tensor
    """To the reference; 0 without one."""
    clipped: Tensor
    """Share of tokens whose ratio has left the range in which it may still be moved."""


def policy_objective(
    plan: OnlinePlan,
    *,
    logprobs: Tensor,
    old_logprobs: Tensor,
    reference_logprobs: Tensor | None,
    advantages: Tensor,
    written: Tensor,
) -> Objective:
    """PPO's clipped ratio (Schulman et al., 2017) and the k3 estimate of the divergence from the reference.

    With d = log π_ref - log π, k3 is exp(d) - d - 1: never negative, and its gradient pulls back to the reference.
    """
    ratios = (logprobs - old_logprobs).exp()
    held = ratios.clamp(1 - plan.clip_epsilon, 1 + plan.clip_epsilon)
    losses = -torch.minimum(ratios * advantages, held * advantages)
    clipped = (ratios * advantages > held * advantages).to(losses.dtype)
    kl = torch.zeros_like(losses)
    if reference_logprobs is not None:
        difference = (reference_logprobs - logprobs).clamp(max=20.0)
        kl = difference.exp() - difference - 1
    loss = episode_mean(losses + plan.kl_coefficient * kl, written)
    return Objective(loss, episode_mean(kl, written).detach(), episode_mean(clipped, written).detach())


def value_objective(values: Tensor, returns: Tensor, played: Tensor) -> Tensor:
    """Half the squared error of the values of turns."""
    return 0.5 * episode_mean((values - returns).square(), played)


def episode_mean(of: Tensor, counted: Tensor) -> Tensor:
    """The mean over episodes of the mean over what is counted in each."""
    return ((of * counted).sum(1) / counted.sum(1).clamp(min=1)).mean()
