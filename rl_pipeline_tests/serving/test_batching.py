"""Answers that are generated together are those that would have been generated alone."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from rl_pipeline.serving import batching
from rl_pipeline.serving.batching import Batch, Generation, Overloaded
from rl_pipeline.training.program.generation import Transcript


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> PreTrainedModel:
    torch.set_num_threads(1)
    loaded: PreTrainedModel = AutoModelForCausalLM.from_pretrained(tiny_model)
    return loaded


@pytest.fixture
def batch(model: PreTrainedModel) -> Iterator[Batch]:
    running = Batch(model)
    yield running
    running.end()


class Asked:
    """A generation that can be waited for."""

    def __init__(
        self, prompt: list[int], max_tokens: int = 12, temperature: float = 0.0, seed: int | None = None
    ) -> None:
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.error: Exception | None = None
        self.joined_at: int | None = None
        self.ended = threading.Event()
        self.on_token = threading.Event()
        transcript = Transcript()
        transcript.read(prompt)
        self.generation = Generation(transcript, max_tokens, temperature, self._take, self._done, seed)

    def _take(self, token: int, logprob: float) -> bool:
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.on_token.set()
        return False

    def _done(self, error: Exception | None) -> None:
        self.error = error
        self.ended.set()

    def wait(self) -> list[int]:
        assert self.ended.wait(60)
        return self.tokens


def alone(model: PreTrainedModel, prompt: list[int], max_tokens: int) -> list[int]:
    """As transformers itself would go on, greedily."""
    tokens = torch.tensor([prompt])
    with torch.inference_mode():
        for _ in range(max_tokens):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    answer: list[int] = tokens[0, len(prompt) :].tolist()
    return answer


def prompts(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(1)
    lengths = torch.randint(1, 60, (count,), generator=generator).tolist()
    return [torch.randint(10, 250, (length,), generator=generator).tolist() for length in lengths]


def test_whoever_joins_late_or_leaves_early_changes_nobodys_answer(model: PreTrainedModel, batch: Batch) -> None:
    asked = [Asked(prompt, max_tokens=5 + 7 * (number % 4)) for number, prompt in enumerate(prompts(20))]
    for number, each in enumerate(asked):
        batch.add(each.generation)
        if number % 3 == 0:
            each.on_token.wait(60)  # the next ones join in the middle of this one
    for each, prompt in zip(asked, prompts(20), strict=True):
        assert each.wait() == alone(model, prompt, each.generation.max_tokens)


def test_more_than_fit_at_once_are_answered_one_after_the_other(
    model: PreTrainedModel, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching, "MOST_ROWS", 3)
    asked = [Asked(prompt, 4) for prompt in prompts(10)]
    for each in asked:
        batch.add(each.generation)
    for each, prompt in zip(asked, prompts(10), strict=True):
        assert each.wait() == alone(model, prompt, 4)


def test_a_model_whose_attention_knows_no_gaps_is_batched_without_joining(
    model: PreTrainedModel, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching._Rows, "survives_turns", False)
    asked = [Asked(prompt, 6) for prompt in prompts(8)]
    for each in asked:
        batch.add(each.generation)
    for each, prompt in zip(asked, prompts(8), strict=True):
        assert each.wait() == alone(model, prompt, 6)


def test_a_seed_gives_the_same_answer_again_and_in_company(batch: Batch) -> None:
    prompt = prompts(1)[0]

    def drawn(seed: int | None) -> list[int]:
        asked = Asked(prompt, 20, temperature=1.0, seed=seed)
        batch.add(asked.generation)
        return asked.wait()

    first = drawn(7)
    assert drawn(7) == first
    assert drawn(8) != first
    company = [Asked(other, 30, temperature=1.0) for other in prompts(5)]
    for each in company:
        batch.add(each.generation)
    assert drawn(7) == first


def test_a_log_probability_is_that_of_the_token(model: PreTrainedModel, batch: Batch) -> None:
    prompt = prompts(1)[0]
    asked = Asked(prompt, 1)
    batch.add(asked.generation)
    (token,) = asked.wait()
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0, -1].log_softmax(-1)[token]
    assert asked.logprobs == [pytest.approx(float(expected), abs=1e-4)]


def test_a_cancelled_answer_ends_early(batch: Batch) -> None:
    asked = Asked(prompts(1)[0], max_tokens=900)
    batch.add(asked.generation)
    asked.on_token.wait(60)
    asked.generation.is_cancelled = True
    assert len(asked.wait()) < 900


def test_a_failed_step_fails_those_in_it_and_not_the_next(
    model: PreTrainedModel, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(batching, "_drawn", lambda *_: (_ for _ in ()).throw(RuntimeError("out of memory")))
        failed = Asked(prompts(1)[0])
        batch.add(failed.generation)
        failed.wait()
    assert isinstance(failed.error, RuntimeError)
    again = Asked(prompts(1)[0], 3)
    batch.add(again.generation)
    assert again.wait() == alone(model, prompts(1)[0], 3)


def test_too_many_that_wait_are_refused(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "MOST_WAITING", 0)
    with pytest.raises(Overloaded):
        batch.add(Asked(prompts(1)[0]).generation)
