"""The lineage, top to bottom: so far its source, the trajectory stream, and the sensor that observes it."""

from collections.abc import Mapping
from typing import Any

import dagster as dg

from rl_pipeline.assets.trajectory_stream import trajectory_stream
from rl_pipeline.automation.trajectory_stream_moved import trajectory_stream_moved
from rl_pipeline.resources.objects import ObjectsResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.settings import Settings, load_settings


def build_definitions(overrides: Mapping[str, Any] | None = None) -> dg.Definitions:
    """The code location; `overrides` replaces resources by name, as tests do."""
    return dg.Definitions(
        assets=[trajectory_stream],
        sensors=[trajectory_stream_moved],
        resources={**resources_from(load_settings()), **(overrides or {})},
        # A step in a process of its own costs seconds of start-up and gains nothing here.
        executor=dg.in_process_executor,
    )


def resources_from(settings: Settings) -> dict[str, Any]:
    """The stores that the settings name. Secrets are passed by variable: the UI shows a resource's values."""
    return {
        "stream": StreamResource(
            url=settings.nats_url,
            user=settings.nats_user,
            password=dg.EnvVar("NATS_PASSWORD") if settings.nats_password else None,
            credentials_file=str(settings.nats_credentials_file) if settings.nats_credentials_file else None,
        ),
        "warehouse": WarehouseResource(
            url=settings.clickhouse_url,
            database=settings.clickhouse_database,
            user=settings.clickhouse_user,
            password=dg.EnvVar("CLICKHOUSE_PASSWORD") if settings.clickhouse_password.get_secret_value() else "",
        ),
        "trajectory_objects": ObjectsResource(
            url=settings.trajectory_storage_path, endpoint_url=settings.s3_endpoint_url
        ),
        "model_objects": ObjectsResource(url=settings.model_storage_path, endpoint_url=settings.s3_endpoint_url),
    }


defs = build_definitions()
