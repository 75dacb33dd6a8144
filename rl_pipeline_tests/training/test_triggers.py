"""The decision about a training, row by row of its table, and when a model counts as worse."""

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from rl_pipeline.contracts import serialize
from rl_pipeline.training.degradation import (
    BAKE_TRAJECTORIES,
    LEAST_RECENT,
    DayOfModel,
    Sample,
    ServingModel,
    is_degraded,
    is_over,
)
from rl_pipeline.training.triggers import (
    Decision,
    Evidence,
    OnItsWay,
    TriggerPolicy,
    Wait,
    decide,
    patience_for,
    request_for,
)
from rl_pipeline.validation.suite import BENCHMARKS
from rl_pipeline_tests.training.job_values import NOW

POLICY = TriggerPolicy()
TWO_O_CLOCK = datetime(2026, 2, 1, 2, tzinfo=UTC)
BAKE = Sample(200, 0.70, 0.04)
WORSE = ServingModel("model-1", BAKE, Sample(500, 0.58, 0.04))
WELL = replace(WORSE, recent=Sample(500, 0.69, 0.04))
NOTHING = Evidence(new_since_last_training=10, new_since_last_completed=10, last_training="job-6", serving=WELL)


@pytest.mark.parametrize(
    ("evidence", "reason", "priority"),
    [
        ({"serving": WORSE}, "performance_degradation", "urgent"),
        ({"new_since_last_training": 5000}, "threshold_reached", "normal"),
        ({"scheduled_for": TWO_O_CLOCK, "new_since_last_completed": 500}, "scheduled", "normal"),
    ],
    ids=["degradation", "threshold", "schedule"],
)
def test_each_row_of_the_table_decides(evidence: dict[str, Any], reason: str, priority: str) -> None:
    decided = decide(replace(NOTHING, **evidence), POLICY)
    assert isinstance(decided, Decision)
    assert (decided.reason, decided.priority) == (reason, priority)


ALL = {
    "serving": WORSE,
    "new_since_last_training": 5127,
    "scheduled_for": TWO_O_CLOCK,
    "new_since_last_completed": 5127,
}


def test_of_rows_that_hold_together_the_first_decides() -> None:
    reasons, evidence = [], replace(NOTHING, **ALL)  # type: ignore[arg-type]
    for settled in ({"serving": WELL}, {"new_since_last_training": 10}, {"scheduled_for": None}):
        decided = decide(evidence, POLICY)
        assert isinstance(decided, Decision)
        reasons.append(decided.reason)
        evidence = replace(evidence, **settled)  # type: ignore[arg-type]
    assert reasons == ["performance_degradation", "threshold_reached", "scheduled"]
    assert isinstance(decide(evidence, POLICY), Wait)


def test_too_little_is_waited_for_and_the_reason_says_how_much_is_missing() -> None:
    assert decide(replace(NOTHING, new_since_last_training=4999), POLICY) == Wait(
        "4,999 new trajectories since the last training, 5,000 are needed"
    )


def test_the_schedule_is_skipped_with_a_reason_when_too_little_is_new() -> None:
    evidence = replace(NOTHING, scheduled_for=TWO_O_CLOCK, new_since_last_completed=499)
    assert decide(evidence, POLICY) == Wait(
        "499 new trajectories since the last completed training, the schedule needs 500"
    )


@pytest.mark.parametrize("asking", [{"new_since_last_training": 9000}, {"scheduled_for": TWO_O_CLOCK}])
def test_while_a_job_of_its_own_is_under_way_the_pipeline_asks_for_no_other(asking: dict[str, Any]) -> None:
    evidence = replace(NOTHING, new_since_last_completed=9000, under_way="job-6", **asking)
    assert decide(evidence, POLICY) == Wait("the job job-6 is under way")


COMING = OnItsWay("v7", POLICY.patience - timedelta(minutes=1))


@pytest.mark.parametrize("asking", [{"new_since_last_training": 9000}, {"scheduled_for": TWO_O_CLOCK}])
def test_what_is_to_start_from_the_model_in_service_waits_until_that_is_known(asking: dict[str, Any]) -> None:
    decided = decide(replace(NOTHING, new_since_last_completed=9000, on_its_way=COMING, **asking), POLICY)
    assert isinstance(decided, Wait)
    assert "v7 is on its way into service" in decided.reason


@pytest.mark.parametrize("change", [{"waits_for_a_person": True}, {"age": POLICY.patience}], ids=["held", "too long"])
def test_nobody_waits_for_a_model_that_a_person_has_to_let_go_on_nor_for_ever(change: dict[str, Any]) -> None:
    evidence = replace(NOTHING, new_since_last_training=9000, on_its_way=replace(COMING, **change))
    assert isinstance(decide(evidence, POLICY), Decision)


