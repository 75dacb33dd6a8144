"""The day's summary and the week's report: figures and findings, as a document and as fields for machines."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from rl_pipeline.observability.reports.activity import bins_of
from rl_pipeline.observability.reports.document import (
    UNKNOWN,
    Chart,
    Document,
    Items,
    Paragraph,
    Part,
    Section,
    Series,
    table,
)
from rl_pipeline.observability.reports.estimates import Estimate
from rl_pipeline.observability.reports.figures import Figures
from rl_pipeline.observability.reports.findings import Finding
from rl_pipeline.observability.reports.outcomes import Outcome
from rl_pipeline.observability.reports.storage import Storage

Kind = Literal["daily", "weekly"]

_TITLES = {"daily": "Daily training summary", "weekly": "Weekly training report"}
_SPECIFIED = {"stream": 100, "tables": 200, "gpu_hours": 8, "cost_usd": 50}
"""What the specification plans for: gigabytes a month, GPU hours and dollars a job."""


@dataclass(frozen=True, slots=True)
class Summary:
    """A report on a period."""

    kind: Kind
    figures: Figures
    findings: Sequence[Finding]

    @property
    def title(self) -> str:
        """With the day on which it ends."""
        return f"{_TITLES[self.kind]}, {self.figures.period.end:%Y-%m-%d}"

    def fields(self) -> dict[str, Any]:
        """What the specification asks for, by name; what is not known is None."""
        figures, rewards = self.figures, self.figures.rewards
        performance = figures.performance
        standing = figures.standing
        return {
            "trajectories": figures.arrivals.accepted,
            "reward_mean": rewards.estimate.mean,
            "reward_std": rewards.deviation,
            "jobs_completed": figures.ended("completed"),
            "jobs_failed": figures.ended("failed"),
            "model": standing.serving if standing else None,
            "model_deployed_at": standing.since.isoformat() if standing else None,
            "model_reward_mean": performance.recent.mean if performance and performance.recent.count else None,
            "model_reward_delta": _delta(figures),
            "stream_bytes_per_trajectory": figures.storage.stream_per_trajectory,
            "stream_gb_per_month": figures.storage.gigabytes_a_month(figures.storage.stream_per_trajectory),
            "warehouse_bytes_per_trajectory": figures.storage.tables_per_trajectory,
            "warehouse_gb_per_month": figures.storage.gigabytes_a_month(figures.storage.tables_per_trajectory),
            "gpu_hours": figures.usage.gpu_hours,
            "cpu_hours": figures.usage.cpu_hours,
            "cost_usd": figures.usage.cost_usd,
            **{f"{one.goal.name}_change": None if one.note else one.change.relative for one in figures.outcomes},
        }

    def text(self) -> str:
        """The lines that a superior is sent."""
        figures, rewards = self.figures, self.figures.rewards
        span = "last 24h" if self.kind == "daily" else "last 7 days"
        standing, delta = figures.standing, _delta(figures)
        served = f"{standing.serving} (deployed {standing.since:%Y-%m-%d %H:%M} UTC)" if standing else "none in service"
        did = UNKNOWN
        if figures.performance and delta is not None:
            did = f"{figures.performance.recent.mean:.3f} ({delta:+.3f} vs baseline)"
        return "\n".join(
            (
                f"Trajectories collected: {figures.arrivals.accepted:,} ({span})",
                f"Average reward: {_plus_minus(rewards.estimate.mean, rewards.deviation)}",
                f"Training jobs: {figures.ended('completed')} completed, {figures.ended('failed')} failed",
                f"Current model: {served}",
                f"Model performance: {did}",
                f"Issues: {'; '.join(each.issue for each in self.findings) or 'none found'}",
                f"Recommendations: {' '.join(each.recommendation for each in self.findings) or 'none'}",
            )
        )

    def document(self) -> Document:
        """For people."""
        sections = [
            Section("Issues", _issues(self.findings)),
            Section("Collection", _collection(self.figures)),
            Section("Rewards", _rewards(self.figures)),
            Section("Training", _training(self.figures)),
            Section("The model in service", _service(self.figures)),
            Section("Against the base period", _outcomes(self.figures)),
            Section("Storage and cost", _storage(self.figures)),
        ]
        return Document(self.title, f"{self.figures.period}. {_lead(self.figures, self.findings)}", tuple(sections))


def _lead(figures: Figures, findings: Sequence[Finding]) -> str:
    critical = sum(finding.severity == "critical" for finding in findings)
    found = f"{len(findings)} issues, {critical} of them critical" if findings else "no issue was found"
    rewards = figures.rewards.estimate
    earned = "nothing was scored" if rewards.mean is None else f"they earned {rewards.mean:.3f} on average"
    return f"{figures.arrivals.accepted:,} trajectories were collected; {earned}; {found}."


def _issues(findings: Sequence[Finding]) -> tuple[Part, ...]:
    if not findings:
        return (Paragraph("None of the rules found anything."),)
    rows = [(finding.severity, finding.issue, finding.recommendation) for finding in findings]
    return (table(("severity", "issue", "recommendation"), rows),)


def _labels(figures: Figures) -> tuple[str, ...]:
    width, bins = bins_of(figures.period)
    shape = "%H:%M" if width < timedelta(days=1) else "%m-%d"
    return tuple(f"{figures.period.start + width * place:{shape}}" for place in range(bins))


def _collection(figures: Figures) -> tuple[Part, ...]:
    arrivals = figures.arrivals
    verdicts = [(verdict, f"{count:,}") for verdict, count in arrivals.verdicts.items()] or [("none", "0")]
    change = arrivals.accepted - figures.arrivals_before
    return (
        Paragraph(f"{arrivals.accepted:,} trajectories, {change:+,} against as much time before."),
        Chart("Trajectories", "bars", _labels(figures), (Series("trajectories", tuple(map(float, arrivals.series))),)),
        table(("verdict", "messages"), verdicts),
    )


def _rewards(figures: Figures) -> tuple[Part, ...]:
    rewards, change = figures.rewards, figures.reward_change
    if rewards.estimate.mean is None:
        return (Paragraph("Nothing was scored in this period under the configuration in force."),)
    moved = UNKNOWN if change.difference is None else f"{change.difference:+.3f}"
    if change.difference is not None and change.error is not None:
        moved += f" ± {1.96 * change.error:.3f}"
    rows = [
        (model.model_version, f"{model.estimate.count:,}", _with_margin(model.estimate)) for model in rewards.models
    ]
    series = [Series("all", rewards.series)]
    if len(rewards.models) > 1:
        series = [Series(model.model_version, model.series) for model in rewards.models]
    return (
        Paragraph(
            f"Mean {_plus_minus(rewards.estimate.mean, rewards.deviation)} (standard deviation) of the raw reward over "
            f"{rewards.estimate.count:,} trajectories, as each was first scored; {moved} against as much time before."
        ),
        Chart("Mean raw reward", "lines", _labels(figures), tuple(series)),
        table(("model version", "trajectories", "mean, with its 95 % interval"), rows),
    )


def _training(figures: Figures) -> tuple[Part, ...]:
    if not figures.jobs:
        return (Paragraph("No training ended."),)
    rows = [
        (
            job.job_id,
            job.state,
            job.trigger_reason,
            f"{job.hours:.2f} h",
            f"{job.usage.gpu_hours:.2f}",
            _dollars(job.usage.cost_usd),
            job.explanation,
        )
        for job in figures.jobs
    ]
    said = [
        (one.job_id, one.decision, _figure(one.improvement, "+.3f"), "; ".join(one.reasons))
        for one in figures.validations
    ]
    parts: list[Part] = [table(("job", "ended", "trigger", "ran", "GPU hours", "cost", "explanation"), rows)]
    if said:
        parts.append(table(("validated", "decision", "improvement", "reasons"), said))
    return tuple(parts)


def _service(figures: Figures) -> tuple[Part, ...]:
    standing, performance = figures.standing, figures.performance
    parts: list[Part] = []
    if standing is None:
        parts.append(Paragraph("No model was ever in service."))
    else:
        shares = ", ".join(f"{model} {share:.0%}" for model, share in sorted(standing.weights.items()))
        parts.append(
            Paragraph(f"{standing.serving}, since {standing.since:%Y-%m-%d %H:%M} UTC; {standing.phase}, {shares}.")
        )
    if performance is not None:
        parts.append(
            Paragraph(
                f"{performance.version} earned {_figure(performance.recent.mean, '.3f')} over the "
                f"{performance.recent.count:,} trajectories of its last 24 hours, and "
                f"{_figure(performance.bake.mean, '.3f')} over its first {performance.bake.count:,}."
                if performance.recent.count
                else f"{performance.version} is still in its first {performance.bake.count:,} trajectories, with "
                f"{performance.bake.mean:.3f} on average."
            )
        )
    if figures.sessions:
        rows = [
            (each.model_id, f"{each.sessions:,}", f"{each.error_rate:.1%}", f"{each.positive:,}", f"{each.negative:,}")
            for each in figures.sessions
        ]
        parts.append(table(("model", "sessions", "failed", "rated well", "rated badly"), rows))
    if figures.changes:
        changes = [(f"{c.at:%m-%d %H:%M}", c.event, c.model_id, c.by, c.reason) for c in figures.changes]
        parts.append(table(("UTC", "event", "model", "by", "why"), changes))
    return tuple(parts)


def _outcomes(figures: Figures) -> tuple[Part, ...]:
    base = str(figures.base) if figures.base else "there is none yet"
    rows = [_outcome(outcome) for outcome in figures.outcomes]
    return (
        Paragraph(
            f"The base period: {base}. Errors count sessions, not trajectories. A goal is reached when the whole 95 % "
            "interval is beyond it. Nothing is adjusted for a change in the mix of work."
        ),
        table(("", "base", "now", "change", "hoped for", "verdict"), rows),
    )


def _outcome(outcome: Outcome) -> tuple[str, ...]:
    interval = outcome.change.relative_interval
    change = UNKNOWN if outcome.note or outcome.change.relative is None else f"{outcome.change.relative:+.1%}"
    if change != UNKNOWN and interval:
        change += f" ({interval[0]:+.1%} to {interval[1]:+.1%})"
    return (
        outcome.goal.title,
        _with_margin(outcome.change.base),
        _with_margin(outcome.change.now),
        change,
        f"{outcome.goal.hoped:+.0%}",
        f"{outcome.verdict}: {outcome.note}" if outcome.note else outcome.verdict,
    )


def _storage(figures: Figures) -> tuple[Part, ...]:
    storage, usage = figures.storage, figures.usage
    jobs = len(figures.jobs)
    rows = [
        _stored("NATS, RL_TRAJECTORIES", storage.stream_per_trajectory, storage, _SPECIFIED["stream"]),
        _stored("ClickHouse, all tables", storage.tables_per_trajectory, storage, _SPECIFIED["tables"]),
        *(_stored(f"… {each.name}", each.per_trajectory, storage, None) for each in storage.tables),
    ]
    hours = f"{usage.gpu_hours:.2f} GPU hours and {usage.cpu_hours:.2f} CPU hours"
    each = f" ({usage.gpu_hours / jobs:.2f} GPU hours a job; planned: {_SPECIFIED['gpu_hours']})" if jobs else ""
    untold = f"; {usage.untold} attempts ended before they could tell theirs" if usage.untold else ""
    observed = f"{storage.observed_at:%Y-%m-%d %H:%M} UTC" if storage.observed_at else "not yet"
    return (
        table(("where", "bytes a trajectory", "a month at this pace", "planned"), rows),
        Items(
            (
                f"{storage.per_day:,.0f} messages a day; the stream was observed: {observed}; tables as they are now.",
                f"Trainings took {hours}{each}.",
                f"They cost {_dollars(usage.cost_usd)}{untold}: measured hours at TRAINING_GPU_HOUR_USD and "
                f"TRAINING_CPU_HOUR_USD (planned: ${_SPECIFIED['cost_usd']} a job).",
            )
        ),
    )


def _stored(name: str, per_trajectory: float | None, storage: Storage, planned: int | None) -> tuple[str, ...]:
    month = storage.gigabytes_a_month(per_trajectory)
    return (
        name,
        UNKNOWN if per_trajectory is None else f"{per_trajectory:,.0f} B",
        UNKNOWN if month is None else f"{month:.3g} GB",
        f"{planned} GB" if planned else "",
    )


def _delta(figures: Figures) -> float | None:
    """Of the model's last trajectories against its own first ones."""
    model = figures.performance
    return (
        None if model is None or not (model.recent.count and model.bake.count) else model.recent.mean - model.bake.mean
    )


def _with_margin(estimate: Estimate) -> str:
    if estimate.mean is None:
        return UNKNOWN
    margin = "" if estimate.margin is None else f" ± {estimate.margin:.3f}"
    return f"{estimate.mean:.3f}{margin} of {estimate.count:,}"


def _plus_minus(mean: float | None, deviation: float | None) -> str:
    if mean is None:
        return UNKNOWN
    return f"{mean:.3f}" if deviation is None else f"{mean:.3f} ± {deviation:.3f}"


def _figure(value: float | None, shape: str) -> str:
    return UNKNOWN if value is None else f"{value:{shape}}"


def _dollars(cost: float | None) -> str:
    return UNKNOWN if cost is None else f"${cost:.2f}"
