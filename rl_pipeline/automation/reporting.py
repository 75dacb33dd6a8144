"""The reports' schedules: the day's summary every morning at 08:00 UTC, the week's report on Mondays."""

import dagster as dg

from rl_pipeline.assets.summaries import daily_summaries, weekly_reports
from rl_pipeline.partitions import stream_days

_STAGE = {"rl/stage": "reports"}

summarize_day = dg.define_asset_job(
    "summarize_day",
    selection=dg.AssetSelection.assets(daily_summaries),
    partitions_def=stream_days,
    tags=_STAGE,
    description="Make the summary of the 24 hours up to 08:00 UTC of a day.",
)
report_week = dg.define_asset_job(
    "report_week",
    selection=dg.AssetSelection.assets(weekly_reports),
    partitions_def=stream_days,
    tags=_STAGE,
    description="Make the report on the seven days up to 08:00 UTC of a day.",
)


@dg.schedule(
    job=summarize_day,
    cron_schedule="0 8 * * *",
    description="The summary of the day that has just ended, at 08:00 UTC.",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
def summarize_every_morning(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
    """The summary of the day that has just ended, at 08:00 UTC."""
    return _of_the_day(context)


@dg.schedule(
    job=report_week,
    cron_schedule="0 8 * * 1",
    description="The report on the week that has just ended, on Mondays at 08:00 UTC.",
    execution_timezone="UTC",
    default_status=dg.DefaultScheduleStatus.RUNNING,
)
def report_every_monday(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
    """The report on the week that has just ended, on Mondays at 08:00 UTC."""
    return _of_the_day(context)


def _of_the_day(context: dg.ScheduleEvaluationContext) -> dg.RunRequest:
    day = context.scheduled_execution_time.date().isoformat()
    return dg.RunRequest(run_key=day, partition_key=day)
