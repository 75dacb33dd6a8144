"""Storing a batch of judgements so that any death in between is mended by doing it again.

The content comes first, then the dead letters, and the ledger last: what the ledger says is done, is done. Every step
replaces what an earlier attempt left behind.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
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
    StreamRecreated,
    duplicates_of,
    mark_displaced,
    write_rows,
)
from rl_pipeline.ingestion.tombstones import read_erasures
from rl_pipeline.stores.stream import Stream
from rl_pipeline.stores.warehouse import Warehouse

if TYPE_CHECKING:
    import polars as pl

Row = tuple[str, int]
"""A row of the table of trajectories: the trajectory, and the sequence that brought it."""

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

    def orphans(self, judgements: Sequence[Judgement], known: Mapping[int, Known]) -> Mapping[int, Known]:
        """The duplicates of what was stored and is not accepted any more: they are to be committed with it.

        Otherwise nobody would keep their trajectory. `known` is what the ledger says of the judged sequences.
        """
        lost = [judgement for judgement in judgements if not judgement.trajectory]
        ids = {identity for identity, _ in self._present_at(lost)} | {
            known[judgement.sequence].trajectory_id
            for judgement in lost
            if judgement.sequence in known and known[judgement.sequence].verdict == "accepted"
        }
        found = duplicates_of(self._warehouse, self._stream, sorted(ids)) if ids else {}
        judged = {judgement.sequence for judgement in judgements}
        return {sequence: row for sequence, row in found.items() if sequence not in judged}

    def commit(self, judgements: Sequence[Judgement], known: Mapping[int, Known]) -> list[Judgement]:
        """Store the judgements, and return them as they were stored: with duplicates and late erasures told.

        `known` is what the ledger said of their sequences before. Raises `StreamRecreated`, before anything is stored,
        when that was of other messages.

        An erasure writes its tombstone before it deletes. One that is seen once the content is stored takes it back; a
        later one comes to delete it. One that ends between that look and the letters has swept the letters too early:
        the ledger says `erased` of their sequences, the letters, redacted as they are, stay until the next erasure of
        anybody sweeps them, or they age out.
        """
        _refuse_other_messages(self._stream, judgements, known)
        judgements, displaced = self._store(judgements)
        self._remove([*displaced, *self._present_at([judged for judged in judgements if not judged.trajectory])])
        publish_dead_letters(self._messages, self._stream, judgements, revision=self._revision, now=self._clock())
        self._reached("after_dead_letters")
        judgements = _without_erased(judgements, read_erasures(self._warehouse))
        write_rows(self._warehouse, self._stream, [_ledger_row(judgement, self._revision) for judgement in judgements])
        self._reached("after_ledger")
        return judgements

    def _store(self, given: Sequence[Judgement]) -> tuple[list[Judgement], list[Row]]:
        """Insert the content; returns what is a duplicate or erased after all as such, and the rows that give way."""
        own: set[Row] = set()
        while True:
            present = self._present(given)
            rejected = {judgement.sequence for judgement in given if not judgement.trajectory}
            # What this batch takes away keeps nothing from others.
            staying = {(identity, sequence) for identity, sequence in present if sequence not in rejected}
            judgements = _without_duplicates(given, staying)
            accepted = [judgement for judgement in judgements if judgement.trajectory]
            displaced = _displaced(accepted, staying)
            if displaced:
                # Before the content: afterwards nobody could tell any more who was displaced.
                mark_displaced(self._warehouse, self._stream, [sequence for _, sequence in displaced])
            fresh = [judgement for judgement in accepted if (judgement.trajectory_id, judgement.sequence) not in own]
            self._insert(fresh, {identity for identity, _ in present})
            self._reached("after_content")
            own |= {(judgement.trajectory_id, judgement.sequence) for judgement in fresh}
            still_given = _without_erased(given, read_erasures(self._warehouse))
            found = self._present(given)
            duplicates = {judgement.trajectory_id for judgement in judgements if judgement.verdict == "duplicate"}
            is_settled = found <= present | own and duplicates <= {identity for identity, _ in found | own}
            if still_given == given and is_settled:
                return judgements, displaced
            # Somebody was erased, or another ingest stored the same trajectories meanwhile, or an erasure took what a
            # duplicate repeats. What is erased goes at once: its version would win over the duplicate in its place.
            late = [now for before, now in zip(given, still_given, strict=True) if now != before]
            self._remove(self._present_at(late))
            given = still_given

    def _present(self, judgements: Sequence[Judgement]) -> set[Row]:
        """The rows of the trajectories that are accepted."""
        # Without FINAL, which would cost more, and hide the rows that are to give way.
        ids = [judgement.trajectory_id for judgement in judgements if judgement.trajectory]
        found = self._of_ids("SELECT trajectory_id, groupUniqArray(sequence) AS sequences FROM trajectories", ids)
        return {(identity, sequence) for identity, sequences in found.iter_rows() for sequence in sequences}

    def _present_at(self, judgements: Sequence[Judgement]) -> list[Row]:
        """The rows that the sequences have brought, also those of an ingest that died before the ledger knew."""
        if not judgements:
            return []
        days = [judgement.stream_time.date() for judgement in judgements]
        found = self._warehouse.query(
            """
            SELECT DISTINCT trajectory_id, sequence FROM trajectories
            WHERE stream = {stream:String} AND sequence IN {sequences:Array(UInt64)}
                AND toDate(stream_time) BETWEEN {first:Date} AND {last:Date}
            """,
            {
                "stream": self._stream,
                "sequences": [judgement.sequence for judgement in judgements],
                "first": min(days),
                "last": max(days),
            },
        )
        return list(found.iter_rows())

    def _insert(self, accepted: Sequence[Judgement], present: Collection[str]) -> None:
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

    def _remove(self, rows: Sequence[Row]) -> None:
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


def _refuse_other_messages(stream: str, judgements: Sequence[Judgement], known: Mapping[int, Known]) -> None:
    for judgement in judgements:
        before = known.get(judgement.sequence)
        if before and before.sha256 not in ("", judgement.sha256):
            raise StreamRecreated(stream, f"{judgement.sequence} is not the message that was ingested")


def _without_erased(judgements: Sequence[Judgement], erasures: Erasures) -> list[Judgement]:
    """Those of users who were erased since they were judged say so, and nothing else."""
    return [
        _of_nobody(judgement) if is_erased(judgement.users, judgement.stream_time, erasures) else judgement
        for judgement in judgements
    ]


def _without_duplicates(judgements: Sequence[Judgement], present: Collection[Row]) -> list[Judgement]:
    """The lowest sequence of a trajectory keeps it; the others become duplicates."""
    accepted = [(judgement.trajectory_id, judgement.sequence) for judgement in judgements if judgement.trajectory]
    lowest: dict[str, int] = {}
    for identity, sequence in (*present, *accepted):
        lowest[identity] = min(lowest.get(identity, sequence), sequence)
    return [
        replace(judgement, verdict="duplicate", reason=SAME_TRAJECTORY, trajectory=None)
        if judgement.trajectory and judgement.sequence > lowest[judgement.trajectory_id]
        else judgement
        for judgement in judgements
    ]


def _displaced(accepted: Sequence[Judgement], present: Collection[Row]) -> list[Row]:
    """The rows of higher sequences that give way."""
    lowest = {judgement.trajectory_id: judgement.sequence for judgement in accepted}
    return [(identity, sequence) for identity, sequence in present if sequence > lowest.get(identity, sequence)]


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
