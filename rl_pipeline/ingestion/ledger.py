"""The ledger of what arrived: one row per stream sequence, whatever became of the message, and never its content.

A sequence is done for a revision (of the redaction rules and the enrichment) once it has its row of that revision.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any, Literal

from rl_pipeline.errors import PipelineError
from rl_pipeline.ingestion.enrichment import ENRICHMENT_VERSION
from rl_pipeline.ingestion.tombstones import key_name
from rl_pipeline.redaction.policy import RedactionPolicy
from rl_pipeline.stores.warehouse import Warehouse

Verdict = Literal["accepted", "duplicate", "refused", "opted_out", "erased", "lost"]

ERASED_REVISION = 2**32 - 1
"""Of rows that say `erased`: no later ingest replaces them."""
SAME_TRAJECTORY = "same_trajectory_id"
"""The reason of a duplicate: a lower sequence brought the trajectory."""

# The numbers of a query travel in its address, which has a limit.
_SEQUENCES_PER_QUERY = 500

_UNKNOWN = """
    FROM numbers({first:UInt64}, {count:UInt64}) WHERE number NOT IN (
        SELECT sequence FROM trajectory_ledger
        WHERE stream = {stream:String} AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
    )
    """


class StreamRecreated(PipelineError):
    """The stream has other messages under the sequences that the ledger knows: nothing of it can be ingested."""

    def __init__(self, stream: str, sign: str) -> None:
        super().__init__(
            f"{stream} was deleted and created again, or is an older copy: {sign}; "
            "restore the stream that was ingested before, or set CLICKHOUSE_DATABASE to a new database"
        )


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What became of one sequence."""

    sequence: int
    stream_time: datetime
    message_id: str
    trajectory_id: str
    publisher: str
    size: int
    sha256: str
    verdict: Verdict
    reason: str
    revision: int


@dataclass(frozen=True, slots=True)
class Known:
    """What the ledger already says of a sequence."""

    revision: int
    verdict: str
    trajectory_id: str
    sha256: str
    """Empty where there was no message to read, or its user was erased."""


def write_rows(warehouse: Warehouse, stream: str, rows: Sequence[LedgerRow]) -> None:
    """Write the rows, all or none; a row of an older revision is replaced, of an equal one too."""
    import polars as pl

    if rows:
        columns = {column.name: [getattr(row, column.name) for row in rows] for column in fields(LedgerRow)}
        warehouse.insert("trajectory_ledger", pl.DataFrame(columns).with_columns(stream=pl.lit(stream)))


def unknown_sequences(warehouse: Warehouse, stream: str, sequences: range) -> int:
    """How many of the sequences the ledger does not know."""
    found = warehouse.query(f"SELECT count() AS count {_UNKNOWN}", _parameters(stream, sequences))
    return int(found["count"][0])


def write_lost(warehouse: Warehouse, stream: str, missing: range, *, stream_time: datetime, revision: int) -> None:
    """Write `lost` for those of the missing sequences that the ledger does not know, however many they are."""
    warehouse.execute(
        f"""
        INSERT INTO trajectory_ledger (stream, sequence, stream_time, verdict, reason, revision)
        SELECT {{stream:String}}, number, {{time:DateTime64(3)}}, 'lost', 'overrun', {{revision:UInt32}} {_UNKNOWN}
        """,
        {
            **_parameters(stream, missing),
            "time": stream_time.astimezone(UTC).replace(tzinfo=None),
            "revision": revision,
        },
    )


def sequences_done(warehouse: Warehouse, stream: str, first: int, last: int, revision: int) -> int:
    """How many sequences of a range have a row of this revision."""
    found = warehouse.query(
        """
        SELECT count() AS count FROM trajectory_ledger FINAL
        WHERE stream = {stream:String} AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
            AND revision >= {revision:UInt32}
        """,
        {"stream": stream, "first": first, "last": last, "revision": revision},
    )
    return int(found["count"][0])


def outdated_sequences(warehouse: Warehouse, stream: str, first: int, last: int, revision: int) -> int:
    """How many sequences of a range have a row of an older revision; what was lost or erased has nothing to renew."""
    found = warehouse.query(
        """
        SELECT count() AS count FROM trajectory_ledger FINAL
        WHERE stream = {stream:String} AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
            AND revision < {revision:UInt32} AND verdict NOT IN ('lost', 'erased')
        """,
        {"stream": stream, "first": first, "last": last, "revision": revision},
    )
    return int(found["count"][0])


def mark_displaced(warehouse: Warehouse, stream: str, sequences: Iterable[int]) -> None:
    """Accepted sequences become duplicates: a lower one has brought their trajectory after all."""
    warehouse.execute(
        """
        INSERT INTO trajectory_ledger
        SELECT * REPLACE ('duplicate' AS verdict, {reason:String} AS reason, now64(3) AS ingested_at)
        FROM (
            SELECT * FROM trajectory_ledger FINAL
            WHERE stream = {stream:String} AND sequence IN {sequences:Array(UInt64)} AND verdict = 'accepted'
        )
        """,
        {"stream": stream, "sequences": list(sequences), "reason": SAME_TRAJECTORY},
    )


