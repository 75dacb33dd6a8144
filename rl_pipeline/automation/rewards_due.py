"""Waits for trajectories without a reward and for feedback, and starts their scoring."""

import json
from datetime import UTC, date, datetime
from hashlib import sha256

import dagster as dg

from rl_pipeline.assets.trajectory_rewards import trajectory_rewards
from rl_pipeline.automation.runs import has_succeeded, reason_to_wait
from rl_pipeline.ingestion.feedback_rows import feedback_watermark
from rl_pipeline.ingestion.ledger import ledger_watermark
from rl_pipeline.partitions import stream_days
from rl_pipeline.resources.rewards import RewardsResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.rewards.inspection import days_to_score, what_scoring_reads
from rl_pipeline.stores.topology import FEEDBACK, TRAJECTORIES

_STAGE = {"rl/stage": "rewards"}
_DAY = "rl/day"
_STATE = "rl/state"

score_trajectories = dg.define_asset_job(
    "score_trajectories",
    selection=dg.AssetSelection.assets(trajectory_rewards),
    partitions_def=stream_days,
    tags=_STAGE,
    description="Score the trajectories of a day, with the feedback that has come, and publish the rewards.",
)


@dg.sensor(
    description="Waits for trajectories without a reward and for feedback that was not heard, and scores their day.",
    job=score_trajectories,
    minimum_interval_seconds=5,
    default_status=dg.DefaultSensorStatus.RUNNING,
)
def rewards_due(
    context: dg.SensorEvaluationContext, stream: StreamResource, warehouse: WarehouseResource, rewards: RewardsResource
) -> dg.SensorResult:
    """Score the oldest day that has trajectories without a reward, or feedback that no reward has heard yet.

    Feedback that still waits in its stream belongs to an unknown day: any run takes it in, and the next look finds the
    days. A day whose run has just failed, or has changed nothing, does not hold up the others. What is due is read from
    the tables; the cursor numbers the attempts, and remembers at what state of the tables nothing was due, so that they
    are not searched again.
    """
    attempt, settled = _read_cursor(context.cursor)
    rewards.configuration()  # one that cannot be used is better told here than by run after run
    now = datetime.now(UTC)
    with stream.open() as messages, warehouse.open() as tables:
        watermark = ledger_watermark(tables, TRAJECTORIES.name)
        untold = messages.state(FEEDBACK.name).last_sequence - feedback_watermark(tables, FEEDBACK.name)
        state = f"{watermark} {what_scoring_reads(tables)}"
        days = [] if state == settled else days_to_score(tables, TRAJECTORIES.name, watermark)
    if not days and untold <= 0:
        return dg.SensorResult(skip_reason="every trajectory has its reward", cursor=_cursor(attempt, state))
    waits = "nothing is due"
    for day in days or [now.date()]:
        tags = {_DAY: day.isoformat(), _STATE: sha256(f"{state} {untold}".encode()).hexdigest()[:16], **_STAGE}
        reason = reason_to_wait(context.instance, stage=_STAGE, tags=tags, now=now)
        if reason is None and has_succeeded(context.instance, tags):
            reason = "it was scored, and something is still without a reward: see its checks"
        if reason is None:
            return dg.SensorResult(run_requests=[_run_of(day, attempt, tags)], cursor=_cursor(attempt + 1, settled))
        waits = f"{day}: {reason}"
    return dg.SensorResult(skip_reason=waits, cursor=_cursor(attempt, settled))


def _run_of(day: date, attempt: int, tags: dict[str, str]) -> dg.RunRequest:
    return dg.RunRequest(run_key=f"{day}#{attempt}", partition_key=day.isoformat(), tags=tags)


def _cursor(attempt: int, settled: str) -> str:
    return json.dumps({"attempt": attempt, "settled": settled})


def _read_cursor(cursor: str | None) -> tuple[int, str]:
    """The next attempt, and the state at which nothing was due. People can edit a cursor: what makes no sense counts
    for nothing, and the time then makes the attempt a new one."""
    try:
        content = json.loads(cursor or '{"attempt": 0, "settled": ""}')
        return int(content["attempt"]), str(content["settled"])
    except (ValueError, TypeError, KeyError):
        return int(datetime.now(UTC).timestamp()), ""
