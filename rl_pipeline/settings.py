"""The environment, read once into one frozen `Settings`. No other module reads the environment.

A field is set by the variable of the same name in capitals: `nats_url` by `NATS_URL`. The defaults are those of a
deployed system; `rl-pipeline up`, the demo and the tests lay the embedded profile over them.
"""

import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, SecretStr, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict

from rl_pipeline.contracts.training_request import Algorithm
from rl_pipeline.errors import PipelineError
from rl_pipeline.setting_types import (
    SHARES_EXAMPLE,
    BasePeriod,
    Cron,
    DomainShares,
    HttpUrl,
    NatsUrl,
    Port,
    S3Places,
    StepSamples,
    StorageLocation,
    Weight,
    parsed_shares,
)


class SettingsError(PipelineError):
    """The environment is wrong or contradicts itself; the text names the variables and what they may be."""


class Settings(BaseSettings):
    """Every setting of the pipeline, typed, with the default of a deployed system."""

    model_config = SettingsConfigDict(
        frozen=True, env_ignore_empty=True, extra="ignore", hide_input_in_errors=True, allow_inf_nan=False
    )

    # Stream
    nats_url: NatsUrl = Field(
        "nats://nats:4222", description="The NATS server with JetStream, or a cluster's, separated by commas."
    )
    nats_user: str | None = Field(None, description="The service account, where the server asks for one.")
    nats_password: SecretStr | None = Field(None, description="The service account's password.")
    nats_credentials_file: Path | None = Field(None, description="A .creds file, instead of user and password.")
    nats_replicas: int = Field(1, ge=1, le=5, description="Copies of each stream; 3 on a cluster.")
    agentzero_jetstream: bool = Field(True, description="Agent Zero publishes through JetStream.")

    # Warehouse
    clickhouse_url: HttpUrl = Field("http://clickhouse:8123", description="ClickHouse's HTTP interface.")
    clickhouse_database: str = Field("rl_pipeline", pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="Its database.")
    clickhouse_user: str = Field("default", description="Its user.")
    clickhouse_password: SecretStr = Field(SecretStr(""), description="Its password.")
    clickhouse_cluster: str | None = Field(
        None, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", description="The cluster's name; migrations then run ON CLUSTER."
    )

    # Objects
    model_storage_path: StorageLocation = Field(
        "s3://pmoves-models/rl-checkpoints/", description="Where checkpoints go: s3:// or a directory."
    )
    trajectory_storage_path: StorageLocation = Field(
        "s3://pmoves-data/trajectories/", description="Where large payloads and the archive go: s3:// or a directory."
    )
    s3_endpoint_url: HttpUrl | None = Field(None, description="An S3 server other than Amazon's.")

    # Redaction
    redaction_key: SecretStr | None = Field(
        None, description="<version>:<at least 32 characters>, from which placeholders are made; ingest needs it."
    )
    redaction_previous_keys: SecretStr | None = Field(
        None, description="Keys of earlier versions, separated by commas: erasure finds what was stored under them."
    )
    redaction_policy_file: Path | None = Field(
        None, description="A TOML file: names, identifiers, allowed, rules_on, rules_off."
    )
    edge_redaction_key: SecretStr | None = Field(
        None, description="The agents' own key: set, messages are redacted before they are published."
    )

    # Ingest
    ingest_pending: int = Field(500, ge=1, description="So many waiting trajectories start an ingest.")
    ingest_wait_seconds: float = Field(60, ge=0, description="So long a trajectory waits at most before one starts.")
    ingest_stale_seconds: float = Field(
        900, gt=0, description="A trajectory that has waited longer makes the freshness check fail."
    )
    ingest_workers: int | None = Field(None, ge=1, le=256, description="Processes that redact; else one per core.")

    # Services
    agentgym_rl_url: HttpUrl = Field("http://agentgym-rl:8100", description="The HTTP service of this pipeline.")
    agentgym_rl_api_key: SecretStr | None = Field(
        None, description="A key with which the HTTP service lets its holder do everything."
    )
    service_keys_file: Path | None = Field(
        None, description="A TOML file of further keys, as `rl-pipeline service-key` writes them; read when it changes."
    )
    service_requests_per_second: float = Field(
        1000, gt=0, description="Requests that each key may make, at each replica, unless the file says otherwise."
    )
    dagster_url: HttpUrl = Field("http://dagster-webserver:3000", description="Dagster's webserver, for its GraphQL.")
    tensorzero_base_url: HttpUrl = Field(
        "http://tensorzero-gateway:3000", description="The model gateway, or its replicas, separated by commas."
    )
    tensorzero_admin_token: SecretStr | None = Field(None, description="The token of the gateway's admin API.")

    # Training
    rl_algorithm: Algorithm = Field("ppo", description="The algorithm of a request that names none.")
    rl_base_model: str = Field(
        "qwen2.5-32b-instruct",
        min_length=1,
        description="The first model in service, from which the first training starts that names no model.",
    )
    rl_train_from: Literal["serving", "base"] = Field(
        "serving",
        description="Where a training starts whose request names no model: serving, from the model in service, so that "
        "each training goes on from the last that proved itself; base, from the base model, every time anew.",
    )
    rl_training_threshold: int = Field(5000, ge=1, description="New trajectories that start a training.")
    rl_schedule_cron: Cron = Field("0 2 * * *", description="When the scheduled training starts, in UTC.")
    rl_training_min_new: int = Field(500, ge=1, description="With fewer new trajectories the schedule trains nothing.")
    rl_degradation_drop: float = Field(0.10, gt=0, le=1, description="Drop of the raw reward that starts a training.")
    rl_training_sample_size: int = Field(
        10_000, ge=1, description="Trajectories of a training that the pipeline itself asks for."
    )
    rl_training_last_days: int = Field(30, ge=1, le=36_500, description="Days that such a training looks back.")
    rl_training_min_reward: float = Field(0.5, description="Smallest reward that such a training imitates.")
    rl_training_domain_shares: DomainShares | None = Field(
        None, description=f"Share of each domain in it, as {SHARES_EXAMPLE}; else each has the same."
    )
    rl_training_literal_filter: bool = Field(
        False,
        description="Such a training learns from nothing below the smallest reward, whatever the algorithm, though "
        "pairs then lack their worse side and groups their variance; else imitation alone obeys it.",
    )
    rl_training_seed: int = Field(
        0, ge=0, lt=2**32, description="Of every training here: with another one the same request has other luck."
    )
    training_work_directory: Path | None = Field(
        None, description="Where training runs keep state to resume from; else under the home. Must outlive a machine."
    )
    training_import_directory: Path | None = Field(
        None, description="Below which a request may name files of trajectories; else under the home."
    )
    training_import_prefixes: S3Places | None = Field(
        None, description="s3:// places, separated by commas, below which it may; else imports/ in the trajectories'."
    )
    training_processes: int | None = Field(
        None, ge=1, description="Processes of a training; else one per GPU, or one per core up to 2."
    )
    training_hostfile: Path | None = Field(None, description="The nodes of a training, as DeepSpeed reads them.")
    training_memory_limit_gb: float | None = Field(None, gt=0, description="Most memory of one training process.")
    training_stall_seconds: float = Field(600, gt=0, description="The least time without a step that counts as a hang.")
    training_gpu_hour_usd: float = Field(2.0, ge=0, description="Price of an hour of a GPU, for the cost estimate.")
    training_cpu_hour_usd: float = Field(0.05, ge=0, description="Price of an hour of a core, where there is no GPU.")
    worlds_file: Path | None = Field(
        None, description="A TOML file of worlds in which tasks can be played; docs/training.md shows one."
    )
    model_directory: Path | None = Field(None, description="Where base models are found by name, or kept once fetched.")
    mlflow_tracking_uri: str = Field("http://mlflow:5000", min_length=1, description="Where trainings are tracked.")
    checkpoint_signing_key: SecretStr | None = Field(
        None, description="<key id>:<Ed25519 private key, base64>; checkpoints are signed with it."
    )
    checkpoint_public_keys: str | None = Field(
        None, description="<key id>:<Ed25519 public key, base64>, separated by commas; whose checkpoints are trusted."
    )

    # Rewards
    reward_weight_task_completion: Weight = Field(0.40, description="Share of task completion in the total reward.")
    reward_weight_efficiency: Weight = Field(0.20, description="Share of efficiency.")
    reward_weight_code_quality: Weight = Field(0.15, description="Share of code quality.")
    reward_weight_user_feedback: Weight = Field(0.25, description="Share of user feedback.")
    reward_configuration_file: Path | None = Field(
        None, description="A TOML file: method, window, weights of any terms, options."
    )

    # Memory
    memory_store: SecretStr | None = Field(
        None,
        description="Where memories are looked up: postgresql://user:password@host/database, with pgvector, or a file "
        "of SQLite; else one under the home.",
    )
    memory_budget: int = Field(10_000, ge=1, description="Memories that each agent keeps; the least worth goes first.")
    memory_half_life_days: float = Field(30, gt=0, description="So soon a memory that nobody looks up is half as new.")
    memory_retention_days: int = Field(180, ge=1, description="So long memories are kept.")
    memory_window_days: int = Field(30, ge=1, description="Days of episodes that facts and procedures are made of.")
    memory_dense_weight: float = Field(
        0, ge=0, le=1, description="Share of embeddings in what is relevant; 0 leaves it to words alone."
    )
    memory_model_url: HttpUrl | None = Field(
        None, description="An OpenAI-compatible server that puts facts into words; else they stay as they are made."
    )
    memory_model: str = Field("qwen2.5-32b-instruct", min_length=1, description="Its model.")
    memory_model_key: SecretStr | None = Field(None, description="Its key, where it asks for one.")

    # Deployment
    canary_initial_traffic: float = Field(0.10, gt=0, le=1, description="The canary's first share of traffic.")
    canary_cautious_traffic: float = Field(
        0.05, gt=0, le=1, description="The same of a canary that is hardly better than the model in service."
    )
    canary_ramp_hours: float = Field(4, gt=0, description="The least time from the first share to all of it.")
    rollback_error_threshold: float = Field(0.05, gt=0, lt=1, description="Error rate that the plain rule forbids.")
    rollback_reward_threshold: float = Field(
        -0.05, ge=-1, lt=0, description="Change of the mean reward that the plain rule forbids."
    )
    canary_step_samples: StepSamples = Field(
        "50,100,150", description="Sessions of the canary that its first, second and third share take at least."
    )
    canary_bake_hours: float = Field(
        24, ge=0, description="How long the old model is kept warm once the new one has all of the traffic."
    )
    canary_reward_maturity_minutes: float = Field(
        30, gt=0, description="A reward counts if it was scored so soon after its session began; it is read after that."
    )
    canary_settling_seconds: float = Field(
        10,
        ge=1,
        le=10,
        description="So long an outcome may be on its way from a gateway, and so far clocks may differ; more is lost: "
        "successes, because failures are told at once.",
    )
    rollout_rule: Literal["evidence", "literal"] = Field(
        "evidence",
        description="evidence: an anytime-valid test against the concurrent control. literal: the plain thresholds, "
        "which take back most healthy models.",
    )
    rollout_strategy: Literal["by_improvement", "canary"] = Field(
        "by_improvement",
        description="by_improvement: a model that is much better comes blue-green, others as canaries. canary: always.",
    )
    rollout_approval: bool = Field(False, description="A person approves each model before it gets any traffic.")
    serving_endpoint: HttpUrl | None = Field(
        None,
        description="An OpenAI-compatible server that knows every model by its training job; else the gateway serves "
        "checkpoints by processes of its own.",
    )
    gateway_session_key: SecretStr | None = Field(
        None,
        description="<version>:<at least 32 characters>, from which digests of sessions are made: the same at all "
        "gateways and in the pipeline. Earlier ones may follow, separated by commas.",
    )
    gateway_session_idle_seconds: float = Field(
        60,
        gt=0,
        description="A session that is silent so long has ended; the same at all gateways and in the pipeline.",
    )
    traffic_controller: Literal["gateways", "tensorzero", "direct"] = Field(
        "gateways",
        description="What splits the traffic: gateways, ours; tensorzero, by a configuration that is written for it; "
        "direct, one backend that serves one model at a time.",
    )
    traffic_command: str | None = Field(
        None,
        min_length=1,
        description="A program that brings a change into service: called with TensorZero's new configuration, or with "
        "the name of the model that the backend shall serve.",
    )

    # Validation
    validation_suites: Path | None = Field(
        None, description="A directory of suites of your own; else those that come with the pipeline."
    )
    validation_items: int = Field(
        800, ge=20, description="The most items that one suite draws before a person is asked."
    )
    validation_inspect: Path | None = Field(
        None, description="A TOML file of inspect-ai's tasks that are suites; docs/deployment.md shows one."
    )
    validation_unprobed: Literal["ask", "accept"] = Field(
        "ask",
        description="Where a hacked reward cannot be probed for, as for any model but the embedded one: ask a person "
        "about each model, or accept it and note it in the report.",
    )

    # Reports and alerts
    report_base_period: BasePeriod | None = Field(
        None,
        description="<first day>/<last day>, with which reports compare what agents do; else the first 7 days with "
        "trajectories.",
    )
    alert_file: Path | None = Field(
        None, description="Every alert is a line of JSON at the end of this file; else alerts.jsonl under the home."
    )
    alert_webhook_url: SecretStr | None = Field(
        None, description="http(s):// address to which every alert is posted as JSON; tried until it is taken."
    )
    alert_after_failures: int = Field(3, ge=1, description="So many failures in a row of the same thing are an alert.")
    run_retention_days: int = Field(
        30,
        ge=1,
        description="Dagster's runs and their events are kept so long; those behind a deployed model for ever.",
    )

    # The embedded stack
    dagster_home: Path | None = Field(None, description="A Dagster instance of your own; else one under the home.")
    rl_pipeline_home: Path = Field(Path(".rl_pipeline"), description="The directory of the embedded stack's data.")
    rl_pipeline_nats_port: Port | None = Field(None, description="Port of the embedded NATS; else 4222 or a free one.")
    rl_pipeline_clickhouse_port: Port | None = Field(
        None, description="Port of the embedded ClickHouse; else 8123 or a free one."
    )
    rl_pipeline_ui_port: Port | None = Field(None, description="Port of the Dagster UI; else 3000 or a free one.")
    rl_pipeline_mlflow_port: Port | None = Field(None, description="Port of MLflow; else 5000 or a free one.")
    rl_pipeline_gateway_port: Port | None = Field(None, description="Port of the gateway; else 3030 or a free one.")
    rl_pipeline_service_port: Port | None = Field(
        None, description="Port of the HTTP service; else 8100 or a free one."
    )

    @model_validator(mode="after")
    def _agree(self) -> Self:
        weights = self.reward_weights
        if abs(sum(weights.values()) - 1) > 1e-9:
            names = ", ".join(f"REWARD_WEIGHT_{name.upper()}" for name in weights)
            raise ValueError(f"{names} must sum to 1, and sum to {sum(weights.values()):g}")
        if self.nats_credentials_file and (self.nats_user or self.nats_password):
            raise ValueError("NATS_CREDENTIALS_FILE and NATS_USER/NATS_PASSWORD are two ways to log in: set one")
        if bool(self.nats_user) != bool(self.nats_password):
            raise ValueError("NATS_USER and NATS_PASSWORD belong together: set both or neither")
        if not self.agentzero_jetstream:
            raise ValueError("AGENTZERO_JETSTREAM=false contradicts NATS_URL: the pipeline reads from JetStream only")
        if self.traffic_controller != "gateways" and not self.serving_endpoint:
            raise ValueError(
                f"TRAFFIC_CONTROLLER={self.traffic_controller} serves no checkpoints: set SERVING_ENDPOINT to a server "
                "that knows every model by its training job"
            )
        if self.traffic_controller == "tensorzero" and not self.traffic_command:
            raise ValueError(
                "TensorZero reads its configuration when it starts: set TRAFFIC_COMMAND to what restarts it"
            )
        webhook = self.alert_webhook_url.get_secret_value() if self.alert_webhook_url else ""
        if webhook and not re.match(r"https?://[^/]", webhook):
            raise ValueError("ALERT_WEBHOOK_URL must be an address such as https://host/path")
        ports = [name for name in type(self).model_fields if re.fullmatch(r"rl_pipeline_[a-z]+_port", name)]
        chosen = [port for name in ports if (port := getattr(self, name))]
        if len(set(chosen)) < len(chosen):
            raise ValueError(f"{', '.join(ports).upper()} must be different ports")
        return self

    @property
    def reward_weights(self) -> dict[str, float]:
        """The weight of each reward component; they sum to 1."""
        return {
            "task_completion": self.reward_weight_task_completion,
            "efficiency": self.reward_weight_efficiency,
            "code_quality": self.reward_weight_code_quality,
            "user_feedback": self.reward_weight_user_feedback,
        }

    @property
    def domain_shares(self) -> dict[str, float] | None:
        """The share of each domain in a training that the pipeline asks for, if they are not to have the same."""
        return parsed_shares(self.rl_training_domain_shares) if self.rl_training_domain_shares else None

    @property
    def import_prefixes(self) -> list[str]:
        """Below which places in S3 a request may name files; none where no S3 is used."""
        if self.training_import_prefixes:
            return [place.strip() for place in self.training_import_prefixes.split(",")]
        storage = self.trajectory_storage_path
        return [f"{storage.rstrip('/')}/imports/"] if storage.startswith("s3://") else []

    @property
    def gateway_addresses(self) -> list[str]:
        """Of the model gateway, or of its replicas."""
        return [address.strip().rstrip("/") for address in self.tensorzero_base_url.split(",")]

    @property
    def step_samples(self) -> tuple[int, ...]:
        """Sessions that each share of a canary takes at least."""
        return tuple(int(count) for count in self.canary_step_samples.split(","))

    @property
    def ingest_processes(self) -> int:
        """How many processes redact."""
        return self.ingest_workers or len(os.sched_getaffinity(0))

    def with_defaults(self, profile: Mapping[str, Any]) -> "Settings":
        """The same settings over another profile's defaults: what the environment sets explicitly stays."""
        explicit = {field: getattr(self, field) for field in self.model_fields_set}
        return _validated({**profile, **explicit})


