"""From settings to open stores, for whoever starts from the environment: the commands, the tools, the demo."""

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from rl_pipeline.collection.raw_objects import raw_objects as raw_trajectories
from rl_pipeline.embedded.record import find_running_stack, settings_of_running_stack
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.policy_file import read_keys, read_policy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.settings import Settings, load_settings
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.object_addresses import ObjectsAddress
from rl_pipeline.stores.objects import Objects

if TYPE_CHECKING:
    from rl_pipeline.deployment.admission import RolloutTerms
    from rl_pipeline.deployment.desk import Desk
    from rl_pipeline.deployment.limits import Limits
    from rl_pipeline.deployment.traffic import TrafficController
    from rl_pipeline.deployment.windows import Clock
    from rl_pipeline.memory.consolidating import Wording
    from rl_pipeline.memory.embedding import Embedder
    from rl_pipeline.service.memory_desk import MemoryConfiguration
    from rl_pipeline.serving.traffic.choosing import TrafficChoice
    from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
    from rl_pipeline.training.plans.base_models import BaseModels


def current_settings() -> Settings:
    """The environment's settings; where it names no servers, those of the stack that runs in the home."""
    settings = load_settings()
    record = find_running_stack(settings.rl_pipeline_home)
    return settings_of_running_stack(settings, record) if record else settings


def open_stream(settings: Settings, *, patience_seconds: float = 30.0) -> JetStream:
    """Connect to NATS; the caller closes it. Raises `StreamUnavailable` or `StreamDenied`.

    A call outlasts a restart of the server by `patience_seconds`.
    """
    return JetStream.connect(
        settings.nats_url,
        user=settings.nats_user,
        password=_secret(settings.nats_password),
        credentials_file=settings.nats_credentials_file,
        connect_seconds=min(5.0, patience_seconds),
        patience_seconds=patience_seconds,
    )


def open_warehouse(settings: Settings, *, answer_seconds: int = 300) -> "ClickHouseWarehouse":
    """Connect to ClickHouse; the caller closes it. Raises `WarehouseUnavailable`.

    A server that is silent for `answer_seconds` counts as away.
    """
    from rl_pipeline.stores.clickhouse import ClickHouseWarehouse

    return ClickHouseWarehouse.connect(
        settings.clickhouse_url,
        database=settings.clickhouse_database,
        user=settings.clickhouse_user,
        password=settings.clickhouse_password.get_secret_value(),
        answer_seconds=answer_seconds,
    )


def raw_objects(settings: Settings) -> ObjectsAddress:
    """Where the trajectories lie that are too large for a message."""
    return raw_trajectories(settings.trajectory_storage_path, settings.s3_endpoint_url)


def archive_objects(settings: Settings) -> ObjectsAddress:
    """Where archived days lie."""
    return ObjectsAddress(settings.trajectory_storage_path, settings.s3_endpoint_url).below("archive")


def dataset_objects(settings: Settings) -> ObjectsAddress:
    """Where datasets lie."""
    return ObjectsAddress(settings.trajectory_storage_path, settings.s3_endpoint_url).below("datasets")


def training_directory(settings: Settings) -> Path:
    """Where training runs keep their state."""
    return settings.training_work_directory or settings.rl_pipeline_home.absolute() / "training"


def model_objects(settings: Settings) -> ObjectsAddress:
    """Where checkpoints lie."""
    return ObjectsAddress(settings.model_storage_path, settings.s3_endpoint_url)


def base_models(settings: Settings) -> "BaseModels":
    """Where base models are found."""
    from rl_pipeline.training.checkpoints.signing import PublicKeys
    from rl_pipeline.training.plans.base_models import BaseModels

    return BaseModels(
        directory=settings.model_directory or settings.rl_pipeline_home.absolute() / "models",
        open_objects=lambda url: ObjectsAddress(url, settings.s3_endpoint_url).open(),
        public_keys=PublicKeys.parse(settings.checkpoint_public_keys or ""),
    )


def traffic_directory(settings: Settings) -> Path:
    """Where TensorZero, or whoever asks a backend directly, is told what to serve."""
    return settings.rl_pipeline_home.absolute() / "traffic"


def traffic_choice(settings: Settings) -> "TrafficChoice":
    """What splits the traffic here."""
    from rl_pipeline.serving.traffic.choosing import TrafficChoice

    return TrafficChoice(
        settings.traffic_controller,
        settings.gateway_addresses,
        _secret(settings.tensorzero_admin_token) or "",
        traffic_directory(settings),
        settings.traffic_command,
        settings.serving_endpoint,
    )


def open_traffic(settings: Settings) -> "TrafficController":
    """What splits the traffic; it is reached when it is asked."""
    return traffic_choice(settings).open()


