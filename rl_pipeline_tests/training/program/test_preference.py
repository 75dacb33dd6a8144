"""DPO: what is compared, and what is learnt of it."""

import json
from dataclasses import replace
from itertools import count
from pathlib import Path

import polars as pl
import pytest
import torch
import trl

from rl_pipeline.training.program.dataset import NothingToLearn
from rl_pipeline.training.program.preference import (
    PairCollator,
    preference_accuracy,
    preference_trainer,
    token_pairs,
)
from rl_pipeline.training.program.reporting import Reporter
from rl_pipeline.training.program.session import Session
from rl_pipeline_tests.training.tiny_jobs import lay_out, pair, plan_of, said, session_of, write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_tiny_model(directory)
    return directory


@pytest.fixture
def session(tmp_path: Path, model: Path) -> Session:
    plan = plan_of("dpo", optimization={"learning_rate": 1e-3, "micro_batch": 8, "epochs": 6})
    return session_of(lay_out(tmp_path / "job", model, plan), plan)


def store(session: Session, *pairs: tuple[list[dict[str, object]], ...]) -> None:
    rows = [
        {"split": "train", "chosen_id": f"c{n}", "rejected_id": f"r{n}"}
        | {name: json.dumps(part) for name, part in zip(("prompt", "chosen", "rejected"), parts, strict=True)}
        for n, parts in enumerate(pairs)
    ]
    pl.DataFrame(rows).write_parquet(session.work.dataset / "pairs.parquet")


def test_what_tools_answer_between_the_agents_turns_is_in_neither_likelihood(session: Session) -> None:
    batch = PairCollator(session.tokenizer.pad_token_id)(token_pairs(session, "train")[:2])
    compared = [
        session.tokenizer.decode(ids[mask.bool()])
        for ids, mask in zip(batch["input_ids"], batch["completion_mask"], strict=True)
    ]
    chosen = [[message["content"] for message in pair(row)[1] if message["role"] == "assistant"] for row in (1, 2)]
    assert compared[:2] == ["".join(f"{text}<|end|>" for text in texts) for texts in chosen]
    assert compared[2:] == ["wait<|end|>wait<|end|>"] * 2
    assert "nothing happened" in session.tokenizer.decode(batch["input_ids"][2])


def test_where_the_template_has_no_tools_the_same_is_compared_and_the_user_says_what_tools_answered(
    session: Session,
) -> None:
    session.tokenizer.chat_template = (Path(trl.__file__).parent / "chat_templates" / "gemma3.jinja").read_text()
    session.tokenizer.bos_token = "<|endoftext|>"
    row = token_pairs(session, "train")[0]
    compared = [token for token, trained in zip(row["chosen_ids"], row["chosen_trained"], strict=True) if trained]
    written = [message["content"] for message in pair(1)[1] if message["role"] == "assistant"]
    assert session.tokenizer.decode(compared) == "".join(f"{text}<|end|>" for text in written)
    assert "<start_of_turn>user\nnothing happened" in session.tokenizer.decode(row["rejected_ids"])


def test_the_loss_begins_at_the_reference_and_weighs_only_what_is_compared(session: Session) -> None:
    trainer = preference_trainer(session)
    batch = next(iter(trainer.get_train_dataloader()))
    # At first the model is its own reference: both sides are equally likely relative to it.
    assert trainer.compute_loss(trainer.model, batch).item() == pytest.approx(torch.tensor(2.0).log().item(), abs=1e-6)
    assert trainer.ref_model is not trainer.model
    assert not trainer.ref_model.training


def test_the_likelihood_of_the_chosen_side_is_added_when_the_plan_weighs_it(session: Session) -> None:
    plan = session.plan.model_copy(
        update={"preference": session.plan.preference.model_copy(update={"sft_weight": 0.5})}
    )
    trainer = preference_trainer(replace(session, plan=plan))
    batch = next(iter(trainer.get_train_dataloader()))
    assert trainer.compute_loss(trainer.model, batch).item() > 2.0


def test_the_model_learns_to_prefer_what_did_better(session: Session) -> None:
    trainer = preference_trainer(session)
    trainer.model_wrapped = trainer.model
    before = preference_accuracy(session, trainer)["preference_accuracy"]
    trainer.args.save_strategy = "no"
    trainer.train()
    after = preference_accuracy(session, trainer)["preference_accuracy"]
    assert before < after == 1.0


def test_every_pass_of_the_model_leaves_a_sign_of_life(session: Session, tmp_path: Path) -> None:
    file, seconds = tmp_path / "progress.jsonl", count(step=10.0)
    trainer = preference_trainer(replace(session, reporter=Reporter(file, clock=lambda: next(seconds))))
    for passes in (1, 2):
        trainer.model(input_ids=torch.tensor([[1, 2]]))
        assert len(file.read_text().splitlines()) == passes


def test_pairs_that_compare_nothing_are_left_out_and_none_at_all_is_refused(session: Session) -> None:
    prompt, chosen, rejected = pair(1)
    copied = [said("assistant", "copied", trained=False)]
    store(session, (prompt, chosen, rejected), (prompt, chosen, copied))
    assert len(token_pairs(session, "train")) == 1
    store(session, (prompt, copied, rejected))
    with pytest.raises(NothingToLearn, match="widen the request"):
        preference_trainer(session)
