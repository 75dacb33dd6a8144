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

from rl_pipeline.redaction.placeholders import PLACEHOLDER
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.rewards.integrator import RewardSignal
from rl_pipeline.stores.warehouse import Warehouse

_USER_FIELDS = ("user_id", "user")


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
        users: dict[str, str] = {}
        metadata = self._without_users(dict(signal.metadata), users)
        known = {user: "USER" for user in users if not PLACEHOLDER.fullmatch(user)}
        texts = {"task_id": signal.task_id, "agent_id": signal.agent_id, "metadata": metadata}
        redacted = self._redactor.redact(texts, known=known).tree
        row = asdict(signal) | redacted | {"metadata": json.dumps(redacted["metadata"], sort_keys=True)}
        return row | {"user": next(iter(users.values()), "")}, set(users.values())

    def _without_users(self, value: Any, users: dict[str, str], names_users: bool = False) -> Any:
        """The value with placeholders for its users, who are put into `users`; the outermost come first."""
        if isinstance(value, dict):
            fields = sorted(value.items(), key=lambda field: field[0] not in _USER_FIELDS)
            return {
                name: self._without_users(child, users, names_users or name in _USER_FIELDS) for name, child in fields
            }
        if isinstance(value, list | tuple):
            return [self._without_users(child, users, names_users) for child in value]
        if not names_users or isinstance(value, bool) or not isinstance(value, str | int) or value == "":
            return value
        user = str(value)
        users.setdefault(user, user if PLACEHOLDER.fullmatch(user) else self._redactor.placeholder("USER", user))
        return users[user]

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