def known_rows(warehouse: Warehouse, stream: str, first: int, last: int) -> Mapping[int, Known]:
    """What the ledger says of the sequences of a range."""
    condition = "sequence BETWEEN {first:UInt64} AND {last:UInt64}"
    return _known(warehouse, condition, {"stream": stream, "first": first, "last": last})


def rows_of(warehouse: Warehouse, stream: str, sequences: Sequence[int]) -> Mapping[int, Known]:
    """What the ledger says of some hundred sequences."""
    condition = "sequence IN {sequences:Array(UInt64)}"
    return _known(warehouse, condition, {"stream": stream, "sequences": list(sequences)})


def duplicates_of(warehouse: Warehouse, stream: str, trajectory_ids: Sequence[str]) -> Mapping[int, Known]:
    """The sequences that repeat one of some hundred trajectories."""
    condition = "verdict = 'duplicate' AND trajectory_id IN {ids:Array(String)}"
    return _known(warehouse, condition, {"stream": stream, "ids": list(trajectory_ids)})


def forget_orphans(warehouse: Warehouse, stream: str, first: int) -> int:
    """Forget, from a sequence on, the duplicates whose trajectory no sequence keeps any more; returns how many.

    Without their rows they count as not ingested, and the next ingest judges them anew.
    """
    found = warehouse.query(
        """
        SELECT sequence FROM trajectory_ledger FINAL
        WHERE stream = {stream:String} AND sequence >= {first:UInt64} AND verdict = 'duplicate'
            AND trajectory_id NOT IN (
                SELECT trajectory_id FROM trajectory_ledger FINAL
                WHERE stream = {stream:String} AND verdict = 'accepted'
            )
        """,
        {"stream": stream, "first": first},
    )["sequence"].to_list()
    for start in range(0, len(found), _SEQUENCES_PER_QUERY):
        some = found[start : start + _SEQUENCES_PER_QUERY]
        warehouse.execute(
            # By their numbers: a mutation that looked for itself would see its own traces.
            "ALTER TABLE trajectory_ledger DELETE WHERE stream = {stream:String} AND sequence IN {some:Array(UInt64)}",
            {"stream": stream, "some": some},
            {"mutations_sync": 2},
        )
    return len(found)


def last_message(warehouse: Warehouse, stream: str) -> tuple[int, str]:
    """The highest sequence of which the ledger has seen the message, and the message's digest; 0 for none."""
    found = warehouse.query(
        """
        SELECT sequence, sha256 FROM trajectory_ledger
        WHERE stream = {stream:String} AND sha256 != '' ORDER BY stream DESC, sequence DESC LIMIT 1
        """,
        {"stream": stream},
    )
    return found.row(0) if found.height else (0, "")


def ledger_watermark(warehouse: Warehouse, stream: str) -> int:
    """The sequence up to which the ledger has every sequence from 1 on; 0 when it lacks the first."""
    found = warehouse.query(
        """
        SELECT minIf(sequence, following != sequence + 1) AS watermark
        FROM (
            SELECT sequence, leadInFrame(sequence) OVER (
                ORDER BY sequence ROWS BETWEEN CURRENT ROW AND UNBOUNDED FOLLOWING
            ) AS following
            FROM (
                SELECT sequence FROM trajectory_ledger FINAL WHERE stream = {stream:String}
                UNION ALL
                SELECT 0
            )
        )
        """,
        parameters={"stream": stream},
    )
    return int(found["watermark"][0])


def current_revision(warehouse: Warehouse, policy: RedactionPolicy) -> int:
    """The number under which ingest runs with this policy: the newest if it is the policy's, else a new one.

    The enrichment of this version is part of it. Rules that return after others get a new number too, so that a higher
    number is always the later one.
    """
    fingerprint = f"{policy.revision}+enrichment-{ENRICHMENT_VERSION}"
    newest = warehouse.query("SELECT revision, fingerprint FROM ingest_revisions FINAL ORDER BY revision DESC LIMIT 1")
    if newest.height and newest["fingerprint"][0] == fingerprint:
        return int(newest["revision"][0])
    revision = int(newest["revision"][0]) + 1 if newest.height else 1
    warehouse.execute(
        """
        INSERT INTO ingest_revisions (revision, fingerprint, key)
        VALUES ({revision:UInt32}, {fingerprint:String}, {key:String})
        """,
        {"revision": revision, "fingerprint": fingerprint, "key": key_name(policy.key)},
    )
    return revision


def _known(warehouse: Warehouse, condition: str, parameters: Mapping[str, Any]) -> Mapping[int, Known]:
    select = "SELECT sequence, revision, verdict, trajectory_id, sha256 FROM trajectory_ledger FINAL"
    found = warehouse.query(f"{select} WHERE stream = {{stream:String}} AND {condition}", parameters)
    return {sequence: Known(*row) for sequence, *row in found.iter_rows()}


def _parameters(stream: str, sequences: range) -> dict[str, Any]:
    return {"stream": stream, "first": sequences.start, "count": len(sequences), "last": sequences.stop - 1}
