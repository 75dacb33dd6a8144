"""From settings to open stores, for whoever starts from the environment: the commands, the tools, the demo."""

from typing import TYPE_CHECKING

from rl_pipeline.embedded.record import find_running_stack, settings_of_running_stack
from rl_pipeline.settings import Settings, load_settings
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.object_addresses import open_objects
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
        password=settings.nats_password.get_secret_value() if settings.nats_password else None,
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


def open_raw_objects(settings: Settings) -> Objects:
    """Where trajectories too large for a message lie, beside the archive. Raises `ObjectsUnavailable`."""
    url = f"{settings.trajectory_storage_path.rstrip('/')}/raw"
    if not url.startswith("s3://"):
        return open_objects(url)
    from rl_pipeline.stores.s3 import s3_client

    return open_objects(url, s3_client=s3_client(endpoint_url=settings.s3_endpoint_url))
