"""What is asked of stored trajectories after an ingest: are they all there, valid, and clean. Answers are counts."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import date

from rl_pipeline.contracts import CLAIMED_LIMITS, ContractError, parse_message
from rl_pipeline.ingestion.planning import Range
from rl_pipeline.redaction.residual import residual_expressions
from rl_pipeline.stores.warehouse import Warehouse

_SUBJECT = "agent.rl.trajectory.v1"


@dataclass(frozen=True)
class DayOfLedger:
    """How the messages of one day fared."""

    verdicts: Mapping[str, int]
    by_hour: Mapping[str, tuple[int, ...]]
    """For each verdict, the sequences of each of the 24 hours."""

    @property
    def rejected_share(self) -> float:
        """Refused messages among those that arrived; what was lost or erased did not fail by itself."""
        judged = sum(count for verdict, count in self.verdicts.items() if verdict not in ("lost", "erased"))
        return self.verdicts.get("refused", 0) / judged if judged else 0.0


def day_of_ledger(warehouse: Warehouse, stream: str, day: date) -> DayOfLedger:
    """The ledger of one UTC day, by verdict and hour."""
    found = warehouse.query(
        """
        SELECT verdict, toUInt8(toHour(stream_time)) AS hour, count() AS sequences
        FROM trajectory_ledger FINAL
        WHERE stream = {stream:String} AND toDate(stream_time) = {day:Date}
        GROUP BY verdict, hour ORDER BY verdict, hour
        """,
        parameters={"stream": stream, "day": day.isoformat()},
    )
    hours: dict[str, list[int]] = {}
    for verdict, hour, sequences in found.iter_rows():
        hours.setdefault(verdict, [0] * 24)[hour] = sequences
    return DayOfLedger(
        verdicts={verdict: sum(counts) for verdict, counts in hours.items()},
        by_hour={verdict: tuple(counts) for verdict, counts in hours.items()},
    )


def unaccounted_sequences(warehouse: Warehouse, stream: str, drained: Range) -> int:
    """Sequences of the range without a row in the ledger: none after an ingest that did its work."""
    found = warehouse.query(
        """
        SELECT count() AS sequences FROM trajectory_ledger FINAL
        WHERE stream = {stream:String} AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
        """,
        parameters={"stream": stream, "first": drained.first, "last": drained.last},
    )
    return drained.last - drained.first + 1 - int(found["sequences"][0])


def missing_contents(warehouse: Warehouse, stream: str, drained: Range) -> int:
    """Sequences of the range that the ledger calls accepted and that have no trajectory, expired ones aside."""
    found = warehouse.query(
        """
        SELECT count() AS sequences FROM trajectory_ledger FINAL
        WHERE stream = {stream:String} AND sequence BETWEEN {first:UInt64} AND {last:UInt64} AND verdict = 'accepted'
            AND stream_time > now64(3) - INTERVAL 30 DAY
            AND trajectory_id NOT IN (
                SELECT trajectory_id FROM trajectories FINAL
                WHERE stream = {stream:String} AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
            )
        """,
        parameters={"stream": stream, "first": drained.first, "last": drained.last},
    )
    return int(found["sequences"][0])


INVALID = "invalid"
"""The problem of a document that breaks the contract; the others are kinds of value that were left in it."""


@dataclass(frozen=True)
class Suspicion:
    """What is wrong with the rows of a day: how many have each problem, and which they are."""

    problems: Mapping[str, int]
    trajectory_ids: tuple[str, ...]


def note_invalid_documents(warehouse: Warehouse, stream: str, drained: Range, sample: int = 1000) -> int:
    """Parse what was stored, as a reader would, and note what breaks the contract; returns how many were read.

    Of more than `sample` documents an even share is taken, by their ids.
    """
    import polars as pl

    checked = 0
    invalid: list[tuple[str, int]] = []
    frames = warehouse.stream(
        """
        SELECT trajectory_id, version, document FROM trajectories FINAL
        WHERE stream = {stream:String} AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
            AND trajectory_id IN (
                SELECT trajectory_id FROM trajectories
                WHERE stream = {stream:String} AND sequence BETWEEN {first:UInt64} AND {last:UInt64}
                ORDER BY cityHash64(trajectory_id) LIMIT {sample:UInt64}
            )
        """,
        parameters={"stream": stream, "first": drained.first, "last": drained.last, "sample": sample},
    )
    for frame in frames:
        for trajectory_id, version, document in frame.iter_rows():
            checked += 1
            try:
                parse_message(_SUBJECT, document.encode(), CLAIMED_LIMITS)
            except ContractError:
                invalid.append((trajectory_id, version))
    if invalid:
        rows = pl.DataFrame(invalid, schema={"trajectory_id": pl.String, "version": pl.UInt64}, orient="row")
        warehouse.insert("suspicious_trajectories", rows.with_columns(problem=pl.lit(INVALID)))
    return checked


def note_residual_documents(
    warehouse: Warehouse, stream: str, drained: Range, *, allowed: Collection[str], tolerated: Collection[str]
) -> None:
    """Search all that was stored of a range, inside the warehouse, with rules that redaction does not use.

    `allowed` are values and `tolerated` kinds of value that the deployment wants to keep.
    """
    expressions = residual_expressions("document", allowed)
    counts = ", ".join(
        f"if({expression} > 0, '{kind}', '')" for kind, expression in expressions.items() if kind not in tolerated
    )
    if counts:
        warehouse.execute(
            f"""
            INSERT INTO suspicious_trajectories (trajectory_id, version, problem)
            SELECT trajectory_id, version, arrayJoin(arrayFilter(kind -> kind != '', [{counts}]))
            FROM trajectories FINAL
            WHERE stream = {{stream:String}} AND sequence BETWEEN {{first:UInt64}} AND {{last:UInt64}}
            """,  # noqa: S608  # built from our own patterns; allowed values are quoted
            parameters={"stream": stream, "first": drained.first, "last": drained.last},
        )


def suspicions_of_day(warehouse: Warehouse, stream: str, day: date) -> Suspicion:
    """What checks have found in the rows that a day has now, in this ingest or an earlier one."""
    found = warehouse.query(
        """
        SELECT trajectory_id, problem FROM suspicious_trajectories FINAL
        WHERE (trajectory_id, version) IN (
            SELECT trajectory_id, version FROM trajectories FINAL
            WHERE stream = {stream:String} AND toDate(stream_time) = {day:Date}
        )
        ORDER BY trajectory_id, problem
        """,
        parameters={"stream": stream, "day": day.isoformat()},
    )
    return Suspicion(Counter(found["problem"]), tuple(dict.fromkeys(found["trajectory_id"])))


def trajectories_of_day(warehouse: Warehouse, stream: str, day: date) -> int:
    """How many trajectories are stored of a UTC day."""
    found = warehouse.query(
        """
        SELECT count() AS trajectories FROM trajectories FINAL
        WHERE stream = {stream:String} AND toDate(stream_time) = {day:Date}
        """,
        parameters={"stream": stream, "day": day.isoformat()},
    )
    return int(found["trajectories"][0])
