"""Played episodes as the policy saw them, and as the tensors that it is trained on.

An episode is the very token ids that were read and sampled: nothing is rendered or tokenised again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rl_pipeline.training.program.generation import NOT_WRITTEN

Batch = dict[str, Tensor]
"""Episodes by tokens: input_ids, attention_mask. By tokens less the first: written, turns. By turns: starts."""


@dataclass(frozen=True)
class PlayedEpisode:
    """One episode, or one answer to a prompt."""

    token_ids: Sequence[int]
    turns: Sequence[int]
    """For each token the turn in which the policy wrote it, `NOT_WRITTEN` for what it only read."""
    rewards: Sequence[float]
    """Of each turn."""
    success: bool | None = None
    """Whether the goal was reached, where there is one."""
    progress: Sequence[float] = ()
    """By how much each turn brought the goal nearer, where the world can tell."""


def first_turns(episode: PlayedEpisode, max_tokens: int) -> PlayedEpisode:
    """As many of the first turns as fit, at least one; what the others brought goes to the last that is kept."""
    if len(episode.token_ids) <= max_tokens:
        return episode
    turns = np.asarray(episode.turns)
    begun = int(turns[:max_tokens].max())
    kept = max(begun + int(turns[max_tokens] != begun), 1)
    end = int(np.flatnonzero(turns == kept - 1)[-1]) + 1
    rewards, progress = (
        [*of_turns[: kept - 1], sum(of_turns[kept - 1 :])] for of_turns in (episode.rewards, episode.progress)
    )
    read, written = episode.token_ids[:end], episode.turns[:end]
    return replace(episode, token_ids=read, turns=written, rewards=rewards, progress=progress)


def batch_of(episodes: Sequence[PlayedEpisode], *, padding: int, most_turns: int, device: torch.device) -> Batch:
    """The episodes side by side, padded on the right."""
    length = max(len(episode.token_ids) for episode in episodes)
    input_ids = torch.full((len(episodes), length), padding)
    attention_mask = torch.zeros_like(input_ids)
    turns = torch.full_like(input_ids, NOT_WRITTEN)
    starts = torch.zeros(len(episodes), most_turns, dtype=torch.long)
    for row, episode in enumerate(episodes):
        input_ids[row, : len(episode.token_ids)] = torch.tensor(episode.token_ids)
        attention_mask[row, : len(episode.token_ids)] = 1
        turns[row, : len(episode.turns)] = torch.tensor(episode.turns)
        _, firsts = np.unique(np.asarray(episode.turns), return_index=True)
        firsts = firsts[-len(episode.rewards) :] - 1
        starts[row, : len(firsts)] = torch.from_numpy(firsts)
    answered = turns[:, 1:]
    batch = {
        "input_ids": input_ids,
        "attention_mask": attention_mask,
        "written": answered != NOT_WRITTEN,
        "turns": answered.clamp(min=0),
        "starts": starts,
    }
    return {name: tensor.to(device) for name, tensor in batch.items()}


def by_turns(episodes: Sequence[Sequence[float]], most_turns: int) -> Tensor:
    """What the turns of each episode have: episodes by turns, zero after the end."""
    table = torch.zeros(len(episodes), most_turns)
    for row, of_turns in enumerate(episodes):
        table[row, : len(of_turns)] = torch.tensor(of_turns)
    return table


def groups_of(episodes: int, group_size: int) -> list[int]:
    """The group of each of the global batch's episodes, in order; a remainder joins the last group."""
    groups = max(episodes // group_size, 1)
    return [min(place // group_size, groups - 1) for place in range(episodes)]


def prompts_of_iteration(prompts: int, groups: int, iteration: int, seed: int) -> list[int]:
    """Which prompt each group of an iteration plays: all of them once, in random order, before one comes again."""
    chosen = []
    for place in range(iteration * groups, (iteration + 1) * groups):
        turn, offset = divmod(place, prompts)
        order = np.random.default_rng([seed % 2**63, turn]).permutation(prompts)
        chosen.append(int(order[offset]))
    return chosen


def generator_of(device: torch.device, *parts: int) -> torch.Generator:
    """Randomness that depends on `parts` alone: the seed, the iteration, the process."""
    state = np.random.SeedSequence([part % 2**63 for part in parts]).generate_state(1, np.uint64)
    return torch.Generator(device).manual_seed(int(state[0] >> np.uint64(1)))
