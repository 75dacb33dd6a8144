"""What `Settings` promises: the specification's defaults, secrets kept, contradictions named."""

import math
from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from rl_pipeline.embedded.profile import embedded_profile
from rl_pipeline.settings import SettingsError, child_environment, load_settings

SPECIFIED = {
    "NATS_URL": "nats://nats:4222",
    "AGENTZERO_JETSTREAM": True,
    "AGENTGYM_RL_URL": "http://agentgym-rl:8100",
    "TENSORZERO_BASE_URL": "http://tensorzero-gateway:3000",
    "MODEL_STORAGE_PATH": "s3://pmoves-models/rl-checkpoints/",
    "TRAJECTORY_STORAGE_PATH": "s3://pmoves-data/trajectories/",
    "RL_ALGORITHM": "ppo",
    "RL_BASE_MODEL": "qwen2.5-32b-instruct",
    "RL_TRAINING_THRESHOLD": 5000,
    "RL_SCHEDULE_CRON": "0 2 * * *",
    "REWARD_WEIGHT_TASK_COMPLETION": 0.40,
    "REWARD_WEIGHT_EFFICIENCY": 0.20,
    "REWARD_WEIGHT_CODE_QUALITY": 0.15,
    "REWARD_WEIGHT_USER_FEEDBACK": 0.25,
    "CANARY_INITIAL_TRAFFIC": 0.10,
    "CANARY_RAMP_HOURS": 4,
    "ROLLBACK_ERROR_THRESHOLD": 0.05,
    "ROLLBACK_REWARD_THRESHOLD": -0.05,
}
SECRETS = ("NATS_PASSWORD", "CLICKHOUSE_PASSWORD", "AGENTGYM_RL_API_KEY", "TENSORZERO_ADMIN_TOKEN")


@pytest.mark.parametrize(("variable", "default"), SPECIFIED.items())
def test_every_variable_of_the_specification_has_its_default(variable: str, default: object) -> None:
    assert getattr(load_settings(), variable.lower()) == default


def test_a_variable_of_the_environment_replaces_its_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_THRESHOLD", "12")
    monkeypatch.setenv("NATS_URL", "tls://stream.example:4222")
    settings = load_settings()
    assert (settings.rl_training_threshold, settings.nats_url) == (12, "tls://stream.example:4222")


def test_a_cluster_is_several_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_URL", "nats://one:4222,nats://two:4222")
    assert load_settings().nats_url == "nats://one:4222,nats://two:4222"


def test_a_child_process_reads_the_same_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CLICKHOUSE_PASSWORD", "hunter2")
    monkeypatch.setenv("NATS_REPLICAS", "3")
    profile = embedded_profile(
        tmp_path,
        nats_url="nats://127.0.0.1:4222",
        clickhouse_url="http://127.0.0.1:8123",
        mlflow_url="http://127.0.0.1:5000",
        gateway_url="http://127.0.0.1:3030",
        ui_url="http://127.0.0.1:3000",
        service_url="http://127.0.0.1:8100",
    )
    settings = load_settings().with_defaults(profile)
    for variable, value in child_environment(settings, DAGSTER_HOME=str(tmp_path)).items():
        monkeypatch.setenv(variable, value)
    assert load_settings() == settings.model_copy(update={"dagster_home": tmp_path})


