"""What Prometheus is told of what is going on right now: the streams, the training that runs, and this machine."""

from collections.abc import Iterator, Sequence
from typing import cast

import psutil
from prometheus_client.metrics_core import Metric

from rl_pipeline.contracts import ContractError, TrainingStatus, parse_message
from rl_pipeline.observability.metric_families import Labelled, gauge
from rl_pipeline.stores.stream import MessageGone, Stream, StreamMissing, StreamState
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.jobs.statuses import STATUS_SUBJECT

_PROGRESS = (
    ("loss", "Loss"),
    ("reward_mean", "Mean reward"),
    ("kl_divergence", "Divergence from the reference model"),
    ("policy_entropy", "Entropy of the policy"),
    ("learning_rate", "Learning rate"),
)


def stream_families(messages: Stream, streams: Sequence[str], training_stream: str) -> Iterator[Metric]:
    """The streams, and what a training said last. Raises what a `Stream` raises, but for a stream that is missing."""
    states = {name: state for name in streams if (state := _state(messages, name)) is not None}
    for name, text in (
        ("messages", "Messages that a stream holds."),
        ("bytes", "Size of these."),
        ("last_sequence", "Of its newest message."),
    ):
        values: Labelled = {(stream,): float(getattr(state, name)) for stream, state in states.items()}
        yield gauge(f"agent_rl_stream_{name}", text, ["stream"], values)
    yield from _progress(_last_status(messages, training_stream))


def ledger_families(warehouse: Warehouse) -> Iterator[Metric]:
    """How far ingest is. Raises what a `Warehouse` raises."""
    found = warehouse.query(
        "SELECT stream, max(sequence) AS last, max(ingested_at) AS at FROM trajectory_ledger GROUP BY stream"
    )
    yield gauge(
        "agent_rl_stream_ingested_sequence",
        "The highest sequence that was ingested; what is between it and the last one waits.",
        ["stream"],
        {(stream,): float(last) for stream, last, _ in found.iter_rows()},
    )
    yield gauge(
        "agent_rl_ingest_last_timestamp_seconds",
        "When something was ingested last.",
        ["stream"],
        {(stream,): at.timestamp() for stream, _, at in found.iter_rows()},
    )


def machine_families() -> Iterator[Metric]:
    """Of the machine that this process runs on."""
    memory = psutil.virtual_memory()
    for name, text, value in (
        ("cpu_ratio", "Share of the processors that was busy since the last scrape.", psutil.cpu_percent() / 100),
        ("memory_ratio", "Share of the memory that is in use.", memory.percent / 100),
        ("memory_used_bytes", "Memory that is in use.", memory.total - memory.available),
    ):
        yield gauge(f"agent_rl_host_{name}", text, (), {(): float(value)})


def _state(messages: Stream, name: str) -> StreamState | None:
    try:
        return messages.state(name)
    except StreamMissing:
        return None


def _last_status(messages: Stream, stream: str) -> TrainingStatus | None:
    try:
        data = messages.last_on_subject(stream, STATUS_SUBJECT).data
        return cast("TrainingStatus", parse_message(STATUS_SUBJECT, data))
    except (MessageGone, StreamMissing, ContractError):
        return None


def _progress(status: TrainingStatus | None) -> Iterator[Metric]:
    """Of the training that runs; nothing where none does."""
    running = status if status is not None and status.status == "running" else None
    current = running.metrics.current if running and running.metrics else None
    for name, text in _PROGRESS:
        value = getattr(current, name, None)
        yield gauge(f"agent_rl_training_{name}", f"{text} at the latest step told.", (), _known(value))
    percent = running.progress.percent_complete if running and running.progress else None
    done = percent / 100 if percent is not None else None
    yield gauge("agent_rl_training_progress_ratio", "How far the training is that runs.", (), _known(done))


def _known(value: float | None) -> Labelled:
    return {} if value is None else {(): float(value)}
