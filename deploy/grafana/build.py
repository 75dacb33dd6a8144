"""Writes the dashboards beside this file: `python deploy/grafana/build.py`. A test finds files edited by hand.

A panel is a line: what it is called, what it asks of Prometheus, and how its series are named. Everything that is asked
is told by the service or a gateway (docs/observability.md); every query is run against a real Prometheus in a test.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.builders import bargauge, dashboard, prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import BigValueGraphMode, VizOrientation
from grafana_foundation_sdk.models.dashboard import DataSourceRef, GridPos

DIRECTORY = Path(__file__).parent / "dashboards"
WIDTH, HEIGHT = 24, 8
"""Of a page, in Grafana's cells, and of a panel."""
SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")

Query = tuple[str, str]
"""An expression, and the name of each of its series."""


@dataclass(frozen=True)
class Panel:
    """What is shown, and how wide it is of 24."""

    title: str
    queries: Sequence[Query]
    description: str
    unit: str = "short"
    span: int = 8
    kind: Callable[[], Any] = timeseries.Panel

    @classmethod
    def number(cls, title: str, expression: str, description: str, unit: str = "short") -> "Panel":
        """One figure as it is now."""
        return cls(title, [(expression, "")], description, unit, 4, stat.Panel)

    @classmethod
    def bars(cls, title: str, queries: Sequence[Query], description: str, unit: str = "short") -> "Panel":
        """Figures as they are now, side by side."""
        return cls(title, queries, description, unit, 8, bargauge.Panel)

    @property
    def is_instant(self) -> bool:
        """Whether it shows how things are, rather than how they went."""
        return self.kind is not timeseries.Panel


@dataclass(frozen=True)
class Row:
    """Panels that belong together."""

    title: str
    panels: Sequence[Panel]


@dataclass(frozen=True)
class Page:
    """A dashboard."""

    uid: str
    title: str
    description: str
    rows: Sequence[Row]


_SUCCESS_RATE = (
    'sum(rate(agent_rl_training_jobs_total{status="completed"}[24h])) / sum(rate(agent_rl_training_jobs_total[24h]))'
)
_PASSED = 'sum(agent_rl_model_validations_total{decision="deploy"}) / (sum(agent_rl_model_validations_total) > 0)'
_NEGATIVE_SHARE = (
    'sum by (model_version) (agent_rl_model_feedback_total{rating="negative"})'
    " / sum by (model_version) (agent_rl_model_sessions_total)"
)

