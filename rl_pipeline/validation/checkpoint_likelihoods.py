"""How likely a model in a directory would have said what was logged. Needs torch, which is loaded at first use only."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

from rl_pipeline.contracts.trajectory import Sampling
from rl_pipeline.validation.off_policy import LoggedTrajectory

if TYPE_CHECKING:
    from rl_pipeline.training.program.episodes import PlayedEpisode


@dataclass(frozen=True)
class CheckpointLikelihoods:
    """The likelihoods of the model in `directory`, in Hugging Face's layout."""

    directory: Path
    at_once: int = 32

    def log_likelihoods(self, trajectories: Sequence[LoggedTrajectory]) -> list[float]:
        """Of everything that was said in each trajectory, at its temperature; those of like length side by side."""
        import torch
        from transformers import AutoModelForCausalLM

        from rl_pipeline.training.program.episodes import batch_of
        from rl_pipeline.training.program.likelihoods import read

        model = AutoModelForCausalLM.from_pretrained(self.directory, dtype=torch.float32).eval()
        found = [0.0] * len(trajectories)
        parts = [(one.temperature, place, part) for place, one in enumerate(trajectories) for part in _parts(one.turns)]
        parts.sort(key=lambda part: (part[0], len(part[2].token_ids)))
        for temperature, alike in groupby(parts, key=lambda part: part[0]):
            remaining = list(alike)
            while remaining:
                together, remaining = remaining[: self.at_once], remaining[self.at_once :]
                episodes = [part for _, _, part in together]
                most_turns = max(len(episode.rewards) for episode in episodes)
                batch = batch_of(episodes, padding=0, most_turns=most_turns, device=model.device)
                with torch.no_grad():
                    sums = read(model, batch, temperature=temperature).logprobs.double().sum(1).tolist()
                for (_, place, _), logprob in zip(together, sums, strict=True):
                    found[place] += logprob
        return found


def tokens_to_read(trajectory: LoggedTrajectory) -> int:
    """How many tokens a model reads to say how likely the trajectory is: what the estimate costs."""
    return sum(len(part.token_ids) for part in _parts(trajectory.turns))


def _parts(turns: Sequence[Sampling]) -> "list[PlayedEpisode]":
    """The turns as one text where each goes on from the one before, which is read once; else as several."""
    from rl_pipeline.training.program.episodes import PlayedEpisode
    from rl_pipeline.training.program.generation import NOT_WRITTEN

    parts: list[PlayedEpisode] = []
    for turn in turns:
        shown, said = turn.prompt_token_ids or [], turn.completion_token_ids or []
        before = parts.pop() if parts else PlayedEpisode([], [], [])
        if shown[: len(before.token_ids)] != list(before.token_ids):
            parts.append(before)
            before = PlayedEpisode([], [], [])
        read = [NOT_WRITTEN] * (len(shown) - len(before.token_ids))
        written = [len(before.rewards)] * len(said)
        parts.append(PlayedEpisode([*shown, *said], [*before.turns, *read, *written], [*before.rewards, 0.0]))
    return parts
