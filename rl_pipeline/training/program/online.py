"""PPO, RLOO, GRPO and REINFORCE as a course of the training program: the trainer for a session, and its measures."""

from transformers import TrainingArguments

from rl_pipeline.training.program.evaluation import measure_reward, measure_success
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

    def before_delivery(self) -> None:
        """Only training needs the values of states."""
        self.remove_value_head()


def online_trainer_of(session: Session) -> OnlineTrainer:
    """The trainer on the prompts of the dataset. Raises `NothingToPlay`. All processes call this."""
    plan = session.plan
    # Learnt before the policy is loaded: the two need not fit into memory together.
    reward_model = learnt_reward_model(session) if plan.online.rollouts == "reward_model" else None
    arguments = TrainingArguments(**training_arguments(session))
    needs_reference = plan.lora is None and plan.online.kl_coefficient > 0
    trainer = OnlineTrainer(
        plan=plan,
        prompts=read_prompts(session.work.dataset, "train"),
        reference=load_base(session) if needs_reference else None,
        reward_model=reward_model,
        model=load_policy(session),
        args=arguments,
        processing_class=session.tokenizer,
    )
    trainer.attach(session)
    return trainer


def success(session: Session, trainer: Resumable) -> dict[str, float]:
    """How often the model reaches the goal of held-out tasks; nothing where none can be played."""
    prompts = read_prompts(session.work.dataset, "holdout")
    return measure_success(trainer, session.tokenizer, prompts, session.plan)


def online_measures(session: Session, trainer: Resumable) -> dict[str, float]:
    """What the reward model says of answers to held-out prompts, where it stands in for an environment."""
    if not isinstance(trainer, OnlineTrainer) or session.plan.online.rollouts == "environment":
        return {}
    return measure_reward(trainer, read_prompts(session.work.dataset, "holdout"), session.plan)