@pytest.mark.parametrize(
    ("ramp", "bake", "hours"), [(4, 24, 32), (20 / 3600, 2 / 3600, 1)], ids=["as specified", "the demo's"]
)
def test_a_rollout_has_its_ramp_twice_and_its_bake_and_validation_an_hour(
    ramp: float, bake: float, hours: float
) -> None:
    assert patience_for(ramp, bake) == timedelta(hours=hours)


@pytest.mark.parametrize("waits_for", [{"under_way": "job-6"}, {"on_its_way": COMING}])
def test_degradation_waits_for_nothing(waits_for: dict[str, Any]) -> None:
    assert isinstance(decide(replace(NOTHING, serving=WORSE, **waits_for), POLICY), Decision)


def test_the_same_cause_asks_for_the_same_job_and_another_for_another() -> None:
    def job_of(**evidence: Any) -> str:
        decided = decide(replace(NOTHING, **evidence), POLICY)
        assert isinstance(decided, Decision)
        return decided.job_id

    enough: dict[str, Any] = {"new_since_last_completed": 600}
    jobs = [
        job_of(new_since_last_training=5000),
        job_of(new_since_last_training=5000, last_training="job-7"),
        job_of(scheduled_for=TWO_O_CLOCK, **enough),
        job_of(scheduled_for=TWO_O_CLOCK.replace(day=2), **enough),
        job_of(serving=WORSE),
        job_of(serving=replace(WORSE, version="model-2")),
        job_of(serving=replace(WORSE, asked_at=NOW, times_asked=1, since_asked=RECOVERED)),
    ]
    assert len(set(jobs)) == len(jobs)
    assert all(UUID(job).version == 5 for job in jobs)
    assert job_of(new_since_last_training=7000) == jobs[0], "whatever has come meanwhile"
    assert job_of(serving=replace(WORSE, recent=Sample(800, 0.5, 0.04))) == jobs[4]


def test_the_request_of_the_second_scenario() -> None:
    policy = TriggerPolicy(domain_shares={"coding": 0.4, "research": 0.3, "general": 0.3}, literal_filter=True)
    decided = decide(replace(NOTHING, new_since_last_training=5127), policy)
    assert isinstance(decided, Decision)
    request = request_for(decided, policy, requester="rl-pipeline", now=NOW)
    dataset = request.training_config.dataset
    assert (request.trigger_reason, request.priority) == ("threshold_reached", "normal")
    assert (dataset.source, dataset.sample_size) == ("clickhouse", 10_000)
    assert (dataset.filter.min_reward, dataset.filter.last_days) == (0.5, 30)
    assert dataset.filter.domain_shares == {"coding": 0.4, "research": 0.3, "general": 0.3}
    assert (dataset.filter.model_extra or {})["literal_filter"] is True
    knobs = request.training_config.hyperparameters
    assert (knobs.learning_rate, knobs.batch_size, knobs.epochs) == (1e-5, 32, 3)
    assert request.metadata.notes == "5,127 new trajectories since the last training"
    told = json.loads(serialize(request))["evaluation"]
    assert told["metrics"] == ["reward", "task_completion", "efficiency"]
    assert tuple(told["benchmark_tasks"]) == BENCHMARKS


def test_a_request_because_of_degradation_names_the_model() -> None:
    decided = decide(replace(NOTHING, serving=WORSE), POLICY)
    assert isinstance(decided, Decision)
    request = request_for(decided, POLICY, requester="rl-pipeline", now=NOW)
    assert (request.metadata.model_extra or {})["degraded_model"] == "model-1"
    assert "fell from 0.700 (its first 200) to 0.580 (the last 500)" in str(request.metadata.notes)


@pytest.mark.parametrize(
    ("recent", "degraded"),
    [
        (Sample(5000, 0.601, 0.04), False),
        (Sample(5000, 0.599, 0.04), True),
        (Sample(LEAST_RECENT - 1, 0.3, 0.04), False),
        (Sample(LEAST_RECENT, 0.3, 0.04), True),
        (Sample(100, 0.59, 0.20), False),
        (Sample(5000, 0.9, 0.04), False),
    ],
    ids=["less than 0.10", "more than 0.10", "too few", "enough", "noise", "better"],
)
def test_a_model_is_worse_if_it_dropped_enough_and_not_by_chance(recent: Sample, degraded: bool) -> None:
    assert is_degraded(BAKE, recent, 0.10) is degraded