TRAINING = Page(
    "rl-training-overview",
    "RL Training Overview",
    "What is collected, what it is worth, how training goes, and what it uses.",
    [
        Row(
            "Collection",
            [
                Panel.number(
                    "Trajectories Collected (24h)",
                    "sum(increase(agent_rl_trajectories_collected_total[24h]))",
                    "Stored within a day.",
                ),
                Panel.number(
                    "Collection errors (15 min)",
                    'sum(increase(agent_rl_collection_messages_total{verdict=~"refused|lost"}[15m]))'
                    ' / clamp_min(sum(increase(agent_rl_collection_messages_total{verdict!="erased"}[15m])), 1)',
                    "Share that was refused or lost; above 10 % it raises an alert.",
                    "percentunit",
                ),
                Panel(
                    "Collection rate per minute",
                    [
                        (
                            "sum by (agent_type) (rate(agent_rl_trajectories_collected_total[5m]) * 60)",
                            "{{agent_type}}",
                        )
                    ],
                    "Trajectories by the kind of agent.",
                ),
                Panel(
                    "Messages by verdict per minute",
                    [("sum by (verdict) (rate(agent_rl_collection_messages_total[5m]) * 60)", "{{verdict}}")],
                    "What ingest made of what arrived.",
                ),
                Panel(
                    "Waiting to be ingested",
                    [
                        (
                            "max by (stream) (agent_rl_stream_last_sequence)"
                            " - on (stream) max by (stream) (agent_rl_stream_ingested_sequence)",
                            "{{stream}}",
                        )
                    ],
                    "Messages between the end of the stream and what was ingested.",
                ),
                Panel(
                    "Messages held by stream",
                    [("max by (stream) (agent_rl_stream_messages)", "{{stream}}")],
                    "What JetStream holds.",
                ),
                Panel.bars(
                    "Trajectories by domain",
                    [("sum by (task_domain) (agent_rl_trajectories_collected_total)", "{{task_domain}}")],
                    "Ever stored.",
                ),
            ],
        ),
        Row(
            "Rewards",
            [
                Panel.bars(
                    "Reward distribution",
                    [("sum by (le) (agent_rl_trajectory_reward_bucket)", "≤ {{le}}")],
                    "Trajectories with a total reward up to each bound.",
                ),
                Panel(
                    "Average reward",
                    [
                        ("avg_over_time(agent_rl_trajectory_reward[1h])", "latest 1,000, over an hour"),
                        ("agent_rl_trajectory_reward:avg1h", "scored within the hour"),
                    ],
                    "Normalised: around 0.5 while nothing changes. Trends are read off the raw rewards of models.",
                ),
                Panel(
                    "Turns of a trajectory",
                    [
                        (
                            "histogram_quantile(0.5, sum by (le) (agent_rl_trajectory_length_bucket))",
                            "median",
                        ),
                        ("histogram_quantile(0.95, sum by (le) (agent_rl_trajectory_length_bucket))", "95 %"),
                    ],
                    "Of all that were ever stored.",
                ),
                Panel.bars(
                    "Tasks by outcome",
                    [("sum by (status) (agent_rl_task_outcomes_total)", "{{status}}")],
                    "As the agents reported them.",
                ),
            ],
        ),
        Row(
            "Training jobs",
            [
                Panel.number(
                    "Success rate (24h)",
                    f"({_SUCCESS_RATE}) or vector(0)",
                    "Completed, of all jobs that ended within a day.",
                    "percentunit",
                ),
                Panel.number(
                    "Failures in a row",
                    "max(agent_rl_training_consecutive_failed_jobs)",
                    "Jobs that failed since the last one that was completed; three raise an alert.",
                ),
                Panel.bars(
                    "Jobs under way",
                    [("max by (state) (agent_rl_training_jobs_under_way)", "{{state}}")],
                    "Where they stand.",
                ),
                Panel.bars(
                    "Jobs ended",
                    [("sum by (status) (agent_rl_training_jobs_total)", "{{status}}")],
                    "Ever.",
                ),
                Panel(
                    "Duration",
                    [
                        (
                            "sum(agent_rl_training_duration_seconds_sum)"
                            " / clamp_min(sum(agent_rl_training_duration_seconds_count), 1)",
                            "mean",
                        )
                    ],
                    "Of a job, all attempts together.",
                    "s",
                ),
                Panel(
                    "Samples",
                    [
                        (
                            "sum(agent_rl_training_samples_sum) / clamp_min(sum(agent_rl_training_samples_count), 1)",
                            "mean",
                        )
                    ],
                    "Trajectories that a job learnt from.",
                ),
                Panel(
                    "Loss and reward of the training under way",
                    [
                        ("max(agent_rl_training_loss)", "loss"),
                        ("max(agent_rl_training_reward_mean)", "reward"),
                        ("max(agent_rl_training_kl_divergence)", "KL divergence"),
                        ("max(agent_rl_training_policy_entropy)", "entropy"),
                    ],
                    "As its program tells; nothing while none runs.",
                ),
                Panel(
                    "Progress",
                    [("max(agent_rl_training_progress_ratio)", "done")],
                    "Of the training under way.",
                    "percentunit",
                ),
            ],
        ),
        Row(
            "Resources",
            [
                Panel(
                    "Processors and memory",
                    [
                        ("max(agent_rl_host_cpu_ratio)", "processors"),
                        ("max(agent_rl_host_memory_ratio)", "memory"),
                    ],
                    "Of the machine that the service runs on. GPUs are told by NVIDIA's DCGM exporter.",
                    "percentunit",
                ),
                Panel.number(
                    "Samples per second",
                    "max(agent_rl_training_throughput_samples_per_second)",
                    "Of the training completed last.",
                ),
                Panel.number(
                    "Samples to convergence",
                    "max(agent_rl_training_samples_to_convergence)",
                    "Until 95 % of the fall of its loss, of the training completed last.",
                ),
                Panel.number(
                    "Peak memory", "max(agent_rl_training_peak_memory_bytes)", "Of the same training.", "bytes"
                ),
                Panel.number(
                    "Cost of trainings", "sum(agent_rl_training_cost_usd_total)", "Estimated, ever.", "currencyUSD"
                ),
                Panel.bars(
                    "Compute hours",
                    [("sum by (device) (agent_rl_training_compute_hours_total)", "{{device}}")],
                    "Of all completed trainings.",
                    "h",
                ),
                Panel.number(
                    "Time to read the figures", "max(agent_rl_metrics_read_seconds)", "Of the last scrape.", "s"
                ),
            ],
        ),
    ],
)

