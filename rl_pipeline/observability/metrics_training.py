"""What Prometheus is told of trainings, from their tables: jobs and attempts that have ended stay there for ever."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client.metrics_core import Metric

from rl_pipeline.observability.metric_families import Labelled, counter, gauge, histogram, known_and
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.jobs.job import FINAL_STATES, VALID_TRANSITIONS

DURATION_BOUNDS = (300.0, 600.0, 1800.0, 3600.0, 7200.0, 14400.0)
SAMPLES_BOUNDS = (1000.0, 5000.0, 10_000.0, 50_000.0, 100_000.0)
_CONVERGED = 0.95

_JOBS = "SELECT state, count() AS jobs FROM training_jobs FINAL GROUP BY state"
_ENDED = """
    SELECT sum(dateDiff('millisecond', started_at, ended_at)) / 1000 AS seconds FROM training_attempts FINAL
    WHERE started_at IS NOT NULL AND ended_at IS NOT NULL
        AND job_id IN (SELECT job_id FROM training_jobs FINAL WHERE state IN ('completed', 'failed', 'cancelled'))
    GROUP BY job_id
"""
_SAMPLES = """
    SELECT argMax(trajectories, revision) AS samples FROM datasets FINAL
    WHERE job_id IN (SELECT job_id FROM training_jobs FINAL WHERE state = 'completed') GROUP BY job_id
"""
# What was cancelled, or gave way to another job, is neither a failure nor the end of a row of them.
_IN_A_ROW = """
    SELECT
        (SELECT countIf(state = 'failed' AND changed_at > last) FROM (
            SELECT state, changed_at, maxIf(changed_at, state = 'completed') OVER () AS last FROM training_jobs FINAL
        )) AS jobs,
        (SELECT countIf(outcome = 'failed' AND ended_at > last) FROM (
            SELECT outcome, ended_at, maxIf(ended_at, outcome = 'completed') OVER () AS last
            FROM training_attempts FINAL WHERE ended_at IS NOT NULL
        )) AS attempts
"""
_USED = """
    SELECT
        sum(JSONExtractFloat(result, 'resource_usage', 'cost_usd')) AS cost_usd,
        sum(JSONExtractFloat(result, 'resource_usage', 'gpu_hours')) AS gpu_hours,
        sum(JSONExtractFloat(result, 'resource_usage', 'cpu_hours')) AS cpu_hours
    FROM training_attempts FINAL WHERE outcome = 'completed'
"""
_LATEST = """
    SELECT
        JSONExtractFloat(result, 'samples') AS samples, JSONExtractFloat(result, 'epochs') AS epochs,
        JSONExtractFloat(result, 'steps') AS steps, JSONExtractFloat(result, 'seconds') AS seconds,
        JSONExtractFloat(result, 'resource_usage', 'peak_memory_gb') AS peak_memory_gb,
        JSONExtract(result, 'curves', 'loss', 'Array(Tuple(Float64, Float64))') AS losses
    FROM training_attempts FINAL WHERE outcome = 'completed' ORDER BY ended_at DESC LIMIT 1
"""


def training_families(warehouse: Warehouse) -> Iterator[Metric]:
    """Jobs, attempts and what they used. Raises what a `Warehouse` raises."""
    yield from _jobs(warehouse)
    yield _histogram(
        "agent_rl_training_duration_seconds",
        "How long a job that has ended was trained, all attempts together.",
        DURATION_BOUNDS,
        warehouse.query(_ENDED)["seconds"].to_list(),
    )
    yield _histogram(
        "agent_rl_training_samples",
        "Trajectories that a completed job learnt from.",
        SAMPLES_BOUNDS,
        warehouse.query(_SAMPLES)["samples"].to_list(),
    )
    used = warehouse.query(_USED).row(0, named=True)
    yield counter("agent_rl_training_cost_usd", "What completed jobs cost, estimated.", (), {(): used["cost_usd"]})
    yield counter(
        "agent_rl_training_compute_hours",
        "Hours of processors that completed jobs used.",
        ["device"],
        {("gpu",): used["gpu_hours"], ("cpu",): used["cpu_hours"]},
    )
    yield from _latest(warehouse)


def _jobs(warehouse: Warehouse) -> Iterator[Metric]:
    states = {(state,): float(jobs) for state, jobs in warehouse.query(_JOBS).iter_rows()}
    ends = sorted(FINAL_STATES)
    yield counter(
        "agent_rl_training_jobs",
        "Training jobs that have ended, by how.",
        ["status"],
        known_and({own: jobs for own, jobs in states.items() if own[0] in FINAL_STATES}, ends),
    )
    under_way = [state for state in VALID_TRANSITIONS if state not in FINAL_STATES]
    yield gauge(
        "agent_rl_training_jobs_under_way",
        "Training jobs that have not ended, by where they stand.",
        ["state"],
        known_and({own: jobs for own, jobs in states.items() if own[0] not in FINAL_STATES}, under_way),
    )
    row = warehouse.query(_IN_A_ROW).row(0, named=True)
    for kind, text in (("jobs", "Jobs"), ("attempts", "Attempts")):
        yield gauge(
            f"agent_rl_training_consecutive_failed_{kind}",
            f"{text} that failed since the last one that was completed.",
            (),
            {(): float(row[kind])},
        )


def _latest(warehouse: Warehouse) -> Iterator[Metric]:
    """Of the training that was completed last."""
    found = warehouse.query(_LATEST)
    values: Mapping[str, float | None] = _figures(found.row(0, named=True)) if found.height else {}
    for name, text in (
        ("throughput_samples_per_second", "Samples a second"),
        ("samples_to_convergence", "Samples until 95 % of the fall of its loss"),
        ("peak_memory_bytes", "Largest memory"),
    ):
        value = values.get(name)
        known: Labelled = {} if value is None else {(): value}
        yield gauge(f"agent_rl_training_{name}", f"{text}, of the training completed last.", (), known)


def _figures(training: Mapping[str, Any]) -> dict[str, float | None]:
    presented, seconds, steps = training["samples"] * training["epochs"], training["seconds"], training["steps"]
    # Tuples come through Arrow as structs.
    converged = steps_to_convergence([tuple(point.values()) for point in training["losses"]])
    return {
        "throughput_samples_per_second": presented / seconds if seconds else None,
        "samples_to_convergence": presented * converged / steps if converged is not None and steps else None,
        "peak_memory_bytes": training["peak_memory_gb"] * 1e9,
    }


def steps_to_convergence(losses: Sequence[tuple[float, float]]) -> float | None:
    """The first step at which the loss had done 95 % of its fall to its lowest; None where it did not fall."""
    if len(losses) < 2:
        return None
    first, lowest = losses[0][1], min(loss for _, loss in losses)
    if lowest >= first:
        return None
    reached = first - _CONVERGED * (first - lowest)
    return next(step for step, loss in losses if loss <= reached)


def _histogram(name: str, text: str, bounds: Sequence[float], values: Sequence[float]) -> Metric:
    places = [next((place for place, bound in enumerate(bounds, 1) if value <= bound), 0) for value in values]
    buckets = {str(place): float(places.count(place)) for place in set(places)}
    return histogram(name, text, bounds, buckets, float(sum(values)))
