"""The reward model: a score for an agent's answer to what it was asked, learnt from pairs of logged ones by TRL's
trainer.

Online algorithms without an environment are judged by it: the policy answers once, and nobody answers back. So it is
learnt and judged on conversations up to the agent's first answer: in whole ones the last result of a tool would tell
the better side, and what it says of a first answer would be noise. It is learnt once for a job and its dataset, kept
beside the job's states, and used only if it tells the better of two answers that it was not learnt from.

Where few requests were tried more than once, some of the pairs are of different requests, and it has learnt in part
which requests are easy: its metadata counts them.
"""

import gc
import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import comb
from typing import Any, ClassVar

import torch
from accelerate.state import AcceleratorState
from datasets import Dataset
from transformers import PreTrainedModel
from trl.trainer.reward_config import RewardConfig
from trl.trainer.reward_trainer import DataCollatorForPreference
from trl.trainer.reward_trainer import RewardTrainer as TrlRewardTrainer

from rl_pipeline.contracts.training_status import FailureCode
from rl_pipeline.errors import PipelineError
from rl_pipeline.training.checkpoints import storage
from rl_pipeline.training.checkpoints.manifest import CheckpointCorrupt
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.plans.planning import split_batch
from rl_pipeline.training.program.dataset import Message, NothingToLearn, Pair, each_row, read_pairs
from rl_pipeline.training.program.measuring import batches_for_all, mean_over_all
from rl_pipeline.training.program.models import deliver, load_classifier, load_judge, training_arguments
from rl_pipeline.training.program.reporting import Reporter
from rl_pipeline.training.program.saving import Resumable
from rl_pipeline.training.program.session import Session
from rl_pipeline.training.program.tokens import ChatTokens

ACCURACY = "reward_model_accuracy"
# Pairs that a reward model is judged by: with fewer, even a good one is often not told from chance.
_ENOUGH_PAIRS = 20
_MOST_SET_ASIDE = 0.2
_LIKELIHOOD_OF_CHANCE = 0.05

_log = logging.getLogger(__name__)


class RewardModelNoBetterThanChance(PipelineError):
    """What the policy would be rewarded for would be noise."""

    code: ClassVar[FailureCode] = "DATA"


class RewardTrainer(Resumable, TrlRewardTrainer):
    """TRL's trainer, which can be stopped."""


class _Humming(Reporter):
    """Says that something goes on, and no more: the steps of a reward model are not those of the job."""

    def __init__(self, reporter: Reporter) -> None:
        super().__init__(None)
        self.heartbeat = reporter.heartbeat  # type: ignore[method-assign]


def learnt_reward_model(session: Session) -> tuple[PreTrainedModel, dict[str, float]]:
    """The reward model of this job and how good it is, learnt first if no attempt has done so. All processes call this.

    Raises `RewardModelNoBetterThanChance` and `NothingToLearn`.
    """
    measures = _known_measures(session) or _learn(session)
    return load_classifier(session, session.work.reward_model), measures


def _known_measures(session: Session) -> dict[str, float] | None:
    """What was measured of the whole reward model that this dataset led to; None if there is none."""
    found: list[dict[str, float] | None] = [None]
    if session.writes and session.work.reward_model.exists():
        try:
            with session.reporter.while_bytes_move(session.work.reward_model):
                meta = storage.verify(session.work.reward_model).meta
        except CheckpointCorrupt as corrupt:
            _log.warning("the reward model is learnt again: %s", corrupt)
        else:
            if (meta.model_extra or {}).get("dataset") == session.dataset_hash:
                found = [{name: value for name, value in meta.metrics.items() if value is not None}]
    if session.world_size > 1:
        torch.distributed.broadcast_object_list(found)
    return found[0]


def _learn(session: Session) -> dict[str, float]:
    """Learn the reward model, and put it in the place of whatever is there."""
    train, judged = _divided_pairs(session)
    if not train:
        raise NothingToLearn(
            "The dataset has no pair of different first answers for a reward model: widen the request's filter."
        )
    learning = replace(session, plan=_plan_of_reward_model(session.plan), reporter=_Humming(session.reporter))
    trainer = RewardTrainer(
        args=RewardConfig(
            **{**training_arguments(learning), "save_strategy": "no"},
            max_length=None,
            # Scores around 0 do not push the policy one way or the other.
            center_rewards_coefficient=0.01,
        ),
        model=load_judge(learning),
        train_dataset=Dataset.from_list(scored_pairs(session, train)),
        processing_class=session.tokenizer,
    )
    trainer.attach(learning)
    trainer.train()
    measures = _judged(trainer, scored_pairs(session, judged))
    session.reporter.measured("base", measures)
    meta = {
        "step": trainer.state.global_step,
        "metrics": measures,
        "dataset": session.dataset_hash,
        "pairs": len(train),
        "pairs_across_requests": sum(not pair.prompt for pair in train),
    }
    deliver(session, trainer, session.work.reward_model, meta, lambda session: load_classifier(session, session.base))
    trainer.accelerator.free_memory()
    # What comes next makes an engine of its own.
    AcceleratorState._reset_state()  # noqa: SLF001  accelerate has no public name for it
    gc.collect()
    return measures


