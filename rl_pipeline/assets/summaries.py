"""`daily_summaries` and `weekly_reports`: what a period came to, what is wrong, and what to do about it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg

from rl_pipeline.assets.catalogue import OWNERS, message_columns
from rl_pipeline.assets.deployed_models import deployed_models
from rl_pipeline.assets.pictures import table
from rl_pipeline.assets.trajectory_rewards import trajectory_rewards
from rl_pipeline.observability.reports.figures import read_figures
from rl_pipeline.observability.reports.findings import Finding, findings_of
from rl_pipeline.observability.reports.keeping import MadeReport, keep, made_summary
from rl_pipeline.observability.reports.markdown import to_markdown
from rl_pipeline.observability.reports.periods import period_up_to
from rl_pipeline.observability.reports.summaries import Kind, Summary
from rl_pipeline.partitions import stream_days
from rl_pipeline.resources.objects import ObjectsResource
from rl_pipeline.resources.reports import ReportsResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.topology import TRAJECTORIES

REPORT_COLUMNS = message_columns("report.v1.schema.json")
KINDS = {"clickhouse", "html"}
_DAYS: Mapping[Kind, int] = {"daily": 1, "weekly": 7}
_NOTHING_CRITICAL = "nothing_critical_was_found"
# A day's summary is about the day before too, and about every model that there was.
_READ = [
    dg.AssetDep(trajectory_rewards, partition_mapping=dg.AllPartitionMapping()),
    dg.AssetDep(deployed_models, partition_mapping=dg.AllPartitionMapping()),
]


def _check(asset: str) -> dg.AssetCheckSpec:
    return dg.AssetCheckSpec(
        _NOTHING_CRITICAL,
        asset=asset,
        description="None of the report's rules found something critical.",
        partitions_def=stream_days,
    )


@dg.asset(
    deps=_READ,
    description=(
        "The 24 hours up to 08:00 UTC of a day: trajectories, rewards, trainings, the model in service against its "
        "baseline, storage and cost as measured, issues and recommendations. Page, text and figures lie in the object "
        "store, and `agent.rl.report.v1` tells of them."
    ),
    group_name="reports",
    kinds=KINDS,
    owners=OWNERS,
    metadata=REPORT_COLUMNS,
    partitions_def=stream_days,
    backfill_policy=dg.BackfillPolicy.multi_run(1),
    freshness_policy=dg.FreshnessPolicy.cron(deadline_cron="30 9 * * *", lower_bound_delta=timedelta(hours=2)),
    check_specs=[_check("daily_summaries")],
)
def daily_summaries(
    context: dg.AssetExecutionContext,
    warehouse: WarehouseResource,
    model_objects: ObjectsResource,
    reports: ReportsResource,
) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster does not know it by its parameter
    """Read the day's figures, find what is wrong, and keep the report; made again, it replaces the one before."""
    return _report(context, "daily", warehouse, model_objects, reports)


@dg.asset(
    deps=_READ,
    description=(
        "The seven days up to 08:00 UTC of a day, a Monday's by schedule: what the daily summary has, day by day, with "
        "every model's trend, what was deployed, and what agents reach against the base period."
    ),
    group_name="reports",
    kinds=KINDS,
    owners=OWNERS,
    metadata=REPORT_COLUMNS,
    partitions_def=stream_days,
    backfill_policy=dg.BackfillPolicy.multi_run(1),
    freshness_policy=dg.FreshnessPolicy.cron(deadline_cron="30 9 * * 1", lower_bound_delta=timedelta(hours=2)),
    check_specs=[_check("weekly_reports")],
)
def weekly_reports(
    context: dg.AssetExecutionContext,
    warehouse: WarehouseResource,
    model_objects: ObjectsResource,
    reports: ReportsResource,
) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster does not know it by its parameter
    """Read the week's figures, find what is wrong, and keep the report; made again, it replaces the one before."""
    return _report(context, "weekly", warehouse, model_objects, reports)


def _report(
    context: dg.AssetExecutionContext,
    kind: Kind,
    warehouse: WarehouseResource,
    model_objects: ObjectsResource,
    reports: ReportsResource,
) -> dg.MaterializeResult[None]:
    now = datetime.now(UTC)
    period = period_up_to(date.fromisoformat(context.partition_key), _DAYS[kind], now)
    with warehouse.open() as tables, model_objects.open() as objects:
        figures = read_figures(tables, TRAJECTORIES.name, period, reports.base())
        summary = Summary(kind, figures, findings_of(figures, reports.limits()))
        made = made_summary(summary, context.partition_key)
        url = keep(objects, made, now)
    context.log.info(summary.text())
    critical = [finding.issue for finding in summary.findings if finding.severity == "critical"]
    return dg.MaterializeResult(
        metadata=report_metadata(made, url),
        check_results=[
            dg.AssetCheckResult(
                check_name=_NOTHING_CRITICAL,
                passed=not critical,
                severity=dg.AssetCheckSeverity.WARN,
                metadata={"critical": "; ".join(critical) or "none"},
            )
        ],
    )


def report_metadata(made: MadeReport, url: str) -> dict[str, Any]:
    """What the catalogue shows of a report: its text, its address, and its figures, which plot themselves."""
    return {
        "report": dg.MetadataValue.md(to_markdown(made.document)),
        "issues": dg.MetadataValue.md(_issues(made.findings)),
        "page": url,
        **_numbers(made.fields),
    }


def _issues(findings: Sequence[Finding]) -> str:
    rows = [(finding.severity, finding.issue, finding.recommendation) for finding in findings]
    return table(("severity", "issue", "recommendation"), rows) if rows else "none"


def _numbers(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
