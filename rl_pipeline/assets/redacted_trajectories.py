"""`raw_trajectories` and `redacted_trajectories`: one pass over a range of the stream makes both.

The ledger (`raw_trajectories`) says of every sequence what became of it; the trajectories are validated, redacted and
enriched. A pass is one run of one UTC day, whether the sensor, a person or a backfill asked for it.
"""

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import dagster as dg
from pydantic import Field

from rl_pipeline.assets.catalogue import OWNERS, table_columns
from rl_pipeline.assets.pictures import ranking, sparkline, table
from rl_pipeline.assets.trajectory_stream import trajectory_stream
from rl_pipeline.ingestion.draining import drain
from rl_pipeline.ingestion.inspection import (
    INVALID,
    DayOfLedger,
    day_of_ledger,
    missing_contents,
    note_invalid_documents,
    note_residual_documents,
    suspicions_of_day,
    trajectories_of_day,
    unaccounted_sequences,
)
from rl_pipeline.ingestion.ledger import current_revision, ledger_watermark
from rl_pipeline.ingestion.observation import observe
from rl_pipeline.ingestion.planning import (
    Range,
    Waiting,
    from_its_beginning,
    range_of_day,
    refuse_beyond_retention,
    waiting,
)
from rl_pipeline.ingestion.reports import DrainReport
from rl_pipeline.partitions import stream_days
from rl_pipeline.redaction.policy import RedactionPolicy
from rl_pipeline.resources.ingest import IngestResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.stores.stream import Stream
from rl_pipeline.stores.topology import TRAJECTORIES
from rl_pipeline.stores.warehouse import Warehouse

_MOST_REJECTED = 0.10
_SHOWN = 20

# Agents work every day: one without a trajectory is one on which nothing was collected.
COLLECTED_DAILY = dg.FreshnessPolicy.time_window(fail_window=timedelta(hours=24), warn_window=timedelta(hours=12))

raw_trajectories = dg.AssetSpec(
    "raw_trajectories",
    deps=[trajectory_stream],
    description=(
        "What arrived: one row of `trajectory_ledger` per stream sequence, with its verdict (accepted, duplicate, "
        "refused, opted_out, erased, lost) and never its content, which stays in JetStream."
    ),
    group_name="ingestion",
    kinds={"clickhouse"},
    owners=OWNERS,
    metadata=table_columns("trajectory_ledger"),
    freshness_policy=COLLECTED_DAILY,
)
redacted_trajectories = dg.AssetSpec(
    "redacted_trajectories",
    deps=[raw_trajectories],
    description=(
        "The trajectories of a day, validated, redacted and enriched, each once, in the table `trajectories`. What was "
        "refused is in the stream `RL_DLQ`, redacted, with its reason: `rl-pipeline dead-letters list`."
    ),
    group_name="ingestion",
    kinds={"clickhouse", "polars"},
    owners=OWNERS,
    metadata=table_columns("trajectories"),
    freshness_policy=COLLECTED_DAILY,
)
_CHECKS = {
    "every_sequence_is_accounted_for": (raw_trajectories, False, "The ledger has each sequence, and none was lost."),
    "few_messages_are_refused": (raw_trajectories, False, "Less than 10 % of the day's messages were refused."),
    "documents_are_valid": (redacted_trajectories, True, "What was stored is still a valid trajectory."),
    "nothing_sensitive_remains": (
        redacted_trajectories,
        True,
        "Rules of another making find nothing in what is stored.",
    ),
}


class IngestConfig(dg.Config):
    """Which part of the day to ingest."""

    first_sequence: int | None = Field(None, description="The first stream sequence; the day's first if left out.")
    last_sequence: int | None = Field(None, description="The last stream sequence; the day's last if left out.")


@dg.multi_asset(
    specs=[raw_trajectories, redacted_trajectories],
    check_specs=[
        dg.AssetCheckSpec(name, asset=asset.key, blocking=blocking, description=description, partitions_def=stream_days)
        for name, (asset, blocking, description) in _CHECKS.items()
    ],
    partitions_def=stream_days,
    backfill_policy=dg.BackfillPolicy.multi_run(1),
    pool="ingest",
)
def raw_and_redacted_trajectories(
    context: dg.AssetExecutionContext,
    config: IngestConfig,
    stream: StreamResource,
    warehouse: WarehouseResource,
    ingest: IngestResource,
) -> Iterator[dg.MaterializeResult[None]]:
    """Ingest what the stream has of the day, or the given sequences of it; doing so again changes nothing."""
    day = date.fromisoformat(context.partition_key)
    policy = ingest.policy()
    with stream.open() as messages, warehouse.open() as tables:
        planned = _plan(messages, tables, day, config)
        if planned is None:
            refuse_beyond_retention(tables, TRAJECTORIES.name, day, current_revision(tables, policy))
            context.log.info("the stream has nothing of %s", day)
            planned = Range(1, 0, day)
            report = DrainReport.of_nothing()
        else:
            report = drain(
                messages,
                tables,
                stream=TRAJECTORIES.name,
                first=planned.first,
                last=planned.last,
                policy=policy,
                previous_keys=ingest.previous_keys(),
                open_raw_objects=ingest.raw_objects().open,
                workers=ingest.workers,
            )
        if report.kept:
            context.log.warning(
                "%s of %s sequences have left the stream, could not be read again and stay as older rules made them",
                *(report.kept, planned.last - planned.first + 1),
            )
        ledger = day_of_ledger(tables, TRAJECTORIES.name, day)
        yield _raw(tables, planned, report, ledger)
        yield _redacted(tables, planned, report, policy)


