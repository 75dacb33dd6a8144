"""DPO: what did better becomes likelier than what did worse, by TRL's trainer on pairs that are tokens already.

TRL takes all that follows the prompt for the model's words. Here a completion has many turns, and what tools and people
said in between is left out of both likelihoods.
"""

import logging
from collections.abc import Sequence
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.utils import selective_log_softmax

from rl_pipeline.training.program.dataset import NothingToLearn, Pair, Split, each_row, read_pairs
from rl_pipeline.training.program.measuring import batches_for_all, mean_over_all
from rl_pipeline.training.program.models import load_base, lora_config, training_arguments
from rl_pipeline.training.program.saving import Resumable
from rl_pipeline.training.program.session import Session
from rl_pipeline.training.program.tokens import ChatTokens, Rendered

_log = logging.getLogger(__name__)

Row = dict[str, list[int]]


class PreferenceTrainer(Resumable, DPOTrainer):
    """TRL's trainer, resumable, on rows of `token_pairs`."""

    def _prepare_dataset(self, dataset: Dataset, *_: Any) -> Dataset:
        return dataset


def preference_trainer(session: Session) -> PreferenceTrainer:
    """The trainer on the pairs of the dataset. Raises `UnreadableRows` and `NothingToLearn`."""
    plan = session.plan
    rows = token_pairs(session, "train")
    if not rows:
        raise NothingToLearn("The dataset has no pair to prefer by: widen the request's filter or its window.")
    both = plan.preference.sft_weight > 0
    arguments = DPOConfig(
        **training_arguments(session),
        beta=plan.preference.beta,
        loss_type=["sigmoid", "sft"] if both else ["sigmoid"],
        loss_weights=[1.0, plan.preference.sft_weight] if both else None,
        max_length=None,
    )
    trainer = PreferenceTrainer(
        model=load_base(session),
        # With adapters the reference is the model without them; TRL sees to both if it adds them itself.
        peft_config=lora_config(plan.lora, "CAUSAL_LM") if plan.lora else None,
        ref_model=None if plan.lora else load_base(session),
        args=arguments,
        train_dataset=Dataset.from_list(rows),
        data_collator=PairCollator(session.tokenizer.pad_token_id),
        processing_class=session.tokenizer,
    )
    trainer.attach(session)
    return trainer


class PairCollator:
    """Rows of `token_pairs` as TRL's DPO wants its batches: all chosen sides, then all rejected ones."""

    def __init__(self, padding: int) -> None:
        self._padding = padding

    def __call__(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """`input_ids`, `attention_mask`, and `completion_mask`, which is 1 where the agent wrote."""
        sides = ("chosen", "rejected")
        ids = [torch.tensor(row[f"{side}_ids"]) for side in sides for row in rows]
        trained = [torch.tensor(row[f"{side}_trained"]) for side in sides for row in rows]
        return {
            "input_ids": pad_sequence(ids, batch_first=True, padding_value=self._padding),
            "attention_mask": pad_sequence([torch.ones_like(each) for each in ids], batch_first=True),
            "completion_mask": pad_sequence(trained, batch_first=True),
        }


def token_pairs(session: Session, split: Split) -> list[Row]:
    """Ids of both sides, each with its opening, and which of them the agent wrote."""
    tokens = ChatTokens(session.tokenizer)
    limit = session.plan.optimization.max_tokens

    def rendered(pair: Pair) -> Row | None:
        chosen = tokens.first_turns(pair.prompt, pair.chosen, limit)
        rejected = tokens.first_turns(pair.prompt, pair.rejected, limit)
        return _row(chosen, rejected) if chosen and rejected and chosen.teaches and rejected.teaches else None

    pairs = read_pairs(session.work.dataset, split)
    found = each_row(pairs, rendered, lambda pair: (pair.chosen_id, pair.rejected_id))
    useful = [row for row in found if row is not None]
    if len(useful) < len(found):
        lost = len(found) - len(useful)
        _log.warning("%d of %d pairs (%s) compare nothing within %d tokens", lost, len(found), split, limit)
    return useful


def preference_accuracy(session: Session, trainer: Resumable) -> dict[str, float]:
    """How often the model finds the better side of a held-out pair likelier, per token it would have to write.

    Nothing where no pairs are held out. All processes call this.
    """
    rows = token_pairs(session, "holdout")
    if not rows:
        return {}
    right, weights = [], []
    for batch, counts in batches_for_all(trainer, rows, PairCollator(session.tokenizer.pad_token_id)):
        chosen, rejected = _likelihoods(trainer, batch).chunk(2)
        right.append((((chosen > rejected).float() + 0.5 * (chosen == rejected).float()) * counts).sum())
        weights.append(counts.sum())
    return {"preference_accuracy": mean_over_all(trainer, right, weights)}


def _likelihoods(trainer: Resumable, batch: dict[str, Tensor]) -> Tensor:
    """Mean log likelihood of what the agent wrote, by row."""
    ids, written = batch["input_ids"], batch["completion_mask"][:, 1:]
    logits = trainer.model_wrapped(input_ids=ids, attention_mask=batch["attention_mask"], use_cache=False).logits
    likelihoods = selective_log_softmax(logits[:, :-1].float(), ids[:, 1:])
    means: Tensor = (likelihoods * written).sum(1) / written.sum(1)
    return means


def _row(chosen: Rendered, rejected: Rendered) -> Row:
    return {
        "chosen_ids": chosen.input_ids,
        "chosen_trained": [int(trained) for trained in chosen.trained],
        "rejected_ids": rejected.input_ids,
        "rejected_trained": [int(trained) for trained in rejected.trained],
    }
