"""How a deployment trains by itself: from its settings to what it asks for."""

import pytest

from rl_pipeline.definitions import resources_from
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.settings import load_settings
from rl_pipeline.training.triggers import TriggerPolicy


def training() -> TrainingResource:
    resource = resources_from(load_settings())["training"]
    assert isinstance(resource, TrainingResource)
    return resource


def triggers() -> TriggerPolicy:
    return training().triggers()


def test_by_default_the_threshold_starts_a_training_on_ten_thousand_of_the_last_month() -> None:
    assert triggers() == TriggerPolicy(
        threshold=5000, sample_size=10_000, last_days=30, min_reward=0.5, literal_filter=False
    )


def test_every_setting_of_what_is_asked_for_has_its_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {
        "RL_TRAINING_THRESHOLD": "7",
        "RL_TRAINING_MIN_NEW": "3",
        "RL_DEGRADATION_DROP": "0.2",
        "RL_TRAINING_SAMPLE_SIZE": "40",
        "RL_TRAINING_LAST_DAYS": "5",
        "RL_TRAINING_MIN_REWARD": "0.25",
        "RL_TRAINING_DOMAIN_SHARES": "coding=0.6,general=0.4",
        "RL_TRAINING_LITERAL_FILTER": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert triggers() == TriggerPolicy(
        threshold=7,
        min_new=3,
        degradation_drop=0.2,
        sample_size=40,
        last_days=5,
        min_reward=0.25,
        domain_shares={"coding": 0.6, "general": 0.4},
        literal_filter=True,
    )


def test_the_seed_of_trainings_is_set_by_the_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_SEED", "7")
    assert training().site().seed == 7
