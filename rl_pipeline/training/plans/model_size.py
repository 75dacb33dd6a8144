"""How large a model is, read from the headers of its safetensors files: no tensor is loaded."""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from rl_pipeline.errors import PipelineError

# Longer than any header of a model that fits on a disk.
_MAX_HEADER_BYTES = 100_000_000
_NOT_ADAPTED = ("embed_tokens", "lm_head", "wte", "wpe", "embeddings")


class NotAModel(PipelineError):
    """A directory without weights that can be read."""


@dataclass(frozen=True)
class ModelSize:
    """What the memory of a training depends on."""

    parameters: int
    largest_layer: int
    """Parameters of the largest single layer, which DeepSpeed gathers in one piece."""
    adapter_parameters_per_rank: int
    """Parameters of low-rank adapters on all linear layers, for each rank: their inputs and outputs."""


def size_of_model(directory: Path) -> ModelSize:
    """The size of the model in a directory of the Hugging Face layout. Raises `NotAModel`."""
    shapes = {name: shape for path in sorted(directory.glob("*.safetensors")) for name, shape in _shapes(path)}
    if not shapes:
        raise NotAModel(f"There are no safetensors files in {directory}: convert the model's weights to that format.")
    linear = [shape for name, shape in shapes.items() if len(shape) == 2 and not any(e in name for e in _NOT_ADAPTED)]
    return ModelSize(
        parameters=sum(map(prod, shapes.values())),
        largest_layer=max(map(prod, shapes.values())),
        adapter_parameters_per_rank=sum(map(sum, linear)),
    )


def _shapes(path: Path) -> Iterator[tuple[str, list[int]]]:
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, _MAX_HEADER_BYTES)))
        for name, tensor in header.items():
            if name != "__metadata__":
                yield name, tensor["shape"]
    except (ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise NotAModel(f"{path} is no safetensors file: fetch the model again.") from error
