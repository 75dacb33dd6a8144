"""Asks for a training when the data say so (enough that is new, a reward that fell) and when it is time.

Both ask as everybody does, by a message; `training_requested` starts the run. So neither of them has a run of its own,
and what they decided stands in the tick's reason.
"""

from datetime import UTC, datetime

import dagster as dg

from rl_pipeline.automation.starting_point import model_on_its_way
from rl_pipeline.automation.training_requested import train_policy
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.topology import TRAJECTORIES
from rl_pipeline.training.asking import ask_if_due
from rl_pipeline.training.triggers import Wait


@dg.sensor(
    description="Asks for a training once enough is new, or the model in service has become worse.",
    job=train_policy,
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def training_due(stream: StreamResource, warehouse: WarehouseResource, training: TrainingResource) -> dg.SkipReason:
    """Ask for a training once enough trajectories were rewarded since the last, or the model in service earns less."""
    return _ask(stream, warehouse, training, scheduled_for=None)


def training_schedule(cron: str) -> dg.ScheduleDefinition:
    """Asks for a training at the times of the cron line, in UTC, unless too little is new."""

    @dg.schedule(
        name="train_at_night",
        description="Asks for a training every night, unless too little is new.",
        job=train_policy,
        cron_schedule=cron,
        execution_timezone="UTC",
        default_status=dg.DefaultScheduleStatus.RUNNING,
    )
    def train_at_night(
        context: dg.ScheduleEvaluationContext,
        stream: StreamResource,
        warehouse: WarehouseResource,
        training: TrainingResource,
    ) -> dg.SkipReason:
        return _ask(stream, warehouse, training, scheduled_for=context.scheduled_execution_time)

    return train_at_night


def _ask(
    stream: StreamResource, warehouse: WarehouseResource, training: TrainingResource, scheduled_for: datetime | None
) -> dg.SkipReason:
    now = datetime.now(UTC)
    with stream.open_jetstream() as messages, warehouse.open() as tables:
        decided = ask_if_due(
            messages,
            tables,
            training.triggers(),
            trajectories=TRAJECTORIES.name,
            on_its_way=model_on_its_way(training, messages, tables, now),
            scheduled_for=scheduled_for,
            now=now,
        )
    if isinstance(decided, Wait):
        return dg.SkipReason(decided.reason)
    return dg.SkipReason(f"asked for {decided.job_id} ({decided.priority}): {decided.explanation}")
