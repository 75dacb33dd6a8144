"""What Prometheus is told of models: what they earn, how they were judged, and where their rollout is.

How they answer is told by the gateways themselves (`rl_pipeline.serving.status_pages`).
"""

from collections.abc import Iterator
from datetime import UTC
from typing import get_args

from prometheus_client.metrics_core import Metric

from rl_pipeline.deployment.audit import WarehouseAudit, newest_row
from rl_pipeline.deployment.state import DesiredState, Phase, Rollout
from rl_pipeline.observability.metric_counts import NAME_PATTERN
from rl_pipeline.observability.metric_families import MOST_MODELS, Labelled, counter, gauge, known_and
from rl_pipeline.stores.warehouse import Warehouse

DEPLOYMENT_EVENTS = ("deployed", "promoted", "rolled_back", "aborted")
LATEST_REWARDS = 1000
"""A mean is that of so many of the latest trajectories of a model."""
_LOOKED_BACK = 100_000
"""Sequences that are looked through for those of each model."""


def _latest_rewards(looked_back: int) -> str:
    """As they were first scored, like all that decides: later feedback makes older ones look other than newer ones."""
    return f"""
        WITH (
            SELECT mapFromArrays(groupArray(hash), groupArray(toUnixTimestamp64Milli(current_since)))
            FROM reward_configurations FINAL
        ) AS since
        SELECT sequence, any(model_version) AS model,
            argMax((raw_total, total), (since[configuration], configuration)) AS reward
        FROM rewards
        WHERE stream = {{stream:String}} AND revision = 0 AND sequence + {looked_back} > (
            SELECT max(sequence) FROM rewards WHERE stream = {{stream:String}}
        )
        GROUP BY sequence, trajectory_id ORDER BY sequence DESC
    """  # noqa: S608  # a number of ours


# Agents name the models that they ask; those that were ever to be served come first, whatever else is named.
_OF_MODELS = f"""
    SELECT model, avg(reward.1) AS mean FROM (
        SELECT * FROM ({_latest_rewards(_LOOKED_BACK)}) WHERE match(model, '{NAME_PATTERN}')
        LIMIT {LATEST_REWARDS} BY model
    ) GROUP BY model
    ORDER BY model IN (SELECT model_id FROM model_releases) OR model IN (SELECT model_id FROM deployment_audit) DESC,
        max(sequence) DESC
    LIMIT {MOST_MODELS}
"""  # noqa: S608
_OF_ALL = f"""
    SELECT avg(reward.2) AS mean, count() AS count FROM ({_latest_rewards(10 * LATEST_REWARDS)} LIMIT {LATEST_REWARDS})
"""  # noqa: S608
_BENCHMARKS = f"""
    SELECT if(model_id = '', job_id, model_id) AS model, score.1 AS task, score.2 AS value FROM (
        SELECT job_id, validated_at, JSONExtractKeysAndValues(report, 'benchmark_scores', 'Float64') AS scores
        FROM validation_reports FINAL ORDER BY validated_at DESC LIMIT {MOST_MODELS}
    ) AS judged
    LEFT JOIN (SELECT training_job_id, model_id FROM model_releases FINAL) AS released
        ON judged.job_id = released.training_job_id
    ARRAY JOIN scores AS score ORDER BY validated_at, model, task
"""  # noqa: S608
_EVENTS = """
    SELECT event, count() AS times, max(at) AS last FROM deployment_audit FINAL
    WHERE event IN {events:Array(String)} GROUP BY event
"""
_LAST_ROLLOUT = """
    SELECT JSONExtractRaw(state, 'rollout') AS rollout FROM deployment_audit FINAL
    WHERE deployment_id != '' AND JSONExtractRaw(state, 'rollout') NOT IN ('', 'null')
    ORDER BY generation DESC, at DESC LIMIT 1
"""
_ARM_REWARDS = """
    SELECT model, avg(reward) AS mean, count() AS count,
        if(count < 2, 0., stddevSamp(reward) / sqrt(count)) AS error
    FROM (
        SELECT any(model_version) AS model, argMin(raw_total, (scored_at, configuration)) AS reward FROM rewards
        WHERE stream = {stream:String} AND revision = 0 AND model_version IN {models:Array(String)}
            AND stream_time >= {since:DateTime64(3, 'UTC')}
        GROUP BY sequence, trajectory_id
    ) GROUP BY model
"""
_ARM_SESSIONS = """
    SELECT model_id, count() AS sessions, countIf(failed) AS failed FROM serving_outcomes FINAL
    WHERE deployment_id = {deployment:String} AND model_id IN {models:Array(String)} GROUP BY model_id
"""


