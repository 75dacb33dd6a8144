"""What is kept of a conversation saves reading and changes no token; what does not fit is forgotten, oldest first."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from rl_pipeline.serving import batching, conversation_rows
from rl_pipeline.serving.batching import Batch, Generation
from rl_pipeline.serving.conversation_rows import ConversationRows, KeptConversations, Layers
from rl_pipeline.training.program.generation import Transcript


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> PreTrainedModel:
    torch.set_num_threads(1)
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tiny_model)
    return loaded.eval()


@pytest.fixture
def batch(model: PreTrainedModel) -> Iterator[Batch]:
    running = Batch(model)
    yield running
    running.end()


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many columns the model was given to read, each time."""
    read: list[int] = []
    feed = ConversationRows.feed

    def counted(rows: ConversationRows, model: PreTrainedModel, token_ids: torch.Tensor, present: torch.Tensor) -> Any:
        read.append(token_ids.shape[1])
        return feed(rows, model, token_ids, present)

    monkeypatch.setattr(ConversationRows, "feed", counted)
    return read


def answered(batch: Batch, *prompts: list[int], max_tokens: int = 6) -> list[list[int]]:
    """What is said to prompts that come together, greedily."""
    told = [(list[int](), threading.Event()) for _ in prompts]

    def generation(prompt: list[int], tokens: list[int], ended: threading.Event) -> Generation:
        transcript = Transcript()
        transcript.read(prompt)
        take = lambda token, _: tokens.append(token) or False  # type: ignore[func-returns-value] # noqa: E731
        return Generation(transcript, max_tokens, 0.0, take, lambda _: ended.set())

    for prompt, (tokens, ended) in zip(prompts, told, strict=True):
        batch.add(generation(prompt, tokens, ended))
    assert all(ended.wait(60) for _, ended in told)
    return [tokens for tokens, _ in told]


def alone(model: PreTrainedModel, prompt: list[int], max_tokens: int = 6) -> list[int]:
    """As transformers itself would go on, with nothing kept."""
    tokens = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(max_tokens):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    answer: list[int] = tokens[0, len(prompt) :].tolist()
    return answer


def words(length: int, seed: int) -> list[int]:
    drawn: list[int] = torch.randint(10, 250, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    return drawn


def layers_of(length: int, number: int = 0) -> Layers:
    """Of two layers, each a head of four features."""
    return [(torch.full((1, 1, length, 4), float(number)), torch.zeros(1, 1, length, 4)) for _ in range(2)]


def test_a_conversation_that_goes_on_is_answered_as_if_all_of_it_were_read_anew(
    model: PreTrainedModel, batch: Batch, widths: list[int]
) -> None:
    conversation = words(40, seed=1)
    for turn in range(4):
        widths.clear()
        [answer] = answered(batch, conversation)
        assert answer == alone(model, conversation)
        # Its last word of the turn before was never read, and five are new.
        assert widths[0] == (6 if turn else 40)
        conversation = [*conversation, *answer, *words(5, seed=10 + turn)]


def test_conversations_of_any_length_go_on_side_by_side_with_one_that_begins(
    model: PreTrainedModel, batch: Batch
) -> None:
    begun = [words(length, seed=length) for length in (3, 50, 21)]
    for prompt in begun:
        answered(batch, prompt)
    following = [[*prompt, *alone(model, prompt), *words(7, seed=2)] for prompt in begun]
    prompts = [*following, words(30, seed=9)]
    assert answered(batch, *prompts) == [alone(model, prompt) for prompt in prompts]


def test_a_conversation_that_took_another_turn_is_answered_by_what_it_is_now(
    model: PreTrainedModel, batch: Batch
) -> None:
    prompt = words(40, seed=3)
    answered(batch, prompt)
    for edited in ([*prompt[:-1], prompt[-1] ^ 1], prompt[:20], prompt):
        assert answered(batch, edited) == [alone(model, edited)]


def test_what_a_failed_step_had_taken_is_read_anew(
    model: PreTrainedModel, batch: Batch, widths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = words(40, seed=4)
    [answer] = answered(batch, prompt)
    following = [*prompt, *answer, *words(5, seed=5)]
    drawn, failures = batching._drawn, iter([RuntimeError("out of memory")])

    def draw(*given: Any) -> Any:
        for failure in failures:
            raise failure
        return drawn(*given)

    monkeypatch.setattr(batching, "_drawn", draw)
    widths.clear()
    assert answered(batch, following) == [alone(model, following)]
    assert widths[0] == 6, "what was kept"
    assert len(following) in widths, "and all of it, after the failure"
    answer = alone(model, following)
    widths.clear()
    further = [*following, *answer, *words(5, seed=6)]
    assert answered(batch, further) == [alone(model, further)]
    assert widths[0] == 6, "what came of it is kept again"


def test_the_longest_beginning_is_taken_once_and_never_the_whole_prompt() -> None:
    kept = KeptConversations()
    for length in (2, 4):
        kept.keep([1, 2, 3, 4, 5][: length + 1], layers_of(length, length))
    assert kept.take([1, 2, 9, 9])[0][0].shape[2] == 2
    assert kept.take([1, 2, 3, 4]) == [], "of four words the last has to be read, and four were kept"
    assert kept.take([7, 1, 2, 3, 4, 5]) == []
    assert kept.take([1, 2, 3, 4, 5])[0][0].shape[2] == 4
    assert kept.take([1, 2, 3, 4, 5]) == [], "whoever went on with it has it"


def test_the_oldest_are_forgotten_by_number_and_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation_rows, "MOST_KEPT", 3)
    kept = KeptConversations()
    for first in range(5):
        kept.keep([first, 7, 7], layers_of(2))
    kept.keep([2, 7, 7], layers_of(2, 5))  # again, which makes it the newest
    assert [bool(kept.take([first, 7, 7])) for first in (0, 1)] == [False, False]
    monkeypatch.setattr(conversation_rows, "MOST_KEPT_BYTES", 2 * layers_bytes(2))
    kept.keep([8, 7, 7], layers_of(2))
    assert [bool(kept.take([first, 7, 7])) for first in (3, 4)] == [False, False], "older than the second"
    assert kept.take([2, 7, 7])[0][0].max() == 5
    assert kept.take([8, 7, 7])
    kept.keep([9] * 101, layers_of(100))
    assert kept.take([9] * 101) == [], "larger than all that may be kept"
    assert kept._bytes == 0


def layers_bytes(length: int) -> int:
    return sum(part.nbytes for parts in layers_of(length) for part in parts)
