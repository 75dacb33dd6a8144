"""`curated_datasets`: what one training job learns from."""

from datetime import UTC, datetime
from typing import Any

import dagster as dg

from rl_pipeline.assets.catalogue import OWNERS, table_columns
from rl_pipeline.assets.pictures import ranking, table
from rl_pipeline.assets.runs import begun_attempt, is_canceling
from rl_pipeline.assets.trajectory_rewards import trajectory_rewards
from rl_pipeline.curation.curating import CuratedDataset, curate
from rl_pipeline.curation.policy import CurationPolicy
from rl_pipeline.curation.reporting import CurationReport
from rl_pipeline.environments.worlds import Worlds
from rl_pipeline.partitions import training_jobs
from rl_pipeline.resources.ingest import IngestResource
from rl_pipeline.resources.stream import StreamResource
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.resources.warehouse import WarehouseResource
from rl_pipeline.training.carrying_out import ending_in_its_row
from rl_pipeline.training.jobs.rows import end_attempt

_CHECKS = {
    "the_dataset_is_not_empty": (True, "There is something to train on."),
    "there_are_pairs_to_learn_from": (
        True,
        "What learns by comparing has something to compare: DPO attempts at one request, the reward model of online "
        "algorithms these or conversations of one task type.",
    ),
    "train_and_holdout_share_nothing": (True, "No task, long request or near copy is on both sides."),
    "nothing_sensitive_was_found": (
        False,
        "No trajectory had to be left out because an independent set of rules found a sensitive value in it.",
    ),
    "every_domain_is_present": (False, "Each domain that was asked for has trajectories."),
    "caps_leave_most_of_it": (
        False,
        "The caps on one publisher and one user cost no more than a third of what could be learnt from. A request's "
        "source_share and user_share raise them.",
    ),
    "all_rewards_are_of_one_configuration": (
        False,
        "All were scored by the same rules. Pairs are within one configuration; what is best, and how undecided a task "
        "is, is told by the rewards of all of them: backfill trajectory_rewards to have them of one.",
    ),
}

_ADVICE = {
    "there_are_pairs_to_learn_from": (
        "let agents try requests more than once, widen the request's filter, lower its pair_margin, or ask for sft, "
        "which compares nothing"
    )
}


@dg.asset(
    deps=[dg.AssetDep(trajectory_rewards, partition_mapping=dg.AllPartitionMapping())],
    description=(
        "The trajectories of a training job, chosen for its algorithm, balanced and capped, with a holdout by task: "
        "a manifest that can be made again bit for bit, and the files that the training program reads."
    ),
    group_name="curation",
    kinds={"clickhouse", "polars", "parquet"},
    owners=OWNERS,
    metadata=table_columns("datasets"),
    partitions_def=training_jobs,
    check_specs=[
        dg.AssetCheckSpec(
            name, asset="curated_datasets", blocking=blocking, description=text, partitions_def=training_jobs
        )
        for name, (blocking, text) in _CHECKS.items()
    ],
)
def curated_datasets(
    context: dg.AssetExecutionContext,
    stream: StreamResource,
    warehouse: WarehouseResource,
    ingest: IngestResource,
    training: TrainingResource,
) -> dg.MaterializeResult:  # type: ignore[type-arg]  # Dagster does not know it by its parameter
    """Choose the job's trajectories among all that are scored, and write them as the algorithm needs them."""
    now = datetime.now(UTC)
    with (
        stream.open_with_leases() as (_, leases),
        warehouse.open() as tables,
        begun_attempt(context, tables, leases) as (job, attempts, _),
    ):
        with ending_in_its_row(tables, attempts[-1], lambda: is_canceling(context)):
            redaction = ingest.policy()
            dataset = curate(
                tables,
                training.datasets().open(),
                job_id=job.job_id,
                request=job.request,
                accepted_at=job.accepted_at,
                algorithm=job.request.training_config.algorithm or training.default_algorithm(),
                revision=sum(attempt.starts_from == "dataset" for attempt in attempts),
                now=now,
                watermark=job.watermark,
                policy=CurationPolicy(
                    allowed=redaction.allowed,
                    tolerated=redaction.kinds_switched_off(),
                    worlds=Worlds(training.worlds()),
                ),
                work=training.site().work,
            )
        failed = [name for name, passed in verdicts(dataset.report).items() if _CHECKS[name][0] and not passed]
        if failed:
            # The check ends the run; the job's row needs to know why.
            advice = "".join(f"; {_ADVICE[name]}" for name in failed if name in _ADVICE)
            message = f"the dataset fails {', '.join(failed)}: {_account(dataset)}{advice}"
            end_attempt(tables, attempts[-1], "failed", now, failure_code="DATA", message=message)
    return _result(dataset)


