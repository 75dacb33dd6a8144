"""Models that are read and not trained: the policy while it plays, and those that stand beside it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from accelerate import Accelerator
from torch import nn
from transformers import PreTrainedModel, Trainer
from trl.models.utils import disable_gradient_checkpointing, prepare_deepspeed, unwrap_model_for_generation

from rl_pipeline.training.plans.plan import TrainingPlan


@contextmanager
def readable_policy(trainer: Trainer, plan: TrainingPlan) -> Iterator[PreTrainedModel]:
    """The bare model, not to be trained; every process has to come here.

    All its weights are in this process, unless the plan says that they do not fit: then they come and go with each
    pass, and a pass of one process is a pass of all (`in_step`).
    """
    model, checkpointing = cast("PreTrainedModel", trainer.model), trainer.args.gradient_checkpointing_kwargs
    training = model.training
    model.train(mode=False)
    with (
        torch.no_grad(),
        disable_gradient_checkpointing(model, cast("dict[str, Any] | None", checkpointing)),
        unwrap_model_for_generation(
            trainer.model_wrapped,
            trainer.accelerator,
            gather_deepspeed3_params=plan.online.gather_for_generation,
        ) as policy,
    ):
        yield policy
    model.train(training)


@contextmanager
def in_step(plan: TrainingPlan, policy: nn.Module) -> Iterator[None]:
    """In here each process may take as many passes of the policy as it likes, and all take as many as any other.

    Before each pass they tell each other; who has no more to read reads one word again and again until all are done.
    """
    distribution = plan.distribution
    sharded = distribution.deepspeed and distribution.zero_stage == 3 and distribution.processes > 1
    if plan.online.gather_for_generation or not sharded:
        yield
        return
    device = next(policy.parameters()).device

    def any_goes_on(*, this: bool) -> bool:
        answer = torch.tensor(int(this), device=device)
        torch.distributed.all_reduce(answer, op=torch.distributed.ReduceOp.MAX)
        return bool(answer)

    def tell(*_: Any) -> None:
        any_goes_on(this=True)

    # Before DeepSpeed's own hook, which fetches weights: all processes ask each other things in the same order.
    hook = policy.register_forward_pre_hook(tell, prepend=True)
    try:
        yield
    finally:
        hook.remove()
    while any_goes_on(this=False):
        policy(input_ids=torch.zeros(1, 1, dtype=torch.long, device=device), use_cache=False)


def frozen(model: PreTrainedModel, accelerator: Accelerator) -> nn.Module:
    """The model on this process's device; with ZeRO-3 its share of it, and then all processes read at once."""
    plugin = accelerator.state.deepspeed_plugin
    if plugin is not None and plugin.zero_stage == 3:
        sharded: nn.Module = prepare_deepspeed(model, accelerator)
        return sharded
    on_device: nn.Module = model.to(accelerator.device).eval()
    return on_device
