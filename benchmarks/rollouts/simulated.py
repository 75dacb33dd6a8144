"""Simulated traffic, and rollouts that follow the real judgement on it.

Sessions arrive at random, are given to an arm by the real share, and fail, are rewarded and are rated as their model's
figures say. Weather changes those of both arms alike. A session's work takes its time, and its reward counts as in the
product: if it was scored within the maturity, once that has passed. A judgement sees the windows that are closed by
then. The clock jumps to where a step can end: a judgement does not depend on when it was asked for before, and it says
itself when it would first have been to roll back.
"""

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Literal

import numpy as np

from rl_pipeline.deployment import phases
from rl_pipeline.deployment.judging import Judgement, Limits, Mode, judge
from rl_pipeline.deployment.state import DesiredState, EvidenceRule, RampStep, Rollout, ServedModel
from rl_pipeline.deployment.strategy import ramp
from rl_pipeline.deployment.windows import (
    CLOSED_SECONDS,
    MATURITY_SECONDS,
    WINDOW_SECONDS,
    Arm,
    Clock,
    Window,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
DAY = 86_400
LIMITS = Limits()
_CLOSING = timedelta(seconds=WINDOW_SECONDS + CLOSED_SECONDS)
"""From the start of a window until the controller sees it; the watchdog does sooner."""
MODES: tuple[Mode, ...] = ("full", "watchdog")
WORK_SECONDS, WORK_SPREAD = 600.0, 0.8
"""Median of how long the work of a session takes, and the standard deviation of its logarithm: one in ten is scored too
late to count."""
FAILED_WORK_SECONDS, FAILED_WORK_REWARD = 30.0, 0.10
SCORING_SECONDS = 60.0
"""From the end of the work to its reward."""


@dataclass(frozen=True)
class Model:
    """What a model does when nothing is wrong with the world."""

    errors: float = 0.02
    reward: float = 0.70
    spread: float = 0.25
    negative: float = 0.10
    failing: float = 0.0
    """Share of its sessions whose work comes to nothing: it ends at once and earns little, while all else takes its
    time. To the gateway they are no errors."""


HEALTHY = Model()


@dataclass(frozen=True)
class Traffic:
    """What comes in, and what happens to it."""

    sessions_a_day: int
    candidate: Model = HEALTHY
    control: Model = HEALTHY
    rated: float = 0.15
    """Share of the sessions that their users rate."""
    outage_minutes: float = 0
    """Somewhere in the ramp, for both arms: half of the sessions fail."""
    outage_in_bake_minutes: float = 0
    """The same once the candidate has all of the traffic."""
    bursts_a_day: float = 0
    """Minutes in which a third of the sessions of both arms fail, in ramp and bake."""
    bake_hours: float = 0.5
    real_share: float = 1.0
    """Over the configured one."""
    bad_from_step: int = 0
    """The candidate is a healthy model before, and an outage in the ramp is before that."""
    bad_alone: bool = False
    """It is one wherever the control has traffic too."""
    visits_a_day: float = 0
    """How often each caller comes back under its name; by default nobody does. Of one that has failed nothing counts
    until it is drawn anew who has which model, which each split does."""
    broken_callers: float = 0
    """Share of these callers that fail with every model."""


@dataclass(frozen=True)
class Course:
    """How a rollout went."""

    end: Literal["promoted", "rolled_back", "held"]
    minutes: float
    """From its start to its end; of a rollback, until the window was closed that made the evidence enough."""
    reason: str
    rechecks: int = 0
    """How often it went back from its bake to a split."""


@dataclass
class World:
    """The traffic with its dice, and the weather of one rollout."""

    traffic: Traffic
    random: np.random.Generator
    incidents: list[tuple[float, float, float]] = field(default_factory=list)
    """Begin and end in seconds since the start, and the share of sessions that fail."""
    split: int = -1
    """The step of the last draw."""
    places: np.ndarray = field(default_factory=lambda: np.empty(0))
    """Where that put each caller, from 0 to 1."""
    silent: np.ndarray = field(default_factory=lambda: np.empty(0, bool))
    """Callers that have failed since."""

    def draw(self, step: int, share: float) -> None:
        """At a split that is entered, who of the callers has which model: nobody of them has failed since."""
        if step != self.split and share < 1:
            callers = max(round(self.traffic.sessions_a_day / self.traffic.visits_a_day), 1)
            self.split, self.places, self.silent = step, self.random.random(callers), np.zeros(callers, bool)

    def weather(self, seconds: np.ndarray) -> np.ndarray:
        """How many sessions fail whatever serves them, by the time."""
        fails = np.zeros(len(seconds))
        for begin, end, share in self.incidents:
            fails[(seconds >= begin) & (seconds < end)] = share
        return fails


def simulate_rollout(traffic: Traffic, seed: int, rule: EvidenceRule = "evidence") -> Course:
    """A canary from its start until it is promoted, rolled back, or has waited for a person as long as it ran."""
    random = np.random.default_rng([seed, traffic.sessions_a_day])
    steps = ramp("canary", 0.10, 4)
    seconds, bake = [_seconds_of(step, traffic, rule) for step in steps], 3600 * traffic.bake_hours
    least, healthy = sum(seconds), sum(seconds[: traffic.bad_from_step or len(seconds)])
    world = World(traffic, random, _incidents(traffic, healthy, least, bake, random))
    return _follow(world, started(steps, rule, bake_seconds=bake), horizon=4 * least + 2 * bake)


def started(
    steps: tuple[RampStep, ...], rule: EvidenceRule = "evidence", *, bake_seconds: float = 1800
) -> DesiredState:
    """The state in which a rollout has just been let in."""
    old, new = (ServedModel(model_id=name, base_model="simulated") for name in ("old", "new"))
    rollout = Rollout(
        deployment_id="simulated",
        candidate=new.model_id,
        control=old.model_id,
        strategy="canary",
        rule=rule,
        steps=steps,
        started_at=START,
        step_since=START,
        bake_seconds=bake_seconds,
    )
    return phases.start(phases.create(old, _cause(START)), new, rollout, _cause(START), approved=True)


def _follow(world: World, state: DesiredState, horizon: float) -> Course:
    windows: list[Window] = []
    seconds, stretch, rechecks = 0.0, 0.0, 0
    while state.rollout and seconds < horizon:
        rollout, now = state.rollout, START + timedelta(seconds=seconds)
        if now == rollout.step_since:
            stretch = _seconds_of(rollout.current, world.traffic, rollout.rule)
        more = simulated_windows(world, seconds, seconds + stretch, rollout.step, rollout.current.share)
        windows = in_order([*windows, *more])
        seconds, now = seconds + stretch, now + timedelta(seconds=stretch)
        closed = [window for window in windows if window.start + _CLOSING <= now]
        judgements = [judge(rollout, state.phase, closed, now, mode=mode, limits=LIMITS) for mode in MODES]
        rollbacks = [each for each in judgements if each.verdict == "roll_back"]
        if rollbacks:
            first = min(rollbacks, key=_known_at)
            return Course("rolled_back", (_known_at(first) - START).total_seconds() / 60, first.reason, rechecks)
        full = judgements[0]
        suspicions = [each for each in judgements if each.verdict == "recheck"]
        if suspicions:
            # What was simulated after it would have been acted upon has not happened.
            first = min(suspicions, key=_known_at)
            now, rechecks = max(_known_at(first), rollout.step_since), rechecks + 1
            seconds = _whole_windows((now - START).total_seconds())
            state = phases.recheck(state, _cause(START + timedelta(seconds=seconds)), first.fails_since)
            windows = [window for window in windows if window.start < START + timedelta(seconds=seconds)]
        elif full.verdict == "advance":
            state = (phases.promote if state.phase == "baking" else phases.advance)(state, _cause(now))
        elif full.reason == "waiting":
            missing = full.evidence["step"]["min_samples"] - full.evidence["step"]["samples"]
            # Callers that are silent may never bring what is missing: then it is not looked at for each session.
            least = horizon / 100 if world.traffic.visits_a_day else 0
            wanted = missing * DAY / (world.traffic.sessions_a_day * rollout.current.share)
            stretch = _whole_windows(max(wanted, least))
        else:
            stretch = _whole_windows(horizon - seconds)
    return Course("held" if state.rollout else "promoted", seconds / 60, full.reason, rechecks)


def simulated_windows(world: World, begin: float, end: float, step: int, share: float) -> list[Window]:
    """What both arms do in a stretch of time, and after it the windows in which the rewards of that are read; windows
    with nothing are left out, as nobody would report them."""
    random, traffic = world.random, world.traffic
    starts = np.arange(begin, end, WINDOW_SECONDS)
    sessions = random.poisson(traffic.sessions_a_day * WINDOW_SECONDS / DAY, len(starts))
    candidates = random.binomial(sessions, min(share * traffic.real_share, 1.0) if share < 1 else 1.0)
    seen = np.flatnonzero(sessions)
    is_bad = step >= traffic.bad_from_step and (share >= 1 or not traffic.bad_alone)
    candidate = traffic.candidate if is_bad else traffic.control
    fails = world.weather(starts[seen])
    if traffic.visits_a_day:
        world.draw(step, share)
        is_new = world.places < share * (traffic.real_share if share < 1 else 1)
        arms = _arms_of_callers(world, (candidate, traffic.control), sessions[seen], fails, is_new)
    else:
        arms = [
            _arms(candidate, candidates[seen], fails, traffic.rated, random),
            _arms(traffic.control, (sessions - candidates)[seen], fails, traffic.rated, random),
        ]
    times = [START + timedelta(seconds=each) for each in starts[seen].tolist()]
    counted = [Window(start, step, share, one, other) for start, one, other in zip(times, *arms, strict=True)]
    if traffic.visits_a_day:
        return counted
    rewards = (
        _rewards(candidate, candidates[seen], fails, random),
        _rewards(traffic.control, (sessions - candidates)[seen], fails, random),
    )
    matured = timedelta(seconds=Clock().matured_windows * WINDOW_SECONDS)
    rewarded = [
        Window(start + matured, step, share, one, other)
        for start, one, other in zip(times, *rewards, strict=True)
        if one.rewards or other.rewards
    ]
    return in_order([*counted, *rewarded])


def in_order(windows: list[Window]) -> list[Window]:
    """Oldest first, and one for each start and step, as the product has them."""
    found: dict[tuple[datetime, int], Window] = {}
    for window in windows:
        key = window.start, window.step
        found[key] = found[key].joined(window) if key in found else window
    return [found[key] for key in sorted(found)]


def _arms(
    model: Model, sessions: np.ndarray, fails: np.ndarray, rated: float, random: np.random.Generator
) -> list[Arm]:
    """What one arm's sessions come to, window by window. One that fails of the weather annoys."""
    errors = random.binomial(sessions, np.maximum(model.errors, fails))
    ratings = random.binomial(sessions, rated)
    negative = random.binomial(ratings, np.maximum(model.negative, fails))
    return list(map(Arm, *(each.tolist() for each in (sessions, errors, ratings, negative))))


def _arms_of_callers(
    world: World, models: tuple[Model, Model], sessions: np.ndarray, fails: np.ndarray, with_candidate: np.ndarray
) -> list[list[Arm]]:
    """What sessions come to whose callers come back, window by window: by errors alone, of which a caller has one.
    `with_candidate` says of each caller who answers it."""
    traffic, random, windows, callers = world.traffic, world.random, len(sessions), len(with_candidate)
    window = np.repeat(np.arange(windows), sessions)
    caller = random.integers(callers, size=len(window))
    is_new = with_candidate[caller]
    rates = np.where(is_new, *(np.maximum(model.errors, fails)[window] for model in models))
    failed = (random.random(len(window)) < rates) | (caller < traffic.broken_callers * callers)
    whose, first = np.unique(caller[failed], return_index=True)
    last = np.full(callers, len(window))
    last[whose] = np.flatnonzero(failed)[first]
    counts = (np.arange(len(window)) <= last[caller]) & ~world.silent[caller]
    world.silent[whose] = True
    told = [
        [np.bincount(window[chosen], minlength=windows).tolist() for chosen in (counts & arm, counts & arm & failed)]
        for arm in (is_new, ~is_new)
    ]
    return [list(map(Arm, *columns)) for columns in told]


def _rewards(model: Model, sessions: np.ndarray, fails: np.ndarray, random: np.random.Generator) -> list[Arm]:
    """What one arm's sessions earn, by the windows in which they began, as far as it is scored in time. One that fails
    of the weather earns little."""
    window = np.repeat(np.arange(len(sessions)), sessions)
    is_failing = random.random(len(window)) < model.failing
    means = np.where(is_failing, FAILED_WORK_REWARD, (model.reward * (1 - fails))[window])
    seconds = np.where(
        is_failing, FAILED_WORK_SECONDS, random.lognormal(math.log(WORK_SECONDS), WORK_SPREAD, len(window))
    )
    is_in_time = seconds + SCORING_SECONDS < MATURITY_SECONDS
    rewards = random.normal(means, model.spread).clip(0, 1)[is_in_time].tolist()
    counts = np.bincount(window[is_in_time], minlength=len(sessions))
    ends = np.cumsum(counts).tolist()
    return [Arm(rewards=tuple(rewards[end - n : end])) for n, end in zip(counts.tolist(), ends, strict=True)]


def _incidents(
    traffic: Traffic, healthy_seconds: float, ramp_seconds: float, bake_seconds: float, random: np.random.Generator
) -> list[tuple[float, float, float]]:
    """Bursts go on for as long as a rollout that was delayed may take; an outage is in the ramp, while the candidate is
    healthy, or in the bake."""
    seconds = 2 * ramp_seconds + bake_seconds
    bursts = random.uniform(0, seconds, random.poisson(traffic.bursts_a_day * seconds / DAY))
    incidents = [(begin, begin + 60, 1 / 3) for begin in bursts.tolist()]
    for minutes, since, until in (
        (traffic.outage_minutes, 0.0, healthy_seconds),
        (traffic.outage_in_bake_minutes, ramp_seconds, ramp_seconds + bake_seconds),
    ):
        if minutes:
            begin = float(random.uniform(since, max(until - 60 * minutes, since)))
            incidents.append((begin, begin + 60 * minutes, 0.5))
    return incidents


def _seconds_of(step: RampStep, traffic: Traffic, rule: EvidenceRule) -> float:
    """How long a step takes, on average; one with all the traffic, as long as it says."""
    samples = 0 if rule == "literal" else step.min_samples
    return _whole_windows(max(step.min_seconds, samples * DAY / (traffic.sessions_a_day * step.share)))


def _whole_windows(seconds: float) -> float:
    return max(math.ceil(seconds / WINDOW_SECONDS), 1) * WINDOW_SECONDS


def _known_at(judgement: Judgement) -> datetime:
    return datetime.fromisoformat(judgement.evidence["decided_at"]) + timedelta(seconds=CLOSED_SECONDS)


def _cause(now: datetime) -> phases.Cause:
    return phases.Cause("simulated", "simulation", now)
