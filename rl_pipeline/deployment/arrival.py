"""Whether what agents did up to a moment has come in: taken from the stream of trajectories, and scored."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from rl_pipeline.ingestion.ledger import ledger_watermark
from rl_pipeline.stores.warehouse import Warehouse

TRAJECTORIES_STREAM = "RL_TRAJECTORIES"

_HAS_PASSED = """
    SELECT max(stream_time) >= {until:DateTime64(3, 'UTC')} AS passed FROM trajectory_ledger
    WHERE stream = {stream:String} AND sequence <= {watermark:UInt64}
"""
_UNSCORED = """
    SELECT count() AS trajectories FROM trajectories FINAL
    WHERE model_version IN {models:Array(String)}
        AND stream_time >= {since:DateTime64(3, 'UTC')} AND stream_time < {until:DateTime64(3, 'UTC')}
        AND trajectory_id NOT IN (
            SELECT trajectory_id FROM rewards WHERE stream_time >= {since:DateTime64(3, 'UTC')}
        )
"""


def has_come_in(
    warehouse: Warehouse, models: Sequence[str], since: datetime, until: datetime, *, last_sequence: Callable[[], int]
) -> bool:
    """Whether every trajectory that the stream had at `until` is in the ledger, and those of the models have rewards.

    `last_sequence` is the stream's: where the ledger has that too, nothing waits, whatever the time. What an agent has
    not published by then is not waited for.
    """
    end = last_sequence()
    watermark = ledger_watermark(warehouse, TRAJECTORIES_STREAM)
    asked = {
        "models": list(models),
        "since": since.astimezone(UTC).replace(tzinfo=None),
        "until": until.astimezone(UTC).replace(tzinfo=None),
        "stream": TRAJECTORIES_STREAM,
        "watermark": watermark,
    }
    if watermark < end and not warehouse.query(_HAS_PASSED, asked)["passed"][0]:
        return False
    return not warehouse.query(_UNSCORED, asked)["trajectories"][0]
