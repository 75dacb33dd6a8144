"""What sensors ask Dagster about the runs before: whether to hold the next one back, and why one has failed."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import dagster as dg

from rl_pipeline.ingestion.planning import not_before

_BETWEEN_QUESTIONS_TO_A_PERSON = timedelta(hours=6)
# Somebody who cancels a run wants it to stop, for a while at least.
_WITHOUT_SUCCESS = (dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
UNFINISHED = (
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
    unfinished = dg.RunsFilter(tags=dict(stage), statuses=list(UNFINISHED))
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


def waits_for_a_person(
    instance: dg.DagsterInstance, tags: Mapping[str, str], mark: Mapping[str, str], now: datetime
) -> str | None:
    """Why a run that failed for what only a person can mend, and bears that `mark`, is not started again for hours."""
    records = instance.get_run_records(dg.RunsFilter(tags=dict(tags)), limit=1)
    if not records or records[0].end_time is None or not mark.items() <= records[0].dagster_run.tags.items():
        return None
    again = datetime.fromtimestamp(records[0].end_time, tz=UTC) + _BETWEEN_QUESTIONS_TO_A_PERSON
    run = records[0].dagster_run.run_id
    return f"{message_of_failure(instance, run)} (again after {again:%H:%M} UTC)" if now < again else None


def has_succeeded(instance: dg.DagsterInstance, tags: Mapping[str, str]) -> bool:
    """Whether a run with these tags has come to its good end: another would change nothing."""
    return bool(instance.get_runs(dg.RunsFilter(tags=dict(tags), statuses=[dg.DagsterRunStatus.SUCCESS]), limit=1))


def message_of_failure(instance: dg.DagsterInstance, run_id: str) -> str:
    """What the step that ended a run said, in its exception's words."""
    for entry in instance.all_logs(run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
        error = entry.get_dagster_event().step_failure_data.error
        if error is not None:
            return (error.cause or error).message.strip()
    return "see the log of its run"
