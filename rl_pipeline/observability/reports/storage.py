"""What trajectories take on disk, measured: in NATS by the last observation of the stream, in ClickHouse by its parts.

A month is what 30 days at the period's pace would take. The stream's bytes are those that JetStream reports, with its
headers; ClickHouse's are those of the active parts of the node that answers, compressed, which on a cluster without
shards is one of the equal replicas.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from rl_pipeline.observability.reports.periods import Period
from rl_pipeline.stores.warehouse import Warehouse

MONTH = timedelta(days=30)
_TABLES = {
    "trajectory_ledger": "sequence",
    "trajectories": "trajectory_id",
    "trajectory_signals": "trajectory_id",
    "reward_scores": "trajectory_id",
    "rewards": "trajectory_id",
}
"""That have rows for each trajectory, and by which column these are counted."""


@dataclass(frozen=True, slots=True)
class TableSize:
    """A table that grows with the trajectories."""

    name: str
    bytes: int
    trajectories: int

    @property
    def per_trajectory(self) -> float | None:
        """Bytes on disk."""
        return self.bytes / self.trajectories if self.trajectories else None


@dataclass(frozen=True, slots=True)
class Storage:
    """What was measured, and what follows for a month."""

    stream_bytes: int | None
    """In the stream of trajectories; None before the stream was observed."""
    stream_messages: int
    observed_at: datetime | None
    tables: tuple[TableSize, ...]
    per_day: float
    """Messages that arrived a day, in the period."""

    @property
    def stream_per_trajectory(self) -> float | None:
        """Bytes in NATS."""
        return self.stream_bytes / self.stream_messages if self.stream_bytes and self.stream_messages else None

    @property
    def tables_per_trajectory(self) -> float | None:
        """Bytes in ClickHouse, over all tables; None before each of them has something."""
        sizes = [table.per_trajectory for table in self.tables]
        return None if not sizes or None in sizes else sum(size for size in sizes if size is not None)

    @property
    def messages_a_month(self) -> float:
        """At this pace."""
        return self.per_day * MONTH / timedelta(days=1)

    def gigabytes_a_month(self, per_trajectory: float | None) -> float | None:
        """At this pace; None where the size is not known."""
        return None if per_trajectory is None else per_trajectory * self.messages_a_month / 1e9


def read_storage(warehouse: Warehouse, stream: str, period: Period, arrived: int) -> Storage:
    """What is known at the end of the period; the tables are measured as they are now."""
    observed = warehouse.query(
        """
        SELECT observed_at, messages, bytes FROM stream_observations FINAL
        WHERE stream = {stream:String} AND observed_at < {end:DateTime64(3, 'UTC')} ORDER BY observed_at DESC LIMIT 1
        """,
        {"stream": stream, "end": period.parameters()["end"]},
    ).to_dicts()
    found = warehouse.query(
        """
        SELECT table, sum(bytes_on_disk) AS bytes FROM system.parts
        WHERE active AND database = {database:String} AND table IN {tables:Array(String)} GROUP BY table
        """,
        {"database": warehouse.database, "tables": list(_TABLES)},
    )
    sizes = dict(found.iter_rows())
    tables = tuple(
        TableSize(table, int(sizes.get(table, 0)), _counted(warehouse, table, column, stream))
        for table, column in _TABLES.items()
    )
    last = observed[0] if observed else None
    return Storage(
        last["bytes"] if last else None,
        last["messages"] if last else 0,
        last["observed_at"] if last else None,
        tables,
        arrived / (period.length / timedelta(days=1)),
    )


def _counted(warehouse: Warehouse, table: str, column: str, stream: str) -> int:
    found = warehouse.query(
        f"SELECT uniq({column}) AS count FROM {table} WHERE stream = {{stream:String}}",  # noqa: S608  # from above
        {"stream": stream},
    )
    return int(found["count"][0])
