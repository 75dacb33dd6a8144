"""What agents earned, task by task: the view `reward_history`."""

import json

from rl_pipeline.rewards.integrator import RewardSignal
from rl_pipeline.stores.warehouse import Warehouse


def reward_history(warehouse: Warehouse, *, agent_id: str | None, limit: int) -> list[RewardSignal]:
    """The rewards of an agent, or of all of them, the newest first."""
    condition = "agent_id = {agent:String}" if agent_id else "true"
    found = warehouse.query(
        f"SELECT * FROM reward_history WHERE {condition} ORDER BY created_at DESC, id LIMIT {{limit:UInt32}}",  # noqa: S608
        {"agent": agent_id or "", "limit": limit},
    )
    return [RewardSignal(**{**row, "metadata": json.loads(row["metadata"])}) for row in found.iter_rows(named=True)]
