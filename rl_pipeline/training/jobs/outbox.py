"""What people ask for while NATS is away: kept in the warehouse, and published by the sensor of requests.

Nothing is launched meanwhile: the lease that keeps two trainings apart lives in NATS, and so does what a training tells
of itself. A message is published under the id it was kept with, so whoever publishes it again, or asks once more over
NATS, starts nothing twice.
"""

from collections.abc import Sequence
from datetime import datetime

from rl_pipeline.contracts import TrainingRequest, parse_message
from rl_pipeline.stores.stream import OutgoingMessage, PublishRefused, Stream
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.jobs.rows import REQUEST_SUBJECT

_WAITING = "SELECT message_id, job_id, subject, data, kept_at FROM training_outbox FINAL WHERE published_at IS NULL"


def keep(warehouse: Warehouse, message: OutgoingMessage, job_id: str, now: datetime) -> None:
    """Keep a message until NATS is back; on return it is stored. Again is harmless: the id is kept once."""
    _write(warehouse, message, job_id, kept_at=now, published_at=None)


def kept_requests(warehouse: Warehouse, job_ids: Sequence[str]) -> dict[str, TrainingRequest]:
    """Those of the jobs' requests that wait to be published."""
    found = warehouse.query(
        f"{_WAITING} AND subject = {{subject:String}} AND job_id IN {{jobs:Array(String)}}",
        {"subject": REQUEST_SUBJECT, "jobs": list(job_ids)},
    )
    parsed = (parse_message(REQUEST_SUBJECT, data.encode()) for data in found["data"])
    return {request.training_job_id: request for request in parsed if isinstance(request, TrainingRequest)}


def publish_kept(messages: Stream, warehouse: Warehouse, now: datetime) -> list[str]:
    """Publish what waits, in the order in which it was kept, and say which jobs it was about.

    Raises what the stores raise; what was not marked as published is published again. A message that the stream will
    never take is marked too: whoever asked was told that it is checked when it arrives.
    """
    told: list[str] = []
    for row in warehouse.query(f"{_WAITING} ORDER BY kept_at, message_id").iter_rows(named=True):
        message = OutgoingMessage(row["subject"], row["data"].encode(), row["message_id"])
        try:
            messages.publish(message.subject, message.data, message.message_id)
            told.append(f"what was asked of {row['job_id']} while NATS was away is published")
        except PublishRefused as refused:
            told.append(f"what was asked of {row['job_id']} while NATS was away is refused: {refused}")
        _write(warehouse, message, row["job_id"], kept_at=row["kept_at"], published_at=now)
    return told


def _write(
    warehouse: Warehouse, message: OutgoingMessage, job_id: str, *, kept_at: datetime, published_at: datetime | None
) -> None:
    import polars as pl

    row = {
        "message_id": message.message_id,
        "job_id": job_id,
        "subject": message.subject,
        "data": message.data.decode(),
        "kept_at": kept_at,
        "published_at": published_at,
        "version": int(published_at is not None),
    }
    moments = {name: pl.Datetime("ms", "UTC") for name in ("kept_at", "published_at")}
    warehouse.insert("training_outbox", pl.DataFrame([row], schema_overrides=moments))
