"""The part that PPO adds to the policy while it trains: the value of the state before each turn.

It is a submodule of the model, so that the optimiser, DeepSpeed and the saved states hold it like any other weight. The
delivered policy does not have it.
"""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

NAME = "value_head"
FILE = "value_head.safetensors"
"""Where it lies in a state whose other weights are an adapter's."""


def add_value_head(model: nn.Module) -> None:
    """Values of 0 to begin with: the first advantages are plain returns."""
    config: Any = model.config
    parameter = next(model.parameters())
    head = nn.Linear(config.get_text_config().hidden_size, 1, dtype=parameter.dtype, device=parameter.device)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    model.add_module(NAME, head)


def remove_value_head(model: nn.Module) -> None:
    """Leave the policy alone; nothing happens to a model that has no value head."""
    if hasattr(model, NAME):
        delattr(model, NAME)


def state_values(model: nn.Module, hidden: Tensor, starts: Tensor) -> Tensor:
    """The value of each turn: `hidden` is episodes by tokens by width, `starts` the token before each turn."""
    head: nn.Linear = model.get_submodule(NAME)  # type: ignore[assignment]  # set by add_value_head
    places = starts.unsqueeze(-1).expand(-1, -1, hidden.shape[-1])
    values: Tensor = head(hidden.gather(1, places).to(head.weight.dtype))
    return values.squeeze(-1).float()


def save_value_head(model: nn.Module, directory: Path) -> None:
    """Beside an adapter, whose files hold nothing but the adapter."""
    save_file(model.get_submodule(NAME).state_dict(), directory / FILE)


def load_value_head(model: nn.Module, directory: Path) -> None:
    """What `save_value_head` saved."""
    with torch.no_grad():
        model.get_submodule(NAME).load_state_dict(load_file(directory / FILE))
