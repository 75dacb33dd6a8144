"""TRL's own RLOO and PPO on a world of many turns, as well as trainers of single turns can be used on one.

Their prompts are the states that the base model comes through; an action is rewarded by how the base model's further
play ends. The way back to a state costs nothing; every action tried costs one episode, and each of its steps. In a
world of single turns there is one state to a task, and nothing further to play: there it is just TRL.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
)
from trl import RLOOConfig, RLOOTrainer
from trl.experimental.ppo import PPOConfig, PPOTrainer

from rl_pipeline.environments.environment import Task, World
from rl_pipeline.environments.playing import Conversation, Message, opening
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.program.episodes import generator_of
from rl_pipeline.training.program.generation import SamplingPolicy, play_with_model

CPU = torch.device("cpu")


@dataclass(frozen=True)
class State:
    """A task and what was said so far; the policy is to act."""

    task: Task
    messages: list[Message]


class PlayedOut:
    """Rewards an action by whether the base model, going on from it, reaches the goal; counts episodes and steps."""

    def __init__(self, world: World, base: Path, tokenizer: PreTrainedTokenizerBase, plan: TrainingPlan) -> None:
        self.world = world
        self.plan = plan
        self.episodes = 0
        self.steps = 0
        """Of environments, those by which states were found included."""
        self._base = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        self._tokenizer = tokenizer

    def states(self, tasks: Sequence[Task]) -> list[State]:
        """The states that the base model comes through, played once for each task."""
        if self.world.max_turns == 1:
            return [State(task, opening(self.world, self.world.open(task).observe())) for task in tasks]
        rollouts = play_with_model(
            self.world,
            tasks,
            self._base,
            self._tokenizer,
            generator=generator_of(CPU, self.plan.seed),
            max_new_tokens=self.plan.online.max_new_tokens,
        )
        self.steps += sum(len(episode.outcomes) for episode, _ in rollouts)
        return [
            State(episode.task, episode.messages[: 2 * turn + 1])
            for episode, _ in rollouts
            for turn in range(len(episode.outcomes))
        ]

    def rewards(self, states: Sequence[State], actions: Sequence[str]) -> list[float]:
        """Of one action in each state."""
        self.episodes += len(states)
        policy = SamplingPolicy(
            self._base,
            self._tokenizer,
            generator=generator_of(CPU, self.plan.seed, self.episodes),
            max_new_tokens=self.plan.online.max_new_tokens,
        )
        environments = [self.world.open(state.task) for state in states]
        conversations = [Conversation(number, list(state.messages)) for number, state in enumerate(states)]
        for environment, state in zip(environments, states, strict=True):
            for message in state.messages:
                if message["role"] == "assistant":
                    environment.step(message["content"])
        rewards = [0.0] * len(states)
        running = list(range(len(states)))
        while running:
            still = []
            for place, action in zip(running, actions, strict=True):
                outcome = environments[place].step(action)
                self.steps += 1
                rewards[place] += outcome.reward
                said: list[Message] = [
                    {"role": "assistant", "content": action},
                    {"role": "tool", "content": outcome.observation},
                ]
                conversations[place].messages += said
                if not outcome.done and len(conversations[place].messages) < 2 * self.world.max_turns:
                    still.append(place)
            running = still
            actions = policy.act([conversations[place] for place in running]) if running else []
        return rewards


class Until(TrainerCallback):
    """Ends a training when the judge's environments have made so many steps."""

    def __init__(self, judge: PlayedOut, steps: int) -> None:
        self._judge, self._steps = judge, steps

    def on_step_end(self, _args: Any, _state: Any, control: TrainerControl, **_: Any) -> None:
        control.should_training_stop = self._judge.steps >= self._steps


def train_with_rloo(
    base: Path, judge: PlayedOut, states: Sequence[State], directory: Path, most_steps: int | None = None
) -> PreTrainedModel:
    """TRL's RLOO with the plan's settings, until the environments have made so many steps, if a number is given."""
    plan = judge.plan

    def reward(completions: list[list[Message]], place: list[int], **_: Any) -> list[float]:
        return judge.rewards([states[each] for each in place], [said[0]["content"] for said in completions])

    iterations = _iterations(plan)
    trainer = RLOOTrainer(
        model=str(base),
        reward_funcs=reward,
        args=RLOOConfig(
            **_arguments(plan, directory),
            max_steps=iterations * plan.online.updates_per_iteration,
            num_generations=plan.online.group_size,
            num_iterations=plan.online.updates_per_iteration,
            max_completion_length=plan.online.max_new_tokens,
            temperature=plan.online.temperature,
            beta=plan.online.kl_coefficient,
            epsilon=plan.online.clip_epsilon,
            normalize_advantages=True,
        ),
        train_dataset=Dataset.from_list(
            [{"prompt": state.messages, "place": place} for place, state in enumerate(states)]
        ),
        callbacks=[] if most_steps is None else [Until(judge, most_steps)],
    )
    trainer.train()
    return trainer.model


