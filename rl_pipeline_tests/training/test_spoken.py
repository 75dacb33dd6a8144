"""Sentences that ask for a training, and those that are not clear enough."""

import pytest

from rl_pipeline.training.spoken import EXAMPLE, UnclearSentence, spoken_request
from rl_pipeline_tests.training.job_values import NOW


def asked(sentence: str) -> dict[str, object]:
    request = spoken_request(sentence, job_id="manual-1", requester="rl-trainer-subordinate", now=NOW)
    dataset = request.training_config.dataset
    return {
        "samples": dataset.sample_size,
        "days": dataset.filter.last_days,
        "algorithm": request.training_config.algorithm,
        "priority": request.priority,
        "shadow": request.metadata.shadow,
    }


def test_the_sentence_of_the_specification_asks_for_ten_thousand_samples_of_thirty_days() -> None:
    request = spoken_request(EXAMPLE, job_id="manual-1", requester="rl-trainer-subordinate", now=NOW)
    assert EXAMPLE == "Trigger training job with 10K samples from last 30 days"
    dataset = request.training_config.dataset
    assert (dataset.sample_size, dataset.filter.last_days, dataset.source) == (10_000, 30, "clickhouse")
    assert (request.training_job_id, request.requester, request.timestamp) == (
        "manual-1",
        "rl-trainer-subordinate",
        NOW,
    )
    assert (request.trigger_reason, request.priority) == ("manual", "high")
    assert (request.training_config.algorithm, request.training_config.base_model) == (None, None)


@pytest.mark.parametrize(
    ("sentence", "meaning"),
    [
        ("Start training", {"samples": 10_000, "days": 30}),
        ("please start a new RL training job with 2,500 samples", {"samples": 2_500}),
        ("Run training on 10 000 trajectories from the past week.", {"samples": 10_000, "days": 7}),
        ("Train the model on 1.5k examples of the last 2 months!", {"samples": 1_500, "days": 60}),
        ("Launch training with 2 million samples using DPO", {"samples": 2_000_000, "algorithm": "dpo"}),
        ("Trigger a shadow training job with GRPO from last day", {"shadow": True, "algorithm": "grpo", "days": 1}),
        ("Initiate training with 1 sample at urgent priority", {"samples": 1, "priority": "urgent"}),
    ],
)
def test_what_is_said_is_what_is_asked_for(sentence: str, meaning: dict[str, object]) -> None:
    assert {name: value for name, value in asked(sentence).items() if name in meaning} == meaning


@pytest.mark.parametrize(
    ("sentence", "why"),
    [
        ("", "does not ask for a training"),
        ("How is the training going?", "does not ask for a training"),
        ("10K samples from last 30 days", "does not ask for a training"),
        ("Do not start training", "'do' is not understood"),
        ("Trigger training job with 10K samples and delete the old model", "'delete' is not understood"),
        ("Trigger training with at least 10K samples", "'least' is not understood"),
        ("Trigger training with -5 samples", "'-5' is not understood"),
        ("Trigger training with some samples", "'some' is not understood"),
        ("Trigger training with 10K", "'10k' is not understood"),
        ("Trigger training from 30 days", "'30' is not understood"),
        ("Trigger training with qwen2", "'qwen2' is not understood"),
        ("Trigger training with 10K samples or 20K samples", "it gives samples twice"),
        ("Trigger training using ppo and dpo", "it gives algorithm twice"),
        ("Trigger training with 10.000 samples", "not whole"),
        ("Trigger training with 0.5 samples", "not whole"),
        ("Trigger training with 0 samples", "above 0"),
        ("Trigger training with 1.2345k samples", "not whole"),
        ("Trigger training from last 0 days", "look back is 0"),
    ],
)
def test_an_unclear_sentence_is_refused_with_what_was_not_understood(sentence: str, why: str) -> None:
    with pytest.raises(UnclearSentence, match=why) as refused:
        asked(sentence)
    assert EXAMPLE in str(refused.value)
    assert len(str(refused.value).splitlines()) == 1
