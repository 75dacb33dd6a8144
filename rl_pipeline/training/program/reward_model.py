"""The reward model: a score for whole conversations, learnt from pairs of logged ones by TRL's trainer.

Online algorithms without an environment are judged by it. It is learnt once for a job and kept beside its states.
"""

import gc
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from accelerate.state import AcceleratorState
from datasets import Dataset
from transformers import PreTrainedModel
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import DataCollatorForPreference
from trl.trainer.reward_trainer import RewardTrainer as TrlRewardTrainer

from rl_pipeline.training import checkpoints
from rl_pipeline.training.checkpoint_manifest import MANIFEST
from rl_pipeline.training.program.dataset import Message, NothingToLearn, Pair, Split, each_row, read_pairs
from rl_pipeline.training.program.measuring import batches_for_all, mean_over_all
from rl_pipeline.training.program.models import deliver, load_classifier, load_judge, training_arguments
from rl_pipeline.training.program.reporting import Reporter
from rl_pipeline.training.program.saving import Resumable
from rl_pipeline.training.program.session import Session
from rl_pipeline.training.program.tokens import ChatTokens

_EPOCHS = 3


class RewardTrainer(Resumable, TrlRewardTrainer):
    """TRL's trainer, which can be stopped."""


class _Humming(Reporter):
    """Says that something goes on, and no more: the steps of a reward model are not those of the job."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(None)
        self.heartbeat = reporter.heartbeat  # type: ignore[method-assign]


def learnt_reward_model(session: Session) -> PreTrainedModel:
    """The reward model of this job, learnt first if no attempt has done so. All processes call this."""
    if not (session.work.reward_model / MANIFEST).exists():
        _learn(session)
    elif session.writes:
        checkpoints.verify(session.work.reward_model)
    return load_classifier(session, session.work.reward_model)


def _learn(session: Session) -> None:
    rows = scored_pairs(session, "train")
    if not rows:
        raise NothingToLearn("The dataset has no pair to learn a reward model from: widen the request's filter.")
    arguments = RewardConfig(
        **{**training_arguments(session), "save_strategy": "no", "num_train_epochs": _EPOCHS, "max_steps": -1},
        max_length=None,
        # Scores around 0 do not push the policy one way or the other.
        center_rewards_coefficient=0.01,
    )
    trainer = RewardTrainer(
        model=load_judge(session),
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=session.tokenizer,
    )
    trainer.attach(replace(session, reporter=_Humming(session.reporter)))
    trainer.train()
    metrics = reward_accuracy(session, trainer)
    meta = {"step": trainer.state.global_step, "metrics": metrics}
    deliver(session, trainer, session.work.reward_model, meta, lambda session: load_classifier(session, session.base))
    trainer.accelerator.free_memory()
    # What comes next makes an engine of its own.
    AcceleratorState._reset_state()  # noqa: SLF001  accelerate has no public name for it
    gc.collect()


def scored_pairs(session: Session, split: Split) -> list[dict[str, list[int]]]:
    """`chosen_ids` and `rejected_ids`: whole conversations, of which the end matters most."""
    tokens = ChatTokens(session.tokenizer)
    limit = session.plan.optimization.max_tokens

    def whole(opening: Sequence[Message], rest: Sequence[Message]) -> list[int]:
        return tokens.render([*opening, *rest]).input_ids[-limit:]

    def row(pair: Pair) -> dict[str, list[int]]:
        return {"chosen_ids": whole(pair.prompt, pair.chosen), "rejected_ids": whole(pair.prompt, pair.rejected)}

    pairs = read_pairs(session.work.dataset, split)
    return each_row(pairs, row, lambda pair: (pair.chosen_id, pair.rejected_id))


def reward_accuracy(session: Session, trainer: Resumable) -> dict[str, float]:
    """How often the better side of a held-out pair scores higher; nothing where no pairs are held out."""
    rows: list[Any] = scored_pairs(session, "holdout")
    if not rows:
        return {}
    right, weights = [], []
    collate = DataCollatorForPreference(pad_token_id=session.tokenizer.pad_token_id)
    for batch, counts in batches_for_all(trainer, rows, collate):
        chosen, rejected = trainer.model_wrapped(**batch, use_cache=False).logits.squeeze(-1).chunk(2)
        right.append(((chosen > rejected) * counts).sum())
        weights.append(counts.sum())
    return {"reward_model_accuracy": mean_over_all(trainer, right, weights)}
