"""Whether a rollout advances, waits or is taken back: one pure function, for the controller and for the watchdog.

The controller judges in the mode `full`. The watchdog has no rewards and judges in the mode `watchdog`, by errors and
feedback alone; it takes back, and never lets anything advance.

Where the traffic cannot be split (`immediate`) there is never a control, and no gateway that counts. What agents
publish is all that is known: the candidate bakes by time and by its rewards, and where these are worse than those of
the model before it, or too few, a person decides.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from rl_pipeline.deployment.ab_report import ab_report, as_record, difference, mean
from rl_pipeline.deployment.baking import MOST_UNEXPLAINED, NEARLY_ALL, Bake, limit_of, unexplained_rechecks
from rl_pipeline.deployment.columns import Columns
from rl_pipeline.deployment.comparison import begin_of, compare, end_of, figures
from rl_pipeline.deployment.limits import REASONS, Limits, Metric
from rl_pipeline.deployment.literal_rule import PlainRollback, plain_rollback
from rl_pipeline.deployment.state import Phase, Rollout
from rl_pipeline.deployment.windows import CLOSED_SECONDS, WINDOW_SECONDS, Window

__all__ = ["Judgement", "Limits", "Mode", "Verdict", "judge"]

Mode = Literal["full", "watchdog"]
Verdict = Literal["advance", "hold", "roll_back", "recheck"]

WEIGHTS: dict[Mode, Mapping[Metric, float]] = {
    "full": {"errors": 0.5, "reward": 0.3, "feedback": 0.2},
    "watchdog": {"errors": 0.5, "feedback": 0.2},
}
"""Of the e-values in the average; fixed, since the guarantee rests on it. The watchdog, which sees no rewards, leaves
them their weight at an e-value of 1: what is enough for it is enough for the controller, but for 0.3, and the two
together roll back hardly more healthy models than one of them."""
WATCHDOG_ERROR_RATE = 0.20
"""What the watchdog lets pass while there is no control: a doubt about less is for the controller."""

_A_PERSON_DECIDES = "a person decides: `rl-pipeline deployment promote` or `roll-back`"


@dataclass(frozen=True, slots=True)
class Judgement:
    """What to do, why, and on what grounds."""

    verdict: Verdict
    reason: str
    """A word for machines: of a rollback `high_error_rate`, `performance_degradation` or `user_dissatisfaction`."""
    explanation: str
    """A sentence for people."""
    evidence: dict[str, Any] = field(default_factory=dict)
    """The numbers behind it, as JSON has them."""
    fails_since: datetime | None = None
    """Of a recheck: since when the candidate is suspected of failing."""


@dataclass(frozen=True, slots=True)
class _Case:
    rollout: Rollout
    phase: Phase
    columns: Columns
    now: datetime
    mode: Mode
    limits: Limits

    @property
    def of_step(self) -> Columns:
        """The windows of the step that it is at: a step that is entered again is another one."""
        return self.columns.where(self.columns.step == self.rollout.step)


def judge(
    rollout: Rollout, phase: Phase, windows: Sequence[Window], now: datetime, *, mode: Mode, limits: Limits
) -> Judgement:
    """Judge a rollout by all its closed windows, oldest first.

    Once the windows up to some moment say roll back, they say so with whatever follows them: when and how often this is
    called decides only how soon somebody hears of it. The evidence always says what the plain rule would have done.
    """
    case = _Case(rollout, phase, Columns.of(windows), now, mode, limits)
    began = case.columns.where(case.columns.start + WINDOW_SECONDS > rollout.started_at.timestamp())
    # Not before all windows of a check are closed, or it would find something else later.
    plain = plain_rollback(began, rollout.started_at, now - timedelta(seconds=CLOSED_SECONDS), limits)
    judgement = _by_plain_rule(case, plain) if rollout.rule == "literal" else _by_evidence(case)
    line = {
        "would_have_rolled_back_at": plain.at.isoformat() if plain else None,
        "reason": plain.reason if plain else None,
    }
    general = {"mode": mode, "rule": rollout.rule, "phase": phase, "windows": len(windows), "expected_finish": None}
    return replace(judgement, evidence={**general, **judgement.evidence, "plain_rule": line})


def _by_plain_rule(case: _Case, plain: PlainRollback | None) -> Judgement:
    evidence = {"candidate": figures(case.columns.candidate), "control": figures(case.columns.control)}
    if plain:
        text = f"the five-minute check at {plain.at:%H:%M} UTC found a limit exceeded"
        return Judgement("roll_back", plain.reason, text, evidence | {"decided_at": plain.at.isoformat()})
    return _next_step(case, 0, evidence)


def _by_evidence(case: _Case) -> Judgement:
    comparison = compare(case.columns, WEIGHTS[case.mode], case.limits)
    evidence = comparison.evidence()
    if case.phase == "testing":
        evidence["report"] = ab_report(comparison.split)
    rechecks, unexplained = unexplained_rechecks(case.rollout, case.columns, case.limits)
    if rechecks:
        evidence["rechecks"] = {"all": rechecks, "unexplained": unexplained}
    if comparison.exceeded:
        return Judgement("roll_back", REASONS[comparison.exceeded], comparison.in_words(comparison.exceeded), evidence)
    if case.phase == "baking":
        return _without_control(case, evidence)
    if comparison.worse_since:
        text = (
            f"worse than the control, but within the limits: {comparison.in_words(comparison.worst)}; "
            f"{_A_PERSON_DECIDES}"
        )
        return Judgement("hold", "worse_within_limits", text, evidence)
    if comparison.doubted_since:
        text = (
            f"the traffic is not split as configured since {comparison.doubted_since:%H:%M} UTC: look at the routing. "
            "It goes on once enough new sessions are split as they should be, or by `rl-pipeline deployment promote`"
        )
        return Judgement("hold", "sample_ratio", text, evidence)
    if case.phase == "ramping" and unexplained > MOST_UNEXPLAINED:
        text = (
            f"it failed {unexplained} times when it had all the traffic, and beside the control neither fails: see "
            f"whether it can carry the full load; {_A_PERSON_DECIDES}"
        )
        return Judgement("hold", "fails_only_alone", text, evidence)
    return _next_step(case, case.rollout.current.min_samples, evidence)


def _without_control(case: _Case, evidence: dict[str, Any]) -> Judgement:
    """Judge a candidate that has all the traffic by an absolute limit, which an outage of everything exceeds too: so
    a suspicion is never more than a reason to get the control back."""
    least = max(WATCHDOG_ERROR_RATE, case.limits.error_rate) if case.mode == "watchdog" else case.limits.error_rate
    bake = Bake.of(case.of_step, limit_of(case.rollout, case.columns, least))
    evidence["bake"] = bake.evidence()
    is_split = case.rollout.strategy != "immediate"
    if bake.suspected is None:
        least_samples = case.rollout.current.min_samples
        return _next_step(case, least_samples, evidence) if is_split else _after_the_other(case, evidence)
    decided, since = bake.suspected
    decided_at, began = end_of(bake.columns, decided), begin_of(bake.columns, since)
    evidence["decided_at"] = decided_at and decided_at.isoformat()
    often = f"more than {NEARLY_ALL if bake.fails_nearly_always else bake.limit:.0%} of the sessions"
    text = f"it has all the traffic, and {often} fail since {began:%H:%M} UTC"
    if not is_split:
        return Judgement("hold", "high_error_rate", f"{text}; {_A_PERSON_DECIDES}", evidence)
    text = f"{text}: the last split will show whose fault it is"
    return Judgement("recheck", "high_error_rate", text, evidence, fails_since=began)


def _after_the_other(case: _Case, evidence: dict[str, Any]) -> Judgement:
    """Judge a candidate that took over at once by its rewards and those of the model that served before it.

    One after the other is no comparison that could take a model back: the work may have changed meanwhile.
    """
    candidate, control = mean(case.columns.candidate.rewards), mean(case.columns.control.rewards)
    found = difference(candidate, control)
    evidence["one_after_the_other"] = {
        "candidate": as_record(candidate),
        "control": as_record(control),
        "difference": as_record(found),
    }
    if found and found.high < 0 and found.value < -case.limits.reward_drop:
        text = f"its rewards are lower than those of the model before it by {-found.value:.3f}; {_A_PERSON_DECIDES}"
        return Judgement("hold", "worse_than_before", text, evidence)
    judgement = _next_step(case, case.rollout.current.min_samples, evidence)
    is_baked = case.now >= case.rollout.step_since + timedelta(seconds=case.rollout.bake_left)
    if judgement.reason == "waiting" and is_baked:
        text = (
            f"{judgement.explanation}. Only what agents publish is known of it: wait for that, or {_A_PERSON_DECIDES}"
        )
        return replace(judgement, reason="too_few_rewards", explanation=text)
    return judgement


def _next_step(case: _Case, min_samples: int, evidence: dict[str, Any]) -> Judgement:
    """Advance when the time and the samples are there. Without a session of the candidate nothing advances."""
    if case.phase == "testing":
        return Judgement("hold", "ab_test", "an A/B test keeps its split until somebody ends it", evidence)
    if case.phase not in ("ramping", "baking"):
        return Judgement("hold", "not_running", "the rollout does not run", evidence)
    rollout, seconds = case.rollout, (case.now - case.rollout.step_since).total_seconds()
    least = rollout.bake_left if case.phase == "baking" else rollout.current.min_seconds
    candidate = case.of_step.candidate
    # Where nobody counts sessions, those that agents published and that were scored are known.
    counted = candidate.rewarded if rollout.strategy == "immediate" else candidate.sessions
    samples, wanted = int(counted.sum()), max(min_samples, 1)
    finish = _expected_finish(case, seconds, samples)
    evidence["step"] = {"seconds": seconds, "min_seconds": least, "samples": samples, "min_samples": wanted}
    evidence["expected_finish"] = finish and finish.isoformat()
    if case.mode == "watchdog":
        return Judgement("hold", "watching", "nothing speaks against it", evidence)
    missing = [f"{least - seconds:.0f} s"] * (seconds < least) + [f"{wanted - samples} sessions"] * (samples < wanted)
    if missing:
        return Judgement("hold", "waiting", f"nothing speaks against it; still to come: {', '.join(missing)}", evidence)
    text = f"nothing speaks against it after {samples} sessions in {seconds:.0f} s"
    return Judgement("advance", "time_and_samples", text, evidence)


def _expected_finish(case: _Case, seconds: float, samples: int) -> datetime | None:
    """When the candidate can have all the traffic, if sessions come as they did so far; of a bake, its end."""
    rollout, split = case.rollout, case.columns.where(case.columns.is_split)
    if case.phase == "baking":
        return rollout.step_since + timedelta(seconds=rollout.bake_left)
    candidate, sessions = split.candidate.sessions.sum(), split.sessions.sum()
    if not candidate:
        return None
    elapsed = max((case.now - rollout.started_at).total_seconds(), WINDOW_SECONDS)
    rate_by_share = float(candidate / (split.share @ split.sessions) * sessions / elapsed)
    left = 0.0
    for step in rollout.steps[rollout.step :]:
        wanted = 0 if rollout.rule == "literal" else step.min_samples
        left += max(step.min_seconds - seconds, (wanted - samples) / (rate_by_share * step.share), 0.0)
        seconds, samples = 0.0, 0
    return case.now + timedelta(seconds=left)
