"""SFT: the likelihood of what good agents wrote, by TRL's trainer on conversations that are tokens already."""

import logging

from datasets import Dataset
from trl.trainer.sft_config import SFTConfig
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling, SFTTrainer

from rl_pipeline.training.program.dataset import Conversation, NothingToLearn, Split, each_row, read_demonstrations
from rl_pipeline.training.program.measuring import batches_for_all, mean_over_all
from rl_pipeline.training.program.models import load_policy, training_arguments
from rl_pipeline.training.program.saving import Resumable
from rl_pipeline.training.program.session import Session
from rl_pipeline.training.program.tokens import ChatTokens, Rendered

_log = logging.getLogger(__name__)


class ImitationTrainer(Resumable, SFTTrainer):
    """TRL's trainer, resumable."""


def imitation_trainer(session: Session) -> ImitationTrainer:
    """The trainer on the demonstrations of the dataset. Raises `UnreadableRows` and `NothingToLearn`."""
    rows = demonstrations(session, "train")
    if not rows:
        raise NothingToLearn("The dataset has no demonstration to imitate: widen the request's filter.")
    arguments = SFTConfig(
        **training_arguments(session),
        max_length=None,
        dataset_kwargs={"skip_prepare_dataset": True},
    )
    trainer = ImitationTrainer(
        model=load_policy(session),
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        processing_class=session.tokenizer,
    )
    trainer.attach(session)
    return trainer


def demonstrations(session: Session, split: Split) -> list[dict[str, list[int]]]:
    """`input_ids` and `labels` of every demonstration that has something to learn from."""
    tokens = ChatTokens(session.tokenizer)
    limit = session.plan.optimization.max_tokens

    def rendered(conversation: Conversation) -> Rendered | None:
        return tokens.last_turns(conversation.messages, limit)

    conversations = read_demonstrations(session.work.dataset, split)
    found = each_row(conversations, rendered, lambda conversation: (conversation.trajectory_id,))
    useful = [each for each in found if each is not None and each.teaches]
    if len(useful) < len(found):
        lost = len(found) - len(useful)
        _log.warning("%d of %d conversations (%s) teach nothing within %d tokens", lost, len(found), split, limit)
    return [{"input_ids": each.input_ids, "labels": each.labels} for each in useful]


def holdout_loss(session: Session, trainer: Resumable) -> dict[str, float]:
    """The loss on the demonstrations held out; nothing where there are none. All processes call this."""
    rows = demonstrations(session, "holdout")
    if not rows:
        return {}
    collate = DataCollatorForLanguageModeling(pad_token_id=session.tokenizer.pad_token_id)
    losses, weights = [], []
    for batch, counts in batches_for_all(trainer, rows, collate):
        output = trainer.model_wrapped(**batch, use_cache=False)
        learnt = (batch["labels"][:, 1:] != -100).sum()
        losses.append(output.loss * learnt * counts.any())
        weights.append(learnt * counts.any())
    return {"holdout_loss": mean_over_all(trainer, losses, weights)}
