"""The redacted trajectories as they are stored, for whoever takes them elsewhere: by day, and by what they say."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

from rl_pipeline.stores.warehouse import Warehouse

# What a check has found suspicious stays here.
_DOCUMENTS = """
    SELECT document FROM trajectories FINAL
    WHERE stream_time >= toDateTime64({first:String}, 3, 'UTC')
        AND stream_time < addDays(toDateTime64({last:String}, 3, 'UTC'), 1)
        AND ({agent:String} = '' OR agent_id = {agent:String})
        AND ({model:String} = '' OR model = {model:String} OR model_version = {model:String})
        AND ({task:String} = '' OR task_id = {task:String} OR task_type = {task:String})
        AND ({domain:String} = '' OR domain = {domain:String})
        AND ({status:String} = '' OR task_status = {status:String})
        AND ({framework:String} = '' OR framework = {framework:String})
        AND (trajectory_id, version) NOT IN (SELECT trajectory_id, version FROM suspicious_trajectories)
    ORDER BY stream_time, sequence
    LIMIT {limit:UInt64}
"""
_NO_LIMIT = 2**62


@dataclass(frozen=True)
class Choice:
    """Which trajectories: what is empty is not asked for."""

    agent: str = ""
    model: str = ""
    """The model or its version."""
    task: str = ""
    """The task or its type."""
    domain: str = ""
    status: str = ""
    framework: str = ""


def stored_documents(
    tables: Warehouse, first: date, last: date, choice: Choice, limit: int | None = None
) -> Iterator[dict[str, Any]]:
    """The documents of trajectories that the stream stored from the first to the last UTC day, in its order.

    In bounded memory; see `Warehouse.stream` about calls in between.
    """
    days = {"first": f"{first} 00:00:00", "last": f"{last} 00:00:00", "limit": limit or _NO_LIMIT}
    for frame in tables.stream(_DOCUMENTS, {**asdict(choice), **days}):
        for document in frame["document"]:
            yield json.loads(document)