def train_with_ppo(
    base: Path, judge: PlayedOut, states: Sequence[State], tokenizer: PreTrainedTokenizerBase, directory: Path
) -> PreTrainedModel:
    """TRL's PPO with the plan's settings and a value model of its own."""
    plan = judge.plan
    rendered = [
        tokenizer.apply_chat_template(state.messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        for state in states
    ]
    policy, reference = (AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32) for _ in range(2))
    value = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1, dtype=torch.float32)
    nn.init.zeros_(value.score.weight)
    trainer = PPOTrainer(
        args=PPOConfig(
            **_arguments(plan, directory),
            total_episodes=_iterations(plan) * plan.global_batch,
            num_ppo_epochs=plan.online.updates_per_iteration,
            num_mini_batches=1,
            num_sample_generations=0,
            response_length=plan.online.max_new_tokens,
            temperature=plan.online.temperature,
            stop_token="eos",
            kl_coef=plan.online.kl_coefficient,
            kl_estimator="k3",
            cliprange=plan.online.clip_epsilon,
            gamma=plan.online.gamma,
            lam=plan.online.gae_lambda,
            vf_coef=plan.online.value_coefficient,
        ),
        processing_class=tokenizer,
        model=policy,
        ref_model=reference,
        reward_model=_JudgeAsModel(judge, states, rendered, tokenizer),
        value_model=value,
        train_dataset=Dataset.from_list([{"input_ids": token_ids} for token_ids in rendered]),
    )
    trainer.train()
    return policy


class _JudgeAsModel(nn.Module):
    """The judge in the shape of a reward model, which is all that TRL's PPO takes: a backbone and a score."""

    base_model_prefix = "backbone"

    def __init__(
        self,
        judge: PlayedOut,
        states: Sequence[State],
        rendered: Sequence[Sequence[int]],
        tokenizer: PreTrainedTokenizerBase,
    ) -> None:
        super().__init__()
        self.score = nn.Identity()
        self._judge = judge
        self._states = {tuple(token_ids): state for token_ids, state in zip(rendered, states, strict=True)}
        self._tokenizer = tokenizer

    def backbone(self, input_ids: Tensor, attention_mask: Tensor, **_: Any) -> SimpleNamespace:
        """The reward of a row, in all its columns."""
        states, actions = [], []
        assistant = self._tokenizer.convert_tokens_to_ids("<|assistant|>")
        for row, present in zip(input_ids, attention_mask, strict=True):
            token_ids = row[present.bool()].tolist()
            opening = next(
                length
                for length in range(len(token_ids), 0, -1)
                if token_ids[length - 1] == assistant and tuple(token_ids[:length]) in self._states
            )
            states.append(self._states[tuple(token_ids[:opening])])
            actions.append(self._tokenizer.decode(token_ids[opening:], skip_special_tokens=True))
        rewards = torch.tensor(self._judge.rewards(states, actions))
        return SimpleNamespace(hidden_states=[rewards[:, None, None].expand(*input_ids.shape, 1)])


def _iterations(plan: TrainingPlan) -> int:
    return (plan.optimization.max_steps or 0) // plan.online.updates_per_iteration


def _arguments(plan: TrainingPlan, directory: Path) -> dict[str, Any]:
    return {
        "output_dir": str(directory),
        "seed": plan.seed,
        "per_device_train_batch_size": plan.optimization.micro_batch,
        "gradient_accumulation_steps": plan.optimization.accumulation,
        "learning_rate": plan.optimization.learning_rate,
        "lr_scheduler_type": plan.optimization.schedule,
        "max_grad_norm": plan.optimization.max_gradient_norm,
        "gradient_checkpointing": False,
        "use_cpu": True,
        "bf16": False,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
    }
