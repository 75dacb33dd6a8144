"""What is wrong and what to do about it: rules over the figures of a period, each with its evidence in its words.

A rule is a function that returns a finding or None; `RULES` is all of them, the gravest first. Thresholds are those of
the specification where it has one, and stand beside their rules.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal

from rl_pipeline.observability.reports.figures import Figures
from rl_pipeline.training.degradation import is_degraded

Severity = Literal["critical", "warning", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """An issue with its evidence, and what to do."""

    rule: str
    severity: Severity
    issue: str
    recommendation: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What this deployment allows."""

    degradation_drop: float = 0.10
    error_rate: float = 0.05
    stream_bytes: int = 100 * 10**9
    """That the stream of trajectories may hold."""
    stream_messages: int = 1_000_000
    trainings_in_a_row: int = 3


Rule = Callable[[Figures, Limits], Finding | None]

REFUSED_SHARE = 0.10
LEAST_MESSAGES = 20
"""Of fewer, a tenth is one or two."""
REWARD_DROP = 0.05
SURE = 3.3
"""Standard errors: by chance once in a thousand periods."""
LEAST_SESSIONS = 50
FEW_OPINIONS = 0.01
UNNAMED_SHARE = 0.10
LONG_WAIT = timedelta(hours=24)

_BY_CODE: Mapping[str, str] = {
    "OOM": "give the training more memory, or ask for a smaller batch_size or max_trajectory_length: every retry has "
    "halved the micro-batch already",
    "CONVERGENCE": "ask for a lower learning_rate and look at the curves in MLflow: every retry has halved it already",
    "DATA": "look at the dataset's checks in `curated_datasets`: its message says which of them fails",
    "INFRA": "look at the machine, the object store and MLflow: attempts came back after 10 minutes and failed again",
    "TIMEOUT": "raise max_training_time or ask for fewer samples",
    "UNKNOWN": "read the traceback in the run's log: no retry is made of what nobody understands",
}


def findings_of(figures: Figures, limits: Limits) -> list[Finding]:
    """What every rule finds, the gravest first."""
    found = [finding for rule in RULES if (finding := rule(figures, limits))]
    order = ("critical", "warning", "note")
    return sorted(found, key=lambda finding: order.index(finding.severity))


def messages_were_lost(figures: Figures, limits: Limits) -> Finding | None:
    """Retention took sequences before they were ingested."""
    lost = figures.arrivals.verdicts.get("lost", 0)
    if not lost:
        return None
    return Finding(
        "messages_were_lost",
        "critical",
        f"{lost:,} messages left the stream before they were ingested, and are lost",
        "Find out why ingest stood still (runs of `ingest_trajectories`), and raise the limits of RL_TRAJECTORIES "
        f"(now {limits.stream_messages:,} messages, {limits.stream_bytes / 1e9:g} GB) until it keeps up.",
    )


def many_messages_are_refused(figures: Figures, _: Limits) -> Finding | None:
    """More than a tenth of what arrived broke the contract."""
    arrivals = figures.arrivals
    if arrivals.judged < LEAST_MESSAGES or arrivals.refused_share <= REFUSED_SHARE:
        return None
    return Finding(
        "many_messages_are_refused",
        "critical",
        f"{arrivals.refused_share:.1%} of {arrivals.judged:,} messages were refused, more than {REFUSED_SHARE:.0%}",
        "`rl-pipeline dead-letters list` says why and whose they are; mend the publisher, then `rl-pipeline "
        "dead-letters replay`.",
    )


def nothing_is_collected(figures: Figures, _: Limits) -> Finding | None:
    """Trajectories came before, and none now."""
    if figures.arrivals.judged or not figures.arrivals_before:
        return None
    return Finding(
        "nothing_is_collected",
        "critical",
        f"no trajectory arrived, after {figures.arrivals_before:,} in as much time before",
        "See whether agents reach NATS (their outboxes keep what they could not send), and whether RL_TRAJECTORIES is "
        "there: docs/operations.md, “Trajectories are not collecting”.",
    )


def the_model_has_become_worse(figures: Figures, limits: Limits) -> Finding | None:
    """The model in service against its own first trajectories, by the rule that triggers trainings."""
    model = figures.performance
    if model is None or not is_degraded(model.bake, model.recent, limits.degradation_drop):
        return None
    asked = f"a training was asked for at {model.asked_at:%Y-%m-%d %H:%M} UTC" if model.asked_at else ""
    return Finding(
        "the_model_has_become_worse",
        "critical",
        f"{model.version} earns {model.recent.mean:.3f} over its last {model.recent.count:,} trajectories, against "
        f"{model.bake.mean:.3f} over its first {model.bake.count:,}: {model.recent.mean - model.bake.mean:+.3f}",
        f"{asked}: see `rl-pipeline jobs`." if asked else "Ask for a training: `rl-pipeline train --priority urgent`.",
    )


