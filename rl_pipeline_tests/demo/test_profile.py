"""A demo makes up data: it must not reach anything that is not its own."""

from pathlib import Path

import pytest

from rl_pipeline.demo.profile import DemoFailed, DemoProfile, settings_of_demo
from rl_pipeline.environments.environment import UnknownWorld
from rl_pipeline.settings import Settings, load_settings
from rl_pipeline.training.small_model.building import WORLDS_FILE

HOME = Path("home")


@pytest.fixture(autouse=True)
def nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NATS_URL", "nats://nats:4222"),
        ("CLICKHOUSE_URL", "http://clickhouse:8123"),
        ("CLICKHOUSE_CLUSTER", "main"),
        ("S3_ENDPOINT_URL", "http://minio:9000"),
        ("AGENTGYM_RL_URL", "http://agentgym:8100"),
        ("TENSORZERO_BASE_URL", "http://gateway:3000"),
        ("MLFLOW_TRACKING_URI", "http://mlflow:5000"),
        ("SERVING_ENDPOINT", "http://vllm:8000"),
        ("TRAINING_HOSTFILE", "/etc/hosts.txt"),
        ("TRAFFIC_COMMAND", "/bin/restart"),
    ],
)
def test_what_names_a_real_server_is_refused_by_name(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(DemoFailed, match=f"unset {name}"):
        settings_of_demo(load_settings(), DemoProfile(), HOME)


def test_another_base_model_and_other_ports_are_welcome(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_BASE_MODEL", "/models/another")
    monkeypatch.setenv("RL_PIPELINE_UI_PORT", "3456")
    settings = settings_of_demo(load_settings(), DemoProfile(), HOME)
    assert (settings.rl_base_model, settings.rl_pipeline_ui_port) == ("/models/another", 3456)


def test_the_seed_of_a_demo_is_that_of_its_trainings() -> None:
    assert settings_of_demo(Settings(), DemoProfile(seed=7), HOME).rl_training_seed == 7


def test_in_another_world_a_model_of_that_world_is_trained_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = DemoProfile(world="reasoning-gym:rotate_matrix")
    settings = settings_of_demo(Settings(), profile, HOME)
    assert (settings.worlds_file, settings.rl_base_model) == (WORLDS_FILE, "embedded-small@reasoning-gym:rotate_matrix")
    assert {"worlds_file", "rl_base_model"} <= settings.model_fields_set, "the processes of the stack are told"
    monkeypatch.setenv("RL_BASE_MODEL", "/models/another")
    assert settings_of_demo(load_settings(), profile, HOME).rl_base_model == "/models/another"
    with pytest.raises(UnknownWorld, match="use one of crafting, reasoning-gym:rotate_matrix"):
        settings_of_demo(Settings(), DemoProfile(world="reasoning-gym:zebra_puzzles"), HOME)
