"""Models that are read and not trained: the policy while it plays, and those that stand beside it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedModel, Trainer
from trl.models.utils import disable_gradient_checkpointing, prepare_deepspeed, unwrap_model_for_generation


@contextmanager
def readable_policy(trainer: Trainer) -> Iterator[PreTrainedModel]:
    """The bare model with all its weights in this process, not to be trained; every process has to come here."""
    model, checkpointing = cast("PreTrainedModel", trainer.model), trainer.args.gradient_checkpointing_kwargs
    training = model.training
    model.train(mode=False)
    with (
        torch.no_grad(),
        disable_gradient_checkpointing(model, cast("dict[str, Any] | None", checkpointing)),
        unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator) as policy,
    ):
        yield policy
    model.train(training)


def frozen(model: PreTrainedModel, accelerator: Accelerator) -> nn.Module:
    """The model on this process's device; with ZeRO-3 its share of it, and then all processes read at once."""
    plugin = accelerator.state.deepspeed_plugin
    if plugin is not None and plugin.zero_stage == 3:
        sharded: nn.Module = prepare_deepspeed(model, accelerator)
        return sharded
    on_device: nn.Module = model.to(accelerator.device).eval()
    return on_device
