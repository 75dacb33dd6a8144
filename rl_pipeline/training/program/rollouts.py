"""Where the episodes of the online algorithms come from: an environment, or answers scored by a learnt reward model."""

from collections.abc import Sequence
from typing import Protocol, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl_pipeline.environments.environment import Task, World
from rl_pipeline.environments.playing import Conversation, Message
from rl_pipeline.environments.worlds import find_world
from rl_pipeline.training.plan import TrainingPlan
from rl_pipeline.training.program.episodes import PlayedEpisode, first_turns
from rl_pipeline.training.program.generation import Rollout, SamplingPolicy, play_with_model
from rl_pipeline.training.program.prompts import Prompt
from rl_pipeline.training.program.reward_scoring import RewardScorer
from rl_pipeline.training.program.turn_tokens import TurnTokens

_AT_ONCE = 256


class Rollouts(Protocol):
    """Lets a policy play."""

    def can_play(self, prompt: Prompt) -> bool:
        """Whether there is a way to play it."""
        ...

    def play(
        self, policy: PreTrainedModel, prompts: Sequence[Prompt], generator: torch.Generator
    ) -> list[PlayedEpisode]:
        """One episode for each prompt, in their order; depends on nothing but the arguments."""
        ...


class EnvironmentRollouts:
    """Episodes of many turns in the worlds that the prompts come from."""

    def __init__(self, plan: TrainingPlan, tokenizer: PreTrainedTokenizerBase) -> None:
        self._plan = plan
        self._tokenizer = tokenizer

    def can_play(self, prompt: Prompt) -> bool:
        """Whether it comes from a world, and from the one that the plan names, if it names one."""
        return prompt.environment is not None and self._plan.online.environment in {None, prompt.environment}

    def play(
        self, policy: PreTrainedModel, prompts: Sequence[Prompt], generator: torch.Generator
    ) -> list[PlayedEpisode]:
        """Rewards are those of the world; an episode that grows too long counts up to the turn that still fits."""
        rollouts = play_in_worlds(self._plan, policy, self._tokenizer, prompts, generator)
        limit = self._plan.optimization.max_tokens
        return [
            first_turns(PlayedEpisode(transcript.token_ids, transcript.turns, episode.rewards, episode.success), limit)
            for episode, transcript in rollouts
        ]


class ScoredRollouts:
    """One answer to each prompt, scored by a reward model together with all that was said before."""

    def __init__(self, plan: TrainingPlan, tokenizer: PreTrainedTokenizerBase, scorer: RewardScorer) -> None:
        self._plan = plan
        self._tokenizer = tokenizer
        self._scorer = scorer

    def can_play(self, prompt: Prompt) -> bool:
        """Whether it leaves room for an answer."""
        opening = TurnTokens(self._tokenizer, None).opening(prompt.messages)
        return len(opening) + self._plan.online.max_new_tokens <= self._plan.optimization.max_tokens

    def play(
        self, policy: PreTrainedModel, prompts: Sequence[Prompt], generator: torch.Generator
    ) -> list[PlayedEpisode]:
        """The reward is the score of the conversation with the answer."""
        online = self._plan.online
        speaker = SamplingPolicy(
            policy,
            self._tokenizer,
            generator=generator,
            temperature=online.temperature,
            max_new_tokens=online.max_new_tokens,
        )
        conversations = [
            Conversation(number, cast("list[Message]", prompt.messages)) for number, prompt in enumerate(prompts)
        ]
        for first in range(0, len(conversations), _AT_ONCE):
            speaker.act(conversations[first : first + _AT_ONCE])
        transcripts = [speaker.transcripts[number] for number in range(len(prompts))]
        scores = self._scorer.score([transcript.token_ids for transcript in transcripts])
        return [
            PlayedEpisode(transcript.token_ids, transcript.turns, [score])
            for transcript, score in zip(transcripts, scores, strict=True)
        ]


def play_in_worlds(
    plan: TrainingPlan,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    generator: torch.Generator | None,
) -> list[Rollout]:
    """Play each prompt in its world; the likeliest words alone without a `generator`."""
    played: dict[int, Rollout] = {}
    for name in sorted({str(prompt.environment) for prompt in prompts}):
        world = find_world(name)
        places = [place for place, prompt in enumerate(prompts) if prompt.environment == name]
        rollouts = play_with_model(
            world,
            [_task(world, prompts[place]) for place in places],
            policy,
            tokenizer,
            generator=generator,
            temperature=plan.online.temperature if generator is not None else 0.0,
            max_new_tokens=plan.online.max_new_tokens,
            max_turns=min(plan.online.max_turns, world.max_turns),
            at_once=_AT_ONCE,
        )
        played.update(zip(places, rollouts, strict=True))
    return [played[place] for place in range(len(prompts))]


def _task(world: World, prompt: Prompt) -> Task:
    return world.task(prompt.environment_task or {})
