"""Scores what the policy wrote by a reward model that was learnt from logged rewards."""

from collections.abc import Sequence
from typing import Any

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedModel

from rl_pipeline.training.program.readable import frozen


class RewardScorer:
    """A sequence classifier with one output. Every process has to score equally many conversations at a time."""

    def __init__(self, model: PreTrainedModel, accelerator: Accelerator, *, padding: int, batch: int) -> None:
        model.config.pad_token_id = padding
        self._model = frozen(model, accelerator)
        self._device = accelerator.device
        self._padding = padding
        self._batch = batch

    @torch.no_grad()
    def score(self, conversations: Sequence[Sequence[int]]) -> list[float]:
        """The score of each conversation, given as the token ids of all that was said in it."""
        scores: list[float] = []
        for first in range(0, len(conversations), self._batch):
            scores += self._scores(conversations[first : first + self._batch]).tolist()
        return scores

    def _scores(self, conversations: Sequence[Sequence[int]]) -> Tensor:
        rows = [torch.tensor(conversation, device=self._device) for conversation in conversations]
        input_ids = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=self._padding)
        lengths = torch.tensor([len(row) for row in rows], device=self._device)
        attention_mask = torch.arange(input_ids.shape[1], device=self._device) < lengths.unsqueeze(1)
        output: Any = self._model(input_ids=input_ids, attention_mask=attention_mask.long(), use_cache=False)
        scores: Tensor = output.logits.squeeze(-1).float()
        return scores
