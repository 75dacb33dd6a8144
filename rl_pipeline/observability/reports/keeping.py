"""A report that was made: kept as page, text and figures, and told on `agent.rl.report.v1`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any

from rl_pipeline.contracts import Report, ReportedIssue, ReportKind, serialize
from rl_pipeline.observability.notices.outbox import Notice, Outbox
from rl_pipeline.observability.notices.ways import NATS
from rl_pipeline.observability.reports.document import Document
from rl_pipeline.observability.reports.findings import Finding
from rl_pipeline.observability.reports.markdown import to_markdown
from rl_pipeline.observability.reports.page import to_page
from rl_pipeline.observability.reports.periods import Period
from rl_pipeline.observability.reports.summaries import Summary
from rl_pipeline.stores.objects import Objects

REPORT_SUBJECT = "agent.rl.report.v1"
_FOLDERS: Mapping[ReportKind, str] = {"daily": "daily", "weekly": "weekly", "training_job": "training-jobs"}


@dataclass(frozen=True, slots=True)
class MadeReport:
    """A report in all that is needed to keep and tell it."""

    kind: ReportKind
    name: str
    """The day, or the training job."""
    document: Document
    text: str
    """The lines that a superior is sent."""
    fields: Mapping[str, Any]
    findings: Sequence[Finding] = ()
    period: Period | None = None

    @property
    def report_id(self) -> str:
        """By which it is told once; made again, it replaces the one before."""
        return f"{self.kind}-{self.name}"


def made_summary(summary: Summary, day: str) -> MadeReport:
    """The report on a day or a week, under the day on which it ends."""
    return MadeReport(
        summary.kind,
        day,
        summary.document(),
        summary.text(),
        summary.fields(),
        summary.findings,
        summary.figures.period,
    )


def keep(objects: Objects, report: MadeReport, now: datetime) -> str:
    """Store the report, have it told, and return the address of its page. Again, the newer one replaces it.

    It is told again only if it says something else.
    """
    prefix = f"reports/{_FOLDERS[report.kind]}/{report.name}/report"
    message = _message(report, objects.url(f"{prefix}.html"), now)
    objects.put(f"{prefix}.json", serialize(message))
    objects.put(f"{prefix}.md", to_markdown(report.document).encode())
    objects.put(f"{prefix}.html", to_page(report.document).encode())
    said = json.dumps([message.text, [asdict(finding) for finding in report.findings]])
    notice_id = f"report-{report.report_id}-{sha256(said.encode()).hexdigest()[:16]}"
    Outbox(objects).add(Notice(notice_id, REPORT_SUBJECT, message.model_dump(mode="json"), (NATS,), now))
    return message.url


def _message(report: MadeReport, url: str, now: datetime) -> Report:
    return Report(
        report_id=report.report_id,
        kind=report.kind,
        timestamp=now,
        period_start=report.period.start if report.period else None,
        period_end=report.period.end if report.period else None,
        text=report.text,
        figures=dict(report.fields),
        issues=[ReportedIssue(**asdict(finding)) for finding in report.findings],
        url=url,
    )
