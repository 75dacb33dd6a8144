"""Going over held-out rows with a model that may be spread over several processes."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rl_pipeline.training.program.saving import Resumable


def batches_for_all(
    trainer: Resumable, rows: Sequence[Any], collate: Callable[[list[Any]], dict[str, Tensor]]
) -> Iterator[tuple[dict[str, Tensor], Tensor]]:
    """This process's share of the rows in batches on its device, each with which of its rows count.

    Every process gets as many batches as any other: with ZeRO-3 a pass of one is a pass of all.
    """
    size, rank, processes = trainer.args.per_device_eval_batch_size, trainer.args.process_index, trainer.args.world_size
    device = trainer.args.device
    model = trainer.model_wrapped
    was_training = model.training
    model.eval()
    with torch.no_grad():
        for start in range(rank * size, _whole(len(rows), size * processes), size * processes):
            places = range(start, min(start + size, len(rows)))
            counts = torch.ones(len(places), dtype=torch.bool) if places else torch.zeros(1, dtype=torch.bool)
            chosen = [rows[place] for place in places] or [rows[0]]
            batch = collate(chosen)
            trainer.session.reporter.heartbeat()
            yield {name: tensor.to(device) for name, tensor in batch.items()}, counts.to(device)
    model.train(was_training)


def mean_over_all(trainer: Resumable, sums: Sequence[Tensor], weights: Sequence[Tensor]) -> float:
    """The weighted mean over all batches of all processes."""
    total = torch.stack([torch.stack(list(sums)).sum().double(), torch.stack(list(weights)).sum().double()])
    total = trainer.accelerator.reduce(total, reduction="sum")
    return float(total[0] / total[1])


def _whole(count: int, size: int) -> int:
    return -(-count // size) * size
