"""Going on from a state with other processes than those that saved it: with its weights, and a new optimizer.

What is saved of an optimizer fits the processes, the device, the precision and the stage of ZeRO that it was saved by,
and a state of DeepSpeed is none to a process without it. An attempt runs on what it finds: a GPU less, a node less, no
compiler. The weights can always be read.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.program import value_head

Layout = dict[str, Any]
"""All of a plan that what is saved of an optimizer depends on."""


def layout_of(plan: TrainingPlan) -> Layout:
    """What the states of this plan are noted with."""
    names = {"processes", "device", "precision", "deepspeed"}
    if plan.distribution.deepspeed:
        names |= {"zero_stage", "offload_optimizer", "offload_parameters"}
    return plan.distribution.model_dump(include=names)


def note_on(step: int, saved: Layout, now: Layout) -> str:
    """What people are told."""
    return (
        f"The state after step {step} was saved by {_described(saved)}, and this attempt has {_described(now)}:"
        " it goes on with the weights of the state, and its optimizer begins anew."
    )


def take_over_weights(model: nn.Module, state: Path, saved: Layout, *, reads: bool) -> None:
    """Give the weights that are trained those of `state`. All processes call this before there is an engine.

    One process `reads`: the engine, or ZeRO-3 at once, gives the others what that one has.
    """
    weights = _weights_of(state, saved) if reads else {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            with _whole(parameter), torch.no_grad():
                if reads:
                    # The name of an adapter is in the model alone, not in the files that peft writes.
                    found = weights[name] if name in weights else weights[name.replace(".default.", ".")]
                    parameter.copy_(found.contiguous())


def _described(layout: Layout) -> str:
    processes = f"{layout['processes']} process{'es' if layout['processes'] > 1 else ''}"
    engine = "no DeepSpeed"
    if layout["deepspeed"]:
        offloads = layout["offload_optimizer"] or layout["offload_parameters"]
        engine = f"ZeRO-{layout['zero_stage']}{' that offloads' if offloads else ''}"
    return f"{processes} with {engine} ({layout['precision']} on {layout['device']})"


def _weights_of(state: Path, saved: Layout) -> Mapping[str, Any]:
    """What has the tensors of a state by the names of its weights; `contiguous` makes each a tensor."""
    if not saved["deepspeed"]:
        weights: dict[str, torch.Tensor] = {}
        for file in state.glob("*.safetensors"):
            prefix = f"{value_head.NAME}." if file.name == value_head.FILE else ""
            weights |= {f"{prefix}{name}": weight for name, weight in load_file(file).items()}
        return weights
    with _deepspeed_at_hand():
        if saved["zero_stage"] == 3:
            from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint

            shared: Mapping[str, Any] = get_fp32_state_dict_from_zero_checkpoint(str(state), lazy_mode=True)
            return shared
        # Up to stage 2 every process has all weights, and the first writes them.
        file = state / (state / "latest").read_text().strip() / "mp_rank_00_model_states.pt"
        whole: Mapping[str, Any] = torch.load(file, map_location="cpu", mmap=True, weights_only=False)["module"]
        return whole


@contextmanager
def _deepspeed_at_hand() -> Iterator[None]:
    """A program that trains without DeepSpeed has hidden it (`training_program.py`); its files name its classes."""
    hidden = "deepspeed" in sys.modules and sys.modules["deepspeed"] is None
    if hidden:
        del sys.modules["deepspeed"]
    try:
        yield
    finally:
        if hidden:
            sys.modules["deepspeed"] = None  # type: ignore[assignment]


def _whole(parameter: nn.Parameter) -> AbstractContextManager[None]:
    """While all processes are in here, a weight that ZeRO-3 shares out is whole; it leaves as the first has it."""
    if not hasattr(parameter, "ds_id"):
        return nullcontext()
    import deepspeed

    gathered: AbstractContextManager[None] = deepspeed.zero.GatheredParameters(parameter, modifier_rank=0)
    return gathered
