"""Samples what a causal language model says in many conversations at once, turn after turn.

Tokens go in and tokens come out: what the model wrote is never decoded and tokenised again, so a transcript is exactly
what the model read and wrote. Between turns the keys and values of the conversations stay in memory, where the model's
attention allows it: each turn reads only what is new.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.cache_utils import Cache, DynamicLayer

from rl_pipeline.contracts.trajectory import Sampling
from rl_pipeline.environments.environment import Task, World
from rl_pipeline.environments.playing import Conversation, Episode, play
from rl_pipeline.training.program.turn_tokens import TurnTokens

NOT_WRITTEN = -1
_MOST_WASTE = 1.3
"""Columns of the cache per token of the longest conversation, above which the padding within is worth squeezing out."""


@dataclass
class Transcript:
    """The tokens of one conversation, each with the turn (from 0) in which the model wrote it, or `NOT_WRITTEN`."""

    token_ids: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    """Of what was written, at the temperature it was sampled with; 0 for what was read."""

    def read(self, token_ids: Sequence[int]) -> None:
        """Add what the model is shown."""
        self.token_ids += token_ids
        self.turns += [NOT_WRITTEN] * len(token_ids)
        self.logprobs += [0.0] * len(token_ids)

    def write(self, token_ids: Sequence[int], logprobs: Sequence[float], turn: int) -> None:
        """Add what the model said."""
        self.token_ids += token_ids
        self.turns += [turn] * len(token_ids)
        self.logprobs += logprobs

    def samplings(self, model_version: str | None) -> list[Sampling]:
        """How each turn was drawn, as trajectories tell it."""
        samplings = []
        for turn in range(max(self.turns) + 1):
            first, end = self.turns.index(turn), len(self.turns) - self.turns[::-1].index(turn)
            samplings.append(
                Sampling(
                    model_version=model_version,
                    prompt_token_ids=self.token_ids[:first],
                    completion_token_ids=self.token_ids[first:end],
                    logprobs=self.logprobs[first:end],
                )
            )
        return samplings


class Rollout(NamedTuple):
    """What happened in an episode, and the tokens it was made of."""

    episode: Episode
    transcript: Transcript


def play_with_model(
    world: World,
    tasks: Sequence[Task],
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    generator: torch.Generator | None,
    temperature: float = 1.0,
    max_new_tokens: int = 32,
    max_turns: int | None = None,
    at_once: int = 256,
) -> list[Rollout]:
    """An attempt at each task in turn; the same state of `generator` gives the same. Temperature 0 needs none."""
    policy = SamplingPolicy(
        model, tokenizer, generator=generator, temperature=temperature, max_new_tokens=max_new_tokens
    )
    episodes = play(world, tasks, policy.act, max_turns=max_turns, at_once=at_once)
    return [Rollout(episode, policy.transcripts[number]) for number, episode in enumerate(episodes)]


class SamplingPolicy:
    """A model as a policy for `play`; `transcripts` holds every conversation it took part in, by number."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        generator: torch.Generator | None,
        temperature: float = 1.0,
        max_new_tokens: int = 32,
    ) -> None:
        self.transcripts: dict[int, Transcript] = {}
        self._model, self._generator, self._temperature = model, generator, temperature
        self._max_new_tokens = max_new_tokens
        self._tokens = TurnTokens(tokenizer, model.generation_config)
        self._turns: dict[int, int] = {}
        self._heard: dict[int, int] = {}
        self._memory: ConversationMemory | None = None

    def act(self, conversations: Sequence[Conversation]) -> list[str]:
        """What the model says next in each conversation. Those it knows may only have grown since."""
        for conversation in conversations:
            self._listen(conversation.number, conversation.messages)
        numbers = [conversation.number for conversation in conversations]
        if self._memory is None or not self._memory.holds(numbers):
            self._memory = ConversationMemory(numbers, self._model.device)
        self._memory.keep_only(numbers)
        training = self._model.training
        self._model.eval()
        try:
            answers = self._sample(self._memory, [self.transcripts[number] for number in numbers])
        finally:
            self._model.train(training)
        for number, (token_ids, logprobs) in zip(numbers, answers, strict=True):
            self.transcripts[number].write(token_ids, logprobs, self._turns[number])
            self._turns[number] += 1
        if not self._memory.survives_turns:
            self._memory = None
        return [self._tokens.text_of(token_ids) for token_ids, _ in answers]

    def _listen(self, number: int, messages: Sequence[Mapping[str, Any]]) -> None:
        """Read what is new in a conversation: all of it at first, later what follows the model's own answer."""
        if number not in self.transcripts:
            self.transcripts[number] = Transcript()
            self._turns[number] = 0
            self.transcripts[number].read(self._tokens.opening(messages))
        else:
            last = self.transcripts[number].token_ids[-1]
            self.transcripts[number].read(self._tokens.following(messages[self._heard[number] + 1 :], last))
        self._heard[number] = len(messages)

    @torch.no_grad()
    def _sample(
        self, memory: "ConversationMemory", transcripts: Sequence[Transcript]
    ) -> list[tuple[list[int], list[float]]]:
        device = self._model.device
        stops = torch.tensor(self._tokens.stop_ids, device=device)
        running = torch.ones(len(transcripts), dtype=torch.bool, device=device)
        logits = memory.feed(self._model, *memory.unread(transcripts))
        drawn, scores, lengths = [], [], torch.zeros(len(transcripts), dtype=torch.long, device=device)
        for step in range(self._max_new_tokens):
            tokens, logprobs = self._draw(logits)
            drawn.append(tokens)
            scores.append(logprobs)
            lengths += running
            running = running & ~torch.isin(tokens, stops)
            if step + 1 == self._max_new_tokens or not running.any():
                break
            logits = memory.feed(self._model, tokens.unsqueeze(1), running.unsqueeze(1))
        token_ids, logprobs_of = torch.stack(drawn, 1).tolist(), torch.stack(scores, 1).tolist()
        return [(token_ids[row][:n], logprobs_of[row][:n]) for row, n in enumerate(lengths.tolist())]

    def _draw(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """A token for each row, and its log-probability."""
        logprobs = (logits / self._temperature if self._temperature else logits).log_softmax(-1)
        if self._temperature:
            tokens = torch.multinomial(logprobs.exp(), 1, generator=self._generator)
        else:
            tokens = logprobs.argmax(-1, keepdim=True)
        return tokens.squeeze(1), logprobs.gather(1, tokens).squeeze(1)


class ConversationMemory:
    """The keys and values of conversations side by side; `present` says which columns hold a token of which row."""

    def __init__(self, numbers: Sequence[int], device: torch.device) -> None:
        self._numbers = list(numbers)
        self._cache: Cache | None = None
        self._present = torch.zeros(len(numbers), 0, dtype=torch.long, device=device)

    def holds(self, numbers: Sequence[int]) -> bool:
        """Whether these conversations are all in here."""
        return set(numbers) <= set(self._numbers)

    @property
    def survives_turns(self) -> bool:
        """Whether columns may be left out in the middle: true of plain attention alone."""
        return self._cache is not None and all(type(layer) is DynamicLayer for layer in self._cache.layers)

    def keep_only(self, numbers: Sequence[int]) -> None:
        """Forget the other conversations, and the columns that waste too much room."""
        if self._cache is None:
            return
        if self._numbers != list(numbers):
            rows = torch.tensor([self._numbers.index(number) for number in numbers], device=self._present.device)
            self._cache.batch_select_indices(rows)
            self._present, self._numbers = self._present[rows], list(numbers)
        longest = int(self._present.sum(1).max())
        if self._present.shape[1] > _MOST_WASTE * longest:
            self._squeeze(longest)

    def _squeeze(self, longest: int) -> None:
        """Move each row's tokens to the right, in their order, and drop the columns on the left that no row needs."""
        order = self._present.argsort(dim=1, stable=True)[:, -longest:]
        self._present = self._present.gather(1, order)
        layers: list[Any] = self._cache.layers if self._cache is not None else []
        for layer in layers:
            layer.keys, layer.values = _columns(layer.keys, order), _columns(layer.values, order)

    def unread(self, transcripts: Sequence[Transcript]) -> tuple[Tensor, Tensor]:
        """What the memory lacks of each transcript, padded on the left, and which of it is no padding."""
        known = self._present.sum(1).tolist()
        missing = [transcript.token_ids[count:] for transcript, count in zip(transcripts, known, strict=True)]
        width = max(map(len, missing))
        token_ids = torch.tensor([[0] * (width - len(row)) + row for row in missing], device=self._present.device)
        present = torch.tensor(
            [[0] * (width - len(row)) + [1] * len(row) for row in missing], device=self._present.device
        )
        return token_ids, present

    def feed(self, model: PreTrainedModel, token_ids: Tensor, present: Tensor) -> Tensor:
        """Read a block of tokens, of which only those `present` count; the logits after its last column."""
        positions = self._present.sum(1, keepdim=True) + present.cumsum(1) - 1
        self._present = torch.cat([self._present, present.to(self._present.dtype)], dim=1)
        output = model(
            input_ids=token_ids,
            attention_mask=self._present,
            position_ids=positions.clamp(min=0),
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = output.past_key_values
        logits: Tensor = output.logits[:, -1].float()
        return logits


def _columns(states: Tensor, order: Tensor) -> Tensor:
    """Of each row (rows x heads x columns x features) the columns that `order` names."""
    return states.gather(2, order[:, None, :, None].expand(-1, states.shape[1], -1, states.shape[3]))
