"""From settings to open stores, for whoever starts from the environment: the commands, the tools, the demo."""

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import SecretStr

from rl_pipeline.embedded.record import find_running_stack, settings_of_running_stack
from rl_pipeline.redaction.policy import RedactionKey, RedactionPolicy
from rl_pipeline.redaction.policy_file import read_keys, read_policy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.settings import Settings, load_settings
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.object_addresses import ObjectsAddress
from rl_pipeline.stores.objects import Objects

if TYPE_CHECKING:
    from rl_pipeline.stores.clickhouse import ClickHouseWarehouse


def current_settings() -> Settings:
    """The environment's settings; where it names no servers, those of the stack that runs in the home."""
    settings = load_settings()
    record = find_running_stack(settings.rl_pipeline_home)
    return settings_of_running_stack(settings, record) if record else settings


def open_stream(settings: Settings) -> JetStream:
    """Connect to NATS; the caller closes it. Raises `StreamUnavailable` or `StreamDenied`."""
    return JetStream.connect(
        settings.nats_url,
        user=settings.nats_user,
        password=_secret(settings.nats_password),
        credentials_file=settings.nats_credentials_file,
    )


def open_warehouse(settings: Settings) -> "ClickHouseWarehouse":
    """Connect to ClickHouse; the caller closes it. Raises `WarehouseUnavailable`."""
    from rl_pipeline.stores.clickhouse import ClickHouseWarehouse

    return ClickHouseWarehouse.connect(
        settings.clickhouse_url,
        database=settings.clickhouse_database,
        user=settings.clickhouse_user,
        password=settings.clickhouse_password.get_secret_value(),
    )


def raw_objects(settings: Settings) -> ObjectsAddress:
    """Where the trajectories lie that are too large for a message."""
    return ObjectsAddress(settings.trajectory_storage_path, settings.s3_endpoint_url).below("raw")


def archive_objects(settings: Settings) -> ObjectsAddress:
    """Where archived days lie."""
    return ObjectsAddress(settings.trajectory_storage_path, settings.s3_endpoint_url).below("archive")


def dataset_objects(settings: Settings) -> ObjectsAddress:
    """Where datasets lie."""
    return ObjectsAddress(settings.trajectory_storage_path, settings.s3_endpoint_url).below("datasets")


def training_directory(settings: Settings) -> Path:
    """Where training runs keep their state."""
    return settings.training_work_directory or settings.rl_pipeline_home.absolute() / "training"


def open_raw_objects(settings: Settings) -> Objects:
    """The store of trajectories that are too large for a message. Raises `ObjectsUnavailable`."""
    return raw_objects(settings).open()


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


def edge_redactor(settings: Settings) -> Redactor | None:
    """What redacts before publishing, under the agents' own key; None where they have none."""
    if settings.edge_redaction_key is None:
        return None
    return Redactor(read_policy(_secret(settings.edge_redaction_key), settings.redaction_policy_file))


def _secret(value: SecretStr | None) -> str | None:
    return value.get_secret_value() if value else None
