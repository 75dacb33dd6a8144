"""What the policy thinks of episodes that were played: likelihood and entropy of what was written, values of turns.

Padding comes last and attention looks back only: models need no mask, and are faster without one.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from trl.trainer.utils import entropy_from_logits

from rl_pipeline.training.program.episodes import Batch


@dataclass(frozen=True)
class Reading:
    """Episodes by tokens less the first, zero where the policy wrote nothing."""

    logprobs: Tensor
    entropies: Tensor
    hidden: Tensor | None
    """Episodes by tokens by width, where asked for."""


def read(
    model: nn.Module, batch: Batch, *, temperature: float, keep_entropy: bool = False, hidden: bool = False
) -> Reading:
    """One pass over `batch`. The entropy has a gradient only if `keep_entropy`."""
    written: Tensor = batch["written"]
    first = int(written.any(0).nonzero()[0])
    output: Any = model(
        input_ids=batch["input_ids"],
        logits_to_keep=batch["input_ids"].shape[1] - first,
        output_hidden_states=hidden,
        use_cache=False,
    )
    counted = written[:, first:]
    logits = output.logits[:, :-1][counted].float() / temperature
    logprobs = -functional.cross_entropy(logits, batch["input_ids"][:, 1:][written], reduction="none")
    with torch.set_grad_enabled(keep_entropy and torch.is_grad_enabled()):
        entropies = entropy_from_logits(logits)
    empty = torch.zeros_like(written, dtype=torch.float32)
    return Reading(
        logprobs=empty.masked_scatter(written, logprobs),
        entropies=empty.masked_scatter(written, entropies),
        hidden=output.hidden_states[-1] if hidden else None,
    )


def hidden_states(model: nn.Module, batch: Batch) -> Tensor:
    """Episodes by tokens by width."""
    output: Any = model(
        input_ids=batch["input_ids"],
        logits_to_keep=1,
        output_hidden_states=True,
        use_cache=False,
    )
    return output.hidden_states[-1]  # type: ignore[no-any-return]
