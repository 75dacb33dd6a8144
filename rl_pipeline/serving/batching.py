"""Many answers at once from one model: requests join the batch that is running, and leave it when they are done.

Keys and values of all running conversations lie side by side. A newcomer's prompt is read on its own, and its row is
then put below the others, with empty columns on its left; its tokens keep their positions. Where a model's attention
allows no such columns, newcomers wait until the batch is done.
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from rl_pipeline.training.program.generation import ConversationMemory, Transcript

MOST_ROWS = 32
MOST_WAITING = 256

_log = logging.getLogger(__name__)


class Overloaded(Exception):
    """Too many requests wait already."""


@dataclass(eq=False)
class Generation:
    """One answer in the making. `take` hears each token and its log-probability, and says whether that was the last.

    `done` is called once, with the error if there was one. Both run in the batch's thread.
    """

    transcript: Transcript
    """Holds the prompt."""
    max_tokens: int
    temperature: float
    take: Callable[[int, float], bool]
    done: Callable[[Exception | None], None]
    seed: int | None = None
    is_cancelled: bool = False
    is_done: bool = False
    written: int = 0
    generator: torch.Generator | None = field(default=None, repr=False)

    def is_over(self, token: int, logprob: float) -> bool:
        """Take a token; whether the answer is complete."""
        self.transcript.write([token], [logprob], 0)
        self.written += 1
        return self.take(token, logprob) or self.written >= self.max_tokens or self.is_cancelled

    def end(self, error: Exception | None = None) -> None:
        """Say that it is done; only the first time counts."""
        if not self.is_done:
            self.is_done = True
            self.done(error)


class Batch:
    """Generates in a thread of its own."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model.eval()
        self._waiting: queue.Queue[Generation | None] = queue.Queue()
        self._running: list[Generation] = []
        self._memory: _Rows | None = None
        self._thread = threading.Thread(target=self._run, name="batch", daemon=True)
        self._thread.start()

    def add(self, generation: Generation) -> None:
        """Begin it as soon as there is room. Raises `Overloaded`."""
        if self._waiting.qsize() >= MOST_WAITING:
            raise Overloaded
        if generation.seed is not None:
            generation.generator = torch.Generator(self._model.device).manual_seed(generation.seed)
        self._waiting.put(generation)

    def end(self) -> None:
        """End the thread when all that was added before is done."""
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        is_ending = False
        while not (is_ending and not self._running):
            newcomers = [] if is_ending else self._admitted()
            if None in newcomers:
                is_ending = True
            try:
                self._step([generation for generation in newcomers if generation is not None])
            except RuntimeError as error:  # of torch: no memory, mostly
                _log.exception("a step failed")
                for generation in {*self._running, *(each for each in newcomers if each is not None)}:
                    generation.end(error)
                self._running, self._memory = [], None

    def _admitted(self) -> list[Generation | None]:
        """Who may begin now; waits when nothing is running."""
        if self._running and self._memory is not None and not self._memory.survives_turns:
            return []
        admitted: list[Generation | None] = []
        while len(self._running) + len(admitted) < MOST_ROWS:
            try:
                nobody = not self._running and not admitted
                admitted.append(self._waiting.get(block=nobody))
            except queue.Empty:
                break
            if admitted[-1] is None:
                break
        return admitted

    @torch.inference_mode()
    def _step(self, newcomers: list[Generation]) -> None:
        """A token for everybody."""
        begun = [generation for generation in newcomers if not _is_cancelled(generation)]
        fresh = _Rows([id(generation) for generation in begun], self._model.device)
        begun = self._written(fresh, begun)
        if self._memory is not None:
            self._running = self._written(self._memory, self._running)
        if begun and self._running and self._memory is not None:
            self._memory.join(fresh)
        elif begun:
            self._memory = fresh
        self._running = self._running + begun
        if not self._running:
            self._memory = None

    def _written(self, memory: "_Rows", rows: list[Generation]) -> list[Generation]:
        """Write a token in each row; the rows that go on, which alone stay in the memory."""
        if not rows:
            return []
        logits = memory.feed(self._model, *memory.unread([row.transcript for row in rows]))
        over = [row.is_over(*drawn) for row, drawn in zip(rows, _drawn(logits, rows), strict=True)]
        for row in [row for row, is_over in zip(rows, over, strict=True) if is_over]:
            row.end()
        left = [row for row, is_over in zip(rows, over, strict=True) if not is_over]
        if left:
            memory.keep_only([id(row) for row in left])
        return left


def _is_cancelled(generation: Generation) -> bool:
    if generation.is_cancelled:
        generation.end()
    return generation.is_cancelled


def _drawn(logits: Tensor, rows: Sequence[Generation]) -> list[tuple[int, float]]:
    """A token for each row by its own temperature and seed, and its log-probability."""
    temperatures = torch.tensor([row.temperature or 1.0 for row in rows], device=logits.device)
    logprobs = (logits / temperatures[:, None]).log_softmax(-1)
    probabilities = logprobs.exp()
    tokens = torch.multinomial(probabilities, 1)
    for place, row in enumerate(rows):
        if not row.temperature:
            tokens[place] = logits[place].argmax()
        elif row.generator is not None:
            tokens[place] = torch.multinomial(probabilities[place], 1, generator=row.generator)
    return list(zip(tokens.squeeze(1).tolist(), logprobs.gather(1, tokens).squeeze(1).tolist(), strict=True))


class _Rows(ConversationMemory):
    """The memory of the conversations that are being answered."""

    @property
    def held(self) -> tuple[list[Any], Tensor]:
        """The layers of keys and values, and which of their columns hold a token of which row."""
        return list(self._cache.layers) if self._cache is not None else [], self._present

    @property
    def numbers(self) -> list[int]:
        """Whose rows these are."""
        return self._numbers

    def join(self, other: "_Rows") -> None:
        """Put the other's rows below one's own. Both have read something."""
        layers, present = self.held
        more_layers, more_present = other.held
        width = max(present.shape[1], more_present.shape[1])
        mine, theirs = width - present.shape[1], width - more_present.shape[1]
        self._present = torch.cat([pad(present, (mine, 0)), pad(more_present, (theirs, 0))])
        self._numbers += other.numbers
        for layer, added in zip(layers, more_layers, strict=True):
            layer.keys = torch.cat([pad(layer.keys, (0, 0, mine, 0)), pad(added.keys, (0, 0, theirs, 0))])
            layer.values = torch.cat([pad(layer.values, (0, 0, mine, 0)), pad(added.values, (0, 0, theirs, 0))])
