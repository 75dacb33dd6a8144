"""What every part of the training program knows of the run it is in."""

import time
from dataclasses import dataclass, field
from pathlib import Path

import torch
from transformers import PreTrainedTokenizerBase

from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.program.reporting import Reporter
from rl_pipeline.training.program.stopping import StopRequest
from rl_pipeline.training.work_directory import WorkDirectory


@dataclass(frozen=True)
class Session:
    """One process of one attempt. Rank 0 alone has a reporter that tells anybody anything."""

    plan: TrainingPlan
    work: WorkDirectory
    rank: int
    world_size: int
    device: torch.device
    base: Path
    """Directory of the base model."""
    dataset_hash: str
    tokenizer: PreTrainedTokenizerBase
    reporter: Reporter
    stop: StopRequest
    began: float = field(default_factory=time.monotonic)
    """What an attempt costs is counted from here: a reward model is learnt before the first step."""

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes what there is one of."""
        return self.rank == 0