def model_families(warehouse: Warehouse, stream: str) -> Iterator[Metric]:
    """Of models and rollouts; `stream` is that of the trajectories. Raises what a `Warehouse` raises."""
    yield from _rewards(warehouse, stream)
    scores: Labelled = {(model, task): value for model, task, value in warehouse.query(_BENCHMARKS).iter_rows()}
    yield gauge(
        "agent_rl_model_benchmark_score",
        "Mean score at the last validation.",
        ["model_version", "task_type"],
        scores,
    )
    yield from _events(warehouse)
    newest = newest_row(WarehouseAudit(warehouse))
    yield from _state(newest.state if newest else None)
    yield from _arms(warehouse, stream)


def _rewards(warehouse: Warehouse, stream: str) -> Iterator[Metric]:
    means: Labelled = {(model,): mean for model, mean in warehouse.query(_OF_MODELS, {"stream": stream}).iter_rows()}
    yield gauge(
        "agent_rl_model_reward_mean",
        f"Mean raw reward of the latest {LATEST_REWARDS} trajectories of a model.",
        ["model_version"],
        means,
    )
    mean, count = warehouse.query(_OF_ALL, {"stream": stream}).row(0)
    yield gauge(
        "agent_rl_trajectory_reward_recent_mean",
        f"Mean total reward of the latest {LATEST_REWARDS} trajectories.",
        (),
        {(): mean} if count else {},
    )


def _events(warehouse: Warehouse) -> Iterator[Metric]:
    found = warehouse.query(_EVENTS, {"events": list(DEPLOYMENT_EVENTS)})
    yield counter(
        "agent_rl_model_deployments",
        "What became of deployments: begun, promoted, rolled back, aborted.",
        ["status"],
        known_and({(event,): float(times) for event, times, _ in found.iter_rows()}, DEPLOYMENT_EVENTS),
    )
    yield gauge(
        "agent_rl_model_deployment_last_timestamp_seconds",
        "When this last happened to a deployment.",
        ["status"],
        {(event,): last.replace(tzinfo=UTC).timestamp() for event, _, last in found.iter_rows()},
    )
    refused = warehouse.query("SELECT count() AS count FROM model_releases FINAL WHERE state = 'refused'")
    yield counter(
        "agent_rl_model_releases_refused",
        "Models that were to be rolled out and turned out to be worse than the one in service, or barred.",
        (),
        {(): float(refused["count"][0])},
    )


def _state(state: DesiredState | None) -> Iterator[Metric]:
    """Of what is to be served."""
    phases: Labelled = {(phase,): float(state is not None and state.phase == phase) for phase in get_args(Phase)}
    yield gauge("agent_rl_deployment_phase", "1 for the phase of the deployment.", ["phase"], phases)
    yield gauge(
        "agent_rl_deployment_frozen",
        "1 while nothing may advance.",
        (),
        {(): float(state is not None and state.frozen is not None)},
    )
    yield gauge(
        "agent_rl_model_desired_percentage",
        "Share of the new sessions that a model is to have; the gateways tell what it has.",
        ["model_version"],
        {(model,): 100 * weight for model, weight in state.weights.items()} if state else {},
    )
    rollout = state.rollout if state else None
    for name, text, value in (
        ("step", "Step of the rollout, from 1; 0 without one.", rollout.step + 1 if rollout else 0),
        ("steps", "Steps that it has; 0 without one.", len(rollout.steps) if rollout else 0),
    ):
        yield gauge(f"agent_rl_rollout_{name}", text, (), {(): float(value)})


def _arms(warehouse: Warehouse, stream: str) -> Iterator[Metric]:
    """Both arms of the rollout or A/B test that is under way, or else of the last one."""
    found = warehouse.query(_LAST_ROLLOUT)
    rollout = Rollout.model_validate_json(found["rollout"][0]) if found.height else None
    roles = {rollout.candidate: "candidate", rollout.control: "control"} if rollout else {}
    labels = ["model_version", "role"]
    rewards, sessions = [], []
    if rollout:
        known = {
            "stream": stream,
            "models": list(roles),
            "since": rollout.started_at.astimezone(UTC).replace(tzinfo=None),
        }
        rewards = list(warehouse.query(_ARM_REWARDS, known).iter_rows())
        known = {"deployment": rollout.deployment_id, "models": list(roles)}
        sessions = list(warehouse.query(_ARM_SESSIONS, known).iter_rows())
    figures = (
        ("reward_mean", "Mean raw reward since it began.", {model: mean for model, mean, _, _ in rewards}),
        ("reward_standard_error", "Of this mean.", {model: error for model, _, _, error in rewards}),
        ("rewarded_trajectories", "Of which it is the mean.", {model: count for model, _, count, _ in rewards}),
        ("sessions", "Sessions since it began.", {model: count for model, count, _ in sessions}),
        ("failed_sessions", "Of these, those that failed.", {model: failed for model, _, failed in sessions}),
    )
    for name, text, values in figures:
        by_role: Labelled = {(model, roles[model]): float(value) for model, value in values.items()}
        yield gauge(f"agent_rl_rollout_{name}", f"{text} In the rollout under way, or the last.", labels, by_role)
