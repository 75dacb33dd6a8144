"""SFT: what reaches the loss, and what is measured on the holdout."""

import json
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest
import torch
import trl
from torch.nn import functional

from rl_pipeline.training.program.dataset import NothingToLearn, TemplateRefusesMost, UnreadableRows
from rl_pipeline.training.program.failing import failure_of
from rl_pipeline.training.program.imitation import demonstrations, holdout_loss, imitation_trainer
from rl_pipeline.training.program.reporting import Reporter
from rl_pipeline.training.program.session import Session
from rl_pipeline_tests.training.tiny_jobs import (
    demonstration,
    lay_out,
    plan_of,
    said,
    session_of,
    write_tiny_model,
)

FOLDER = Path(trl.__file__).parent / "chat_templates"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_tiny_model(directory)
    return directory


@pytest.fixture
def session(tmp_path: Path, model: Path) -> Session:
    plan = plan_of()
    return session_of(lay_out(tmp_path / "job", model, plan), plan)


def store(session: Session, *conversations: list[dict[str, object]]) -> None:
    rows = [
        {"trajectory_id": f"t{n}", "split": "train", "role": "demonstration", "messages": json.dumps(messages)}
        for n, messages in enumerate(conversations)
    ]
    pl.DataFrame(rows).write_parquet(session.work.dataset / "conversations.parquet")


def test_the_labels_of_a_batch_are_what_the_agents_wrote(session: Session) -> None:
    trainer = imitation_trainer(session)
    batch = next(iter(trainer.get_train_dataloader()))
    learnt = [[token for token in row.tolist() if token != -100] for row in batch["labels"]]
    texts = [session.tokenizer.decode(row) for row in learnt]
    written = {
        "".join(f"{message['content']}<|end|>" for message in demonstration(row) if message["role"] == "assistant")
        for row in range(48)
    }
    assert len(texts) == 4
    assert set(texts) <= written
    positions = batch["labels"] != -100
    assert torch.equal(batch["labels"][positions], batch["input_ids"][positions])


def test_what_is_done_before_the_first_step_counts_as_time_spent(session: Session) -> None:
    an_hour_ago = replace(session, began=session.began - 3600)
    assert imitation_trainer(an_hour_ago).seconds >= 3600


def test_the_loss_is_the_mean_over_what_the_agents_wrote(session: Session) -> None:
    trainer = imitation_trainer(session)
    batch = next(iter(trainer.get_train_dataloader()))
    counted = (batch["labels"][:, 1:] != -100).sum()
    with torch.no_grad():
        loss = trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=counted)
        hidden = trainer.model.model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"])
        logits = trainer.model.lm_head(hidden.last_hidden_state)
    expected = functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)


def test_the_holdout_loss_does_not_depend_on_how_its_rows_are_batched(session: Session) -> None:
    trainer = imitation_trainer(session)
    trainer.model_wrapped = trainer.model
    measured = []
    for size in (1, 3, 8):
        trainer.args.per_device_eval_batch_size = size
        measured.append(holdout_loss(session, trainer)["holdout_loss"])
    assert measured == pytest.approx([measured[0]] * 3, abs=1e-5)
    assert measured[0] == pytest.approx(torch.tensor(float(len(session.tokenizer))).log().item(), abs=0.3)


def test_conversations_with_nothing_to_learn_are_left_out(session: Session) -> None:
    copied = [said("user", "make logs"), said("assistant", "craft logs", trained=False)]
    store(session, demonstration(1), copied)
    assert len(demonstrations(session, "train")) == 1
    assert demonstrations(session, "holdout") == []
    assert holdout_loss(session, imitation_trainer(session)) == {}


def test_a_dataset_without_demonstrations_says_what_to_do(session: Session) -> None:
    store(session, [said("user", "hello")])
    with pytest.raises(NothingToLearn, match="widen the request"):
        imitation_trainer(session)


REFUSING = """{% for message in messages %}{% if 'LATIN' in message.content %}{{ raise_exception('no') }}{% endif %}
{{- '<|' + message.role + '|>' + message.content + '<|end|>' }}{% endfor %}
{{- '<|assistant|>' if add_generation_prompt }}"""


def test_a_row_that_the_template_refuses_is_named(session: Session) -> None:
    session.tokenizer.chat_template = REFUSING
    store(session, [said("user", "speak LATIN"), said("assistant", "no")], demonstration(1))
    with pytest.raises(UnreadableRows) as refused:
        demonstrations(session, "train")
    assert refused.value.trajectory_ids == ("t0",)


def test_where_the_template_refuses_most_rows_the_model_is_blamed_and_no_row(session: Session) -> None:
    session.tokenizer.chat_template = REFUSING
    latin = [said("user", "speak LATIN"), said("assistant", "no")]
    store(session, latin, demonstration(1), latin)
    with pytest.raises(TemplateRefusesMost, match=r"refuses 2 of 3 conversations.*choose a model") as refused:
        demonstrations(session, "train")
    failure = failure_of(refused.value, rank=0, step=0)
    assert (failure.code, failure.trajectory_ids) == ("UNKNOWN", ())


def test_what_the_template_cannot_show_is_among_the_notes_of_the_attempt(session: Session, tmp_path: Path) -> None:
    session.tokenizer.chat_template = (FOLDER / "gemma3.jinja").read_text()
    file = tmp_path / "progress.jsonl"
    trainer = imitation_trainer(replace(session, reporter=Reporter(file)))
    assert [note for note in trainer.notes if "JSON in what the agent says" in note]
    assert [note for note in trainer.notes if "the user says them" in note]
    assert [line["note"] for line in map(json.loads, file.read_text().splitlines()) if "note" in line] == trainer.notes


def test_of_a_template_that_shows_everything_nothing_is_noted(session: Session) -> None:
    assert imitation_trainer(session).notes == []
