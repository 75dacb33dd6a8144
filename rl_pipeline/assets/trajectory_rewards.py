"""`trajectory_rewards`: what each trajectory of a day was worth, and why."""

from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

import dagster as dg

from rl_pipeline.assets.catalogue import OWNERS, table_columns
from rl_pipeline.assets.pictures import sparkline, table
from rl_pipeline.assets.redacted_trajectories import COLLECTED_DAILY, redacted_trajectories
from rl_pipeline.ingestion.feedback import FeedbackReport, drain_feedback
from rl_pipeline.ingestion.ledger import ledger_watermark
from rl_pipeline.partitions import stream_days
from rl_pipeline.resources.ingest import IngestResource
from rl_pipeline.resources.rewards import RewardsResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.rewards.computing import ComputeReport, compute_rewards, measure
from rl_pipeline.rewards.configuration import RewardConfiguration
from rl_pipeline.rewards.drift import REFERENCE, Drift, find_drift
from rl_pipeline.rewards.inspection import (
    DayOfRewards,
    day_of_rewards,
    raw_totals,
    raw_totals_before,
    unrewarded,
)
from rl_pipeline.rewards.probes import ALLOWED, probe
from rl_pipeline.rewards.publishing import publish_rewards
from rl_pipeline.rewards.storing import remember_configuration, sequences_of_day
from rl_pipeline.stores.topology import FEEDBACK, REWARDS, TRAJECTORIES
from rl_pipeline.stores.warehouse import Warehouse

if TYPE_CHECKING:
    import polars as pl

_CHECKS = {
    "rewards_are_bounded": (True, "Raw and normalised totals are numbers from 0 to 1."),
    "every_trajectory_has_a_reward": (True, "No stored trajectory of the day is without a reward."),
    "weights_sum_to_one": (True, "The effective weights of each reward sum to 1."),
    "the_raw_mean_has_not_drifted": (False, "The day's raw mean is that of the 1,000 rewards before, by Welch's test."),
}


@dg.asset(
    deps=[redacted_trajectories],
    description=(
        "The rewards of a day's trajectories: scores of each term with their evidence, raw and normalised totals, "
        "credit of each agent and shaped rewards of each turn, in the table `rewards` with all revisions; published "
        "as `agent.rl.reward.v1`."
    ),
    group_name="rewards",
    kinds={"clickhouse", "polars"},
    owners=OWNERS,
    metadata=table_columns("rewards"),
    freshness_policy=COLLECTED_DAILY,
    partitions_def=stream_days,
    backfill_policy=dg.BackfillPolicy.multi_run(1),
    pool="rewards",
    check_specs=[
        dg.AssetCheckSpec(
            name, asset="trajectory_rewards", blocking=blocking, description=text, partitions_def=stream_days
        )
        for name, (blocking, text) in _CHECKS.items()
    ],
)
def trajectory_rewards(
    context: dg.AssetExecutionContext,
    stream: StreamResource,
    warehouse: WarehouseResource,
    ingest: IngestResource,
    rewards: RewardsResource,
) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster does not know it by its parameter
    """Take in feedback, measure what is new, score the day up to the ledger's watermark, and publish what is new."""
    day = date.fromisoformat(context.partition_key)
    configuration = rewards.configuration()
    now = datetime.now(UTC)
    with stream.open() as messages, warehouse.open() as tables:
        # Before the feedback: what the feedback stream has after that cannot be older than these trajectories.
        watermark = ledger_watermark(tables, TRAJECTORIES.name)
        feedback = drain_feedback(
            messages, tables, stream=FEEDBACK.name, policy=ingest.policy(), previous_keys=ingest.previous_keys()
        )
        measured = measure(tables, stream=TRAJECTORIES.name, last=watermark, checker=rewards.checker(), now=now)
        first, last = sequences_of_day(tables, TRAJECTORIES.name, day) or (1, 0)
        report = compute_rewards(
            tables,
            stream=TRAJECTORIES.name,
            first=first,
            last=last,
            configuration=configuration,
            # Measuring can take minutes, and rollouts count what was scored soon enough.
            now=datetime.now(UTC),
        )
        published = publish_rewards(
            messages,
            tables,
            stream=TRAJECTORIES.name,
            reward_stream=REWARDS.name,
            configuration=configuration.hash,
            sources=configuration.sources,
        )
        remember_configuration(tables, configuration.hash, configuration.scores_hash, configuration.as_json(), now)
        return _result(
            day_of_rewards(tables, TRAJECTORIES.name, day, configuration.hash),
            feedback,
            report,
            missing=unrewarded(tables, TRAJECTORIES.name, day, configuration.hash, watermark),
            drift=_drift(tables, configuration, first, last),
            more={
                "measured_now": measured.trajectories,
                "unreadable_now": measured.unreadable,
                "published_now": published.published,
                "unpublishable": published.refused,
                "configuration": configuration.hash,
                "method": configuration.method,
            },
        )