def rewards_have_fallen(figures: Figures, _: Limits) -> Finding | None:
    """The mean of the period is both surely and noticeably below that of as much time before."""
    change = figures.reward_change
    if change.difference is None or change.difference > -REWARD_DROP or not change.is_certain(SURE):
        return None
    worst = min(
        (model for model in figures.rewards.models if model.estimate.mean is not None),
        key=lambda model: model.estimate.mean or 0.0,
        default=None,
    )
    lowest = f"; the lowest is {worst.model_version} with {worst.estimate.mean:.3f}" if worst else ""
    return Finding(
        "rewards_have_fallen",
        "warning",
        f"the mean reward fell from {change.base.mean:.3f} ({change.base.count:,}) to {change.now.mean:.3f} "
        f"({change.now.count:,}), {change.difference:+.3f} ± {1.96 * (change.error or 0):.3f}{lowest}",
        "Compare components and task types of both periods in `reward_trend`: a change of the mix of work looks the "
        "same as a worse model.",
    )


def trainings_failed(figures: Figures, limits: Limits) -> Finding | None:
    """What failed, by failure code, and what helps against the most frequent one."""
    failed = [job for job in figures.jobs if job.state == "failed"]
    if not failed:
        return None
    codes = Counter(job.failure_code or "UNKNOWN" for job in failed)
    most = codes.most_common(1)[0][0]
    last = failed[-1]
    in_a_row = 0
    for job in reversed(figures.jobs):
        if job.state == "completed":
            break
        in_a_row += job.state == "failed"
    listed = ", ".join(f"{code} {count}" for code, count in codes.most_common())
    return Finding(
        "trainings_failed",
        "critical" if in_a_row >= limits.trainings_in_a_row else "warning",
        f"{len(failed)} of {len(figures.jobs)} trainings failed ({listed}), {in_a_row} in a row up to the end; the "
        f"last, {last.job_id}: {last.explanation}",
        f"{most}: {_BY_CODE.get(most, _BY_CODE['UNKNOWN'])}. `rl-pipeline jobs {last.job_id}` has every attempt.",
    )


def models_were_refused(figures: Figures, _: Limits) -> Finding | None:
    """Validation let some not pass, or asks a person."""
    refused = [one for one in figures.validations if one.decision != "deploy"]
    if not refused:
        return None
    said = "; ".join(
        f"{one.job_id} ({one.decision.replace('_', ' ')}): {', '.join(one.reasons) or 'no reason'}" for one in refused
    )
    asked = [one.job_id for one in refused if one.decision == "ask_a_person"]
    return Finding(
        "models_were_refused",
        "warning",
        f"{len(refused)} of {len(figures.validations)} validated models were not let pass: {said}",
        (
            f"Somebody has to decide about {', '.join(asked)}: read the report, then `rl-pipeline deployment approve` "
            "or `abort`."
            if asked
            else "Train on other data or with other hyperparameters before the next attempt: the suites that failed "
            "are in the reports of `validation_reports`."
        ),
    )


def models_were_rolled_back(figures: Figures, _: Limits) -> Finding | None:
    """Which, why, and what their post-mortems recommend."""
    back = [change for change in figures.changes if change.event == "rolled_back"]
    if not back:
        return None
    said = "; ".join(
        f"{change.model_id} at {change.at:%Y-%m-%d %H:%M} UTC by {change.by}: {change.reason}" for change in back
    )
    advice = " ".join(f"{each.model_id}: {each.recommendation}" for each in figures.post_mortems if each.recommendation)
    return Finding(
        "models_were_rolled_back",
        "critical",
        f"rolled back: {said}",
        advice or "Their post-mortems follow, in the events of `deployed_models`.",
    )


def sessions_fail(figures: Figures, limits: Limits) -> Finding | None:
    """A model whose sessions fail more often than is allowed."""
    bad = [each for each in figures.sessions if each.sessions >= LEAST_SESSIONS and each.error_rate > limits.error_rate]
    if not bad:
        return None
    said = ", ".join(f"{each.model_id} {each.error_rate:.1%} of {each.sessions:,}" for each in bad)
    return Finding(
        "sessions_fail",
        "critical",
        f"sessions failed more often than {limits.error_rate:.0%}: {said}",
        "See how they failed in `serving_outcomes.failure`, and the gateway's and the backend's logs: where all models "
        "fail alike, it is not the model.",
    )


