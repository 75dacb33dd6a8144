"""Where the rewards of reported tasks are kept: the table `reported_rewards`, which `reward_history` shows too.

Nothing goes in that ingest would not store of a trajectory: what is sensitive is replaced, users too, and of whoever
was erased or opted out nothing is kept.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

import polars as pl

from rl_pipeline.redaction.named_users import redacted_with_users
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.rewards.integrator import RewardSignal
from rl_pipeline.stores.warehouse import Warehouse


class StoredRewardSignals:
    """The `RewardSignals` of a warehouse. `redactor` is that of ingest: users are erased by the placeholders it makes.

    The users of a task are those that the signals' metadata names as `user_id` or `user`, anywhere in it.
    """

    def __init__(self, warehouse: Warehouse, redactor: Redactor) -> None:
        self._warehouse = warehouse
        self._redactor = redactor

    async def store(self, signals: Sequence[RewardSignal]) -> None:
        """See `RewardSignals.store`: one insert, all or none. Raises `SensitiveKey` as redaction does."""
        if signals:
            await asyncio.to_thread(self._store, signals)

    def _store(self, signals: Sequence[RewardSignal]) -> None:
        made = [self._row(signal) for signal in signals]
        erased = self._erased({user for _, users in made for user in users})
        rows = [
            row for row, users in made if not any(row["created_at"] <= erased[user] for user in users & set(erased))
        ]
        if rows:
            frame = pl.DataFrame(rows, schema_overrides={"created_at": pl.Datetime("ms", "UTC")})
            self._warehouse.insert("reported_rewards", frame)

    def _row(self, signal: RewardSignal) -> tuple[dict[str, Any], set[str]]:
        """The row of a signal, and the placeholders of all its users."""
        texts = {"task_id": signal.task_id, "agent_id": signal.agent_id}
        redacted, users = redacted_with_users(self._redactor, texts, dict(signal.metadata))
        row = asdict(signal) | redacted.tree
        row |= {"metadata": json.dumps(redacted.tree["metadata"], sort_keys=True)}
        return row | {"user": next(iter(users), "")}, set(users)

    def _erased(self, users: set[str]) -> dict[str, datetime]:
        """Those of the users who were erased or opted out, and up to when."""
        if not users:
            return {}
        found = self._warehouse.query(
            """
            SELECT user, max(covers_until) AS covers_until FROM erasures
            WHERE user IN {users:Array(String)} GROUP BY user
            """,
            {"users": sorted(users)},
        )
        return dict(found.iter_rows())