def _drift(tables: Warehouse, configuration: RewardConfiguration, first: int, last: int) -> Drift:
    asked = tables, TRAJECTORIES.name, configuration.hash
    return find_drift(raw_totals(*asked, first, last), raw_totals_before(*asked, first, REFERENCE))


def _result(
    day: DayOfRewards,
    feedback: FeedbackReport,
    report: ComputeReport,
    *,
    missing: int,
    drift: Drift,
    more: dict[str, Any],
) -> dg.MaterializeResult[None]:
    metadata: dict[str, Any] = {
        "dagster/row_count": day.trajectories,
        "scored_now": report.rewards,
        "unchanged": report.unchanged,
        "feedback_now": feedback.verdicts.get("accepted", 0),
        "revised": day.revised,
        "cold_starts": day.cold_starts,
        "raw_mean": _round(day.raw_mean),
        "normalised_mean": _round(day.mean),
        "raw_totals_from_0_to_1": dg.MetadataValue.md(f"`{sparkline(day.raw_histogram)}`"),
        "components": dg.MetadataValue.md(_components(day)),
        "models": dg.MetadataValue.md(table(("model version", "trajectories", "raw mean"), _rounded(day.models))),
        "best": list(day.best),
        "worst": list(day.worst),
        **more,
    }
    return dg.MaterializeResult(
        metadata={name: value for name, value in metadata.items() if value is not None},
        check_results=[
            _check("rewards_are_bounded", day.out_of_bounds == 0, {"out_of_bounds": day.out_of_bounds}),
            _check("every_trajectory_has_a_reward", missing == 0, {"without_a_reward": missing}),
            _check("weights_sum_to_one", day.unbalanced == 0, {"unbalanced": day.unbalanced}),
            _check("the_raw_mean_has_not_drifted", not drift.has_drifted, {"drift": str(drift)}),
        ],
    )


def _check(name: str, passed: bool, metadata: dict[str, Any]) -> dg.AssetCheckResult:
    severity = dg.AssetCheckSeverity.ERROR if _CHECKS[name][0] else dg.AssetCheckSeverity.WARN
    return dg.AssetCheckResult(check_name=name, passed=passed, severity=severity, metadata=metadata)


def _round(mean: float | None) -> float | None:
    return None if mean is None else round(mean, 4)


def _components(day: DayOfRewards) -> str:
    headers = ("term", "applies to", "mean score", "mean normalised", "mean weight")
    return table(headers, _rounded(day.components)) if day.components.height else "none"


def _rounded(frame: "pl.DataFrame") -> list[list[object]]:
    return [[round(value, 3) if isinstance(value, float) else value for value in row] for row in frame.iter_rows()]


@dg.asset_check(
    asset="trajectory_rewards", description="Padding, empty tests and other known tricks do not raise the reward."
)
def known_tricks_do_not_pay(rewards: RewardsResource) -> dg.AssetCheckResult:
    """Score sample trajectories with and without each known trick under the configuration in force."""
    report = probe(rewards.configuration())
    rows = [(gain.probe, f"{gain.mean:+.3f}", f"{gain.worst:+.3f}") for gain in report.gains]
    return dg.AssetCheckResult(
        passed=not report.above(ALLOWED),
        severity=dg.AssetCheckSeverity.WARN,
        metadata={"gains": dg.MetadataValue.md(table(("trick", "mean gain", "largest gain"), rows))},
    )