def _plan(messages: Stream, tables: Warehouse, day: date, config: IngestConfig) -> Range | None:
    if config.first_sequence is not None and config.last_sequence is not None:
        return Range(config.first_sequence, config.last_sequence, day)
    watermark = ledger_watermark(tables, TRAJECTORIES.name)
    found = range_of_day(messages, TRAJECTORIES.name, day, ingested_up_to=watermark)
    if found is None:
        return None
    whole = from_its_beginning(tables, TRAJECTORIES.name, found)
    return Range(config.first_sequence or whole.first, config.last_sequence or whole.last, day)


def _raw(tables: Warehouse, drained: Range, report: DrainReport, ledger: DayOfLedger) -> dg.MaterializeResult[None]:
    unaccounted = unaccounted_sequences(tables, TRAJECTORIES.name, drained)
    missing = missing_contents(tables, TRAJECTORIES.name, drained)
    lost = ledger.verdicts.get("lost", 0)
    return dg.MaterializeResult(
        asset_key=raw_trajectories.key,
        metadata={
            "dagster/row_count": sum(ledger.verdicts.values()),
            "first_sequence": drained.first,
            "last_sequence": drained.last,
            "ingested_now": report.judged,
            "unchanged": report.unchanged,
            "kept_from_older_rules": report.kept,
            "trajectories_per_second": round(report.judged / report.seconds, 1) if report.seconds else 0.0,
            "megabytes": round(report.bytes / 1e6, 3),
            "verdicts": dg.MetadataValue.md(_verdicts(ledger)),
            "refused": dg.MetadataValue.md(ranking("reason", report.reasons)),
        },
        check_results=[
            dg.AssetCheckResult(
                asset_key=raw_trajectories.key,
                check_name="every_sequence_is_accounted_for",
                passed=not (unaccounted or missing or lost),
                metadata={"without_a_row": unaccounted, "without_content": missing, "lost": lost},
            ),
            dg.AssetCheckResult(
                asset_key=raw_trajectories.key,
                check_name="few_messages_are_refused",
                passed=ledger.rejected_share < _MOST_REJECTED,
                metadata={"rejected_share": ledger.rejected_share},
            ),
        ],
    )


def _redacted(
    tables: Warehouse, drained: Range, report: DrainReport, policy: RedactionPolicy
) -> dg.MaterializeResult[None]:
    read_back = note_invalid_documents(tables, TRAJECTORIES.name, drained)
    tolerated = policy.kinds_switched_off()
    note_residual_documents(tables, TRAJECTORIES.name, drained, allowed=policy.allowed, tolerated=tolerated)
    suspicion = suspicions_of_day(tables, TRAJECTORIES.name, drained.day)
    residue = {kind: count for kind, count in suspicion.problems.items() if kind not in {INVALID, *tolerated}}
    return dg.MaterializeResult(
        asset_key=redacted_trajectories.key,
        metadata={
            "dagster/row_count": trajectories_of_day(tables, TRAJECTORIES.name, drained.day),
            "accepted_now": report.verdicts.get("accepted", 0),
            "agents": dg.MetadataValue.md(ranking("agent", report.agents)),
            "domains": dg.MetadataValue.md(ranking("domain", report.domains)),
            "models": dg.MetadataValue.md(ranking("model", report.models)),
            "redactions": sum(report.rules.values()),
            "rules_that_fired": dg.MetadataValue.md(ranking("rule", report.rules)),
        },
        check_results=[
            dg.AssetCheckResult(
                asset_key=redacted_trajectories.key,
                check_name="documents_are_valid",
                passed=not suspicion.problems.get(INVALID),
                metadata={"read_back": read_back, "invalid": suspicion.problems.get(INVALID, 0)},
            ),
            dg.AssetCheckResult(
                asset_key=redacted_trajectories.key,
                check_name="nothing_sensitive_remains",
                passed=not residue,
                metadata={"left": residue, "suspicious": list(suspicion.trajectory_ids[:_SHOWN])},
            ),
        ],
    )


@dg.asset_check(asset=redacted_trajectories.key, description="No trajectory waits longer than INGEST_STALE_SECONDS.")
def trajectories_are_ingested_in_time(
    stream: StreamResource, warehouse: WarehouseResource, ingest: IngestResource
) -> dg.AssetCheckResult:
    """Compare the age of the oldest waiting message with what is tolerated; the sensor does the same as it looks."""
    now = datetime.now(UTC)
    with stream.open() as messages, warehouse.open() as tables:
        watermark = ledger_watermark(tables, TRAJECTORIES.name)
        seen = observe(messages, TRAJECTORIES.name, ingested_up_to=watermark, now=now)
        held_back = waiting(messages, TRAJECTORIES.name, ingested_up_to=watermark, lag=seen.lag, lost=seen.overrun)
    return dg.AssetCheckResult(**freshness(held_back, ingest.stale_seconds, now))


def freshness(held_back: Waiting, stale_seconds: float, now: datetime) -> dict[str, Any]:
    """The verdict of `trajectories_are_ingested_in_time` on what waits, as a result or an evaluation takes it."""
    waited = (now - held_back.oldest).total_seconds() if held_back.oldest else 0.0
    return {
        "passed": waited <= stale_seconds,
        "severity": dg.AssetCheckSeverity.WARN,
        "metadata": {"waiting": held_back.messages, "oldest_waits_seconds": waited},
    }


def _verdicts(ledger: DayOfLedger) -> str:
    rows = [(verdict, count, sparkline(ledger.by_hour[verdict])) for verdict, count in sorted(ledger.verdicts.items())]
    return table(("verdict", "sequences", "by hour of the day, UTC"), rows)
