"""The report on a training job that is over: its end, what it made, what validation said, and whether it came into
service."""

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from rl_pipeline.observability.reports.document import Document, Paragraph, Part, Picture, Section, table
from rl_pipeline.observability.reports.keeping import MadeReport
from rl_pipeline.observability.reports.trainings import Usage, usage_of
from rl_pipeline.stores.objects import ObjectMissing, Objects
from rl_pipeline.stores.warehouse import Warehouse
from rl_pipeline.training.checkpoints.releasing import prefix_of
from rl_pipeline.training.delivering import CURVES
from rl_pipeline.training.jobs.job import Attempt
from rl_pipeline.training.jobs.reports import JobReport, job_report
from rl_pipeline.training.jobs.rows import attempts_of

LARGEST_PICTURE = 500_000


@dataclass(frozen=True, slots=True)
class EndedTraining:
    """All that is known of a job."""

    report: JobReport
    attempts: tuple[Attempt, ...]
    usage: Usage
    curves: bytes | None = None
    """A picture of its training; None where it left none."""

    def made(self) -> MadeReport:
        """As it is kept and told."""
        report = self.report
        return MadeReport(
            "training_job",
            report.job_id,
            self.document(),
            report.text(),
            {
                **{name: value for name, value in report.as_dict().items() if name != "job_id"},
                "gpu_hours": self.usage.gpu_hours,
                "cpu_hours": self.usage.cpu_hours,
            },
        )

    def document(self) -> Document:
        """For people."""
        lines = [line.partition(": ") for line in self.report.text().splitlines()]
        rows = [(name, value) for name, _, value in lines]
        rows.append(("GPU hours", f"{self.usage.gpu_hours:.2f}"))
        rows.append(("CPU hours", f"{self.usage.cpu_hours:.2f}"))
        tried = [
            (one.number, one.starts_from, one.outcome or "open", one.failure_code or "", one.message, _changed(one))
            for one in self.attempts
        ]
        parts: list[Part] = [table(("", ""), rows)]
        if self.usage.untold:
            parts.append(Paragraph(f"Attempts that ended before they could tell their cost: {self.usage.untold}."))
        sections = [Section("What came of it", tuple(parts))]
        if tried:
            headers = ("attempt", "from", "outcome", "failure", "message", "changed")
            sections.append(Section("Attempts", (table(headers, tried),)))
        if self.curves:
            sections.append(Section("Curves", (Picture("curves of the training", self.curves),)))
        return Document(f"Training job {self.report.job_id}", self._lead(), tuple(sections))

    def _lead(self) -> str:
        report = self.report
        return (
            f"State: {report.state}; attempts: {report.attempts}, in {report.duration_hours:.2f} h; validation: "
            f"{report.validation}; deployment: {report.deployment}."
        )


def _changed(attempt: Attempt) -> str:
    """What this attempt did otherwise than the one before it."""
    return attempt.changes if attempt.changes not in ("", "{}") else "nothing"


def ended_training(warehouse: Warehouse, objects: Objects, job_id: str) -> EndedTraining:
    """The job with what became of its model. Raises `NoSuchJob`."""
    report = complete_report(warehouse, job_id)
    attempts = attempts_of(warehouse, [job_id])[job_id]
    return EndedTraining(report, tuple(attempts), usage_of(attempts), _curves(objects, report.checkpoint))


def complete_report(warehouse: Warehouse, job_id: str) -> JobReport:
    """The report of the training, with what validation and deployment made of its model. Raises `NoSuchJob`."""
    report = job_report(warehouse, job_id)
    validated = warehouse.query(
        "SELECT decision, reasons FROM validation_reports FINAL WHERE job_id = {job:String}", {"job": job_id}
    ).to_dicts()
    if not validated:
        return report
    decision = validated[0]["decision"]
    verdict = {"deploy": "passed", "refuse": "failed"}.get(decision, "a person is asked")
    report = replace(report, validation=": ".join([verdict, "; ".join(validated[0]["reasons"])]).removesuffix(": "))
    if report.deployment != "not yet":
        return report
    return replace(report, deployment="aborted" if decision == "refuse" else _deployment(warehouse, job_id))


def changed_jobs(warehouse: Warehouse, since: datetime) -> dict[str, datetime]:
    """Jobs that are over, of which something was learnt since then, with when that was last; the oldest first."""
    found = warehouse.query(
        """
        SELECT job_id, max(at) AS changed FROM (
            SELECT job_id, changed_at AS at FROM training_jobs FINAL WHERE state IN ('completed', 'failed', 'cancelled')
            UNION ALL SELECT job_id, validated_at AS at FROM validation_reports FINAL
            UNION ALL SELECT training_job_id AS job_id, changed_at AS at FROM model_releases FINAL
            UNION ALL
            SELECT training_job_id AS job_id, max(audit.at) AS at
            FROM (SELECT training_job_id, model_id FROM model_releases FINAL) AS released
            INNER JOIN (SELECT model_id, at, event FROM deployment_audit FINAL) AS audit USING (model_id)
            WHERE event IN ('promoted', 'rolled_back') GROUP BY training_job_id
        )
        WHERE job_id IN (SELECT job_id FROM training_jobs FINAL WHERE state IN ('completed', 'failed', 'cancelled'))
        GROUP BY job_id HAVING changed > {since:DateTime64(3, 'UTC')} ORDER BY changed, job_id
        """,
        {"since": since.replace(tzinfo=None)},
    )
    return dict(found.iter_rows())


def _deployment(warehouse: Warehouse, job_id: str) -> str:
    """Where the release of a job's model stands."""
    released: list[dict[str, Any]] = warehouse.query(
        "SELECT model_id, state, needs_approval, explanation FROM model_releases FINAL "
        "WHERE training_job_id = {job:String}",
        {"job": job_id},
    ).to_dicts()
    if not released:
        return "not yet"
    model = released[0]["model_id"]
    last = warehouse.query(
        """
        SELECT event FROM deployment_audit FINAL WHERE model_id = {model:String}
            AND event IN ('deployed', 'approved', 'ramped', 'promoted', 'rolled_back', 'aborted')
        ORDER BY generation DESC, at DESC LIMIT 1
        """,
        {"model": model},
    )
    if not last.is_empty():
        said = {"promoted": "in service", "rolled_back": "rolled back", "aborted": "aborted"}
        return f"{said.get(last['event'][0], 'in progress')}, {model}"
    if released[0]["state"] in ("superseded", "refused"):
        return f"aborted, {model}: {released[0]['explanation']}"
    return f"scheduled, {model}{' waits for an approval' if released[0]['needs_approval'] else ''}"


def _curves(objects: Objects, checkpoint: str | None) -> bytes | None:
    prefix = prefix_of(objects, checkpoint) if checkpoint else None
    if prefix is None:
        return None
    try:
        picture = objects.get(f"{prefix}/{CURVES}")
    except ObjectMissing:
        return None
    return picture if len(picture) <= LARGEST_PICTURE else None
