"""Waits for the trajectory stream to move, and observes it."""

from datetime import UTC, datetime

import dagster as dg

from rl_pipeline.assets.trajectory_stream import trajectory_stream
from rl_pipeline.ingestion.observation import StreamObservation, ledger_watermark, observe, record
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.topology import TRAJECTORIES


@dg.sensor(minimum_interval_seconds=10, default_status=dg.DefaultSensorStatus.RUNNING)
def trajectory_stream_moved(
    context: dg.SensorEvaluationContext, stream: StreamResource, warehouse: WarehouseResource
) -> dg.SensorResult | dg.SkipReason:
    """Observe `trajectory_stream` whenever its first or last message, or what is ingested of it, has changed."""
    with stream.open() as messages, warehouse.open() as tables:
        ingested_up_to = ledger_watermark(tables, TRAJECTORIES.name)
        seen = observe(messages, TRAJECTORIES.name, ingested_up_to=ingested_up_to, now=datetime.now(UTC))
        if seen.cursor == context.cursor:
            return dg.SkipReason(f"nothing has changed since sequence {seen.last_sequence}")
        record(tables, seen)
    observation = _observation(seen)
    return dg.SensorResult(asset_events=[observation], cursor=seen.cursor, skip_reason=observation.description)


def _observation(seen: StreamObservation) -> dg.AssetObservation:
    return dg.AssetObservation(
        asset_key=trajectory_stream.key,
        description=f"{seen.messages} messages up to sequence {seen.last_sequence}, {seen.lag} to ingest",
        metadata={
            "stream": seen.stream,
            "first_sequence": seen.first_sequence,
            "last_sequence": seen.last_sequence,
            "messages": seen.messages,
            "bytes": seen.bytes,
            "lag": seen.lag,
            "erased": seen.erased,
            "overrun": seen.overrun,
        },
    )