MODELS = Page(
    "rl-model-performance",
    "Model Performance",
    "What models earn, how they compare, how often they fail, and what users say of them.",
    [
        Row(
            "Rewards",
            [
                Panel(
                    "Model Reward Over Time",
                    [("agent_rl_model_reward_mean", "{{model_version}}")],
                    "Mean raw reward of the latest 1,000 trajectories of each model.",
                    span=12,
                ),
                Panel.bars(
                    "Model performance comparison",
                    [('agent_rl_model_reward_mean{model_version=~".*"}', "{{model_version}}")],
                    "The same, as it is now.",
                ),
                Panel(
                    "Benchmark scores",
                    [("agent_rl_model_benchmark_score", "{{model_version}} {{task_type}}")],
                    "At the last validation.",
                    span=12,
                ),
            ],
        ),
        Row(
            "A/B results",
            [
                Panel.bars(
                    "Reward by arm",
                    [("agent_rl_rollout_reward_mean", "{{role}} {{model_version}}")],
                    "Mean raw reward since the rollout or test began, of the one under way or the last.",
                ),
                Panel.bars(
                    "Half of its 95 % interval",
                    [("1.96 * agent_rl_rollout_reward_standard_error", "{{role}} {{model_version}}")],
                    "For a single look: whether to advance is for the evidence to say.",
                ),
                Panel.bars(
                    "Rewarded trajectories by arm",
                    [("agent_rl_rollout_rewarded_trajectories", "{{role}} {{model_version}}")],
                    "Of which these are the means.",
                ),
                Panel.bars(
                    "Failed sessions by arm",
                    [
                        (
                            "agent_rl_rollout_failed_sessions / (agent_rl_rollout_sessions > 0)",
                            "{{role}} {{model_version}}",
                        )
                    ],
                    "Share of the sessions since it began.",
                    "percentunit",
                ),
            ],
        ),
        Row(
            "Errors",
            [
                Panel(
                    "Error rate by model version",
                    [("max by (model_version) (agent_rl_model_error_rate)", "{{model_version}}")],
                    "Failed requests of the last five minutes, at the worst gateway.",
                    "percentunit",
                ),
                Panel(
                    "Errors per second",
                    [("sum by (model_version) (rate(agent_rl_model_errors_total[5m]))", "{{model_version}}")],
                    "At all gateways.",
                ),
                Panel(
                    "Time to an answer (95 %)",
                    [
                        (
                            "histogram_quantile(0.95,"
                            " sum by (model_version, le) (agent_rl_gateway_answer_seconds_bucket))",
                            "{{model_version}}",
                        )
                    ],
                    "Since the gateways started.",
                    "s",
                ),
                Panel(
                    "Requests per second",
                    [("sum by (ending) (rate(agent_rl_gateway_requests_total[5m]))", "{{ending}}")],
                    "By how they ended.",
                ),
            ],
        ),
        Row(
            "Users",
            [
                Panel.bars(
                    "Feedback",
                    [("sum by (kind) (agent_rl_feedback_total)", "{{kind}}")],
                    "What users said of trajectories, ever.",
                ),
                Panel.bars(
                    "Badly rated sessions by model",
                    [(_NEGATIVE_SHARE, "{{model_version}}")],
                    "Of all sessions that the gateways told of.",
                    "percentunit",
                ),
                Panel(
                    "Feedback per hour",
                    [("sum by (kind) (rate(agent_rl_feedback_total[1h]) * 3600)", "{{kind}}")],
                    "By what was said.",
                ),
            ],
        ),
    ],
)

