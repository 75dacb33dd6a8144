"""The reward model: how it is learnt, where it reads its score, and when it is not to be trusted."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from rl_pipeline.environments.playing import Conversation
from rl_pipeline.training.checkpoints.storage import verify
from rl_pipeline.training.plans.presets import preset_of
from rl_pipeline.training.program.dataset import NothingToLearn, manifest_of, read_pairs
from rl_pipeline.training.program.failing import failure_of
from rl_pipeline.training.program.generation import SamplingPolicy
from rl_pipeline.training.program.models import load_base
from rl_pipeline.training.program.reward_model import (
    RewardModelNoBetterThanChance,
    by_chance,
    learnt_reward_model,
    scored_pairs,
)
from rl_pipeline.training.program.session import Session
from rl_pipeline_tests.training.tiny_jobs import (
    lay_out,
    pair,
    plan_of,
    said,
    session_of,
    write_dataset,
    write_tiny_model,
)

QWEN = """\
{%- for message in messages %}{{ '<|system|>' + message.role + '\\n' + message.content + '<|end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|system|>assistant\\n' }}{% endif %}"""
SMALL = preset_of("embedded-small").sections_for("ppo")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_tiny_model(directory)
    return directory


@pytest.fixture
def session(tmp_path: Path, model: Path) -> Session:
    """A job at the rates of a preset."""
    rate = {name: SMALL["optimization"][name] for name in ("learning_rate", "schedule")}
    return session_with(tmp_path, model, optimization={**rate, "micro_batch": 16, "max_steps": 1})


def session_with(root: Path, model: Path, **parts: Any) -> Session:
    plan = plan_of(
        "ppo", **{"online": {"rollouts": "reward_model"}, "reward_model": {**SMALL["reward_model"], "batch": 8}} | parts
    )
    return session_of(lay_out(root / "job", model, plan), plan)


def store(session: Session, pairs: Sequence[tuple[str, tuple[list[dict[str, Any]], ...]]]) -> None:
    rows = [
        {"split": split, "chosen_id": f"c{n}", "rejected_id": f"r{n}"}
        | {name: json.dumps(part) for name, part in zip(("prompt", "chosen", "rejected"), parts, strict=True)}
        for n, (split, parts) in enumerate(pairs)
    ]
    pl.DataFrame(rows).write_parquet(session.work.dataset / "pairs.parquet")


def test_at_the_rate_of_a_preset_it_is_learnt_once_and_scores_the_better_side_higher(session: Session) -> None:
    learnt_reward_model(session)
    made = (session.work.reward_model / "model.safetensors").stat().st_mtime_ns
    judge, measures = learnt_reward_model(session)
    assert (session.work.reward_model / "model.safetensors").stat().st_mtime_ns == made
    assert verify(session.work.reward_model).meta.metrics == measures == {"reward_model_accuracy": 1.0}
    row = scored_pairs(session, read_pairs(session.work.dataset, "holdout"))[0]
    with torch.no_grad():
        better, worse = (judge(torch.tensor([row[side]])).logits.item() for side in ("chosen_ids", "rejected_ids"))
    assert better > worse
    assert AutoModelForSequenceClassification.from_pretrained(session.work.reward_model).config.num_labels == 1


def test_one_that_is_no_better_than_chance_ends_the_attempt_for_that_reason(tmp_path: Path, model: Path) -> None:
    session = session_with(tmp_path, model, reward_model={"learning_rate": 1e-9})
    # What is better is random: nothing can be learnt.
    sides = [pair(n)[1:] if n % 2 else pair(n)[:0:-1] for n in range(48)]
    store(session, [("holdout" if n < 24 else "train", (pair(n)[0], *sides[n])) for n in range(48)])
    with pytest.raises(RewardModelNoBetterThanChance, match="of 24 pairs") as raised:
        learnt_reward_model(session)
    assert failure_of(raised.value, rank=0, step=0).code == "DATA"
    assert not session.work.reward_model.exists()


def test_it_is_judged_by_first_answers_for_these_are_what_it_will_score(tmp_path: Path, model: Path) -> None:
    session = session_with(tmp_path, model)

    def ends_well_or_badly(seed: int) -> tuple[list[dict[str, Any]], ...]:
        prompt, chosen, rejected = pair(seed)
        first = said("assistant", "look at it")
        return prompt, [first, *chosen[1:]], [first, *rejected[1:]]

    store(session, [("holdout" if n % 4 == 0 else "train", ends_well_or_badly(n)) for n in range(48)])
    with pytest.raises(NothingToLearn, match="first answers"):
        learnt_reward_model(session)


def test_where_too_few_pairs_are_held_out_some_openings_are_not_learnt_from(session: Session) -> None:
    def about(n: int) -> tuple[list[dict[str, Any]], ...]:
        prompt, chosen, rejected = pair(n)
        return [*prompt, said("user", f"number {n // 3}")], chosen, rejected

    store(session, [("train", about(n)) for n in range(60)])
    _, measures = learnt_reward_model(session)
    assert measures["reward_model_accuracy"] == 1.0, "12 of 12"
    store(session, [("train", about(n)) for n in range(18)])
    again = replace(session, dataset_hash="another")
    with pytest.raises(RewardModelNoBetterThanChance, match="3 of 3 pairs"):
        learnt_reward_model(again)


def test_pairs_of_different_requests_are_whole_conversations_that_are_set_aside_one_by_one_and_counted(
    session: Session,
) -> None:
    def across(n: int) -> tuple[list[dict[str, Any]], ...]:
        (prompt, chosen, _), (other, _, rejected) = pair(n), pair(n + 1)
        return [], [*prompt, *chosen], [*other, *rejected]

    store(session, [("train", across(n)) for n in range(60)])
    whole = scored_pairs(session, read_pairs(session.work.dataset, "train"))[0]
    assert "You make things." in session.tokenizer.decode(whole["rejected_ids"])
    _, measures = learnt_reward_model(session)
    assert measures["reward_model_accuracy"] == 1.0, "12 of 12"
    extra = verify(session.work.reward_model).meta.model_extra or {}
    assert (extra["pairs"], extra["pairs_across_requests"]) == (48, 48)


def test_chance_is_what_coins_would_do() -> None:
    assert by_chance(0, 0) == by_chance(0, 7) == 1.0
    assert by_chance(4, 4) == pytest.approx(1 / 16)
    assert by_chance(15, 20) == pytest.approx(0.0207, abs=1e-4)
    assert by_chance(5_300, 10_000) < 1e-8


def test_the_score_is_read_where_what_the_policy_writes_ends(session: Session) -> None:
    session.tokenizer.chat_template = QWEN
    rows = scored_pairs(session, read_pairs(session.work.dataset, "train"))
    ends = {row[side][-1] for row in rows for side in ("chosen_ids", "rejected_ids")}
    policy = load_base(session)
    stop = session.tokenizer.convert_tokens_to_ids("<|end|>")
    policy.lm_head.weight = torch.nn.Parameter(policy.lm_head.weight.detach() * 0)
    policy.lm_head.bias = torch.nn.Parameter(torch.eye(len(session.tokenizer))[stop] * 100)
    speaker = SamplingPolicy(policy, session.tokenizer, generator=None, temperature=0.0)
    speaker.act([Conversation(0, [{"role": "user", "content": "make planks"}])])
    assert ends == {speaker.transcripts[0].token_ids[-1]} == {stop}
    # By a template that ends its turns without such a token the policy stops there all the same.
    session.tokenizer.chat_template = QWEN.replace("'<|end|>", "('' if message.role == 'assistant' else '<|end|>') + '")
    open_ended = scored_pairs(session, read_pairs(session.work.dataset, "train"))
    assert {row[side][-1] for row in open_ended for side in ("chosen_ids", "rejected_ids")} == {stop}


def test_another_dataset_is_another_reward_model(session: Session) -> None:
    learnt_reward_model(session)
    write_dataset(session.work.dataset, rows=36)
    changed = replace(session, dataset_hash=manifest_of(session.work.dataset).hash)
    assert changed.dataset_hash != session.dataset_hash
    learnt_reward_model(changed)
    assert (verify(session.work.reward_model).meta.model_extra or {})["dataset"] == changed.dataset_hash


@pytest.mark.parametrize("damaged", ["model.safetensors", "manifest.json"])
def test_a_corrupt_reward_model_is_learnt_again(session: Session, damaged: str) -> None:
    learnt_reward_model(session)
    file = session.work.reward_model / damaged
    file.write_bytes(file.read_bytes()[:-1] + b"!")
    _, measures = learnt_reward_model(session)
    assert verify(session.work.reward_model).meta.metrics == measures