def somebody_is_waited_for(figures: Figures, _: Limits) -> Finding | None:
    """A rollout that only a person can move on: at once where its evidence holds it, else for a day or longer."""
    standing = figures.standing
    if standing is not None and standing.waits_since is not None:
        return Finding(
            "somebody_is_waited_for",
            "warning",
            f"since {standing.waits_since:%Y-%m-%d %H:%M} UTC a person is waited for by the rollout of "
            f"{standing.waits_for}",
            "`rl-pipeline deployment` shows where it stands now; docs/deployment.md says what each reason asks for.",
        )
    if standing is None or not (standing.frozen or standing.phase == "awaiting_approval"):
        return None
    waits = figures.period.end - standing.phase_since
    if waits < LONG_WAIT:
        return None
    hours = waits / timedelta(hours=1)
    if standing.frozen:
        return Finding(
            "somebody_is_waited_for",
            "warning",
            f"deployment has been frozen for up to {hours:.0f} h: {standing.frozen}",
            "`rl-pipeline deployment unfreeze` once the reason is gone; nothing advances until then.",
        )
    return Finding(
        "somebody_is_waited_for",
        "warning",
        f"a candidate has waited {hours:.0f} h for an approval, beside {standing.serving}",
        "`rl-pipeline deployment` shows it; `rl-pipeline deployment approve` or `abort` decides.",
    )


def another_model_answers(figures: Figures, _: Limits) -> Finding | None:
    """Agents record another model than the one that is in service."""
    if figures.standing is None or figures.performance is None:
        return None
    heard, serving = figures.performance.version, figures.standing.serving
    if heard == serving or figures.standing.weights.get(heard, 0.0) > 0:
        return None
    return Finding(
        "another_model_answers",
        "warning",
        f"most trajectories of the last day come from {heard}, which has no share of the traffic, and {serving} serves",
        "Point the agents at the gateway, or have them put the answer's `model` into metadata.model_version.",
    )


def the_stream_fills_up(figures: Figures, limits: Limits) -> Finding | None:
    """A month at this pace does not fit into the stream: its oldest messages go before their 30 days."""
    storage = figures.storage
    gigabytes = storage.gigabytes_a_month(storage.stream_per_trajectory)
    too_large = gigabytes is not None and gigabytes * 1e9 > limits.stream_bytes
    too_many = storage.messages_a_month > limits.stream_messages
    if not (too_large or too_many):
        return None
    size = "" if gigabytes is None else f" and {gigabytes:.1f} GB"
    return Finding(
        "the_stream_fills_up",
        "warning",
        f"a month at this pace is {storage.messages_a_month:,.0f} messages{size}, and RL_TRAJECTORIES holds "
        f"{limits.stream_messages:,} and {limits.stream_bytes / 1e9:g} GB",
        "Raise its limits (`nats stream edit RL_TRAJECTORIES --max-bytes … --max-msgs …`): its oldest messages go "
        "before their 30 days, and can then be neither replayed nor ingested again.",
    )


def few_people_say_anything(figures: Figures, _: Limits) -> Finding | None:
    """So few opinions that the reward's share of user feedback is mostly neutral."""
    accepted = figures.arrivals.accepted
    if accepted < 1 / FEW_OPINIONS or figures.opinions >= FEW_OPINIONS * accepted:
        return None
    return Finding(
        "few_people_say_anything",
        "note",
        f"{figures.opinions:,} thumbs or stars for {accepted:,} trajectories: the reward's share of user feedback is "
        "0.5 nearly everywhere, and a rollback for dissatisfied users has nothing to go by",
        "Show people the buttons of docs/agents.md, or publish `agent.rl.feedback.v1` from where they already judge.",
    )


def models_are_not_named(figures: Figures, _: Limits) -> Finding | None:
    """Trajectories of which nobody knows by which model they were made."""
    arrivals = figures.arrivals
    if arrivals.accepted < LEAST_MESSAGES or arrivals.unnamed <= UNNAMED_SHARE * arrivals.accepted:
        return None
    return Finding(
        "models_are_not_named",
        "note",
        f"{arrivals.unnamed:,} of {arrivals.accepted:,} trajectories do not say which version of the model made them",
        "Have agents put the answer's `model` into metadata.model_version: without it they count for no model's "
        "baseline, canary or trend.",
    )


RULES: tuple[Rule, ...] = (
    messages_were_lost,
    many_messages_are_refused,
    nothing_is_collected,
    models_were_rolled_back,
    the_model_has_become_worse,
    sessions_fail,
    trainings_failed,
    models_were_refused,
    rewards_have_fallen,
    somebody_is_waited_for,
    another_model_answers,
    the_stream_fills_up,
    few_people_say_anything,
    models_are_not_named,
)
