"""How the ledger comes to say of a user's sequences that they are erased."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from rl_pipeline.ingestion.erased_sessions import ErasedSessions
from rl_pipeline.ingestion.ledger import ERASED_REVISION, LedgerRow, write_rows
from rl_pipeline.stores.warehouse import Warehouse

if TYPE_CHECKING:
    import polars as pl

# The ids of a query travel in its address, which has a limit.
_IDS_PER_QUERY = 500


def erased_row(sequence: int, stream_time: datetime) -> LedgerRow:
    """What the ledger says of a sequence that is erased: nothing but that."""
    return LedgerRow(
        sequence=sequence,
        stream_time=stream_time,
        message_id="",
        trajectory_id="",
        publisher="",
        size=0,
        sha256="",
        verdict="erased",
        reason="user_erased",
        revision=ERASED_REVISION,
    )


@dataclass(frozen=True)
class UserRows:
    """What the warehouse and the archive have of the user, and how the ledger comes to say that it is erased."""

    warehouse: Warehouse
    users: Sequence[str]
    until: datetime
    sessions: ErasedSessions
    first_in_stream: int

    def mark_in_ledger(self) -> None:
        """Mark every row of the user that the warehouse has; what was measured outlives the trajectories."""
        found = self.warehouse.query(
            """
            SELECT DISTINCT stream, sequence, stream_time, trajectory_id FROM (
                SELECT stream, sequence, stream_time, trajectory_id, user FROM trajectories
                UNION ALL
                SELECT stream, sequence, stream_time, trajectory_id, user FROM trajectory_signals
            )
            WHERE user IN {users:Array(String)} AND stream_time <= {until:DateTime64(3, 'UTC')}
            """,
            {"users": list(self.users), "until": self.until},
        )
        self._mark(found)

    def mark_archived(self, rows: "pl.DataFrame") -> None:
        """Mark those of the archive's rows that are the user's."""
        import polars as pl

        theirs = rows.filter(pl.col("user").is_in(list(self.users)) & (pl.col("stream_time") <= self.until))
        self.sessions.note(theirs["session_id"].unique())
        self._mark(theirs)

    def erased_sequences(self, rows: "pl.DataFrame") -> "pl.DataFrame":
        """Those of the rows' sequences that the ledger says are erased."""
        days = rows["stream_time"].dt.date()
        erased = self.warehouse.query(
            """
            SELECT stream, sequence FROM trajectory_ledger FINAL
            WHERE verdict = 'erased' AND revision = {revision:UInt32}
                AND toDate(stream_time) BETWEEN {first:Date} AND {last:Date}
            """,
            {"revision": ERASED_REVISION, "first": days.min(), "last": days.max()},
        )
        return rows.select("stream", "sequence").join(erased, on=["stream", "sequence"], how="semi")

    def _mark(self, rows: "pl.DataFrame") -> None:
        for (stream,), of_stream in rows.group_by("stream"):
            positions = of_stream.select("sequence", "stream_time").unique()
            write_rows(self.warehouse, str(stream), [erased_row(*position) for position in positions.iter_rows()])
        ids: list[str] = rows["trajectory_id"].unique().sort().to_list()
        for start in range(0, len(ids), _IDS_PER_QUERY):
            self._mark_repetitions(ids[start : start + _IDS_PER_QUERY])

    def _mark_repetitions(self, trajectory_ids: Sequence[str]) -> None:
        """What came again of the trajectories, if the stream no longer has it; what it has is judged by its content."""
        self.warehouse.execute(
            """
            INSERT INTO trajectory_ledger (stream, sequence, stream_time, verdict, reason, revision)
            SELECT stream, sequence, stream_time, 'erased', 'user_erased', {revision:UInt32}
            FROM trajectory_ledger FINAL
            WHERE sequence < {first:UInt64} AND trajectory_id IN {ids:Array(String)}
            """,
            {"revision": ERASED_REVISION, "first": self.first_in_stream, "ids": list(trajectory_ids)},
        )
