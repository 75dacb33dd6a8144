"""Where the rewards of reported tasks are kept: the table `reported_rewards`, which `reward_history` shows too."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import asdict

import polars as pl

from rl_pipeline.rewards.integrator import RewardSignal
from rl_pipeline.stores.warehouse import Warehouse


class StoredRewardSignals:
    """The `RewardSignals` of a warehouse."""

    def __init__(self, warehouse: Warehouse) -> None:
        self._warehouse = warehouse

    async def store(self, signals: Sequence[RewardSignal]) -> None:
        """See `RewardSignals.store`: one insert, all or none."""
        rows = [asdict(signal) | {"metadata": json.dumps(dict(signal.metadata), sort_keys=True)} for signal in signals]
        if rows:
            frame = pl.DataFrame(rows, schema_overrides={"created_at": pl.Datetime("ms", "UTC")})
            await asyncio.to_thread(self._warehouse.insert, "reported_rewards", frame)
