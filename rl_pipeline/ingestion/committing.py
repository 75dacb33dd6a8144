"""Storing a batch of judgements so that any death in between is mended by doing it again.

The content comes first, then the dead letters, and the ledger last: what the ledger says is done, is done. Every step
replaces what an earlier attempt left behind.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from typing import TYPE_CHECKING

from rl_pipeline.ingestion.dead_letters import publish_dead_letters
from rl_pipeline.ingestion.enrichment import Enrichment
from rl_pipeline.ingestion.judging import Erasures, Judgement, is_erased
from rl_pipeline.ingestion.ledger import (
    ERASED_REVISION,
    SAME_TRAJECTORY,
    Known,
    LedgerRow,
    mark_displaced,
    write_rows,
)
from rl_pipeline.stores.stream import Stream
from rl_pipeline.stores.warehouse import Warehouse

if TYPE_CHECKING:
    import polars as pl

Present = Mapping[str, Sequence[int]]
"""Trajectories that the table has, and the sequences that brought them."""

_SEQUENCES = 2**40
"""Sequences stay below: the version of a row holds revision and sequence in one number."""
# The ids of a query travel in its address, which has a limit.
_IDS_PER_QUERY = 500


class Committer:
    """Stores judgements of one stream under one revision. `reached` is told the name of each point passed."""

    def __init__(
        self,
        messages: Stream,
        warehouse: Warehouse,
        *,
        stream: str,
        revision: int,
        clock: Callable[[], datetime],
        reached: Callable[[str], None],
    ) -> None:
        self._messages = messages
        self._warehouse = warehouse
        self._stream = stream
        self._revision = revision
        self._clock = clock
        self._reached = reached

    def commit(self, judgements: Sequence[Judgement], known: Mapping[int, Known]) -> list[Judgement]:
        """Store the judgements, and return them as they were stored: with duplicates and late erasures told.

        `known` is what the ledger said of their sequences before.
        """
        present = self._present([judgement.trajectory_id for judgement in judgements if judgement.trajectory])
        judgements = _without_duplicates(judgements, present)
        accepted = [judgement for judgement in judgements if judgement.trajectory]
        displaced = _displaced(accepted, present)
        if displaced:
            # Before the content: afterwards nobody could tell any more who was displaced.
            mark_displaced(self._warehouse, self._stream, [sequence for _, sequence in displaced])
        self._insert(accepted, present)
        self._reached("after_content")
        judgements = self._without_erased(judgements)
        replaced = [
            (known[judgement.sequence].trajectory_id, judgement.sequence)
            for judgement in judgements
            if not judgement.trajectory
            and judgement.sequence in known
            and known[judgement.sequence].verdict == "accepted"
        ]
        self._remove([*displaced, *replaced])
        publish_dead_letters(self._messages, self._stream, judgements, revision=self._revision, now=self._clock())
        self._reached("after_dead_letters")
        write_rows(self._warehouse, self._stream, [_ledger_row(judgement, self._revision) for judgement in judgements])
        self._reached("after_ledger")
        return judgements

    def _present(self, trajectory_ids: Sequence[str]) -> Present:
        # Without FINAL, which would cost more, and hide the rows that are to give way.
        found = self._of_ids(
            "SELECT trajectory_id, groupUniqArray(sequence) AS sequences FROM trajectories", trajectory_ids
        )
        return dict(found.iter_rows())

    def _insert(self, accepted: Sequence[Judgement], present: Present) -> None:
        if not accepted:
            return
        rows = _frame(accepted, self._stream, self._revision)
        again = [judgement.trajectory_id for judgement in accepted if judgement.trajectory_id in present]
        if again:
            kept = self._of_ids(
                "SELECT trajectory_id, any(held) AS held, any(expires_at) AS expires_at FROM trajectories FINAL", again
            )
            self._warehouse.insert("trajectories", rows.join(kept, on="trajectory_id"))
            rows = rows.join(kept, on="trajectory_id", how="anti")
        self._warehouse.insert("trajectories", rows)

    def _of_ids(self, select: str, ids: Sequence[str]) -> "pl.DataFrame":
        import polars as pl

        return pl.concat(
            self._warehouse.query(
                f"{select} WHERE trajectory_id IN {{ids:Array(String)}} GROUP BY trajectory_id",
                {"ids": ids[start : start + _IDS_PER_QUERY]},
            )
            for start in range(0, max(1, len(ids)), _IDS_PER_QUERY)
        )

    def _without_erased(self, judgements: Sequence[Judgement]) -> list[Judgement]:
        """Take back what belongs to users who were erased since it was judged.

        An erasure writes its tombstone before it deletes: either it is seen here, or it comes to delete what is there.
        """
        erasures = read_erasures(self._warehouse)
        late = {
            judgement.sequence: judgement
            for judgement in judgements
            if is_erased(judgement.users, judgement.stream_time, erasures)
        }
        self._remove([(judgement.trajectory_id, sequence) for sequence, judgement in late.items()])
        return [_of_nobody(judgement) if judgement.sequence in late else judgement for judgement in judgements]

    def _remove(self, rows: Sequence[tuple[str, int]]) -> None:
        """Delete rows by trajectory and sequence."""
        for start in range(0, len(rows), _IDS_PER_QUERY):
            some = rows[start : start + _IDS_PER_QUERY]
            self._warehouse.execute(
                """
                ALTER TABLE trajectories DELETE
                WHERE trajectory_id IN {ids:Array(String)} AND sequence IN {sequences:Array(UInt64)}
                """,
                {"ids": [identity for identity, _ in some], "sequences": [sequence for _, sequence in some]},
                {"mutations_sync": 2},
            )


def read_erasures(warehouse: Warehouse) -> Erasures:
    """Everybody who was erased, by placeholder, and up to when."""
    found = warehouse.query("SELECT user, max(covers_until) AS covers_until FROM erasures GROUP BY user")
    return dict(found.iter_rows())


def _without_duplicates(judgements: Sequence[Judgement], present: Present) -> list[Judgement]:
    """The lowest sequence of a trajectory keeps it; the others become duplicates."""
    lowest = {identity: min(sequences) for identity, sequences in present.items()}
    for judgement in judgements:
        if judgement.trajectory:
            known = lowest.get(judgement.trajectory_id, judgement.sequence)
            lowest[judgement.trajectory_id] = min(known, judgement.sequence)
    return [
        replace(judgement, verdict="duplicate", reason=SAME_TRAJECTORY, trajectory=None)
        if judgement.trajectory and judgement.sequence > lowest[judgement.trajectory_id]
        else judgement
        for judgement in judgements
    ]


def _displaced(accepted: Sequence[Judgement], present: Present) -> list[tuple[str, int]]:
    """The rows of higher sequences that give way, by trajectory and sequence."""
    return [
        (judgement.trajectory_id, sequence)
        for judgement in accepted
        if judgement.trajectory_id in present
        for sequence in present[judgement.trajectory_id]
        if sequence > judgement.sequence
    ]


def _of_nobody(judgement: Judgement) -> Judgement:
    return replace(
        judgement,
        verdict="erased",
        reason="user_erased",
        message_id="",
        trajectory_id="",
        publisher="",
        users=(),
        trajectory=None,
        refusal=None,
    )


def _ledger_row(judgement: Judgement, revision: int) -> LedgerRow:
    return LedgerRow(
        sequence=judgement.sequence,
        stream_time=judgement.stream_time,
        message_id=judgement.message_id,
        trajectory_id=judgement.trajectory_id,
        publisher=judgement.publisher,
        size=judgement.size,
        sha256=judgement.sha256,
        verdict=judgement.verdict,
        reason=judgement.reason,
        revision=ERASED_REVISION if judgement.verdict == "erased" else revision,
    )


def _frame(judgements: Sequence[Judgement], stream: str, revision: int) -> "pl.DataFrame":
    import polars as pl

    stored = [judgement.trajectory for judgement in judgements if judgement.trajectory]
    special: dict[str, pl.DataType | type[pl.DataType]] = {
        "tools": pl.List(pl.String),
        "total_tokens": pl.UInt64,
        "total_cost_usd": pl.Float64,
    }
    columns = [
        pl.Series("trajectory_id", [judgement.trajectory_id for judgement in judgements]),
        pl.Series("sequence", [judgement.sequence for judgement in judgements], pl.UInt64),
        pl.Series("stream_time", [judgement.stream_time for judgement in judgements], pl.Datetime("ms", "UTC")),
        pl.Series("version", [_version(revision, judgement.sequence) for judgement in judgements], pl.UInt64),
        pl.Series("publisher", [judgement.publisher for judgement in judgements]),
        pl.Series("user", [trajectory.user for trajectory in stored]),
        pl.Series("document", [trajectory.document for trajectory in stored]),
        pl.Series("redaction_rules", [trajectory.rules for trajectory in stored], pl.List(pl.String)),
        pl.Series("redaction_counts", [trajectory.counts for trajectory in stored], pl.List(pl.UInt32)),
        *(
            pl.Series(column.name, [getattr(row.enrichment, column.name) for row in stored], special.get(column.name))
            for column in fields(Enrichment)
        ),
    ]
    return pl.DataFrame(columns).with_columns(stream=pl.lit(stream), revision=pl.lit(revision, pl.UInt32))


def _version(revision: int, sequence: int) -> int:
    return revision * _SEQUENCES + (_SEQUENCES - 1 - sequence)
