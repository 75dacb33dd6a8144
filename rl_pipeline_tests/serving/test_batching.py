"""Answers that are generated together are those that would have been generated alone, whoever fails beside them."""

import copy
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from rl_pipeline.serving import batching
from rl_pipeline.serving.batching import Batch, Broken, Generation, NoProbabilities, Overloaded
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
    monkeypatch.setattr(batching.ConversationRows, "survives_turns", False)
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


def in_company(batch: Batch, model: PreTrainedModel, odd: Asked) -> None:
    """Have `odd` join others in the middle, and see that these and those who come later are answered as ever."""
    company = [Asked(prompt, 40) for prompt in prompts(4)]
    for each in company:
        batch.add(each.generation)
    company[0].on_token.wait(60)
    batch.add(odd.generation)
    odd.wait()
    later = Asked(prompts(1)[0], 3)
    batch.add(later.generation)
    for each, prompt in zip((*company, later), (*prompts(4), prompts(1)[0]), strict=True):
        assert each.wait() == alone(model, prompt, each.generation.max_tokens)
        assert each.error is None
    assert batch.problem is None


@pytest.mark.parametrize("temperature", [5e-324, 1e-40, 1e-38, 1e-8])
@pytest.mark.parametrize("seed", [None, 1])
def test_the_smallest_temperature_draws_the_likeliest_token(
    model: PreTrainedModel, batch: Batch, temperature: float, seed: int | None
) -> None:
    cold = Asked(prompts(1)[0], 6, temperature, seed)
    in_company(batch, model, cold)
    assert cold.tokens == alone(model, prompts(1)[0], 6)
    assert cold.logprobs == [0.0] * 6


@pytest.mark.parametrize("temperature", [5e-324, 1e-38, 1e-30])
def test_no_logit_is_too_large_for_a_small_temperature(temperature: float) -> None:
    cold = Asked(prompts(1)[0], temperature=temperature)
    assert batching._drawn(torch.tensor([[50.0, 3e4, -3e4]]), [cold.generation]) == [(1, 0.0)]


def test_what_the_model_cannot_read_fails_alone(model: PreTrainedModel, batch: Batch) -> None:
    beyond = Asked([10**6])
    in_company(batch, model, beyond)
    assert isinstance(beyond.error, IndexError)


def test_where_newcomers_wait_too_it_fails_alone(
    model: PreTrainedModel, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batching.ConversationRows, "survives_turns", False)
    beyond = Asked([10**6])
    in_company(batch, model, beyond)
    assert isinstance(beyond.error, IndexError)


def test_an_answer_that_cannot_take_its_tokens_fails_alone(model: PreTrainedModel, batch: Batch) -> None:
    def fail(*_: object) -> bool:
        raise ValueError("no text")

    deaf = Asked(prompts(1)[0])
    deaf.generation.take = fail
    in_company(batch, model, deaf)
    assert isinstance(deaf.error, ValueError)


def test_nobody_who_hears_of_an_end_ends_the_others(model: PreTrainedModel, batch: Batch) -> None:
    heard = Asked(prompts(1)[0], 2)

    def hear(_: Exception | None) -> None:
        heard.ended.set()
        raise RuntimeError("the event loop is closed")

    heard.generation.done = hear
    in_company(batch, model, heard)


def test_a_row_without_probabilities_fails_alone(model: PreTrainedModel) -> None:
    odd = copy.deepcopy(model)
    embeddings: Any = odd.get_input_embeddings()
    embeddings.weight = torch.nn.Parameter(embeddings.weight.clone())  # of its own, whatever it was tied to
    prompt = prompts(1)[0]
    with torch.no_grad():
        embeddings.weight[5] = float("nan")
    batch = Batch(odd)
    unread = Asked([5, *prompt])
    in_company(batch, model, unread)
    assert isinstance(unread.error, NoProbabilities)
    batch.end()


def test_a_step_that_fails_once_is_made_again(
    model: PreTrainedModel, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn, failures = batching._drawn, iter([RuntimeError("out of memory")])

    def draw(*given: object) -> object:
        for failure in failures:
            raise failure
        return drawn(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(batching, "_drawn", draw)
    asked = [Asked(prompt, 4) for prompt in prompts(3)]
    for each in asked:
        batch.add(each.generation)
    for each, prompt in zip(asked, prompts(3), strict=True):
        assert each.wait() == alone(model, prompt, 4)
    assert next(failures, None) is None


def broken_model(model: PreTrainedModel) -> PreTrainedModel:
    broken = copy.deepcopy(model)
    with torch.no_grad():
        for weights in broken.parameters():
            weights.fill_(float("nan"))
    return broken


def test_a_broken_model_is_told_of_once_and_nobody_waits_for_it(model: PreTrainedModel) -> None:
    told: list[str] = []
    batch = Batch(broken_model(model), lambda: told.append("broken"))
    asked = [Asked(prompt, 4) for prompt in prompts(batching.MOST_ROWS + 5)]
    refused = 0
    for each in asked:
        try:
            batch.add(each.generation)
        except Broken:
            refused += 1
            each.ended.set()
    assert [each.wait() for each in asked] == [[]] * len(asked)
    batch.end()
    assert told == ["broken"]
    assert batch.problem == "NoProbabilities: the model gives no probabilities"
    assert sum(isinstance(each.error, NoProbabilities | Broken) for each in asked) == len(asked) - refused
    with pytest.raises(Broken):
        batch.add(Asked(prompts(1)[0]).generation)


def test_whatever_ends_the_thread_is_told(model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "_drawn", lambda *_: (_ for _ in ()).throw(SystemExit("an extension gave up")))
    batch = Batch(model)
    asked = Asked(prompts(1)[0])
    batch.add(asked.generation)
    asked.wait()
    batch.end()
    assert isinstance(asked.error, Broken)
    assert batch.problem == "SystemExit: an extension gave up"


def test_too_many_that_wait_are_refused(batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batching, "MOST_WAITING", 0)
    with pytest.raises(Overloaded):
        batch.add(Asked(prompts(1)[0]).generation)
