"""From figures to the families of Prometheus: names, labels and buckets as the specification has them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from rl_pipeline.contracts import FeedbackKind
from rl_pipeline.contracts.trajectory import Domain, SubordinateProfile, TaskStatus
from rl_pipeline.observability.metric_counts import LENGTH_BOUNDS, REWARD_BOUNDS, SUM, Totals

Labelled = Mapping[tuple[str, ...], float]

MOST_MODELS = 20
"""Figures are shown of so many models, the newest first."""
VERDICTS = ("accepted", "duplicate", "refused", "opted_out", "erased", "lost")
DECISIONS = ("deploy", "refuse", "ask_a_person")
AGENT_TYPES = (
    *get_args(SubordinateProfile),
    *("agent-zero", "massgen", "agent-lightning", "opentelemetry", "record-proxy", "rl-pipeline-agents"),
)
"""Those of subordinate agents, and the frameworks that are recorded here; others come as they are seen."""


def counter(name: str, text: str, labels: Sequence[str], values: Labelled) -> Metric:
    """A counter; `name` is without `_total`."""
    family = CounterMetricFamily(name, text, labels=labels)
    for own, value in values.items():
        family.add_metric(own, value)
    return family


def gauge(name: str, text: str, labels: Sequence[str], values: Labelled) -> Metric:
    """A gauge; without values it is known by name alone."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for own, value in values.items():
        family.add_metric(own, value)
    return family


def histogram(name: str, text: str, bounds: Sequence[float], buckets: Mapping[str, float], total: float) -> Metric:
    """A histogram. `buckets` has what is in each alone: `1` for the first, `0` for what is beyond the last."""
    family = HistogramMetricFamily(name, text)
    cumulative, below = [], 0.0
    for place, bound in enumerate(bounds, start=1):
        below += buckets.get(str(place), 0.0)
        cumulative.append((str(bound), below))
    cumulative.append(("+Inf", below + buckets.get("0", 0.0)))
    family.add_metric([], cumulative, sum_value=total)
    return family


def known_and(values: Labelled, *known: Iterable[str]) -> Labelled:
    """The values, and 0 wherever the known labels have none: a series that begins above 0 has no increase."""
    return dict.fromkeys(product(*known), 0.0) | dict(values)


def of_newest_models(values: Labelled) -> Labelled:
    """Those of the first models that are named; totals come with the newest part first."""
    models = list(dict.fromkeys(labels[0] for labels in values))[:MOST_MODELS]
    return {labels: value for labels, value in values.items() if labels[0] in models}


def counted_families(totals: Totals) -> Iterator[Metric]:
    """What `MetricCounts` has counted."""

    def of(family: str) -> Labelled:
        return totals.get(family, {})

    def buckets(family: str) -> dict[str, float]:
        return {labels[0]: value for labels, value in of(family).items()}

    lengths, rewards = buckets("lengths"), buckets("rewards")
    yield counter(
        "agent_rl_trajectories_collected",
        "Trajectories that were stored.",
        ["agent_type", "task_domain"],
        known_and(of("trajectories"), AGENT_TYPES, get_args(Domain)),
    )
    yield counter(
        "agent_rl_task_outcomes",
        "Trajectories by how their task ended.",
        ["task_domain", "status"],
        known_and(of("task_outcomes"), get_args(Domain), (*get_args(TaskStatus), "unknown")),
    )
    yield counter(
        "agent_rl_collection_messages",
        "Messages of the stream by what ingest made of them.",
        ["verdict"],
        known_and(of("messages"), VERDICTS),
    )
    yield counter("agent_rl_collection_bytes", "Size of these messages.", (), {(): sum(of("message_bytes").values())})
    yield histogram(
        "agent_rl_trajectory_length", "Turns of a trajectory.", LENGTH_BOUNDS, lengths, lengths.get(SUM, 0.0)
    )
    yield histogram(
        "agent_rl_trajectory_reward", "Total reward of a trajectory.", REWARD_BOUNDS, rewards, rewards.get(SUM, 0.0)
    )
    yield counter(
        "agent_rl_feedback",
        "What users said of trajectories.",
        ["kind"],
        known_and(of("feedback"), get_args(FeedbackKind)),
    )
    yield counter(
        "agent_rl_model_sessions",
        "Sessions that gateways told of.",
        ["model_version", "outcome"],
        of_newest_models(of("sessions")),
    )
    yield counter(
        "agent_rl_model_feedback",
        "Sessions that their users rated.",
        ["model_version", "rating"],
        of_newest_models(of("session_feedback")),
    )
    yield counter(
        "agent_rl_model_validations",
        "Validations by their decision.",
        ["decision"],
        known_and(of("validations"), DECISIONS),
    )
