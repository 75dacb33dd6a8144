"""Which released checkpoints have had their time, and their removal.

The states that a running training resumes from are pruned by `storage.py`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from rl_pipeline.stores.objects import Objects
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.checkpoints.releasing import delete_released, prefix_of

RETENTION_DAYS = 90


@dataclass(frozen=True, slots=True)
class RecordedCheckpoint:
    """A row of `model_checkpoints`, as far as retention looks at it."""

    id: str
    url: str
    created_at: datetime
    is_best: bool
    deployed: bool
    pruned_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What a round of retention did, by the ids of the checkpoints."""

    pruned: tuple[str, ...]
    elsewhere: tuple[str, ...]
    """Due, but in another store than the one that was given: somebody moved MODEL_STORAGE_PATH."""


def to_prune(
    recorded: Iterable[RecordedCheckpoint], now: datetime, days: int = RETENTION_DAYS
) -> list[RecordedCheckpoint]:
    """The checkpoints whose files go, oldest first: those older than `days`; the best and the deployed stay for ever.

    A job releases one checkpoint, so no number of them is kept of it.
    """
    due = [
        each
        for each in recorded
        if now - each.created_at > timedelta(days=days) and not (each.is_best or each.deployed or each.pruned_at)
    ]
    return sorted(due, key=lambda each: (each.created_at, each.id))


def prune_released(
    warehouse: Warehouse, objects: Objects, now: datetime, days: int = RETENTION_DAYS
) -> RetentionReport:
    """Remove the files of the checkpoints that are due, and say so in their rows. What was killed may be repeated."""
    pruned, elsewhere = [], []
    for due in to_prune(_recorded(warehouse), now, days):
        prefix = prefix_of(objects, due.url)
        if prefix is None:
            elsewhere.append(due.id)
        elif _is_still_due(warehouse, due):
            delete_released(objects, prefix)
            _mark(warehouse, due, now)
            pruned.append(due.id)
    return RetentionReport(tuple(pruned), tuple(elsewhere))


def _recorded(warehouse: Warehouse) -> list[RecordedCheckpoint]:
    rows = warehouse.query(
        """
        SELECT id, checkpoint_path AS url, created_at, is_best, deployed
        FROM model_checkpoints FINAL WHERE pruned_at IS NULL
        """
    )
    return [RecordedCheckpoint(**row) for row in rows.iter_rows(named=True)]


def _is_still_due(warehouse: Warehouse, due: RecordedCheckpoint) -> bool:
    """Asked again before each removal: the ones before may have taken long, and a rollout may have begun."""
    rows = warehouse.query(
        """
        SELECT id FROM model_checkpoints FINAL
        WHERE id = {id:String} AND NOT is_best AND NOT deployed AND pruned_at IS NULL
        """,
        {"id": due.id},
    )
    return rows.height == 1


def _mark(warehouse: Warehouse, pruned: RecordedCheckpoint, now: datetime) -> None:
    warehouse.execute(
        """
        INSERT INTO model_checkpoints
        SELECT * REPLACE ({now:DateTime64(3, 'UTC')} AS pruned_at, version + 1 AS version)
        FROM model_checkpoints FINAL WHERE id = {id:String}
        """,
        {"id": pruned.id, "now": now},
    )
