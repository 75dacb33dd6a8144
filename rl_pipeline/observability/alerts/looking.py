"""What the tables say that is an alert: trainings, validations, rollbacks, and what agents hand in."""

from datetime import datetime, timedelta

from rl_pipeline.contracts import Alert
from rl_pipeline.observability.alerts.alerting import alert
from rl_pipeline.observability.reports.activity import read_arrivals
from rl_pipeline.observability.reports.findings import LEAST_MESSAGES, REFUSED_SHARE
from rl_pipeline.observability.reports.periods import Period
from rl_pipeline.stores.warehouse import Warehouse

COLLECTION_WINDOW = timedelta(hours=1)


def failed_trainings(warehouse: Warehouse, in_a_row: int, now: datetime) -> list[Alert]:
    """Attempts that failed since the last that succeeded, once they are so many; a retry is an attempt too.

    What was cancelled or gave way is neither. The episode goes on until one succeeds.
    """
    failed = warehouse.query(
        """
        SELECT job_id, attempt, failure_code, message FROM training_attempts FINAL
        WHERE outcome = 'failed' AND ended_at > (
            SELECT coalesce(max(ended_at), toDateTime64(0, 3, 'UTC')) FROM training_attempts FINAL
            WHERE outcome = 'completed'
        )
        ORDER BY ended_at, job_id, attempt
        """
    ).to_dicts()
    if len(failed) < in_a_row:
        return []
    first, last = failed[0], failed[in_a_row - 1]
    codes = ", ".join(row["failure_code"] or "UNKNOWN" for row in failed[:in_a_row])
    return [
        alert(
            "training_failed",
            f"{first['job_id']}#{first['attempt']}",
            now,
            subject=last["job_id"],
            text=f"Training failed {in_a_row} times in a row ({codes}), last job {last['job_id']}: {last['message']}",
            next_step=f"rl-pipeline jobs {last['job_id']}",
        )
    ]


def failed_validations(warehouse: Warehouse, since: datetime, now: datetime) -> list[Alert]:
    """Checkpoints that validation refused, or about which it asks a person."""
    found = warehouse.query(
        """
        SELECT job_id, manifest_sha256, decision, reasons, report_url, validated_at FROM validation_reports FINAL
        WHERE decision != 'deploy' AND NOT shadow AND validated_at > {since:DateTime64(3, 'UTC')} ORDER BY validated_at
        """,
        {"since": since.replace(tzinfo=None)},
    )
    return [
        alert(
            "validation_failed",
            f"{row['job_id']} {row['manifest_sha256']} {row['validated_at'].isoformat()}",
            now,
            subject=row["job_id"],
            severity="critical" if row["decision"] == "refuse" else "warning",
            text=f"The model of {row['job_id']} "
            + ("failed validation" if row["decision"] == "refuse" else "was not decided on by validation")
            + f": {'; '.join(row['reasons']) or 'see its report'}. The old model stays in service.",
            next_step=f"Read {row['report_url']}"
            + ("." if row["decision"] == "refuse" else "; then rl-pipeline deployment approve, or abort."),
        )
        for row in found.iter_rows(named=True)
    ]


def rollbacks(warehouse: Warehouse, since: datetime, now: datetime) -> list[Alert]:
    """Models that were taken back."""
    found = warehouse.query(
        """
        SELECT generation, hash, model_id, reason, by, at, JSONExtractString(state, 'serving') AS serving
        FROM deployment_audit FINAL
        WHERE event = 'rolled_back' AND at > {since:DateTime64(3, 'UTC')} ORDER BY generation, at
        """,
        {"since": since.replace(tzinfo=None)},
    )
    return [
        alert(
            "model_rolled_back",
            f"{row['generation']} {row['hash']}",
            now,
            subject=row["model_id"],
            text=f"URGENT: Model {row['model_id']} rolled back at {row['at']:%Y-%m-%d %H:%M:%S} UTC by {row['by']}: "
            f"{row['reason']}. {row['serving']} serves. Investigating root cause.",
            next_step="Its post-mortem follows among the events of deployed_models; rl-pipeline deployment shows who "
            "serves.",
        )
        for row in found.iter_rows(named=True)
    ]


def waiting_rollouts(warehouse: Warehouse, since: datetime, now: datetime) -> list[Alert]:
    """Rollouts that began to wait for a person; once for each step and reason."""
    found = warehouse.query(
        """
        SELECT deployment_id, step, reason, model_id, explanation FROM rollout_holds FINAL
        WHERE since > {since:DateTime64(3, 'UTC')} ORDER BY since
        """,
        {"since": since.replace(tzinfo=None)},
    )
    return [
        alert(
            "rollout_waits",
            f"{row['deployment_id']} {row['step']} {row['reason']}",
            now,
            subject=row["model_id"],
            severity="warning",
            text=f"The rollout of {row['model_id']} waits for a person ({row['reason']}): {row['explanation']}",
            next_step="See `rl-pipeline deployment`; docs/deployment.md says what each reason asks for.",
        )
        for row in found.iter_rows(named=True)
    ]


def collection_is_bad(warehouse: Warehouse, stream: str, now: datetime) -> str | None:
    """More than a tenth of the last hour's messages were refused: says how many. None where all is well, or too few."""
    arrivals = read_arrivals(warehouse, stream, Period(now - COLLECTION_WINDOW, now))
    if arrivals.judged < LEAST_MESSAGES or arrivals.refused_share <= REFUSED_SHARE:
        return None
    return f"{arrivals.refused_share:.1%} of the {arrivals.judged:,} messages of the last hour were refused"
