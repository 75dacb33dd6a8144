"""Reports on checkpoints: a row in `validation_reports`, and the report itself beside the checkpoint."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.objects import Objects
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.validation.report_text import to_markdown
from rl_pipeline.validation.verdict import ValidationReport


class NothingToValidate(PipelineError):
    """A job that has left no checkpoint, or none any more."""


class NotValidated(PipelineError):
    """A job whose checkpoint nobody has validated."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A checkpoint that was verified, signed and stored."""

    job_id: str
    checkpoint_path: str
    manifest_sha256: str
    base_model: str
    shadow: bool


@dataclass(frozen=True, slots=True)
class StoredReport:
    """A report, with what it is about."""

    report: ValidationReport
    control: str
    manifest_sha256: str


def candidate_of(warehouse: Warehouse, job_id: str) -> Candidate:
    """The checkpoint of a training job. Raises `NothingToValidate`."""
    found = warehouse.query(
        """
        SELECT job_id, checkpoint_path, manifest_sha256, base_model, shadow FROM model_checkpoints FINAL
        WHERE job_id = {job:String} AND pruned_at IS NULL
        """,
        {"job": job_id},
    )
    if found.is_empty():
        raise NothingToValidate(f"the job {job_id} has no checkpoint: see `rl-pipeline jobs {job_id}`")
    return Candidate(**found.row(0, named=True))


def job_of_checkpoint(warehouse: Warehouse, checkpoint_path: str) -> str:
    """The training job that a checkpoint is of. Raises `NothingToValidate`."""
    found = warehouse.query(
        "SELECT job_id FROM model_checkpoints FINAL WHERE checkpoint_path = {path:String} AND pruned_at IS NULL",
        {"path": checkpoint_path.rstrip("/")},
    )
    if found.is_empty():
        raise NothingToValidate(f"no training job has left a checkpoint at {checkpoint_path}: see `rl-pipeline jobs`")
    return str(found["job_id"][0])


def waiting_checkpoints(warehouse: Warehouse) -> list[str]:
    """The jobs whose checkpoints nobody has judged yet, or that may be released and are not, the oldest first."""
    found = warehouse.query(
        """
        SELECT job_id FROM model_checkpoints FINAL
        WHERE pruned_at IS NULL
            AND job_id IN (SELECT job_id FROM training_jobs FINAL WHERE state = 'completed')
            AND job_id NOT IN (SELECT training_job_id FROM model_releases)
            AND job_id NOT IN (SELECT job_id FROM validation_reports FINAL WHERE decision = 'refuse' OR shadow)
        ORDER BY created_at, job_id
        """
    )
    return [str(job) for job in found["job_id"]]


def store_report(
    warehouse: Warehouse,
    objects: Objects,
    candidate: Candidate,
    report: ValidationReport,
    *,
    control: str,
    seconds: float,
    now: datetime,
) -> str:
    """Keep a report, and return its address. Again, the newer one counts."""
    import polars as pl

    prefix = f"{candidate.job_id}/validation"
    objects.put(f"{prefix}/report.md", to_markdown(report).encode())
    objects.put(f"{prefix}/report.json", report.to_json().encode())
    url = objects.url(f"{prefix}/report.json")
    row = {
        "job_id": candidate.job_id,
        "control": control,
        "manifest_sha256": candidate.manifest_sha256,
        "shadow": candidate.shadow,
        "decision": report.decision,
        "reasons": list(report.reasons),
        "improvement": report.improvement.points if report.improvement else None,
        "seconds": seconds,
        "report": report.to_json(),
        "report_url": url,
        "validated_at": now,
    }
    schema: dict[str, Any] = {"reasons": pl.List(pl.String), "improvement": pl.Float64}
    warehouse.insert("validation_reports", pl.DataFrame([row], schema_overrides=schema))
    return url


def report_of(warehouse: Warehouse, job_id: str) -> StoredReport:
    """What was said of a job's checkpoint last. Raises `NotValidated`."""
    found = warehouse.query(
        "SELECT report, control, manifest_sha256 FROM validation_reports FINAL WHERE job_id = {job:String}",
        {"job": job_id},
    )
    if found.is_empty():
        raise NotValidated(f"nobody has validated the checkpoint of {job_id}: materialize validation_reports for it")
    row = found.row(0, named=True)
    return StoredReport(ValidationReport.from_json(row["report"]), row["control"], row["manifest_sha256"])
