"""The model card: it says what is known, nothing else, and stays a card whatever the names in it are."""

import json
from typing import Any

import pytest

from rl_pipeline.training.checkpoints.model_card import CardDataset, model_card
from rl_pipeline.training.plans.plan import LoraPlan, TrainingPlan

PLAN = TrainingPlan(job_id="job-1", algorithm="rloo", base_model="embedded-small", seed=7)
DATASET = CardDataset(
    dataset_id="job-1.r2",
    manifest_hash="ab" * 32,
    url="s3://datasets/job-1.r2/manifest.json",
    trajectories=500,
    holdout=50,
    domains={"research": 125, "code": 375},
    selection={"window": "2026-02-01 to 2026-03-01", "least reward": 0.5, "left out": {"duplicates": 12, "caps": 3}},
    rewards={
        "configuration": "weighted-v1",
        "weights": {"task_completion": 0.4, "efficiency": 0.2},
        "mean": 0.612345678,
    },
)
RESULT: dict[str, Any] = {
    "measure": "success",
    "improvement": 0.21,
    "base": {"success_sampled": 0.3, "success_greedy": 0.25, "odd_measure": 1.0},
    "final": {"success_sampled": 0.51, "success_greedy": 0.5},
    "steps": 100,
    "tokens": 123456,
    "seconds": 61.5,
    "peak_memory_gb": 1.25,
}
LINEAGE = {"training job": "job-1", "MLflow run": "http://mlflow/#/experiments/1/runs/a", "replaces": None}


def rows(card: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split(" | ")] for line in card.splitlines() if line.startswith("| ")]


@pytest.fixture(scope="module")
def card() -> str:
    return model_card(PLAN, DATASET, RESULT, LINEAGE)


def test_the_card_says_how_much_better_the_model_is(card: str) -> None:
    assert "By its own measure (success) it is better than its base model: +0.21." in card
    assert "| held-out tasks solved (sampled) | 0.3 | 0.51 | +0.21 |" in card
    assert "| odd measure | 1 |  |  |" in card
    worse = model_card(PLAN, DATASET, {**RESULT, "improvement": -0.1}, LINEAGE)
    assert "it is worse than its base model: -0.1" in worse
    assert "not measured against its base model" in model_card(PLAN, DATASET, {"improvement": None}, LINEAGE)


def test_the_card_says_what_the_model_learnt_from_and_how_that_was_scored(card: str) -> None:
    assert "embedded-small, trained with rloo on 500 trajectories" in card
    assert f"| manifest hash | {'ab' * 32} |" in card
    assert "| of these held out | 50 |" in card
    assert "| code | 375 | 75% |\n| research | 125 | 25% |" in card
    assert "| left out | duplicates: 12, caps: 3 |" in card
    assert "| weights | task_completion: 0.4, efficiency: 0.2 |" in card
    assert "| mean | 0.612346 |" in card


def test_the_card_says_how_it_was_trained_and_where_it_comes_from(card: str) -> None:
    for row in ("| weights | all |", "| seed | 7 |", "| steps | 100 |", "| learning rate | 1e-05, cosine |"):
        assert row in card
    assert "| MLflow run | http://mlflow/#/experiments/1/runs/a |" in card
    assert "replaces" not in card
    assert "| weights | LoRA of rank 16 |" in model_card(
        PLAN.model_copy(update={"lora": LoraPlan()}), DATASET, RESULT, {}
    )


def test_what_is_otherwise_than_asked_for_is_said() -> None:
    plan = PLAN.model_copy(update={"notes": ("fp32, because a CPU is slow in bf16",)})
    card = model_card(plan, DATASET, RESULT, LINEAGE)
    assert "Otherwise than the request asked for:\n\n- fp32, because a CPU is slow in bf16" in card


def test_the_front_matter_is_what_hubs_read(card: str) -> None:
    _, front, _ = card.split("---\n", 2)
    facts = dict(line.split(": ", 1) for line in front.splitlines())
    assert {name: json.loads(value) for name, value in facts.items()} == {
        "base_model": "embedded-small",
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["reinforcement-learning", "agents", "rloo"],
    }


def test_a_name_from_outside_cannot_change_what_the_card_says() -> None:
    evil = 'a\n---\nlicense: mine\n# Title | cell <script> [link](x) `code` "quote"'
    plan = PLAN.model_copy(update={"base_model": evil, "job_id": evil, "notes": (evil,)})
    card = model_card(plan, DATASET, RESULT, {"asked for by": evil})
    lines = card.splitlines()
    assert [line for line in lines if line.startswith("---")] == ["---", "---"]
    assert [line for line in lines if line.startswith("# ")] == [lines[lines.index("---", 1) + 2]]
    assert "<script>" not in card.partition("---\n")[2].partition("---\n")[2]
    assert len({len(row) for row in rows(card) if row[0].endswith("asked for by")}) == 1
    assert next(len(row) for row in rows(card) if row[0].endswith("asked for by")) == 2


def test_the_same_facts_give_the_same_card_and_sections_without_facts_are_left_out(card: str) -> None:
    assert model_card(PLAN, DATASET, RESULT, LINEAGE) == card
    bare = model_card(PLAN, CardDataset("d", "h", "u", 0, 0), {}, {})
    assert [line for line in bare.splitlines() if line.startswith("## ")] == ["## Data", "## Method", "## Limits"]
