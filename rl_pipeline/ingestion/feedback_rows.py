"""The table of feedback: one row per sequence of its stream, whatever became of the message, and how rows leave it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any

from rl_pipeline.ingestion.ledger import ERASED_REVISION, Verdict
from rl_pipeline.stores.warehouse import Warehouse

# The numbers of a query travel in its address, which has a limit.
_SEQUENCES_PER_QUERY = 500

_UNKNOWN = """
    FROM numbers({first:UInt64}, {count:UInt64}) WHERE number NOT IN (
        SELECT sequence FROM trajectory_feedback
        WHERE stream = {stream:String} AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
    )
    """

# What was accepted once stays so until it is erased.
_IS_NUMBERED = "verdict IN ('accepted', 'erased') AND trajectory_id != ''"


@dataclass(frozen=True, slots=True)
class FeedbackRow:
    """What became of one sequence; there is content only of what was accepted.

    What was accepted and then erased still tells which trajectory it was about and from when it counted: the revisions
    of that trajectory's rewards are numbered by it.
    """

    sequence: int
    stream_time: datetime
    verdict: Verdict
    revision: int
    reason: str = ""
    sha256: str = ""
    feedback_id: str = ""
    trajectory_id: str = ""
    given_at: datetime | None = None
    kind: str = ""
    rating: int = 0
    text: str = ""
    user: str = ""
    turn_id: int = 0
    channel: str = ""
    heard_at: datetime | None = None
    """From when it counts, where that is not when the stream stored it."""


def erased_feedback(
    sequence: int, stream_time: datetime, trajectory_id: str = "", heard_at: datetime | None = None
) -> FeedbackRow:
    """The row of a sequence of which nothing else is kept, and that no row of an older revision replaces."""
    row = FeedbackRow(sequence, stream_time, "erased", ERASED_REVISION, "user_erased")
    if not trajectory_id:
        return row
    return replace(row, feedback_id=f"erased-{sequence}", trajectory_id=trajectory_id, heard_at=heard_at)


def write_feedback(warehouse: Warehouse, stream: str, rows: Sequence[FeedbackRow]) -> None:
    """Write the rows, all or none; a row of an older revision is replaced, of an equal one too."""
    import polars as pl

    if not rows:
        return
    columns = {column.name: [getattr(row, column.name) for row in rows] for column in fields(FeedbackRow)}
    columns["heard_at"] = [row.heard_at or row.stream_time for row in rows]
    given_at = pl.Series(columns.pop("given_at"), dtype=pl.Datetime("ms", "UTC"))
    warehouse.insert(
        "trajectory_feedback", pl.DataFrame(columns).with_columns(stream=pl.lit(stream), given_at=given_at)
    )


def write_lost_feedback(
    warehouse: Warehouse, stream: str, missing: range, *, stream_time: datetime, revision: int
) -> int:
    """Write `lost` for those of the missing sequences that have no row, however many; returns how many."""
    parameters = {"stream": stream, "first": missing.start, "count": len(missing), "last": missing.stop - 1}
    count = int(warehouse.query(f"SELECT count() AS count {_UNKNOWN}", parameters)["count"][0]) if missing else 0
    if count:
        warehouse.execute(
            f"""
            INSERT INTO trajectory_feedback (stream, sequence, stream_time, verdict, reason, revision)
            SELECT {{stream:String}}, number, {{time:DateTime64(3)}}, 'lost', 'overrun', {{revision:UInt32}} {_UNKNOWN}
            """,
            {**parameters, "time": stream_time.astimezone(UTC).replace(tzinfo=None), "revision": revision},
        )
    return count


def feedback_watermark(warehouse: Warehouse, stream: str) -> int:
    """The sequence up to which the table has every sequence from 1 on; 0 when it lacks the first."""
    # An erasure writes rows of what was not drained yet, so the highest sequence says nothing.
    found = warehouse.query(
        """
        SELECT countIf(sequence = place) AS watermark FROM (
            SELECT sequence, row_number() OVER (ORDER BY sequence) AS place FROM (
                SELECT DISTINCT sequence FROM trajectory_feedback WHERE stream = {stream:String}
            )
        )
        """,
        {"stream": stream},
    )
    return int(found["watermark"][0])


def feedback_sequences(warehouse: Warehouse, stream: str, first: int, last: int) -> set[int]:
    """The sequences of a range that have a row."""
    found = warehouse.query(
        """
        SELECT DISTINCT sequence FROM trajectory_feedback
        WHERE stream = {stream:String} AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
        """,
        {"stream": stream, "first": first, "last": last},
    )
    return set(found["sequence"])


def refused_among(warehouse: Warehouse, stream: str, sequences: Sequence[int]) -> list[int]:
    """Those of some hundred sequences that are refused now, ascending."""
    found = warehouse.query(
        """
        SELECT sequence FROM trajectory_feedback FINAL
        WHERE stream = {stream:String} AND sequence IN {sequences:Array(UInt64)} AND verdict = 'refused'
        ORDER BY sequence
        """,
        {"stream": stream, "sequences": list(sequences)},
    )
    return found["sequence"].to_list()


def last_feedback(warehouse: Warehouse, stream: str) -> tuple[int, str]:
    """The highest sequence of which the table has seen the message, and the message's digest; 0 for none."""
    found = warehouse.query(
        """
        SELECT sequence, sha256 FROM trajectory_feedback
        WHERE stream = {stream:String} AND sha256 != '' ORDER BY stream DESC, sequence DESC LIMIT 1
        """,
        {"stream": stream},
    )
    return found.row(0) if found.height else (0, "")


