"""When a sensor holds its next run back: one is on its way, or the same one has just failed."""

from collections.abc import Mapping
from datetime import UTC, datetime

import dagster as dg

from rl_pipeline.ingestion.planning import not_before

# Somebody who cancels a run wants it to stop, for a while at least.
_WITHOUT_SUCCESS = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_UNFINISHED = (
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
)


def reason_to_wait(
    instance: dg.DagsterInstance, *, stage: Mapping[str, str], tags: Mapping[str, str], now: datetime
) -> str | None:
    """Why a run that is due is not started now; None if it may. `tags` are those that every attempt at it carries."""
    unfinished = dg.RunsFilter(tags=dict(stage), statuses=list(_UNFINISHED))
    if running := instance.get_runs(unfinished, limit=1):
        return f"run {running[0].run_id[:8]} is on its way"
    failures = []
    for attempt in instance.get_run_records(dg.RunsFilter(tags=dict(tags)), limit=12):
        if attempt.dagster_run.status not in _WITHOUT_SUCCESS:
            break
        failures.append(attempt)
    if not failures or failures[0].end_time is None:
        return None
    again = not_before(len(failures), datetime.fromtimestamp(failures[0].end_time, tz=UTC))
    return f"failed {len(failures)} times, again after {again:%H:%M:%S} UTC" if now < again else None
