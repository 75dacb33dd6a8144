"""The small model's first lessons: it imitates demonstrations, in a plain loop and on one thread."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from rl_pipeline.training.small_model.demonstrations import Demonstration

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase, Qwen2ForCausalLM

_HIDDEN, _LAYERS, _HEADS, _INTERMEDIATE, _POSITIONS = 96, 3, 4, 256, 1024
_SCALE_OF_FIRST_WEIGHTS = 0.08
"""Near 1/√hidden: with the usual 0.02, made for wide models, a narrow one learns several times more slowly."""
_BATCHES_SORTED = 8
"""Together, by length."""
_WARM_UP, _DECAY_FROM = 0.05, 0.5
_MOST_GRADIENT = 1.0


@dataclass(frozen=True)
class Manner:
    """How lessons are gone through."""

    batch: int
    learning_rate: float = 3e-3
    beginning_once: bool = False
    """Read what all lessons begin with once for a whole batch: the same up to rounding, in less time."""


ON_ATTEMPTS = Manner(batch=8)
"""Lessons of many commands."""
ON_ANSWERS = Manner(batch=32, beginning_once=True)
"""Lessons of a few tokens, at the end of questions that begin alike: eight of them say too little for this rate."""
ON_CARELESS_ANSWERS = replace(ON_ANSWERS, learning_rate=1e-3)
"""Lessons that shall not undo what was understood."""


@dataclass(frozen=True)
class Lesson:
    """A demonstration in tokens; `imitated` marks those to learn."""

    token_ids: "Tensor"
    imitated: "Tensor"


def new_model(tokenizer: "PreTrainedTokenizerBase", seed: int) -> "Qwen2ForCausalLM":
    """The model before its first lesson; the state of torch's own randomness stays as it is."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    configuration = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=_HIDDEN,
        intermediate_size=_INTERMEDIATE,
        num_hidden_layers=_LAYERS,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS,
        max_position_embeddings=_POSITIONS,
        initializer_range=_SCALE_OF_FIRST_WEIGHTS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(configuration)


def lessons_of(demonstrations: Sequence[Demonstration], tokenizer: "PreTrainedTokenizerBase") -> list[Lesson]:
    """The demonstrations in the tokens that the model will meet when it plays; a command includes its end."""
    import torch

    conversations: Any = [demonstration.messages for demonstration in demonstrations]
    rendered: Any = tokenizer.apply_chat_template(conversations, return_dict=True, return_assistant_tokens_mask=True)
    lessons = []
    for token_ids, written, demonstration in zip(
        rendered["input_ids"], rendered["assistant_masks"], demonstrations, strict=True
    ):
        commands = iter(demonstration.imitated)
        imitated, learn, before = [], False, 0
        for mark in written:
            learn = next(commands) if mark > before else learn
            imitated.append(bool(mark) and learn)
            before = mark
        lessons.append(Lesson(torch.tensor(token_ids), torch.tensor(imitated)))
    return lessons


def imitate(model: "Qwen2ForCausalLM", lessons: Sequence[Lesson], seed: int, manner: Manner = ON_ATTEMPTS) -> None:
    """Go through the lessons once, in an order drawn by `seed`."""
    import torch
    from torch.nn.functional import cross_entropy

    steps = max(1, len(lessons) // manner.batch)
    optimizer = torch.optim.AdamW(model.parameters(), lr=manner.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _pace(step / steps))
    beginning = _common_beginning(lessons) if manner.beginning_once else lessons[0].token_ids[:0]
    model.train()
    for token_ids, imitated in _batches(lessons, steps, manner.batch, seed):
        rest, learnt = token_ids[:, len(beginning) :], imitated[:, len(beginning) + 1 :]
        loss = cross_entropy(model.lm_head(_read(model, beginning, rest[:, :-1])[learnt]), rest[:, 1:][learnt])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), _MOST_GRADIENT)
        optimizer.step()
        schedule.step()
    model.eval()


def _read(model: "Qwen2ForCausalLM", beginning: "Tensor", rest: "Tensor") -> "Tensor":
    """The hidden states over the `rest` of each row, all of which have the same `beginning`.

    Padding comes last and attention looks back only: no mask is needed.
    """
    from transformers import DynamicCache

    read = DynamicCache() if len(beginning) else None
    if read is not None:
        model.model(input_ids=beginning[None], past_key_values=read, use_cache=True)
        read.batch_repeat_interleave(len(rest))
    hidden: Tensor = model.model(input_ids=rest, past_key_values=read, use_cache=read is not None).last_hidden_state
    return hidden


def _common_beginning(lessons: Sequence[Lesson]) -> "Tensor":
    """Of all lessons, up to the first token that differs."""
    in_order = sorted(lesson.token_ids.tolist() for lesson in lessons)
    alike = takewhile(lambda pair: pair[0] == pair[1], zip(in_order[0], in_order[-1], strict=False))
    return lessons[0].token_ids[: len(list(alike))]


def _pace(progress: float) -> float:
    """The learning rate's share: up, level, and down to nothing."""
    return min(1.0, progress / _WARM_UP + 0.01, (1.0 - progress) / (1.0 - _DECAY_FROM))


def _batches(lessons: Sequence[Lesson], steps: int, batch: int, seed: int) -> Iterator[tuple["Tensor", "Tensor"]]:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    order = torch.randperm(len(lessons), generator=torch.Generator().manual_seed(seed)).tolist()
    # Lessons of like length side by side need less padding; sorted in small windows they stay well mixed.
    width = _BATCHES_SORTED * batch
    for window in range(0, len(order), width):
        order[window : window + width] = sorted(
            order[window : window + width], key=lambda place: len(lessons[place].token_ids)
        )
    for step in range(steps):
        chosen = [lessons[place] for place in order[step * batch : (step + 1) * batch]]
        token_ids = pad_sequence([lesson.token_ids for lesson in chosen], batch_first=True)
        yield token_ids, pad_sequence([lesson.imitated for lesson in chosen], batch_first=True)
