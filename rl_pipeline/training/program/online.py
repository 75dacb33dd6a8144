"""PPO, RLOO, GRPO and REINFORCE as a course of the training program: the trainer for a session, and its measures."""

from collections.abc import Mapping
from types import MappingProxyType

import torch
from transformers import TrainingArguments

from rl_pipeline.environments.worlds import Worlds
from rl_pipeline.training.program.episodes import Batch
from rl_pipeline.training.program.evaluation import further_tasks, measure_reward, measure_success
from rl_pipeline.training.program.models import load_base, load_policy, training_arguments
from rl_pipeline.training.program.policy_gradient import PolicyGradientTrainer
from rl_pipeline.training.program.prompts import read_prompts
from rl_pipeline.training.program.reward_model import learnt_reward_model
from rl_pipeline.training.program.saving import Resumable
from rl_pipeline.training.program.session import Session


class OnlineTrainer(Resumable, PolicyGradientTrainer):
    """Resumable between iterations."""

    def at_boundary(self) -> bool:
        """In the middle of an iteration a state would need the episodes in hand."""
        return PolicyGradientTrainer.at_boundary(self)

    judge_measures: Mapping[str, float] = MappingProxyType({})
    """Of the reward model, where one stands in for an environment."""

    @property
    def own_measures(self) -> dict[str, float]:
        """How good the reward model is, where there is one."""
        return dict(self.judge_measures)

    def _play(self, iteration: int, device: torch.device) -> list[Batch]:
        # A phase of its own: how long an iteration plays says nothing of how long an update may take.
        self.session.reporter.phase("playing")
        batches = super()._play(iteration, device)
        self.session.reporter.phase("training")
        return batches

    def before_delivery(self) -> None:
        """Only training needs the values of states."""
        self.remove_value_head()


def online_trainer_of(session: Session) -> OnlineTrainer:
    """The trainer on the prompts of the dataset. Raises `NothingToPlay`. All processes call this."""
    plan = session.plan
    # Learnt before the policy is loaded: the two need not fit into memory together.
    scored = plan.online.rollouts == "reward_model"
    reward_model, judge_measures = learnt_reward_model(session) if scored else (None, {})
    arguments = TrainingArguments(**training_arguments(session))
    needs_reference = plan.lora is None and plan.online.kl_coefficient > 0
    reference = load_base(session) if needs_reference else None
    trainer = OnlineTrainer(
        plan=plan,
        prompts=read_prompts(session.work.dataset, "train"),
        reference=reference,
        reward_model=reward_model,
        model=load_policy(session),
        args=arguments,
        processing_class=session.tokenizer,
    )
    trainer.attach(session)
    trainer.judge_measures = judge_measures
    for beside in (reference, reward_model):
        if beside is not None:
            trainer.report_passes(beside)
    return trainer


def success(session: Session, trainer: Resumable) -> dict[str, float]:
    """How often the model reaches the goal of tasks that it is not trained on; nothing where none can be played."""
    held_out, trained = (read_prompts(session.work.dataset, split) for split in ("holdout", "train"))
    prompts = further_tasks(held_out, trained, session.plan.evaluation.episodes, Worlds(session.plan.worlds))
    return measure_success(trainer, session.tokenizer, prompts, session.plan)


def online_measures(session: Session, trainer: Resumable) -> dict[str, float]:
    """What the reward model says of answers to held-out prompts, where it stands in for an environment."""
    if not isinstance(trainer, OnlineTrainer) or session.plan.online.rollouts == "environment":
        return {}
    return measure_reward(trainer, read_prompts(session.work.dataset, "holdout"), session.plan)
