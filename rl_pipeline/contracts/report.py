"""`agent.rl.report.v1`: a report that a superior agent, or whoever listens, is sent.

It is an addition to the specification, which says what reports contain and that they are sent, not on which subject.
"""

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from rl_pipeline.contracts.fields import ClosedObject, ContractModel, Identifier, JsonObject, Name, Timestamp, optional

ReportKind = Literal["daily", "weekly", "training_job"]
Severity = Literal["critical", "warning", "note"]
LongText = Annotated[str, Field(min_length=1, max_length=100_000)]

_EXAMPLE: dict[str, Any] = {
    "report_id": "daily-2025-12-08",
    "kind": "daily",
    "timestamp": "2025-12-08T08:00:12Z",
    "period_start": "2025-12-07T08:00:00Z",
    "period_end": "2025-12-08T08:00:00Z",
    "text": "Trajectories collected: 1,042 (last 24h)\nAverage reward: 0.694 ± 0.181",
    "figures": {"trajectories": 1042, "reward_mean": 0.694, "reward_std": 0.181, "cost_usd": None},
    "issues": [
        {
            "rule": "many_messages_are_refused",
            "severity": "critical",
            "issue": "12.4% of 1,190 messages were refused, more than 10%",
            "recommendation": "`rl-pipeline dead-letters list` says why and whose they are.",
        }
    ],
    "url": "s3://pmoves-models/rl-checkpoints/reports/daily/2025-12-08/report.html",
}


class ReportedIssue(ContractModel, json_schema_extra={"examples": _EXAMPLE["issues"]}):
    """Something that was found, with its evidence."""

    rule: Identifier = Field(description="The rule that found it.")
    severity: Severity = Field(description="How grave it is.")
    issue: LongText = Field(description="What was found, with its figures.")
    recommendation: LongText = Field(description="What to do about it.")


class Report(ClosedObject, json_schema_extra={"examples": [_EXAMPLE]}):
    """A report. The same id again is the same report, made anew."""

    model_config = ConfigDict(title="Agent RL Report")

    report_id: Identifier = Field(description="Its kind, and its day or training job.")
    kind: ReportKind = Field(description="A day, a week, or the end of a training job.")
    timestamp: Timestamp = Field(description="When it was made.")
    period_start: Timestamp | None = optional("From when on; absent in the report of a job.")
    period_end: Timestamp | None = optional("Up to when.")
    text: LongText = Field(description="The lines that a superior is to read.")
    figures: JsonObject = Field(description="The same for machines; null is what is not known.")
    issues: list[ReportedIssue] = Field(description="What was found, the gravest first.")
    url: Name = Field(
        description="Where the page lies; the same address with .md and .json has the text and the figures."
    )
