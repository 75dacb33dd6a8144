"""Where the episodes of the online algorithms come from: an environment, or answers scored by a learnt reward model."""

from collections.abc import Hashable, Sequence
from typing import Protocol, cast

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl_pipeline.environments.environment import InvalidTask, Task, World
from rl_pipeline.environments.playing import Conversation, Episode, Message
from rl_pipeline.environments.worlds import Worlds
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.program.episodes import PlayedEpisode, first_turns
from rl_pipeline.training.program.generation import Rollout, SamplingPolicy, Transcript, play_with_model
from rl_pipeline.training.program.prompts import Prompt
from rl_pipeline.training.program.readable import in_step
from rl_pipeline.training.program.reward_scoring import RewardScorer
from rl_pipeline.training.program.turn_tokens import TurnTokens

_MOST_AT_ONCE = 256


class Rollouts(Protocol):
    """Lets a policy play."""

    def can_play(self, prompt: Prompt) -> bool:
        """Whether there is a way to play it."""
        ...

    def kind_of(self, prompt: Prompt) -> Hashable | None:
        """What prompts have in common that are about as hard; None where nobody says whether they are solved."""
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
        self._worlds = Worlds(plan.worlds)

    def can_play(self, prompt: Prompt) -> bool:
        """Whether it comes from a world, and from the one that the plan names, if it names one."""
        return in_a_world(prompt, self._worlds) and self._plan.online.environment in {None, prompt.environment}

    def kind_of(self, prompt: Prompt) -> Hashable:
        """Its world, and its tier there."""
        world = self._worlds.find(str(prompt.environment))
        return (world.name, task_of(prompt, world).tier)

    def play(
        self, policy: PreTrainedModel, prompts: Sequence[Prompt], generator: torch.Generator
    ) -> list[PlayedEpisode]:
        """Rewards are those of the world; an episode that grows too long counts up to the turn that still fits."""
        rollouts = play_in_worlds(self._plan, policy, self._tokenizer, prompts, generator, worlds=self._worlds)
        limit = self._plan.optimization.max_tokens
        return [first_turns(_played(episode, transcript), limit) for episode, transcript in rollouts]


class ScoredRollouts:
    """One answer to each prompt, scored by a reward model together with all that was said before."""

    def __init__(self, plan: TrainingPlan, tokenizer: PreTrainedTokenizerBase, scorer: RewardScorer) -> None:
        self._plan = plan
        self._tokenizer = tokenizer
        self._tokens = TurnTokens(tokenizer, None)
        self._scorer = scorer

    def can_play(self, prompt: Prompt) -> bool:
        """Whether it leaves room for an answer."""
        opening = self._tokens.opening(prompt.messages)
        return len(opening) + self._plan.online.max_new_tokens <= self._plan.optimization.max_tokens

    def kind_of(self, prompt: Prompt) -> None:
        """A score is no success."""

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
        at_once = _at_once(self._plan)
        with in_step(self._plan, policy):
            for first in range(0, len(conversations), at_once):
                speaker.act(conversations[first : first + at_once])
        transcripts = [speaker.transcripts[number] for number in range(len(prompts))]
        scores = self._scorer.score([transcript.token_ids for transcript in transcripts])
        return [
            PlayedEpisode(transcript.token_ids, transcript.turns, [score])
            for transcript, score in zip(transcripts, scores, strict=True)
        ]


def _played(episode: Episode, transcript: Transcript) -> PlayedEpisode:
    return PlayedEpisode(transcript.token_ids, transcript.turns, episode.rewards, episode.success, episode.progress)


def play_in_worlds(
    plan: TrainingPlan,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    generator: torch.Generator | None,
    *,
    worlds: Worlds,
) -> list[Rollout]:
    """Play each prompt in its world; the likeliest words alone without a `generator`."""
    with in_step(plan, policy):
        return _play_in_worlds(plan, policy, tokenizer, prompts, generator, worlds=worlds)


def _play_in_worlds(
    plan: TrainingPlan,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[Prompt],
    generator: torch.Generator | None,
    *,
    worlds: Worlds,
) -> list[Rollout]:
    played: dict[int, Rollout] = {}
    for name in sorted({str(prompt.environment) for prompt in prompts}):
        world = worlds.find(name)
        places = [place for place, prompt in enumerate(prompts) if prompt.environment == name]
        rollouts = play_with_model(
            world,
            [task_of(prompts[place], world) for place in places],
            policy,
            tokenizer,
            generator=generator,
            temperature=plan.online.temperature if generator is not None else 0.0,
            max_new_tokens=plan.online.max_new_tokens,
            max_turns=min(plan.online.max_turns, world.max_turns),
            at_once=_at_once(plan),
        )
        played.update(zip(places, rollouts, strict=True))
    return [played[place] for place in range(len(prompts))]


def in_a_world(prompt: Prompt, worlds: Worlds) -> bool:
    """Whether the prompt is a task of a world that exists: what trajectories say of that is not ours to trust."""
    world = worlds.get(prompt.environment)
    if world is None:
        return False
    try:
        task_of(prompt, world)
    except InvalidTask:
        return False
    return True


def task_of(prompt: Prompt, world: World) -> Task:
    """The task that the prompt is in its world. Raises `InvalidTask`."""
    return world.task(prompt.environment_task or {})


def _at_once(plan: TrainingPlan) -> int:
    """Conversations that are sampled together: memory that does not suffice is answered by smaller micro-batches."""
    return min(8 * plan.optimization.micro_batch, _MOST_AT_ONCE)
