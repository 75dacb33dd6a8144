"""What is known of the memories of a day: which days are due, and whether what is remembered may be."""

from dataclasses import dataclass
from datetime import date

from rl_pipeline.stores.warehouse import Warehouse


@dataclass(frozen=True, slots=True)
class DayOfMemories:
    """The episodes of a day."""

    missing: int
    """Stored trajectories with a reward that are not remembered."""
    erased: int
    """Memories of what the ledger says was erased."""


def day_of_memories(warehouse: Warehouse, stream: str, day: date) -> DayOfMemories:
    """How the memories of a day stand."""
    found = warehouse.query(
        """
        SELECT
            (
                SELECT uniqExact(trajectory_id) FROM trajectories
                WHERE stream = {stream:String} AND toDate(stream_time) = {day:Date}
                    AND trajectory_id IN (SELECT trajectory_id FROM rewards)
                    AND (stream, sequence) NOT IN (
                        SELECT stream, sequence FROM memories WHERE day = {day:Date} AND memory_type = 'episodic'
                    )
            ) AS missing,
            (
                SELECT count() FROM memories FINAL
                WHERE day = {day:Date} AND stream != '' AND (stream, sequence) IN (
                    SELECT stream, sequence FROM trajectory_ledger FINAL
                    WHERE stream = {stream:String} AND verdict = 'erased'
                )
            ) AS erased
        """,
        {"stream": stream, "day": day},
    )
    missing, erased = found.row(0)
    return DayOfMemories(int(missing), int(erased))


def days_to_remember(warehouse: Warehouse, stream: str, most: int = 31) -> list[date]:
    """The days whose rewards, or whose episodes, were not heard of by what is made of them, the oldest first."""
    found = warehouse.query(
        """
        SELECT day FROM (
            SELECT toDate(stream_time) AS day, max(scored_at) AS scored_at FROM rewards
            WHERE stream = {stream:String} AND trajectory_id IN (SELECT trajectory_id FROM trajectories)
            GROUP BY day
        ) AS scored
        LEFT JOIN (
            SELECT day,
                maxIf(made_at, memory_type = 'episodic') AS remembered_at,
                maxIf(made_at, memory_type = 'semantic') AS merged_at,
                maxIf(made_at, memory_type = 'procedural') AS proven_at
            FROM memory_generations FINAL GROUP BY day
        ) AS made USING (day)
        WHERE scored_at >= remembered_at OR remembered_at > merged_at OR remembered_at > proven_at
        ORDER BY day LIMIT {most:UInt32}
        """,
        {"stream": stream, "most": most},
    )
    return list(found["day"])