DEPLOYMENT = Page(
    "rl-deployment-health",
    "Deployment Health",
    "Where the rollout is, who serves what, what was taken back, and what validation says.",
    [
        Row(
            "Canary rollout",
            [
                Panel.bars(
                    "Phase",
                    [("max by (phase) (agent_rl_deployment_phase)", "{{phase}}")],
                    "1 for the phase that the deployment is in.",
                ),
                Panel(
                    "Canary rollout progress",
                    [
                        ("max(agent_rl_rollout_step)", "step"),
                        ("max(agent_rl_rollout_steps)", "steps"),
                    ],
                    "0 while there is no rollout.",
                ),
                Panel.bars(
                    "Sessions by arm",
                    [("agent_rl_rollout_sessions", "{{role}} {{model_version}}")],
                    "Since the rollout began, of the one under way or the last.",
                ),
                Panel.number("Frozen", "max(agent_rl_deployment_frozen)", "1 while nothing may advance."),
            ],
        ),
        Row(
            "Traffic",
            [
                Panel(
                    "Traffic distribution",
                    [("max by (model_version) (agent_rl_model_traffic_percentage)", "{{model_version}}")],
                    "Share of the new sessions that the gateways give to each model.",
                    "percent",
                ),
                Panel(
                    "As it is to be",
                    [("max by (model_version) (agent_rl_model_desired_percentage)", "{{model_version}}")],
                    "By the desired state.",
                    "percent",
                ),
                Panel(
                    "Generation followed by each gateway",
                    [("agent_rl_gateway_generation", "{{instance}}")],
                    "A gateway that stays behind does not hear the desired state.",
                ),
                Panel(
                    "Reachability",
                    [
                        ("agent_rl_nats_reachable", "NATS from the service"),
                        ("agent_rl_gateway_nats_reachable", "NATS from {{instance}}"),
                        ("agent_rl_warehouse_reachable", "ClickHouse"),
                    ],
                    "1 while it answers.",
                ),
            ],
        ),
        Row(
            "Rollback history",
            [
                Panel.number(
                    "Rollbacks (30 days)",
                    'sum(increase(agent_rl_model_deployments_total{status="rolled_back"}[30d]))',
                    "Rounded up where Prometheus has less than that.",
                ),
                Panel(
                    "Deployments",
                    [("sum by (status) (agent_rl_model_deployments_total)", "{{status}}")],
                    "Begun, promoted, rolled back and aborted, ever.",
                    span=12,
                ),
                Panel.bars(
                    "Since the last",
                    [("time() - max by (status) (agent_rl_model_deployment_last_timestamp_seconds)", "{{status}}")],
                    "How long ago it happened.",
                    "s",
                ),
            ],
        ),
        Row(
            "Validation",
            [
                Panel.number("Validation pass rate", _PASSED, "Of all validations ever.", "percentunit"),
                Panel.bars(
                    "Validations",
                    [("sum by (decision) (agent_rl_model_validations_total)", "{{decision}}")],
                    "By what was decided.",
                ),
                Panel.number(
                    "Releases refused", "sum(agent_rl_model_releases_refused_total)", "After they had been validated."
                ),
            ],
        ),
    ],
)

PAGES = (TRAINING, MODELS, DEPLOYMENT)


def built(page: Page) -> str:
    """The dashboard as Grafana reads it."""
    made = (
        dashboard.Dashboard(page.title)
        .uid(page.uid)
        .description(page.description)
        .tags(["rl-pipeline"])
        .refresh("30s")
        .time("now-24h", "now")
        .timezone("utc")
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    numbers, top = count(1), 0
    for row in page.rows:
        place = GridPos(h=1, w=WIDTH, x=0, y=top)
        made = made.with_row(dashboard.Row(row.title).id(next(numbers)).grid_pos(place))
        top += 1
        left = 0
        for panel in row.panels:
            if left + panel.span > WIDTH:
                left, top = 0, top + HEIGHT
            place = GridPos(h=HEIGHT, w=panel.span, x=left, y=top)
            made = made.with_panel(_panel(panel).id(next(numbers)).grid_pos(place))
            left += panel.span
        top += HEIGHT
    return json.dumps(made.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def files() -> Iterator[tuple[Path, str]]:
    """What is to be in the directory."""
    for page in PAGES:
        yield DIRECTORY / f"{page.uid}.json", built(page)


def _panel(panel: Panel) -> Any:
    made = panel.kind().title(panel.title).description(panel.description).unit(panel.unit)
    made = made.datasource(SOURCE)
    if panel.kind is stat.Panel:
        made = made.graph_mode(BigValueGraphMode.NONE)
    if panel.kind is bargauge.Panel:
        made = made.orientation(VizOrientation.HORIZONTAL)
    for place, (expression, legend) in enumerate(panel.queries):
        query = prometheus.Dataquery().expr(expression).legend_format(legend).ref_id(chr(ord("A") + place))
        made = made.with_target(query.instant() if panel.is_instant else query.range())
    return made


if __name__ == "__main__":
    DIRECTORY.mkdir(exist_ok=True)
    for path, text in files():
        path.write_text(text)
