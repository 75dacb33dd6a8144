"""Many answers at once from one model: requests join the batch that is running, and leave it when they are done.

Keys and values of all running conversations lie side by side. A newcomer's prompt is read on its own, and its row is
then put below the others, with empty columns on its left; its tokens keep their positions. Of a conversation that goes
on only what is new is read. Where a model's attention allows no such columns, newcomers wait until the batch is done.

A request that the model cannot read fails alone: the others begin again together, from the tokens that they have. After
each failure the model is tried; one that cannot go on by a single token is broken, and the batch ends.
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl_pipeline.serving.conversation_rows import ConversationRows, KeptConversations
from rl_pipeline.training.program.generation import Transcript

MOST_ROWS = 32
MOST_WAITING = 256
_COLDEST = 1e-37
"""The least temperature that a float of 32 bits can divide by; all below it draw the likeliest token."""

_log = logging.getLogger(__name__)


class Overloaded(Exception):
    """Too many requests wait already."""


class Broken(Exception):
    """The model can answer nobody any more."""


class NoProbabilities(ArithmeticError):
    """What the model gives for the next token is no number."""


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
        if self.is_done:
            return
        self.is_done = True
        try:
            self.done(error)
        except Exception:  # noqa: BLE001 - the others have to go on
            _log.exception("nobody hears that an answer is done")


class Batch:
    """Generates in a thread of its own. `on_broken` is called from it, once, when the model turns out to be broken."""

    def __init__(self, model: PreTrainedModel, on_broken: Callable[[], None] = lambda: None) -> None:
        self.problem: str | None = None
        """Why the model is broken, if it is."""
        self._model = model.eval()
        self._on_broken = on_broken
        self._adding = threading.Lock()
        self._waiting: queue.Queue[Generation | None] = queue.Queue()
        self._running: list[Generation] = []
        self._newcomers: list[Generation] = []
        self._memory: ConversationRows | None = None
        self._kept = KeptConversations()
        self._is_suspect = False
        self._thread = threading.Thread(target=self._run, name="batch", daemon=True)
        self._thread.start()

    def add(self, generation: Generation) -> None:
        """Begin it as soon as there is room. Raises `Overloaded` and `Broken`."""
        if self._waiting.qsize() >= MOST_WAITING:
            raise Overloaded
        if generation.seed is not None:
            generation.generator = torch.Generator(self._model.device).manual_seed(generation.seed)
        with self._adding:
            if self.problem:
                raise Broken
            self._waiting.put(generation)

    def end(self) -> None:
        """End the thread when all that was added before is done."""
        self._waiting.put(None)
        self._thread.join()

    @torch.inference_mode()
    def _run(self) -> None:
        try:
            self._generate()
        except BaseException as error:  # noqa: BLE001 - whatever it was, nobody may be left waiting for this thread
            _log.exception("the model is broken")
            with self._adding:
                self.problem = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            for generation in (*self._running, *self._newcomers):
                generation.end(Broken())
            self._fail_waiting()
            self._on_broken()

    def _generate(self) -> None:
        is_ending = False
        while not (is_ending and not self._running):
            admitted = [] if is_ending else self._admitted()
            is_ending = is_ending or None in admitted
            self._newcomers = [generation for generation in admitted if generation is not None]
            try:
                self._step(self._newcomers)
            except Exception:  # noqa: BLE001 - who is at fault is found out
                _log.exception("a step failed")
                self._begin_again()
            if self._is_suspect:
                self._is_suspect = False
                self._try_model()

    def _fail_waiting(self) -> None:
        while True:
            try:
                generation = self._waiting.get(block=False)
            except queue.Empty:
                return
            if generation is not None:
                generation.end(Broken())

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

    def _step(self, newcomers: list[Generation]) -> None:
        """A token for everybody."""
        begun = [generation for generation in newcomers if not _is_cancelled(generation)]
        kept = [self._kept.take(row.transcript.token_ids) for row in begun]
        fresh = ConversationRows.going_on([id(row) for row in begun], kept, self._model.device)
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

    def _begin_again(self) -> None:
        """After a step that failed: whom the model cannot read even alone fails, and the others go on without them."""
        interrupted = [row for row in (*self._running, *self._newcomers) if not row.is_done]
        self._running, self._memory = [], None
        self._newcomers = [row for row in interrupted if self._is_readable(row)]
        try:
            self._step(self._newcomers)
        except Exception as error:  # noqa: BLE001 - each is told of it
            self._running, self._memory = [], None
            for row in self._newcomers:
                self._fail(row, error)

    def _is_readable(self, row: Generation) -> bool:
        try:
            self._read(self._rows_of([row]), [row])
        except Exception as error:  # noqa: BLE001 - it is told of it
            self._fail(row, error)
        return not row.is_done

    def _try_model(self) -> None:
        """Raises what keeps the model from going on by a single token."""
        nobody = Generation(Transcript(), 1, 0.0, lambda *_: True, lambda _: None)
        nobody.transcript.read([0])
        logits = self._read(self._rows_of([nobody]), [nobody])
        if not bool(_has_probabilities(logits).all()):
            raise NoProbabilities("the model gives no probabilities")
        _drawn(logits, [nobody])

    def _fail(self, row: Generation, error: Exception) -> None:
        row.end(error)
        self._is_suspect = True

    def _rows_of(self, rows: Sequence[Generation]) -> ConversationRows:
        return ConversationRows([id(row) for row in rows], self._model.device)

    def _read(self, memory: ConversationRows, rows: Sequence[Generation]) -> Tensor:
        return memory.feed(self._model, *memory.unread([row.transcript for row in rows]))

    def _written(self, memory: ConversationRows, rows: list[Generation]) -> list[Generation]:
        """Write a token in each row; the rows that go on, which alone stay in the memory."""
        if not rows:
            return []
        logits = self._read(memory, rows)
        sound = _has_probabilities(logits)
        drawn = _drawn(logits.where(sound[:, None], 0.0), rows)
        left = []
        for row, one, is_sound in zip(rows, drawn, sound.tolist(), strict=True):
            if not is_sound:
                self._fail(row, NoProbabilities("the model gives no probabilities for this"))
            elif _goes_on(row, one):
                left.append(row)
            elif memory.survives_turns:
                self._kept.keep(row.transcript.token_ids, memory.of(id(row)))
        if left:
            memory.keep_only([id(row) for row in left])
        return left


def _goes_on(row: Generation, drawn: tuple[int, float]) -> bool:
    """Have the row take its token; whether it wants more. One that cannot take it is over."""
    try:
        is_over = row.is_over(*drawn)
    except Exception as error:  # noqa: BLE001 - the others have to go on
        _log.exception("an answer cannot take its token")
        row.end(error)
        return False
    if is_over:
        row.end()
    return not is_over


def _is_cancelled(generation: Generation) -> bool:
    if generation.is_cancelled:
        generation.end()
    return generation.is_cancelled


def _has_probabilities(logits: Tensor) -> Tensor:
    """Of each row, whether a token can be drawn by it."""
    return logits.amax(-1).isfinite()


def _drawn(logits: Tensor, rows: Sequence[Generation]) -> list[tuple[int, float]]:
    """A token for each row by its own temperature and seed, and its log-probability."""
    temperatures = torch.tensor([max(row.temperature or 1.0, _COLDEST) for row in rows], device=logits.device)
    # Below the likeliest token, which stays at 0 however cold it is: divided as they are, logits would overflow.
    below = logits - logits.amax(-1, keepdim=True)
    logprobs = (below / temperatures[:, None]).log_softmax(-1)
    probabilities = logprobs.exp()
    tokens = torch.multinomial(probabilities, 1)
    for place, row in enumerate(rows):
        if not row.temperature:
            tokens[place] = logits[place].argmax()
        elif row.generator is not None:
            tokens[place] = torch.multinomial(probabilities[place], 1, generator=row.generator)
    return list(zip(tokens.squeeze(1).tolist(), logprobs.gather(1, tokens).squeeze(1).tolist(), strict=True))