def test_an_empty_variable_counts_as_unset(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_BASE_MODEL", "")
    assert load_settings().rl_base_model == "qwen2.5-32b-instruct"


@pytest.mark.parametrize("variable", SECRETS)
def test_secrets_are_never_shown(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "hunter2")
    monkeypatch.setenv("NATS_USER", "agent")
    monkeypatch.setenv("NATS_PASSWORD", "hunter2")
    settings = load_settings()
    assert isinstance(getattr(settings, variable.lower()), SecretStr)
    assert "hunter2" not in repr(settings) + str(settings.model_dump()) + settings.model_dump_json()


def test_settings_cannot_be_changed_after_they_are_read() -> None:
    with pytest.raises(ValidationError):
        load_settings().rl_algorithm = "dpo"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({"REWARD_WEIGHT_EFFICIENCY": "0.5"}, ["REWARD_WEIGHT_EFFICIENCY", "must sum to 1", "1.3"]),
        ({"REWARD_WEIGHT_EFFICIENCY": "-0.2"}, ["REWARD_WEIGHT_EFFICIENCY"]),
        ({"RL_TRAINING_THRESHOLD": "0"}, ["RL_TRAINING_THRESHOLD", "greater than or equal to 1"]),
        ({"RL_ALGORITHM": "alchemy"}, ["RL_ALGORITHM", "'ppo', 'dpo', 'rloo', 'grpo', 'reinforce' or 'sft'"]),
        ({"RL_SCHEDULE_CRON": "daily"}, ["RL_SCHEDULE_CRON", "five fields"]),
        ({"NATS_URL": "localhost"}, ["NATS_URL", "nats://host:port"]),
        ({"NATS_URL": "nats://one:4222,two:4222"}, ["NATS_URL", "nats://host:port"]),
        ({"NATS_URL": "nats://agent:hunter2@nats:4222"}, ["NATS_URL", "must not carry"]),
        ({"CLICKHOUSE_URL": "clickhouse:9000"}, ["CLICKHOUSE_URL", "http://host:port"]),
        ({"RL_SCHEDULE_CRON": "0 24 * * *"}, ["RL_SCHEDULE_CRON", "24", "from 0 to 23"]),
        ({"CLICKHOUSE_URL": "http://clickhouse:notaport"}, ["CLICKHOUSE_URL", "http://host:port"]),
        ({"NATS_URL": "nats://nats:99999"}, ["NATS_URL", "nats://host:port"]),
        ({"MODEL_STORAGE_PATH": "s3:models"}, ["MODEL_STORAGE_PATH", "s3://bucket/prefix"]),
        ({"MODEL_STORAGE_PATH": "ftp://models"}, ["MODEL_STORAGE_PATH", "s3://bucket/prefix"]),
        ({"CANARY_INITIAL_TRAFFIC": "10"}, ["CANARY_INITIAL_TRAFFIC", "less than or equal to 1"]),
        ({"CANARY_RAMP_HOURS": "inf"}, ["CANARY_RAMP_HOURS", "finite"]),
        ({"ROLLBACK_REWARD_THRESHOLD": "0.05"}, ["ROLLBACK_REWARD_THRESHOLD", "less than 0"]),
        ({"NATS_USER": "agent"}, ["NATS_USER", "NATS_PASSWORD"]),
        (
            {"NATS_USER": "a", "NATS_PASSWORD": "hunter2", "NATS_CREDENTIALS_FILE": "a.creds"},
            ["NATS_CREDENTIALS_FILE", "NATS_USER"],
        ),
        ({"AGENTZERO_JETSTREAM": "false"}, ["AGENTZERO_JETSTREAM", "NATS_URL"]),
        ({"TRAFFIC_CONTROLLER": "direct"}, ["TRAFFIC_CONTROLLER=direct", "set SERVING_ENDPOINT"]),
        (
            {"TRAFFIC_CONTROLLER": "tensorzero", "SERVING_ENDPOINT": "http://vllm:8000"},
            ["TensorZero", "set TRAFFIC_COMMAND"],
        ),
        ({"TRAFFIC_CONTROLLER": "magic"}, ["TRAFFIC_CONTROLLER", "'gateways', 'tensorzero' or 'direct'"]),
        ({"RL_PIPELINE_UI_PORT": "70000"}, ["RL_PIPELINE_UI_PORT", "65535"]),
        ({"RL_PIPELINE_UI_PORT": "3000", "RL_PIPELINE_NATS_PORT": "3000"}, ["RL_PIPELINE_NATS_PORT", "different"]),
    ],
)
def test_a_wrong_environment_is_refused_in_one_line_that_names_the_variables(
    environment: dict[str, str], named: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    text = str(refused.value)
    assert "\n" not in text
    assert [name for name in named if name not in text] == []
    assert "hunter2" not in text


def test_a_child_process_gets_the_secrets_that_it_needs_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    secrets = {
        *("NATS_PASSWORD", "CLICKHOUSE_PASSWORD", "REDACTION_KEY", "REDACTION_PREVIOUS_KEYS", "EDGE_REDACTION_KEY"),
        *("AGENTGYM_RL_API_KEY", "TENSORZERO_ADMIN_TOKEN", "CHECKPOINT_SIGNING_KEY"),
    }
    for name in (*secrets, "redaction_key", "NATS_USER", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, f"of {name}")
    settings = load_settings()
    assert secrets <= child_environment(settings).keys()
    given = child_environment(settings, secrets=["nats_password"], NATS_URL="nats://n")
    assert {name for name in given if name.upper() in secrets} == {"NATS_PASSWORD"}
    assert (given["NATS_USER"], given["NATS_URL"]) == ("of NATS_USER", "nats://n")
    assert given["AWS_SECRET_ACCESS_KEY"], "what is no setting of ours is for others to find"


def test_the_default_weights_sum_to_one() -> None:
    assert math.isclose(sum(load_settings().reward_weights.values()), 1)


def test_the_embedded_profile_replaces_defaults_and_yields_to_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CLICKHOUSE_URL", "http://warehouse.example:8123")
    profile = embedded_profile(
        tmp_path,
        nats_url="nats://127.0.0.1:4222",
        clickhouse_url="http://127.0.0.1:8123",
        mlflow_url="http://127.0.0.1:5000",
        gateway_url="http://127.0.0.1:3030",
        ui_url="http://127.0.0.1:3000",
        service_url="http://127.0.0.1:8100",
    )
    settings = load_settings().with_defaults(profile)
    assert settings.nats_url == "nats://127.0.0.1:4222"
    assert settings.clickhouse_url == "http://warehouse.example:8123"
    assert settings.model_storage_path == str(tmp_path / "objects" / "rl-checkpoints")
    assert settings.rl_base_model == "embedded-small"


@pytest.mark.parametrize("cron", ["0 2 * * *", "*/90 0-23 1,15 JAN-DEC MON", "59 23 31 12 7"])
def test_a_cron_line_may_have_steps_lists_ranges_and_names(cron: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_SCHEDULE_CRON", cron)
    assert load_settings().rl_schedule_cron == cron


def test_what_was_set_in_code_survives_a_profile_and_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", "/somebody/elses")
    apart = load_settings().model_copy(update={"dagster_home": None, "rl_pipeline_home": tmp_path})
    profile = embedded_profile(
        Path("elsewhere"),
        nats_url="nats://127.0.0.1:1",
        clickhouse_url="http://127.0.0.1:1",
        mlflow_url="http://127.0.0.1:1",
        gateway_url="http://127.0.0.1:1",
        ui_url="http://127.0.0.1:1",
        service_url="http://127.0.0.1:1",
    )
    settings = apart.with_defaults(profile)
    assert (settings.dagster_home, settings.rl_pipeline_home) == (None, tmp_path)


def test_what_the_pipeline_trains_on_by_itself_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_settings().domain_shares is None
    monkeypatch.setenv("RL_TRAINING_DOMAIN_SHARES", "coding=0.4, research=0.3,general=0.3")
    assert load_settings().domain_shares == {"coding": 0.4, "research": 0.3, "general": 0.3}


@pytest.mark.parametrize("shares", ["coding", "cooking=0.4", "coding=2", "coding=0", "coding=much"])
def test_shares_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch, shares: str) -> None:
    monkeypatch.setenv("RL_TRAINING_DOMAIN_SHARES", shares)
    with pytest.raises(SettingsError, match="RL_TRAINING_DOMAIN_SHARES: must be shares from 0 to 1 of coding, "):
        load_settings()


def test_imports_are_allowed_from_one_place_in_the_pipeline_s_own_storage_or_from_those_that_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert load_settings().import_prefixes == ["s3://pmoves-data/trajectories/imports/"]
    monkeypatch.setenv("TRAJECTORY_STORAGE_PATH", "/srv/trajectories")
    assert load_settings().import_prefixes == []
    monkeypatch.setenv("TRAINING_IMPORT_PREFIXES", "s3://one/files, s3://two")
    assert load_settings().import_prefixes == ["s3://one/files", "s3://two"]
    monkeypatch.setenv("TRAINING_IMPORT_PREFIXES", "/srv/files")
    with pytest.raises(SettingsError, match="TRAINING_IMPORT_PREFIXES: must be s3://bucket/prefix"):
        load_settings()
