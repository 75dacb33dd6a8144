"""Waits for trajectories on the stream, observes it, and starts the ingest of what has arrived."""

import json
from datetime import UTC, datetime, timedelta

import dagster as dg

from rl_pipeline.assets.redacted_trajectories import (
    freshness,
    raw_and_redacted_trajectories,
    trajectories_are_ingested_in_time,
)
from rl_pipeline.assets.trajectory_stream import trajectory_stream
from rl_pipeline.automation.runs import reason_to_wait
from rl_pipeline.ingestion.ledger import ledger_watermark
from rl_pipeline.ingestion.observation import StreamObservation, observe, record
from rl_pipeline.ingestion.planning import Range, is_due, next_range, waiting
from rl_pipeline.partitions import stream_days
from rl_pipeline.resources.ingest import IngestResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.topology import TRAJECTORIES

_FIRST_SEQUENCE = "rl/first_sequence"
_STAGE = {"rl/stage": "ingestion"}

ingest_trajectories = dg.define_asset_job(
    "ingest_trajectories",
    selection=dg.AssetSelection.assets(raw_and_redacted_trajectories),
    partitions_def=stream_days,
    tags=_STAGE,
    description="Drain a range of the stream: ledger, redacted trajectories, dead letters.",
)


@dg.sensor(
    description="Observes the stream, and ingests once enough trajectories wait, or one has waited long enough.",
    job=ingest_trajectories,
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def trajectories_waiting(
    context: dg.SensorEvaluationContext, stream: StreamResource, warehouse: WarehouseResource, ingest: IngestResource
) -> dg.SensorResult:
    """Observe `trajectory_stream` when it moved, and ingest once enough waits or something has waited long enough.

    The position is the ledger's; the cursor holds only what was observed last and the number of the next attempt,
    which makes every run key new: Dagster never starts a key twice, not even after a failure.
    """
    now = datetime.now(UTC)
    observed_last, attempt = _read_cursor(context.cursor)
    with stream.open() as messages, warehouse.open() as tables:
        watermark = ledger_watermark(tables, TRAJECTORIES.name)
        seen = observe(messages, TRAJECTORIES.name, ingested_up_to=watermark, now=now)
        held_back = waiting(messages, TRAJECTORIES.name, ingested_up_to=watermark, lag=seen.lag, lost=seen.overrun)
        events: list[dg.AssetObservation | dg.AssetCheckEvaluation] = []
        in_time = freshness(held_back, ingest.stale_seconds, now)
        observed = f"{seen.cursor} {'in time' if in_time['passed'] else 'late'}"
        if observed != observed_last:
            record(tables, seen)
            check = next(iter(trajectories_are_ingested_in_time.check_keys))
            evaluation = dg.AssetCheckEvaluation(asset_key=check.asset_key, check_name=check.name, **in_time)
            events = [_observation(seen), evaluation]
        due = is_due(held_back, pending=ingest.pending, wait=timedelta(seconds=ingest.wait_seconds), now=now)
        planned = next_range(messages, TRAJECTORIES.name, ingested_up_to=watermark, now=now) if due else None
    reason: str | None = f"{seen.lag} wait, not long enough yet"
    if planned:
        reason = reason_to_wait(context.instance, stage=_STAGE, tags=_attempts_at(planned), now=now)
    requests = [] if reason or planned is None else [_run_of(planned, attempt)]
    return dg.SensorResult(
        run_requests=requests,
        asset_events=events,
        cursor=json.dumps({"observed": observed, "attempt": attempt + len(requests)}),
        skip_reason=reason if not requests else None,
    )


def _read_cursor(cursor: str | None) -> tuple[str, int]:
    """What was observed last, and the next attempt. People can edit a cursor: what makes no sense counts for nothing,
    and the time then makes the attempt a new one."""
    try:
        content = json.loads(cursor or '{"observed": "", "attempt": 0}')
        return str(content["observed"]), int(content["attempt"])
    except (ValueError, TypeError, KeyError):
        return "", int(datetime.now(UTC).timestamp())


def _run_of(planned: Range, attempt: int) -> dg.RunRequest:
    config = {"first_sequence": planned.first, "last_sequence": planned.last}
    return dg.RunRequest(
        run_key=f"{planned.first}-{planned.last}#{attempt}",
        partition_key=planned.day.isoformat(),
        run_config={"ops": {raw_and_redacted_trajectories.op.name: {"config": config}}},
        tags={**_attempts_at(planned), **_STAGE},
    )


def _attempts_at(planned: Range) -> dict[str, str]:
    return {_FIRST_SEQUENCE: str(planned.first)}


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
