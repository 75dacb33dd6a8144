"""What can be said of the trajectory stream without reading a message of it."""

from dataclasses import asdict, dataclass
from datetime import datetime

from rl_pipeline.ingestion.ledger import StreamRecreated
from rl_pipeline.stores.stream import Stream
from rl_pipeline.stores.warehouse import Warehouse


@dataclass(frozen=True)
class StreamObservation:
    """The stream at one moment, beside what the ledger has of it."""

    stream: str
    observed_at: datetime
    first_sequence: int
    last_sequence: int
    messages: int
    bytes: int
    ingested_up_to: int
    lag: int
    """Messages that wait to be ingested."""
    erased: int
    """Sequences missing between the stream's first and last: taken out one by one, as erasure does."""
    overrun: int
    """Sequences that retention took before they were ingested: lost."""

    @property
    def cursor(self) -> str:
        """Equal for two observations that tell the same story."""
        return f"{self.first_sequence}-{self.last_sequence}/{self.messages}@{self.ingested_up_to}"

    def row(self) -> dict[str, object]:
        """The observation as a row of the table `stream_observations`."""
        return asdict(self)


def observe(messages: Stream, stream: str, *, ingested_up_to: int, now: datetime) -> StreamObservation:
    """Compare the stream with the ledger's watermark, the sequence up to which everything has been ingested.

    `lag` counts messages, not sequences: what was erased or overrun waits for nobody. The watermark is read before this
    is called. Raises `StreamRecreated` when it is beyond the end of the stream.
    """
    state = messages.state(stream)
    if state.last_sequence < ingested_up_to:
        raise StreamRecreated(stream, f"it ends at {state.last_sequence}, and {ingested_up_to} is ingested already")
    first_waiting = max(ingested_up_to + 1, state.first_sequence)
    gaps = messages.gaps(stream, first_waiting, state.last_sequence) if state.deleted else ()
    lag = max(0, state.last_sequence - first_waiting + 1 - sum(map(len, gaps)))
    return StreamObservation(
        stream=state.name,
        observed_at=now,
        first_sequence=state.first_sequence,
        last_sequence=state.last_sequence,
        messages=state.messages,
        bytes=state.bytes,
        ingested_up_to=ingested_up_to,
        lag=lag,
        erased=state.deleted,
        overrun=max(0, state.first_sequence - 1 - ingested_up_to),
    )


def record(warehouse: Warehouse, seen: StreamObservation) -> None:
    """Keep the observation for reports; the same observation twice is kept once."""
    import polars as pl

    warehouse.insert("stream_observations", pl.DataFrame([seen.row()]))