SECRETS = frozenset(
    name
    for name, field in Settings.model_fields.items()
    if SecretStr in (field.annotation, *get_args(field.annotation))
)
"""The settings that nobody may see."""


def child_environment(settings: Settings, *, secrets: Collection[str] | None = None, **more: str) -> dict[str, str]:
    """The environment in which a child process reads these same settings; of the secret ones only `secrets`, if given.

    A secret is withheld however its variable is written: settings are read by their names in any case.
    """
    explicit = settings.model_dump(include=settings.model_fields_set, exclude_none=True)
    variables = {field.upper(): _as_variable(value) for field, value in explicit.items()}
    withheld = SECRETS - set(SECRETS if secrets is None else secrets)
    return {name: value for name, value in {**os.environ, **variables}.items() if name.lower() not in withheld} | more


def load_settings() -> Settings:
    """Read the environment; raises `SettingsError` with one line that says which variables are wrong."""
    return _validated({})


def _validated(values: Mapping[str, Any]) -> Settings:
    try:
        return Settings(**values)
    except ValidationError as invalid:
        problems = "; ".join(_problem(error) for error in invalid.errors(include_url=False, include_input=False))
        raise SettingsError(problems) from None


def _as_variable(value: object) -> str:
    return value.get_secret_value() if isinstance(value, SecretStr) else str(value)


def _problem(error: ErrorDetails) -> str:
    text = error["msg"].removeprefix("Value error, ")
    if not error["loc"]:
        return text
    return f"{str(error['loc'][0]).upper()}: {text[:1].lower()}{text[1:]}"