def _plan_of_reward_model(plan: TrainingPlan) -> TrainingPlan:
    """The job's plan as it is while the reward model is learnt."""
    own = plan.reward_model
    micro_batch, accumulation = split_batch(own.batch, plan.distribution.processes, plan.optimization.micro_batch)
    changes = {
        "learning_rate": own.learning_rate or (1e-4 if plan.lora else 1e-5),
        "schedule": own.schedule,
        "epochs": own.epochs,
        "max_steps": None,
        "micro_batch": micro_batch,
        "accumulation": accumulation,
    }
    return plan.model_copy(update={"optimization": plan.optimization.model_copy(update=changes)})


def _divided_pairs(session: Session) -> tuple[list[Pair], list[Pair]]:
    """The pairs to learn from and those to judge by.

    The latter are those held out and, where these are too few, all pairs of some openings of the others: two ways to go
    on from an opening that was learnt from would prove nothing.
    """
    train, held_out = (_answers(read_pairs(session.work.dataset, split)) for split in ("train", "holdout"))
    lacking = min(_ENOUGH_PAIRS - len(held_out), int(_MOST_SET_ASIDE * len(train)))
    # No two pairs across requests have one in common.
    openings = [json.dumps(pair.prompt, sort_keys=True) if pair.prompt else pair.chosen_id for pair in train]
    set_aside = set()
    for opening, pairs in Counter(openings).items():
        if pairs <= lacking:
            set_aside.add(opening)
            lacking -= pairs
    of_openings = list(zip(openings, train, strict=True))
    return (
        [pair for opening, pair in of_openings if opening not in set_aside],
        held_out + [pair for opening, pair in of_openings if opening in set_aside],
    )


def _answers(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs, each side up to the agent's first answer; without those in which that is the same."""
    cut = [replace(pair, chosen=_first_answer(pair.chosen), rejected=_first_answer(pair.rejected)) for pair in pairs]
    return [pair for pair in cut if _texts(pair.chosen) != _texts(pair.rejected)]


def _first_answer(messages: Sequence[Message]) -> Sequence[Message]:
    end = next((place for place, message in enumerate(messages, 1) if message["trained"]), len(messages))
    return messages[:end]


def _texts(messages: Sequence[Message]) -> list[Message]:
    return [{name: value for name, value in message.items() if name != "trained"} for message in messages]


def scored_pairs(session: Session, pairs: Sequence[Pair]) -> list[dict[str, list[int]]]:
    """`chosen_ids` and `rejected_ids`, of which the end matters most.

    They end with the token that ends a turn, as what the policy writes does: the score is read there.
    """
    tokens = ChatTokens(session.tokenizer)
    limit = session.plan.optimization.max_tokens

    def whole(opening: Sequence[Message], rest: Sequence[Message]) -> list[int]:
        return tokens.render([*opening, *rest]).input_ids[-limit:]

    def row(pair: Pair) -> dict[str, list[int]]:
        return {"chosen_ids": whole(pair.prompt, pair.chosen), "rejected_ids": whole(pair.prompt, pair.rejected)}

    return each_row(pairs, row, lambda pair: (pair.chosen_id, pair.rejected_id))


def _judged(trainer: RewardTrainer, rows: list[Any]) -> dict[str, float]:
    """How often the better side of a pair scores higher. Raises `RewardModelNoBetterThanChance`."""
    accuracy = _accuracy(trainer, rows) if rows else 0.0
    right = round(accuracy * len(rows))
    if by_chance(right, len(rows)) > _LIKELIHOOD_OF_CHANCE:
        raise RewardModelNoBetterThanChance(
            f"The reward model finds the better of two first answers in {right} of {len(rows)} pairs that it was not"
            " learnt from, which chance does as well: collect more attempts, learn from them by dpo or sft, or let the"
            " policy play in an environment."
        )
    return {ACCURACY: accuracy}


def _accuracy(trainer: RewardTrainer, rows: list[Any]) -> float:
    right, weights = [], []
    collate = DataCollatorForPreference(pad_token_id=trainer.session.tokenizer.pad_token_id)
    for batch, counts in batches_for_all(trainer, rows, collate):
        chosen, rejected = trainer.model_wrapped(**batch, use_cache=False).logits.squeeze(-1).chunk(2)
        right.append(((chosen > rejected) * counts).sum())
        weights.append(counts.sum())
    return mean_over_all(trainer, right, weights)


def by_chance(right: int, of: int) -> float:
    """How likely it is to be right at least so often by tossing coins."""
    ways = sum(comb(of, heads) for heads in range(right, of + 1))
    return ways / (1 << of)