def lowest_accepted(warehouse: Warehouse, stream: str, feedback_ids: Sequence[str]) -> dict[str, int]:
    """The sequence that brought each of some hundred feedback ids, as far as they are accepted."""
    found = warehouse.query(
        """
        SELECT feedback_id, min(sequence) AS lowest FROM trajectory_feedback FINAL
        WHERE stream = {stream:String} AND verdict = 'accepted' AND feedback_id IN {ids:Array(String)}
        GROUP BY feedback_id
        """,
        {"stream": stream, "ids": list(feedback_ids)},
    )
    return dict(found.iter_rows())


def numbered_feedback(warehouse: Warehouse, stream: str, sequences: Sequence[int]) -> dict[int, tuple[str, datetime]]:
    """Those of some hundred sequences by which revisions are numbered: the trajectory, and from when each counts."""
    found = warehouse.query(
        f"""
        SELECT sequence, max(trajectory_id) AS about, max(heard_at) AS heard FROM trajectory_feedback
        WHERE stream = {{stream:String}} AND sequence IN {{sequences:Array(UInt64)}} AND {_IS_NUMBERED}
        GROUP BY sequence
        """,  # noqa: S608 - all of it is ours
        {"stream": stream, "sequences": list(sequences)},
    )
    return {sequence: (about, heard) for sequence, about, heard in found.iter_rows()}


def erase_feedback_of_the_erased(warehouse: Warehouse) -> int:
    """Erase what is stored of users whose tombstones cover it; returns how many rows those were."""
    return erase_feedback_rows(
        warehouse,
        """
        (stream, sequence) IN (
            SELECT said.stream, said.sequence FROM trajectory_feedback AS said
            INNER JOIN erasures ON said.user = erasures.user WHERE said.stream_time <= erasures.covers_until
        )
        """,
        {},
    )


def erase_feedback_rows(
    warehouse: Warehouse, condition: str, parameters: Mapping[str, Any], *, with_trajectory: bool = False
) -> int:
    """Put rows that say `erased` in the place of those for which the condition holds, which are deleted for good.

    `with_trajectory`: the new rows do not even tell the trajectory, because that goes too. Returns how many sequences
    those were. Broken off, it is finished by the next.
    """
    outdated = f"(revision < {ERASED_REVISION}" + (" OR trajectory_id != '')" if with_trajectory else ")")
    found = warehouse.query(
        f"SELECT DISTINCT stream, sequence, stream_time FROM trajectory_feedback WHERE {outdated} AND ({condition})",  # noqa: S608 - all of it is ours
        parameters,
    )
    for (stream,), of_stream in found.group_by("stream"):
        positions = of_stream.select("sequence", "stream_time").rows()
        for start in range(0, len(positions), _SEQUENCES_PER_QUERY):
            some = dict(positions[start : start + _SEQUENCES_PER_QUERY])
            numbered = {} if with_trajectory else numbered_feedback(warehouse, str(stream), list(some))
            rows = [erased_feedback(number, time, *numbered.get(number, ())) for number, time in some.items()]
            write_feedback(warehouse, str(stream), rows)
            # By their numbers: a mutation that looked for itself would see its own traces.
            warehouse.execute(
                f"ALTER TABLE trajectory_feedback DELETE WHERE {outdated} "
                "AND stream = {stream:String} AND sequence IN {some:Array(UInt64)}",
                {"stream": stream, "some": list(some)},
                {"mutations_sync": 2},
            )
    return found.height