@contextmanager
def open_desk(settings: Settings, *, patience_seconds: float = 5.0) -> Iterator["Desk"]:
    """Where the desired state is changed. NATS and ClickHouse are reached when asked: a fence needs neither."""
    from rl_pipeline.deployment.announcing import announcer
    from rl_pipeline.deployment.audit import Unannounced, WarehouseAudit
    from rl_pipeline.deployment.desk import Desk
    from rl_pipeline.stores.connecting_states import ConnectingStates
    from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
    from rl_pipeline.stores.late_warehouse import LateWarehouse

    choice = traffic_choice(settings)
    connected: list[JetStream] = []
    with ExitStack() as opened:

        def stream() -> JetStream:
            if not connected:
                connected.append(opened.enter_context(open_stream(settings, patience_seconds=patience_seconds)))
            return connected[0]

        def announce(due: Unannounced) -> None:
            announcer(stream(), choice.place())(due)

        late = LateWarehouse(lambda: open_warehouse(settings), settings.clickhouse_database)
        tables = opened.enter_context(closing(late))
        states = ConnectingStates(lambda: JetStreamDesiredStates(stream()))
        yield Desk(states, choice.open(), WarehouseAudit(tables), announce)


def rollout_terms(settings: Settings) -> "RolloutTerms":
    """How models are let in."""
    from rl_pipeline.deployment.admission import RolloutTerms

    first, second, third = settings.step_samples
    return RolloutTerms(
        initial_traffic=settings.canary_initial_traffic,
        cautious_traffic=settings.canary_cautious_traffic,
        ramp_hours=settings.canary_ramp_hours,
        step_samples=(first, second, third),
        bake_hours=settings.canary_bake_hours,
        rule=settings.rollout_rule,
        always_canary=settings.rollout_strategy == "canary",
        needs_approval=settings.rollout_approval,
        endpoint=settings.serving_endpoint,
        splits=traffic_choice(settings).splits,
    )


def rollout_clock(settings: Settings) -> "Clock":
    """How long is waited for what came of sessions."""
    from rl_pipeline.deployment.windows import Clock, observed_seconds

    observed = observed_seconds(settings.gateway_session_idle_seconds)
    return Clock(observed, settings.canary_settling_seconds, settings.canary_reward_maturity_minutes * 60)


def rollout_limits(settings: Settings) -> "Limits":
    """What the plain rule of a rollout forbids."""
    from rl_pipeline.deployment.limits import Limits

    return Limits(error_rate=settings.rollback_error_threshold, reward_drop=-settings.rollback_reward_threshold)


def open_raw_objects(settings: Settings) -> Objects:
    """The store of trajectories that are too large for a message. Raises `ObjectsUnavailable`."""
    return raw_objects(settings).open()


def memory_store(settings: Settings) -> str:
    """Where memories are looked up."""
    return _secret(settings.memory_store) or str(settings.rl_pipeline_home.absolute() / "memories.sqlite")


def memory_configuration(settings: Settings) -> "MemoryConfiguration":
    """The memories of the service. What embeds is loaded when it is first needed."""
    from rl_pipeline.memory.query import Weights
    from rl_pipeline.service.memory_desk import MemoryConfiguration
    from rl_pipeline.stores.opened_memories import open_memories

    return MemoryConfiguration(
        open_memories=lambda: open_memories(memory_store(settings)),
        weights=Weights(half_life=timedelta(days=settings.memory_half_life_days), dense=settings.memory_dense_weight),
        open_embedder=cache(lambda: open_embedder(settings)),
        wording=memory_wording(settings),
        retention=timedelta(days=settings.memory_retention_days),
        window_days=settings.memory_window_days,
    )


def open_embedder(settings: Settings) -> "Embedder | None":
    """What makes embeddings, where they have a share. Raises `EmbeddingsMissing`."""
    if not settings.memory_dense_weight:
        return None
    from rl_pipeline.memory.embedding import MiniLM

    return MiniLM()


def memory_wording(settings: Settings) -> "Wording | None":
    """What puts facts into words, where there is a model for it."""
    if settings.memory_model_url is None:
        return None
    from rl_pipeline.memory.wording import ModelWording

    return ModelWording(settings.memory_model_url, settings.memory_model, _secret(settings.memory_model_key))


def redaction_policy(settings: Settings) -> RedactionPolicy:
    """The redaction of this deployment. Raises `RedactionKeyMissing`, `InvalidPolicy` and `InvalidPolicyFile`."""
    return read_policy(_secret(settings.redaction_key), settings.redaction_policy_file)


def previous_keys(settings: Settings) -> tuple[RedactionKey, ...]:
    """The keys before the current one, under which older rows were stored."""
    return read_keys(_secret(settings.redaction_previous_keys))


def every_redaction_key(settings: Settings) -> tuple[RedactionKey, ...]:
    """Every key under which something of a user may have been stored, the current one first."""
    edge = read_keys(_secret(settings.edge_redaction_key))
    return redaction_policy(settings).key, *previous_keys(settings), *edge


def session_keys(settings: Settings) -> tuple[RedactionKey, ...]:
    """What the gateways store sessions under: the key in force first, then earlier ones. Raises `InvalidPolicy`."""
    return read_keys(_secret(settings.gateway_session_key))


def edge_redactor(settings: Settings) -> Redactor | None:
    """What redacts before publishing, under the agents' own key; None where they have none."""
    policy = edge_policy(settings)
    return Redactor(policy) if policy else None


def edge_policy(settings: Settings) -> RedactionPolicy | None:
    """The policy of what redacts before publishing; None where the agents have no key."""
    if settings.edge_redaction_key is None:
        return None
    return read_policy(_secret(settings.edge_redaction_key), settings.redaction_policy_file)


def _secret(value: SecretStr | None) -> str | None:
    return value.get_secret_value() if value else None