def verdicts(report: CurationReport) -> dict[str, bool]:
    """Which checks a dataset passes, by what is reported of it."""
    return {
        "the_dataset_is_not_empty": report.splits["train"] > 0,
        "there_are_pairs_to_learn_from": not report.lacks_pairs,
        "train_and_holdout_share_nothing": report.leakage.total == 0,
        "nothing_sensitive_was_found": not report.residual,
        "every_domain_is_present": not report.missing_domains,
        "caps_leave_most_of_it": 3 * report.lost_to_caps <= report.kept + report.lost_to_caps,
        "all_rewards_are_of_one_configuration": len(report.rewards["configurations"]) <= 1,
    }


def _account(dataset: CuratedDataset) -> str:
    report = dataset.report
    reasons = ", ".join(f"{count} {reason}" for reason, count in report.left_out.items())
    return f"{report.kept} of {report.offered} trajectories kept; left out: {reasons or 'none'}"


def _result(dataset: CuratedDataset) -> dg.MaterializeResult[None]:
    report = dataset.report
    domains = [(name, c.quota, c.offered, c.kept, c.shortage) for name, c in sorted(report.domains.items())]
    metadata: dict[str, Any] = {
        "dagster/row_count": report.kept,
        "dataset": dataset.dataset_id,
        "manifest": dataset.url,
        "manifest_hash": dataset.manifest_hash,
        "offered": report.offered,
        "train": report.splits["train"],
        "holdout": report.splits["holdout"],
        "tasks": report.tasks,
        "pairs": report.pairs,
        "pairs_across_requests": report.pairs_across_requests,
        "prompts": report.prompts,
        "domains": dg.MetadataValue.md(table(("domain", "quota", "offered", "kept", "short by"), domains)),
        "left_out": dg.MetadataValue.md(ranking("reason", report.left_out)),
        "environments": ", ".join(report.environments) or "none",
        "rewards": dg.MetadataValue.json(dict(report.rewards)),
        "most_of_one_source": f"{report.sources.most} of at most {report.sources.cap}",
        "most_of_one_user": f"{report.users.most} of at most {report.users.cap}",
        "files": dg.MetadataValue.md(
            table(("file", "rows", "bytes"), [(f.name, f.rows, f.size) for f in dataset.manifest.files])
        ),
    }
    passed = verdicts(report)
    more: dict[str, dict[str, Any]] = {
        "the_dataset_is_not_empty": {"train": report.splits["train"]},
        "there_are_pairs_to_learn_from": {
            "pairs": report.pairs,
            "pairs_across_requests": report.pairs_across_requests,
            "advice": _ADVICE["there_are_pairs_to_learn_from"] if report.lacks_pairs else "none",
        },
        "train_and_holdout_share_nothing": {
            "tasks": report.leakage.tasks,
            "openings": report.leakage.openings,
            "near_copies": report.leakage.near_copies,
        },
        "nothing_sensitive_was_found": {"values_by_kind": dict(report.residual)},
        "every_domain_is_present": {"missing": ", ".join(report.missing_domains) or "none"},
        "caps_leave_most_of_it": {"lost_to_caps": report.lost_to_caps, "kept": report.kept},
        "all_rewards_are_of_one_configuration": {
            "configurations": ", ".join(report.rewards["configurations"]) or "none"
        },
    }
    return dg.MaterializeResult(
        metadata=metadata,
        check_results=[
            dg.AssetCheckResult(
                check_name=name,
                passed=passed[name],
                severity=dg.AssetCheckSeverity.ERROR if blocking else dg.AssetCheckSeverity.WARN,
                metadata=more[name],
            )
            for name, (blocking, _) in _CHECKS.items()
        ],
    )
