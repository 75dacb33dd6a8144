"""Waits for trajectories without a reward and for feedback, and starts their scoring."""

import json
from datetime import UTC, date, datetime

import dagster as dg

from rl_pipeline.assets.trajectory_rewards import trajectory_rewards
from rl_pipeline.automation.runs import reason_to_wait
from rl_pipeline.ingestion.feedback_rows import feedback_watermark
from rl_pipeline.ingestion.ledger import ledger_watermark
from rl_pipeline.partitions import stream_days
from rl_pipeline.resources.rewards import RewardsResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.rewards.inspection import days_to_score
from rl_pipeline.stores.topology import FEEDBACK, TRAJECTORIES

_STAGE = {"rl/stage": "rewards"}
_DAY = "rl/day"

score_trajectories = dg.define_asset_job(
    "score_trajectories",
    selection=dg.AssetSelection.assets(trajectory_rewards),
    partitions_def=stream_days,
    tags=_STAGE,
    description="Score the trajectories of a day, with the feedback that has come, and publish the rewards.",
)


@dg.sensor(job=score_trajectories, minimum_interval_seconds=15, default_status=dg.DefaultSensorStatus.RUNNING)
def rewards_due(
    context: dg.SensorEvaluationContext, stream: StreamResource, warehouse: WarehouseResource, rewards: RewardsResource
) -> dg.SensorResult:
    """Score the oldest day that has trajectories without a reward, or feedback that no reward has heard yet.

    Feedback that still waits in its stream belongs to an unknown day: any run takes it in, and the next look finds the
    days. What is due is read from the tables; the cursor only numbers the attempts.
    """
    # People can edit a cursor: what is no number counts for nothing, and the time then makes the attempt a new one.
    cursor = context.cursor or "0"
    attempt = int(cursor) if cursor.isdecimal() else int(datetime.now(UTC).timestamp())
    configuration = rewards.configuration()
    with stream.open() as messages, warehouse.open() as tables:
        watermark = ledger_watermark(tables, TRAJECTORIES.name)
        days = days_to_score(tables, TRAJECTORIES.name, configuration.hash, watermark)
        untold = messages.state(FEEDBACK.name).last_sequence - feedback_watermark(tables, FEEDBACK.name)
    now = datetime.now(UTC)
    if not days and untold <= 0:
        return dg.SensorResult(skip_reason="every trajectory has its reward", cursor=str(attempt))
    day = days[0] if days else now.date()
    tags = {_DAY: day.isoformat(), **_STAGE}
    if waits := reason_to_wait(context.instance, stage=_STAGE, tags=tags, now=now):
        return dg.SensorResult(skip_reason=waits, cursor=str(attempt))
    return dg.SensorResult(run_requests=[_run_of(day, attempt, tags)], cursor=str(attempt + 1))


def _run_of(day: date, attempt: int, tags: dict[str, str]) -> dg.RunRequest:
    return dg.RunRequest(run_key=json.dumps([day.isoformat(), attempt]), partition_key=day.isoformat(), tags=tags)