def test_a_model_that_has_not_been_there_long_enough_cannot_be_judged() -> None:
    young = Sample(BAKE_TRAJECTORIES - 1, 0.9, 0.01)
    assert not is_degraded(young, Sample(5000, 0.1, 0.01), 0.10)


RECOVERED = (DayOfModel(0, "model-1", 500, 0.58), DayOfModel(1, "model-1", 500, 0.66))


@pytest.mark.parametrize(
    ("days", "over"),
    [
        ((), False),
        ((DayOfModel(0, "model-1", 500, 0.58), DayOfModel(1, "model-1", 500, 0.64)), False),
        (RECOVERED, True),
        ((DayOfModel(0, "model-1", 99, 0.70),), False),
        ((DayOfModel(0, "model-1", 300, 0.58), DayOfModel(0, "model-2", 400, 0.70)), True),
        ((DayOfModel(0, "model-1", 500, 0.58), DayOfModel(0, "model-2", 100, 0.70)), False),
    ],
    ids=["nothing yet", "still worse", "recovered", "too few to tell", "another serves", "another is tried"],
)
def test_an_episode_ends_when_the_mean_recovers_or_another_model_serves(
    days: tuple[DayOfModel, ...], over: bool
) -> None:
    assert is_over("model-1", BAKE, days, 0.10) is over
    asked = replace(WORSE, asked_at=NOW, times_asked=1, since_asked=days)
    assert isinstance(decide(replace(NOTHING, serving=asked), POLICY), Decision) is over


Rewards = Callable[[np.random.Generator, int, float], "np.ndarray[Any, np.dtype[np.float64]]"]


def all_or_nothing(randomness: np.random.Generator, count: int, mean: float) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """The noisiest rewards there are: 0 or 1."""
    return (randomness.random(count) < mean).astype(float)


def mostly_alike(randomness: np.random.Generator, count: int, mean: float) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Rewards with a standard deviation of 0.2, as totals of several terms have it."""
    size = mean * (1 - mean) / 0.04 - 1
    return randomness.beta(mean * size, (1 - mean) * size, count)


def days_with_alarms(
    randomness: np.random.Generator, draw: Rewards, *, per_day: int, days: int, drop: float
) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """On which days the rule fires, looked at with every reward that comes: no tick sees more than that.

    The drop happens at the beginning of the first day; the window still holds the day before then.
    """
    bake = draw(randomness, BAKE_TRAJECTORIES, 0.7)
    rewards = np.concatenate([draw(randomness, per_day, 0.7), draw(randomness, per_day * days, 0.7 - drop)])
    sums, squares = (np.concatenate([[0.0], np.cumsum(values)]) for values in (rewards, rewards**2))
    ends = np.arange(per_day + 1, len(rewards) + 1)
    means = (sums[ends] - sums[ends - per_day]) / per_day
    variances = ((squares[ends] - squares[ends - per_day]) / per_day - means**2) * per_day / (per_day - 1)
    before = Sample(BAKE_TRAJECTORIES, float(bake.mean()), float(bake.var(ddof=1)))
    # Most looks are far from an alarm: only those that could be one go through the rule itself.
    fires = before.mean - means >= 0.10
    for place in np.flatnonzero(fires):
        recent = Sample(per_day, float(means[place]), float(variances[place]))
        fires[place] = is_degraded(before, recent, 0.10)
    return fires.reshape(days, per_day).any(axis=1)


@pytest.mark.soak
@pytest.mark.parametrize("draw", [all_or_nothing, mostly_alike])
@pytest.mark.parametrize("per_day", [100, 1000])
def test_noise_raises_a_false_alarm_on_less_than_one_day_in_a_hundred(
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
    draw: Rewards,
    per_day: int,
) -> None:
    randomness, models = np.random.default_rng(11), soak_count(40, 2000)
    alarms = [days_with_alarms(randomness, draw, per_day=per_day, days=10, drop=0.0) for _ in range(models)]
    share = float(np.mean(alarms))
    record_property("days", 10 * models)
    record_property("share of days with a false alarm", share)
    assert share < 0.01


@pytest.mark.soak
@pytest.mark.parametrize(("drop", "power"), [(0.10, 0.6), (0.12, 0.9), (0.15, 0.97)])
def test_a_real_drop_raises_the_alarm_within_three_days(
    soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None], drop: float, power: float
) -> None:
    randomness, models = np.random.default_rng(12), soak_count(60, 1000)
    alarms = [days_with_alarms(randomness, mostly_alike, per_day=1000, days=3, drop=drop) for _ in range(models)]
    found = float(np.mean([days.any() for days in alarms]))
    record_property("models", models)
    record_property("found within three days", found)
    record_property("found within one", float(np.mean([days[0] for days in alarms])))
    assert found >= power
