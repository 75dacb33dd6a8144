"""Keys and values of conversations: of those that are being answered, and of those that may go on.

An agent sends its whole conversation with every turn. What the model read and wrote of it before is kept, so that only
what is new has to be read.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers.cache_utils import DynamicCache

from rl_pipeline.training.program.generation import ConversationMemory

MOST_KEPT = 256
MOST_KEPT_BYTES = 256 * 2**20

Layers = list[tuple[Tensor, Tensor]]
"""Keys and values of one conversation, layer by layer: 1 x heads x tokens x features."""


class KeptConversations:
    """Those that were answered last, up to `MOST_KEPT` and `MOST_KEPT_BYTES`."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[int, ...], Layers] = OrderedDict()
        self._bytes = 0

    def keep(self, token_ids: Sequence[int], layers: Layers) -> None:
        """Keep what was computed of the first of these tokens: the last may not have been read."""
        known = tuple(token_ids[: layers[0][0].shape[2]])
        self._forget(known)
        self._kept[known] = layers
        self._bytes += _bytes_of(layers)
        while len(self._kept) > MOST_KEPT or self._bytes > MOST_KEPT_BYTES:
            self._forget(next(iter(self._kept)))

    def take(self, prompt: Sequence[int]) -> Layers:
        """What was computed of the longest conversation with which `prompt` begins, but for its last token, which has
        to be read; nothing where there is none. It is kept no longer: the conversation that goes on takes its place."""
        asked = tuple(prompt[:-1])
        begins = [kept for kept in self._kept if asked[: len(kept)] == kept]
        return self._forget(max(begins, key=len)) if begins else []

    def _forget(self, token_ids: tuple[int, ...]) -> Layers:
        layers = self._kept.pop(token_ids, [])
        self._bytes -= _bytes_of(layers)
        return layers


def _bytes_of(layers: Layers) -> int:
    return sum(keys.nbytes + values.nbytes for keys, values in layers)


class ConversationRows(ConversationMemory):
    """The memory of the conversations that are being answered."""

    @classmethod
    def going_on(cls, numbers: Sequence[int], kept: Sequence[Layers], device: torch.device) -> "ConversationRows":
        """Rows that begin with what was kept of each, which may be nothing."""
        rows = cls(numbers, device)
        lengths = [layers[0][0].shape[2] if layers else 0 for layers in kept]
        width = max(lengths, default=0)
        if width:
            columns = torch.arange(width, device=device)
            left = torch.tensor([width - length for length in lengths], device=device)
            rows._present = (columns[None, :] >= left[:, None]).long()
            rows._cache = DynamicCache()
            pattern = next(layers for layers in kept if layers)
            nothing = [tuple(part[:, :, :0] for part in parts) for parts in pattern]
            for number in range(len(pattern)):
                keys, values = (
                    torch.cat([_widened((layers or nothing)[number][part], width) for layers in kept])
                    for part in (0, 1)
                )
                rows._cache.update(keys, values, number)
        return rows

    @property
    def held(self) -> tuple[list[Any], Tensor]:
        """The layers of keys and values, and which of their columns hold a token of which row."""
        return list(self._cache.layers) if self._cache is not None else [], self._present

    @property
    def numbers(self) -> list[int]:
        """Whose rows these are."""
        return self._numbers

    def of(self, number: int) -> Layers:
        """What was computed of one conversation, in memory of its own."""
        layers, present = self.held
        row = self._numbers.index(number)
        columns = present[row].nonzero().squeeze(1)
        return [(layer.keys[row : row + 1, :, columns], layer.values[row : row + 1, :, columns]) for layer in layers]

    def join(self, other: "ConversationRows") -> None:
        """Put the other's rows below one's own. Both have read something."""
        layers, present = self.held
        more_layers, more_present = other.held
        width = max(present.shape[1], more_present.shape[1])
        mine, theirs = width - present.shape[1], width - more_present.shape[1]
        self._present = torch.cat([pad(present, (mine, 0)), pad(more_present, (theirs, 0))])
        self._numbers += other.numbers
        for layer, added in zip(layers, more_layers, strict=True):
            layer.keys = torch.cat([_widened(layer.keys, width), _widened(added.keys, width)])
            layer.values = torch.cat([_widened(layer.values, width), _widened(added.values, width)])


def _widened(states: Tensor, width: int) -> Tensor:
    """With empty columns on the left."""
    return pad(states, (0, 0, width - states.shape[2], 0))
