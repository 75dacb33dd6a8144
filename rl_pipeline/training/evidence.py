"""What the warehouse knows that decides about trainings: what is new, how the model in service does, what is scored.

Rewards are read as they were first computed under the configuration in force: later feedback makes older trajectories
look other than newer ones, and another configuration measures something else. What files have brought is no experience
of the model in service, nor new: a job of its own learns from it.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.degradation import BAKE_TRAJECTORIES, DayOfModel, Sample, ServingModel
from rl_pipeline.training.jobs.job import FINAL_STATES
from rl_pipeline.training.triggers import Evidence, OnItsWay

_RECENT = timedelta(hours=24)

_CAME_BY_ITSELF = "trajectory_id NOT IN (SELECT trajectory_id FROM imported_trajectories)"
# A reward that was published has a second row, which says the same.
_FIRST_REWARDS = f"""
    SELECT sequence, model_version, stream_time, raw_total FROM rewards
    WHERE stream = {{stream:String}} AND configuration = {{configuration:String}} AND revision = 0
        AND {_CAME_BY_ITSELF}
"""  # noqa: S608  # all of it is ours


def read_evidence(
    warehouse: Warehouse, stream: str, *, scheduled_for: datetime | None = None, now: datetime
) -> Evidence:
    """The evidence for a decision. `stream` is that of the trajectories; `scheduled_for` is set by the schedule."""
    jobs = warehouse.query(
        """
        SELECT job_id, state, trigger_reason, source, shadow, watermark, accepted_at FROM training_jobs FINAL
        ORDER BY accepted_at DESC, job_id DESC
        """
    ).to_dicts()
    trainings = [job for job in jobs if _is_training(job)]
    completed = [job for job in trainings if job["state"] == "completed"]
    own = (job["job_id"] for job in jobs if _is_own(job) and job["state"] not in FINAL_STATES)
    return Evidence(
        new_since_last_training=new_rewarded(warehouse, stream, trainings),
        new_since_last_completed=new_rewarded(warehouse, stream, completed),
        last_training=trainings[0]["job_id"] if trainings else "",
        under_way=next(own, None),
        serving=serving_model(warehouse, stream, now),
        scheduled_for=scheduled_for,
    )


def _is_training(job: Mapping[str, Any]) -> bool:
    """Whether a job has learnt, or will, from what came by the stream, for what is deployed.

    One that the pipeline asked for counts though it failed or was cancelled: else it would be asked for again at once,
    and again.
    """
    if job["source"] not in ("clickhouse", "nats_stream") or job["shadow"]:
        return False
    return _is_own(job) or job["state"] not in ("cancelling", "cancelled", "failed")


def _is_own(job: Mapping[str, Any]) -> bool:
    return bool(job["trigger_reason"] != "manual")


def new_rewarded(warehouse: Warehouse, stream: str, jobs: Sequence[Mapping[str, Any]]) -> int:
    """How many trajectories have a reward and came after what any of the jobs learns from, in whatever order they ran.

    A job that has not made its dataset yet will use what is there when it does: what came since it was accepted counts.
    """
    watermark = max((int(job["watermark"]) for job in jobs), default=0)
    unstarted = (job["accepted_at"] for job in jobs if not job["watermark"])
    since = max(unstarted, default=datetime.fromtimestamp(0, UTC))
    found = warehouse.query(
        f"""
        SELECT uniqExact(sequence) AS count FROM rewards
        WHERE stream = {{stream:String}} AND sequence > {{watermark:UInt64}}
            AND stream_time > {{since:DateTime64(3, 'UTC')}} AND {_CAME_BY_ITSELF}
        """,  # noqa: S608  # put together from the texts above
        {"stream": stream, "watermark": watermark, "since": _moment(since)},
    )
    return int(found["count"][0])


def serving_model(
    warehouse: Warehouse, stream: str, now: datetime, *, until: datetime | None = None
) -> ServingModel | None:
    """The model that made most of the last day's trajectories, and how it does; None where none says what it is.

    With `until`, as it was then: what came later does not count.
    """
    current = warehouse.query("SELECT hash FROM reward_configurations FINAL ORDER BY current_since DESC LIMIT 1")
    if current.is_empty():
        return None
    known = {"stream": stream, "configuration": current["hash"][0], "since": _moment(now - _RECENT)}
    rewards = _FIRST_REWARDS
    if until is not None:
        rewards += " AND stream_time < {until:DateTime64(3, 'UTC')}"
        known["until"] = _moment(until)
    serving = warehouse.query(
        f"""
        SELECT model_version, uniqExact(sequence) AS count
        FROM ({rewards} AND stream_time > {{since:DateTime64(3, 'UTC')}} AND model_version != '')
        GROUP BY model_version ORDER BY count DESC, model_version LIMIT 1
        """,  # noqa: S608  # put together from the texts above
        known,
    )
    if serving.is_empty():
        return None
    version = str(serving["model_version"][0])
    known |= {"model": version, "bake": BAKE_TRAJECTORIES}
    first, last = _sample(
        warehouse,
        f"""{rewards} AND model_version = {{model:String}}
            ORDER BY sequence LIMIT 1 BY sequence LIMIT {{bake:UInt32}}""",
        known,
    )
    recent, _ = _sample(
        warehouse,
        f"""{rewards} AND model_version = {{model:String}} AND stream_time > {{since:DateTime64(3, 'UTC')}}
            AND sequence > {{last:UInt64}} LIMIT 1 BY sequence""",
        known | {"last": last},
    )
    asked_at, times = _asked(warehouse, version)
    since_asked = () if asked_at is None else _days_since(warehouse, known, asked_at, now)
    return ServingModel(version, first, recent, asked_at, times, since_asked)


def model_to_be_rolled_out(warehouse: Warehouse, now: datetime) -> OnItsWay | None:
    """The model that was trained last, if it is still to be validated, or validated and its rollout has not begun.

    What a person has to approve first is none.
    """
    found = warehouse.query(
        """
        SELECT job_id, changed_at FROM training_jobs FINAL
        WHERE state = 'completed' AND NOT shadow
            AND job_id IN (SELECT job_id FROM model_checkpoints FINAL WHERE pruned_at IS NULL)
            AND job_id NOT IN (SELECT job_id FROM validation_reports FINAL WHERE decision != 'deploy')
            AND job_id NOT IN (
                SELECT training_job_id FROM model_releases FINAL WHERE state != 'waiting' OR needs_approval
            )
        ORDER BY changed_at DESC LIMIT 1
        """
    )
    jobs = found.iter_rows(named=True)
    return next((OnItsWay(f"the model of {job['job_id']}", now - job["changed_at"]) for job in jobs), None)


def unscored_trajectories(warehouse: Warehouse, stream: str, last: int) -> int:
    """How many stored trajectories up to a sequence have no reward yet.

    Mostly a reward has its trajectory's sequence, which is quick to compare; those that are left are looked for by id,
    because a trajectory keeps the place at which it was measured first.
    """
    found = warehouse.query(
        """
        WITH left AS (
            SELECT trajectory_id FROM trajectories
            WHERE stream = {stream:String} AND sequence <= {last:UInt64} AND sequence NOT IN (
                SELECT sequence FROM rewards WHERE stream = {stream:String} AND sequence <= {last:UInt64}
            )
        )
        SELECT uniqExact(trajectory_id) AS count FROM left WHERE trajectory_id NOT IN (
            SELECT trajectory_id FROM rewards
            WHERE stream = {stream:String} AND trajectory_id IN (SELECT trajectory_id FROM left)
        )
        """,
        {"stream": stream, "last": last},
    )
    return int(found["count"][0])


def _sample(warehouse: Warehouse, rewards: str, parameters: Mapping[str, Any]) -> tuple[Sample, int]:
    """The sample that a query of rewards makes, and the last of its sequences."""
    found = warehouse.query(
        f"""
        SELECT count() AS count, avg(raw_total) AS mean, varSamp(raw_total) AS variance, max(sequence) AS last
        FROM ({rewards})
        """,  # noqa: S608  # put together from the texts above
        parameters,
    ).row(0, named=True)
    if found["count"] < 2:
        return Sample(int(found["count"]), 0.0, 0.0), int(found["last"])
    return Sample(int(found["count"]), float(found["mean"]), float(found["variance"])), int(found["last"])


def _asked(warehouse: Warehouse, version: str) -> tuple[datetime | None, int]:
    found = warehouse.query(
        """
        SELECT count() AS times, max(requested_at) AS last FROM training_jobs FINAL
        WHERE trigger_reason = 'performance_degradation'
            AND JSONExtractString(request, 'metadata', 'degraded_model') = {model:String}
        """,
        {"model": version},
    ).row(0, named=True)
    times = int(found["times"])
    return (found["last"] if times else None), times


def _days_since(
    warehouse: Warehouse, known: Mapping[str, Any], asked_at: datetime, now: datetime
) -> tuple[DayOfModel, ...]:
    found = warehouse.query(
        f"""
        SELECT
            intDiv(dateDiff('second', {{asked:DateTime64(3, 'UTC')}}, stream_time), 86400) AS day, model_version,
            count() AS count, avg(raw_total) AS mean
        FROM ({_FIRST_REWARDS} AND stream_time > {{asked:DateTime64(3, 'UTC')}} LIMIT 1 BY sequence)
        GROUP BY day, model_version HAVING day < {{days:Int64}}
        ORDER BY day, model_version
        """,  # noqa: S608  # put together from the texts above
        {**known, "asked": _moment(asked_at), "days": (now - asked_at) // timedelta(days=1)},
    )
    return tuple(DayOfModel(**row) for row in found.iter_rows(named=True))


def _moment(moment: datetime) -> datetime:
    """As ClickHouse's parameters take it: UTC without saying so."""
    return moment.replace(tzinfo=None)
