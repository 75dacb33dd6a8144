"""Waits for days with new rewards, and has them remembered; and forgets every night."""

from datetime import UTC, datetime

import dagster as dg
from pydantic import Field

from rl_pipeline.assets.memories import episodic_memories, procedural_memories, semantic_memories
from rl_pipeline.automation.runs import reason_to_wait
from rl_pipeline.memory.forgetting import drop_superseded, forget
from rl_pipeline.memory.inspection import days_to_remember
from rl_pipeline.partitions import stream_days
from rl_pipeline.resources.memories import MemoriesResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.topology import TRAJECTORIES

_STAGE = {"rl/stage": "memory"}
_DAY = "rl/memory_day"

remember_trajectories = dg.define_asset_job(
    "remember_trajectories",
    selection=dg.AssetSelection.assets(episodic_memories, semantic_memories, procedural_memories),
    partitions_def=stream_days,
    tags=_STAGE,
    description="Remember the trajectories of a day, and merge them with those before into facts and procedures.",
)


@dg.sensor(
    description="Waits for rewards that were computed since their day was remembered, and has the day remembered.",
    job=remember_trajectories,
    # A day is read whole each time.
    minimum_interval_seconds=600,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def memories_due(context: dg.SensorEvaluationContext, warehouse: WarehouseResource) -> dg.SensorResult:
    """Remember the oldest day with rewards that it has not heard of; one day at a time.

    What is due is read from the tables; the cursor only numbers the attempts. A day that keeps failing waits longer
    each time, and does not hold up the others.
    """
    now = datetime.now(UTC)
    cursor = context.cursor or "0"
    # People can edit a cursor: what makes no sense counts for nothing, and the time makes the attempt a new one.
    attempt = int(cursor) if cursor.isdecimal() else int(now.timestamp())
    with warehouse.open() as tables:
        days = days_to_remember(tables, TRAJECTORIES.name)
    waits = "every day is remembered"
    for day in days:
        tags = {_DAY: day.isoformat(), **_STAGE}
        reason = reason_to_wait(context.instance, stage=_STAGE, tags=tags, now=now)
        if reason is None:
            run = dg.RunRequest(run_key=f"{day}#{attempt}", partition_key=day.isoformat(), tags=tags)
            return dg.SensorResult(run_requests=[run], cursor=str(attempt + 1))
        waits = f"{day}: {reason}"
    return dg.SensorResult(skip_reason=waits, cursor=str(attempt))


class ForgettingConfig(dg.Config):
    """What is forgotten."""

    dry_run: bool = Field(False, description="Say which agents have too many memories, and forget nothing.")


@dg.op(description="Let go what is too old, and of agents with too many memories those that are worth least.")
def forget_what_is_worth_least(
    context: dg.OpExecutionContext, config: ForgettingConfig, warehouse: WarehouseResource, memories: MemoriesResource
) -> None:
    """Keep every agent within its budget."""
    now = datetime.now(UTC)
    with warehouse.open() as tables, memories.open() as store:
        if config.dry_run:
            context.log.info("%d agents have too many memories", len(store.agents_over(memories.budget)))
            return
        done = forget(
            store, budget=memories.budget, half_life=memories.half_life, retention=memories.retention, now=now
        )
        drop_superseded(tables, now.date())
    context.log.info(
        "%d memories were too old, %d of %d agents were beyond their budgets",
        done.expired,
        done.beyond_budget,
        done.agents,
    )


@dg.job(tags=_STAGE, description="Forget what is too old, and what is worth least beyond each agent's budget.")
def forget_memories() -> None:
    """One step."""
    forget_what_is_worth_least()


@dg.schedule(
    job=forget_memories,
    cron_schedule="40 3 * * *",
    description="Forgetting, every night at 03:40 UTC.",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
def forget_at_night(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
    """Once a night."""
    return dg.RunRequest(run_key=context.scheduled_execution_time.date().isoformat())
