"""PPO, RLOO, GRPO and REINFORCE for episodes of many turns: one trainer, which differs by its advantages alone.

An iteration plays the global batch of episodes, each process its share, then takes `updates_per_iteration` steps of the
optimiser on them. What an iteration plays depends on the seed, its number, the process, the weights, and what is known
of the prompts, which is saved with the weights: a training that was interrupted between iterations goes on as if it had
not been. The rest is transformers' own Trainer: DeepSpeed, schedule, clipping, accumulation, saving.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import ceil
from pathlib import Path
from typing import Any, cast

import torch
from peft import PeftModel
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Trainer

from rl_pipeline.errors import PipelineError
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.program import value_head
from rl_pipeline.training.program.advantages import judge, played_turns
from rl_pipeline.training.program.curriculum import Curriculum
from rl_pipeline.training.program.episodes import (
    Batch,
    PlayedEpisode,
    batch_of,
    by_turns,
    generator_of,
    groups_of,
    prompts_of_iteration,
)
from rl_pipeline.training.program.likelihoods import hidden_states, read
from rl_pipeline.training.program.prompts import Prompt
from rl_pipeline.training.program.readable import frozen, readable_policy
from rl_pipeline.training.program.reward_scoring import RewardScorer
from rl_pipeline.training.program.rollouts import EnvironmentRollouts, Rollouts, ScoredRollouts
from rl_pipeline.training.program.surrogate import episode_mean, policy_objective, value_objective

_CURRICULUM = "curriculum"


class NothingToPlay(PipelineError):
    """The dataset has no prompts, or the batch no room for a group."""


class PolicyGradientTrainer(Trainer):
    """Trains `model` on what it plays itself."""

    model: PreTrainedModel | PeftModel
    processing_class: PreTrainedTokenizerBase

    def __init__(
        self,
        *,
        plan: TrainingPlan,
        prompts: Sequence[Prompt],
        reference: PreTrainedModel | None,
        reward_model: PreTrainedModel | None,
        model: PreTrainedModel | PeftModel,
        processing_class: PreTrainedTokenizerBase,
        **trainer_arguments: Any,
    ) -> None:
        """`reference` is the model to stay close to: none for an adapter, whose own base it is, or without a KL term.

        A `reward_model` scores answers to the prompts; without one the prompts are played in their worlds.
        """
        if plan.global_batch < 2:
            raise NothingToPlay("an iteration of one episode has nothing to compare: ask for a batch size of 2 or more")
        if plan.algorithm == "ppo":
            value_head.add_value_head(model)
        super().__init__(model=model, processing_class=processing_class, **trainer_arguments)
        self.plan = plan
        self.rollouts: Rollouts = EnvironmentRollouts(plan, processing_class)
        if reward_model is not None:
            self.rollouts = ScoredRollouts(plan, processing_class, self._scorer(reward_model))
        self.prompts = [prompt for prompt in prompts if self.rollouts.can_play(prompt)]
        if not self.prompts:
            raise NothingToPlay(
                f"none of the dataset's {len(prompts)} prompts can be played: widen the request's filter"
            )
        self.curriculum = self._curriculum(plan.online.curriculum_floor)
        self.groups = groups_of(self._share * self.args.world_size, plan.online.group_size)
        self.batches: list[Batch] = []
        self.measured: defaultdict[str, list[Tensor]] = defaultdict(list)
        self.reference = frozen(reference, self.accelerator) if reference is not None else None

    def _curriculum(self, floor: float) -> Curriculum | None:
        """None where all prompts are played one by one: where that is planned, or nobody says whether one is solved."""
        kinds = [self.rollouts.kind_of(prompt) for prompt in self.prompts] if floor < 1 else [None]
        return None if None in kinds else Curriculum(kinds, floor=floor)

    def _scorer(self, reward_model: PreTrainedModel) -> RewardScorer:
        batch = self.args.per_device_train_batch_size
        return RewardScorer(reward_model, self.accelerator, padding=self.processing_class.pad_token_id, batch=batch)

    def at_boundary(self) -> bool:
        """Whether the state can be saved: in the middle of an iteration it would need the episodes in hand."""
        return self.state.global_step % self.plan.online.updates_per_iteration == 0

    def remove_value_head(self) -> None:
        """Leave the policy as it is delivered."""
        value_head.remove_value_head(self.model)

    def get_train_dataloader(self) -> DataLoader[int]:
        """The beat of an epoch, which plays as many groups as there are prompts: its entries carry nothing."""
        iterations = ceil(len(self.prompts) / (self.groups[-1] + 1))
        beats = iterations * self.plan.online.updates_per_iteration * self.args.gradient_accumulation_steps
        return DataLoader(range(beats), batch_size=1)  # type: ignore[arg-type]  # a range is a map-style dataset

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Batch], None]:
        """The micro-batches of one step of the optimiser; plays first where an iteration begins."""
        for _ in range(num_batches):
            next(epoch_iterator)
        if self.at_boundary() or not self.batches:
            self.batches = self._play(self.state.global_step // self.plan.online.updates_per_iteration, device)
        return self.batches, None

    def _prepare_inputs(self, inputs: Batch) -> Batch:
        # They are on the device already; the Trainer would cast likelihoods to the precision of the weights.
        return inputs

    def compute_loss(self, model: nn.Module, inputs: Batch, *_: Any, **__: Any) -> Tensor:
        """The objective of one micro-batch."""
        online = self.plan.online
        reading = read(
            model,
            inputs,
            temperature=online.temperature,
            keep_entropy=online.entropy_coefficient > 0,
            hidden="returns" in inputs,
        )
        # Until the first step of an iteration the policy is the one that played.
        old_logprobs = inputs.setdefault("old_logprobs", reading.logprobs.detach())
        written = inputs["written"]
        objective = policy_objective(
            online,
            logprobs=reading.logprobs,
            old_logprobs=old_logprobs,
            reference_logprobs=inputs.get("reference_logprobs"),
            advantages=inputs["advantages"],
            written=written,
        )
        entropy = episode_mean(reading.entropies, written)
        loss = objective.loss - online.entropy_coefficient * entropy
        self.measured["policy_entropy"].append(entropy.detach())
        self.measured["clip_fraction"].append(objective.clipped)
        if "reference_logprobs" in inputs:
            self.measured["kl_divergence"].append(objective.kl)
        if reading.hidden is not None:
            values = value_head.state_values(self.model, reading.hidden, inputs["starts"])
            error = value_objective(values, inputs["returns"], inputs["played"])
            self.measured["value_loss"].append(error.detach())
            loss = loss + online.value_coefficient * error
        return loss

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Adds what was measured since the last time, as means over all processes."""
        if "loss" in logs and self.measured:
            names = sorted(self.measured)
            means = torch.stack([torch.stack(self.measured[name]).float().mean() for name in names])
            means = self.accelerator.reduce(means, reduction="mean")
            logs |= dict(zip(names, means.tolist(), strict=True))
            self.measured.clear()
        super().log(logs, start_time)

    def _play(self, iteration: int, device: torch.device) -> list[Batch]:
        """Play one iteration: this process's micro-batches, with advantages that all processes agree on."""
        chosen = self._choose(iteration)
        groups = self.groups[self._first : self._first + self._share]
        generator = generator_of(device, self.plan.seed, iteration, self.args.process_index)
        with readable_policy(self, self.plan) as policy:
            episodes = self.rollouts.play(policy, [self.prompts[chosen[group]] for group in groups], generator)
            # Like lengths side by side waste little on padding; where memory does not suffice, the first batch tells.
            order = sorted(range(self._share), key=lambda place: len(episodes[place].token_ids), reverse=True)
            episodes = [episodes[place] for place in order]
            batches = self._batches(episodes, device)
            self._read_policy(policy, batches)
        if self.reference is not None:
            self._read_reference(self.reference, batches)
        self._judge(episodes, [groups[place] for place in order], batches)
        self._learn_of_prompts(episodes, [chosen[groups[place]] for place in order])
        return batches

    def _choose(self, iteration: int) -> list[int]:
        """The prompt of each group."""
        count, seed = self.groups[-1] + 1, self.plan.seed
        if self.curriculum is None:
            return prompts_of_iteration(len(self.prompts), count, iteration, seed)
        # What was saved with the weights counts, and all processes read it.
        self.curriculum.state = self._kept.get(_CURRICULUM, self.curriculum.state)
        return self.curriculum.choose(count, iteration, seed)

    def _learn_of_prompts(self, episodes: Sequence[PlayedEpisode], prompts: Sequence[int]) -> None:
        if self.curriculum is None:
            return
        told = torch.tensor([[prompt, bool(one.success)] for prompt, one in zip(prompts, episodes, strict=True)])
        played, solved = self.accelerator.gather(told.to(self.args.device)).T.tolist()
        self.curriculum.learn(played, solved)
        self._kept[_CURRICULUM] = self.curriculum.state

    @property
    def _kept(self) -> dict[str, Any]:
        """What the Trainer saves by name beside its own state; it declares a list, and has a dictionary."""
        return cast("dict[str, Any]", self.state.stateful_callbacks)

    @property
    def _share(self) -> int:
        """Episodes of an iteration that this process plays."""
        return int(self.args.per_device_train_batch_size * self.args.gradient_accumulation_steps)

    @property
    def _first(self) -> int:
        return int(self.args.process_index) * self._share

    def _batches(self, episodes: Sequence[PlayedEpisode], device: torch.device) -> list[Batch]:
        size = self.args.per_device_train_batch_size
        return [
            batch_of(
                episodes[first : first + size],
                padding=self.processing_class.pad_token_id,
                most_turns=self.plan.online.max_turns,
                device=device,
            )
            for first in range(0, len(episodes), size)
        ]

    def _read_policy(self, policy: nn.Module, batches: Sequence[Batch]) -> None:
        """What has to be known of the policy before it changes, and of the model that its adapter changes."""
        if self.plan.algorithm == "ppo":
            for batch in batches:
                batch["values"] = value_head.state_values(policy, hidden_states(policy, batch), batch["starts"])
        if isinstance(policy, PeftModel) and self.plan.online.kl_coefficient > 0:
            with policy.disable_adapter():
                self._read_reference(policy, batches)

    @torch.no_grad()
    def _read_reference(self, reference: nn.Module, batches: Sequence[Batch]) -> None:
        for batch in batches:
            batch["reference_logprobs"] = read(reference, batch, temperature=self.plan.online.temperature).logprobs

    def _judge(self, episodes: Sequence[PlayedEpisode], groups: Sequence[int], batches: Sequence[Batch]) -> None:
        """Give the micro-batches their advantages, which compare the episodes of all processes."""
        gathered, device, most = self.accelerator.gather, batches[0]["input_ids"].device, self.plan.online.max_turns
        rewards = gathered(by_turns([episode.rewards for episode in episodes], most).to(device))
        progress = gathered(by_turns([episode.progress for episode in episodes], most).to(device))
        lengths = gathered(torch.tensor([len(episode.rewards) for episode in episodes], device=device))
        values = gathered(torch.cat([batch["values"] for batch in batches])) if "values" in batches[0] else None
        judgement = judge(
            self.plan.algorithm,
            self.plan.online,
            rewards=rewards + self.plan.online.shaping * progress,
            lengths=lengths,
            groups=gathered(torch.tensor(groups, device=device)),
            values=values,
        )
        first = self._first
        for batch in batches:
            rows = slice(first, first := first + len(batch["input_ids"]))
            batch["advantages"] = judgement.advantages[rows].gather(1, batch["turns"])
            if judgement.returns is not None:
                batch["returns"] = judgement.returns[rows]
                batch["played"] = played_turns(rewards, lengths)[rows]
        self._note(rewards.sum(1), episodes)

    def _note(self, total_rewards: Tensor, episodes: Sequence[PlayedEpisode]) -> None:
        """Remember what an iteration brought, for the next log."""
        self.measured["reward_mean"].append(total_rewards.mean())
        self.measured["reward_std"].append(total_rewards.std())
        facts = {
            "success_rate": [episode.success for episode in episodes if episode.success is not None],
            "episode_tokens": [len(episode.token_ids) for episode in episodes],
            "episode_turns": [len(episode.rewards) for episode in episodes],
        }
        for name, of_episodes in facts.items():
            if of_episodes:
                self.measured[name].append(torch.tensor(of_episodes, device=total_rewards.device).float().mean())

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Any] | None = None) -> None:
        super()._save(output_dir, state_dict)
        if self._keeps_value_head_apart:
            value_head.save_value_head(self.model, Path(str(output_dir or self.args.output_dir)))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        if self._keeps_value_head_apart:
            value_head.load_value_head(self.model, Path(resume_from_checkpoint))

    @property
    def _keeps_value_head_apart(self) -> bool:
        """An adapter is saved without what stands beside it; DeepSpeed saves every weight that it trains."""
        has_one = hasattr(self.model, value_head.NAME)
        return has_one and isinstance(self.model, PeftModel) and not self.is_deepspeed_enabled
