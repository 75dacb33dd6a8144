"""Verdicts on rollouts whose windows leave no doubt, and what every judgement carries."""

import json
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest

from benchmarks.rollouts import START, Model, Traffic, World, in_order, simulated_windows
from rl_pipeline.deployment.judging import WEIGHTS, Judgement, Limits, Mode, judge
from rl_pipeline.deployment.state import Phase, RampStep, Rollout
from rl_pipeline.deployment.strategy import ramp
from rl_pipeline.deployment.windows import WINDOW_SECONDS, Arm, Window, aged

HOUR = 3600
GOOD = Arm(sessions=100, errors=2, rated=20, negative=2, rewards=(0.7, 0.5, 0.9))
MODES: tuple[Mode, ...] = ("full", "watchdog")


def rollout(**changes: object) -> Rollout:
    values = {
        "deployment_id": "deployment-1",
        "candidate": "new",
        "control": "old",
        "strategy": "canary",
        "steps": ramp("canary", 0.10, 4),
        "started_at": START,
        "step_since": START,
        "bake_seconds": 1800,
    }
    return Rollout.model_validate(values | changes)


def windows(candidate: Arm, control: Arm, count: int = 20, *, step: int = 0, share: float = 0.5) -> list[Window]:
    """The same thing again and again, from the start on."""
    times = (START + timedelta(seconds=WINDOW_SECONDS * place) for place in range(count))
    return [Window(start, step, share, candidate, control) for start in times]


def judged(
    found: list[Window],
    phase: Phase = "ramping",
    *,
    mode: Mode = "full",
    after: float = HOUR,
    of: Rollout | None = None,
) -> Judgement:
    judgement = judge(of or rollout(), phase, found, START + timedelta(seconds=after), mode=mode, limits=Limits())
    json.dumps(judgement.evidence, allow_nan=False)
    return judgement


def test_the_watchdog_weighs_as_the_controller_does_what_both_see() -> None:
    assert sum(WEIGHTS["full"].values()) == pytest.approx(1)
    assert WEIGHTS["watchdog"] == {metric: WEIGHTS["full"][metric] for metric in ("errors", "feedback")}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("phase", ["ramping", "testing"])
def test_a_candidate_that_fails_more_often_than_the_control_is_rolled_back(mode: Mode, phase: Phase) -> None:
    judgement = judged(windows(replace(GOOD, errors=9), GOOD), phase, mode=mode)
    assert (judgement.verdict, judgement.reason) == ("roll_back", "high_error_rate")
    assert "error_rate 9.0%, of the control 2.0%" in judgement.explanation
    assert judgement.evidence["combined"]["highest"] >= 20


def test_lower_rewards_are_a_reason_of_their_own() -> None:
    found = windows(replace(GOOD, rewards=(0.5, 0.3, 0.7)), GOOD, 60)
    assert judged(found).reason == "performance_degradation"
    assert judged(found, mode="watchdog").verdict == "hold"


@pytest.mark.parametrize("mode", MODES)
def test_bad_ratings_are_a_reason_of_their_own(mode: Mode) -> None:
    judgement = judged(windows(replace(GOOD, negative=9), GOOD), mode=mode)
    assert (judgement.verdict, judgement.reason) == ("roll_back", "user_dissatisfaction")


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_users_hardly_praise_any_more_is_taken_back_where_half_of_them_complained_before(
    mode: Mode,
) -> None:
    doubtful = replace(GOOD, negative=11)
    assert judged(windows(replace(doubtful, negative=19), doubtful), mode=mode).reason == "user_dissatisfaction"
    assert judged(windows(replace(doubtful, negative=14), doubtful), mode=mode).verdict != "roll_back"


@pytest.mark.parametrize("times", [1, 9])
@pytest.mark.parametrize(("before", "now"), [(14, 18), (15, 20), (16, 19), (18, 20)])
def test_fewer_good_ratings_are_evidence_where_most_users_complain_already(times: int, before: int, now: int) -> None:
    candidate = Arm(sessions=20, rated=20, negative=now)
    control = Arm(sessions=20 * times, rated=20 * times, negative=before * times)
    judgement = judged(windows(candidate, control, 100, share=1 / (1 + times)))
    assert (judgement.verdict, judgement.reason) == ("roll_back", "user_dissatisfaction")


def test_the_reason_is_the_metric_with_the_most_evidence_among_those_beyond_their_limits() -> None:
    # Errors are far more in proof, but within their limit.
    few = replace(GOOD, sessions=1000, errors=1)
    found = windows(replace(few, errors=40, negative=9), few)
    assert judged(found).reason == "user_dissatisfaction"
    # Both are beyond at once.
    rated = replace(GOOD, rated=100)
    assert judged(windows(replace(rated, errors=60, negative=40), rated)).reason == "high_error_rate"
    assert judged(windows(replace(rated, errors=40, negative=60), rated)).reason == "user_dissatisfaction"


@pytest.mark.parametrize("mode", MODES)
def test_worse_within_the_limits_is_for_a_person_to_decide(mode: Mode) -> None:
    judgement = judged(windows(replace(GOOD, errors=4), replace(GOOD, errors=1), 100), mode=mode)
    assert (judgement.verdict, judgement.reason) == ("hold", "worse_within_limits")
    assert "a person decides" in judgement.explanation


def test_an_outage_of_both_arms_is_no_evidence() -> None:
    # Errors exceed their limit and rewards are in proof, but within theirs: neither alone is enough.
    both = replace(GOOD, errors=50)
    judgement = judged(windows(replace(both, rewards=(0.66, 0.46, 0.86)), both, 400))
    assert (judgement.verdict, judgement.reason) == ("hold", "worse_within_limits")
    assert judged(windows(both, both, 400)).verdict == "advance"


def test_traffic_that_is_not_split_as_configured_holds() -> None:
    judgement = judged(windows(GOOD, GOOD, share=0.4))
    assert (judgement.verdict, judgement.reason) == ("hold", "sample_ratio")
    assert judgement.evidence["sample_ratio"]["expected"] == 1600
    assert judgement.evidence["sample_ratio"]["observed"] == 2000


def later_by(found: list[Window], hours: float) -> list[Window]:
    return [replace(each, start=each.start + timedelta(hours=hours)) for each in found]


def test_a_doubt_about_the_split_passes_when_the_sessions_after_it_are_split_right() -> None:
    half = replace(GOOD, sessions=50, errors=1)
    burst = windows(GOOD, half, 5)
    assert judged(burst).reason == "sample_ratio"
    too_few = burst + later_by(windows(GOOD, GOOD, 2), 0.5)
    assert judged(too_few, after=2 * HOUR).reason == "sample_ratio"
    passed = burst + later_by(windows(GOOD, GOOD, 20), 0.5)
    judgement = judged(passed, after=2 * HOUR)
    assert judgement.verdict == "advance"
    assert judgement.evidence["sample_ratio"]["highest"] > 1000
    assert judgement.evidence["sample_ratio"]["doubted_since"] is None
    again = passed + later_by(windows(GOOD, half, 20), 1)
    judgement = judged(again, after=2 * HOUR)
    assert judgement.reason == "sample_ratio"
    assert judgement.evidence["sample_ratio"]["doubted_since"] > (START + timedelta(hours=1)).isoformat()


def test_a_wrong_split_is_seen_while_rewards_of_the_step_before_are_read() -> None:
    routed = windows(replace(GOOD, rewards=()), replace(GOOD, sessions=80, rewards=()), 20, step=1)
    read = windows(Arm(rewards=(0.5,)), Arm(rewards=(0.5,) * 9), 20, share=0.1)
    alone, between = (judged(in_order(found), of=rollout(step=1)) for found in (routed, [*routed, *read]))
    assert alone.evidence["sample_ratio"] == between.evidence["sample_ratio"]
    assert alone.evidence["sample_ratio"]["highest"] > 20


def test_a_split_that_stays_wrong_stays_in_doubt() -> None:
    assert judged(windows(GOOD, replace(GOOD, sessions=80), 1000), after=3 * HOUR).reason == "sample_ratio"


def test_worse_within_the_limits_stays_for_a_person_whatever_comes_later() -> None:
    worse = windows(replace(GOOD, errors=4), replace(GOOD, errors=1), 100)
    judgement = judged(worse + later_by(windows(GOOD, GOOD, 200), 1), after=3 * HOUR)
    assert (judgement.verdict, judgement.reason) == ("hold", "worse_within_limits")
    assert "`rl-pipeline deployment promote` or `roll-back`" in judgement.explanation


def test_a_step_needs_its_time_and_its_samples() -> None:
    little, enough = Arm(1, 0, rewards=(0.7,)), windows(GOOD, GOOD)
    assert judged(enough).verdict == "advance"
    early = judged(enough, after=HOUR - 1)
    assert (early.verdict, early.explanation) == ("hold", "nothing speaks against it; still to come: 1 s")
    few = judged(windows(little, little, 49))
    assert (few.verdict, few.explanation) == ("hold", "nothing speaks against it; still to come: 1 sessions")
    assert judged(windows(little, little, 50)).verdict == "advance"


def test_samples_of_an_earlier_step_do_not_count() -> None:
    found = windows(GOOD, GOOD, step=0) + windows(GOOD, GOOD, 1, step=1)
    assert judged(found, of=rollout(step=2), after=3 * HOUR).explanation.endswith("still to come: 150 sessions")
    assert judged(found, of=rollout(step=1)).verdict == "advance"


@pytest.mark.parametrize("rule", ["evidence", "literal"])
@pytest.mark.parametrize("phase", ["ramping", "testing", "baking", "awaiting_approval"])
def test_no_data_never_advances(rule: str, phase: Phase) -> None:
    nothing = rollout(rule=rule, steps=(RampStep(share=0.1, min_seconds=0, min_samples=0),))
    for found in ([], windows(Arm(), GOOD, 3)):
        assert judged(found, phase, of=nothing, after=1000 * HOUR).verdict == "hold"


def test_the_watchdog_never_advances() -> None:
    bake = windows(GOOD, Arm(), step=3, share=1.0)
    assert judged(windows(GOOD, GOOD), mode="watchdog").reason == "watching"
    assert judged(bake, "baking", of=rollout(step=3)).verdict == "advance"
    assert judged(bake, "baking", of=rollout(step=3), mode="watchdog").reason == "watching"


def test_a_test_never_advances_and_reports_both_arms() -> None:
    judgement = judged(windows(GOOD, GOOD), "testing", after=1000 * HOUR)
    assert (judgement.verdict, judgement.reason) == ("hold", "ab_test")
    report = judgement.evidence["report"]
    assert report["error_rate"]["candidate"]["value"] == 0.02
    assert report["reward_mean"]["difference"]["low"] < 0 < report["reward_mean"]["difference"]["high"]


def test_a_bake_ends_in_promotion_after_its_time() -> None:
    bake = windows(GOOD, Arm(), step=3, share=1.0)
    assert judged(bake, "baking", of=rollout(step=3), after=1799).reason == "waiting"
    assert judged(bake, "baking", of=rollout(step=3), after=1800).verdict == "advance"


def baked(errors: int, count: int = 30, *, hours: float = 0, step: int = 3) -> list[Window]:
    """Windows in which the candidate has all the traffic."""
    return later_by(windows(replace(GOOD, errors=errors), Arm(), count, step=step, share=1.0), hours)


def test_errors_during_the_bake_go_back_to_the_split_but_only_many_make_the_watchdog_act() -> None:
    baking = rollout(step=3)
    assert judged(baked(12), "baking", of=baking).verdict == "recheck"
    assert judged(baked(12), "baking", of=baking, mode="watchdog").verdict == "hold"
    for errors, nearly_always in ((40, False), (100, True)):
        for mode in MODES:
            judgement = judged(baked(errors), "baking", of=baking, mode=mode)
            assert (judgement.verdict, judgement.reason) == ("recheck", "high_error_rate")
            assert judgement.evidence["bake"]["fails_nearly_always"] == nearly_always


def test_a_burst_in_the_bake_is_no_suspicion_unless_nearly_everything_fails() -> None:
    baking, quiet, after = rollout(step=3), baked(2, 6), baked(2, 300, hours=0.25)
    for mode in MODES:
        burst = baked(40, 6, hours=0.2)
        assert judged(quiet + burst + after, "baking", of=baking, mode=mode).verdict != "recheck"
        outage = baked(100, 6, hours=0.2)
        assert judged(quiet + outage + after, "baking", of=baking, mode=mode).verdict == "recheck"


def test_a_site_that_fails_for_both_is_no_suspicion_in_the_bake() -> None:
    flaky = replace(GOOD, errors=10)
    split, baking = windows(flaky, flaky, 100, step=2), rollout(step=3)
    assert judged(split + baked(10, 300, hours=1), "baking", of=baking).verdict != "recheck"
    assert judged(split + baked(30, 300, hours=1), "baking", of=baking).verdict == "recheck"
    passing = windows(flaky, flaky, 30, step=2) + later_by(windows(GOOD, GOOD, 70, step=2), 0.5)
    assert judged(passing + baked(10, 300, hours=1), "baking", of=baking).verdict == "recheck", "it had passed"


def test_a_site_that_fails_for_both_is_no_suspicion_though_the_split_is_remembered_as_one_window() -> None:
    flaky = replace(GOOD, errors=10)
    split = windows(flaky, flaky, 100, step=2)
    found = aged(split + baked(10, 300, hours=30), (START + timedelta(hours=31)).timestamp())
    assert [window.step for window in found[:2]] == [2, 3]
    for mode in MODES:
        assert judged(found, "baking", of=rollout(step=3), mode=mode, after=31 * HOUR).verdict != "recheck"


HALF, WHOLE = (RampStep(share=share, min_seconds=60, min_samples=1) for share in (0.5, 1.0))


def rechecked(times: int) -> Rollout:
    """At the split to which it went back for the so manieth time."""
    return rollout(steps=(HALF, *(WHOLE, HALF) * times), step=2 * times)


def after_bakes(times: int, arm: Arm) -> list[Window]:
    """A split at first, then bakes and the splits to which they went back, at which both do the same."""
    found = windows(GOOD, GOOD, step=0)
    for number in range(times):
        found += baked(12, hours=4 * number + 2, step=2 * number + 1)
        found += later_by(windows(arm, arm, 30, step=2 * number + 2), 4 * number + 4)
    return found


def test_what_fails_only_with_all_the_traffic_is_for_a_person_after_the_third_time() -> None:
    for times, verdict, reason in ((2, "advance", "time_and_samples"), (3, "hold", "fails_only_alone")):
        judgement = judged(after_bakes(times, GOOD), of=rechecked(times), after=20 * HOUR)
        assert (judgement.verdict, judgement.reason) == (verdict, reason)
        assert judgement.evidence["rechecks"] == {"all": times, "unexplained": times}
    assert "`rl-pipeline deployment promote` or `roll-back`" in judgement.explanation


def test_splits_at_which_the_control_fails_alike_do_not_count_against_the_candidate() -> None:
    judgement = judged(after_bakes(4, replace(GOOD, errors=12)), of=rechecked(4), after=20 * HOUR)
    assert judgement.verdict == "advance"
    assert judgement.evidence["rechecks"] == {"all": 4, "unexplained": 0}


def test_a_bake_goes_on_from_where_it_was_before_a_recheck() -> None:
    baking = rollout(step=3, baked_seconds=1000)
    assert judged(baked(2), "baking", of=baking, after=799).reason == "waiting"
    assert judged(baked(2), "baking", of=baking, after=800).verdict == "advance"


def test_a_bake_that_goes_on_after_a_recheck_needs_the_sessions_that_its_step_says() -> None:
    baking = rollout(steps=(HALF, WHOLE, HALF, WHOLE.model_copy(update={"min_samples": 150})), step=3)
    quiet = [Window(START + timedelta(minutes=each), 3, 1.0, Arm(1), Arm()) for each in range(149)]
    judgement = judged(quiet, "baking", of=baking, after=24 * HOUR)
    assert (judgement.reason, judgement.explanation[-10:]) == ("waiting", "1 sessions")
    more = Window(START + timedelta(minutes=150), 3, 1.0, Arm(1), Arm())
    assert judged([*quiet, more], "baking", of=baking, after=24 * HOUR).verdict == "advance"


def test_what_was_found_in_the_split_still_counts_in_the_bake() -> None:
    late = windows(replace(GOOD, errors=9), GOOD, step=2)
    judgement = judged(late + windows(GOOD, Arm(), step=3, share=1.0), "baking", of=rollout(step=3))
    assert (judgement.verdict, judgement.reason) == ("roll_back", "high_error_rate")


def test_the_expected_finish_follows_from_the_sessions_so_far() -> None:
    # 10 of the candidate in half an hour at 10 %: 200 an hour at full share. 40 more take 2 h, then 2 h, then 1.5 h,
    # but the last step takes 2 h at least.
    arms = Arm(1, rewards=(0.7,)), Arm(9, rewards=(0.7,))
    judgement = judged(windows(*arms, 10, share=0.1), after=HOUR / 2)
    finish = datetime.fromisoformat(judgement.evidence["expected_finish"])
    assert finish == START + timedelta(hours=0.5 + 2 + 2 + 2)
    assert judged([]).evidence["expected_finish"] is None


def test_every_judgement_says_what_the_plain_rule_would_have_done() -> None:
    unlucky = windows(replace(GOOD, errors=6), replace(GOOD, errors=6))
    judgement = judged(unlucky)
    assert judgement.verdict == "advance"
    assert judgement.evidence["plain_rule"] == {
        "would_have_rolled_back_at": (START + timedelta(minutes=5)).isoformat(),
        "reason": "high_error_rate",
    }
    assert judged([]).evidence["plain_rule"] == {"would_have_rolled_back_at": None, "reason": None}


def test_a_literal_rollout_follows_the_plain_rule_and_the_clock() -> None:
    unlucky = windows(replace(GOOD, errors=6), replace(GOOD, errors=6))
    literal = rollout(rule="literal")
    for mode in MODES:
        judgement = judged(unlucky, of=literal, mode=mode)
        assert (judgement.verdict, judgement.reason) == ("roll_back", "high_error_rate")
    one = windows(Arm(1), Arm(1), 1)
    assert judged(one, of=literal, after=HOUR - 1).verdict == "hold"
    assert judged(one, of=literal).verdict == "advance"
    assert judged(one, of=literal, mode="watchdog").verdict == "hold"
    assert (
        judged(windows(GOOD, Arm(), step=3, share=1.0), "baking", of=rollout(rule="literal", step=3)).verdict
        == "advance"
    )


def test_evidence_that_was_enough_once_is_enough_for_what_shows_later() -> None:
    worse = windows(replace(GOOD, errors=4), replace(GOOD, errors=1), 20)
    assert judged(worse).reason == "worse_within_limits"
    later = windows(replace(GOOD, errors=10), replace(GOOD, errors=20), 20)
    judgement = judged(worse + [replace(each, start=each.start + timedelta(hours=1)) for each in later], after=2 * HOUR)
    assert judgement.evidence["combined"]["now"] < 20
    assert (judgement.verdict, judgement.reason) == ("roll_back", "high_error_rate")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(3))
def test_how_often_somebody_looks_changes_nothing(mode: Mode, seed: int) -> None:
    """Looking after every window finds the rollback at the window at which a single late look says that it was due."""
    world = World(Traffic(100_000, candidate=Model(errors=0.08, negative=0.2)), np.random.default_rng(seed))
    found = simulated_windows(world, 0, HOUR, 0, 0.10)
    late = judged(found, mode=mode, after=HOUR)
    assert late.verdict == "roll_back"
    decided = datetime.fromisoformat(late.evidence["decided_at"])
    for count, window in enumerate(found, start=1):
        end = window.start + timedelta(seconds=WINDOW_SECONDS)
        judgement = judged(found[:count], mode=mode, after=(end - START).total_seconds())
        assert (judgement.verdict == "roll_back") == (end >= decided), end
        if end == decided:
            assert judgement.evidence["decided_at"] == late.evidence["decided_at"]
            break


def test_a_rollback_that_was_due_stays_due_when_the_candidate_recovers() -> None:
    bad = windows(replace(GOOD, errors=20), GOOD, 3)
    assert judged(bad).verdict == "roll_back"
    later = [
        replace(window, start=window.start + timedelta(hours=1), candidate=replace(GOOD, errors=0))
        for window in windows(GOOD, GOOD, 100)
    ]
    recovered = judged(bad + later, after=3 * HOUR)
    assert recovered.evidence["candidate"]["error_rate"] < Limits().error_rate
    assert (recovered.verdict, recovered.reason) == ("roll_back", "high_error_rate")
    assert recovered.evidence["decided_at"] == judged(bad).evidence["decided_at"]


FAILING = Model(errors=1.0)


def until_found(hours: int, phase: Phase, mode: Mode, fault: Model, *, sessions_a_day: int = 20_000) -> int:
    """How many sessions begin after so many healthy hours and before the judgement says that something is wrong."""
    step, share = (3, 1.0) if phase == "baking" else (0, 0.5)
    random, traffic = np.random.default_rng(2), Traffic(sessions_a_day)
    before = simulated_windows(World(traffic, random), 0, hours * HOUR, step, share)
    world = World(replace(traffic, candidate=fault), random)
    after = simulated_windows(world, hours * HOUR, (hours + 4) * HOUR, step, share)
    judgement = judged(in_order(before + after), phase, mode=mode, of=rollout(step=step), after=(hours + 4) * HOUR)
    assert judgement.reason == "high_error_rate"
    decided = datetime.fromisoformat(judgement.evidence["decided_at"])
    assert decided > START + timedelta(hours=hours), "nothing was wrong before"
    return sum(each.candidate.sessions + each.control.sessions for each in after if each.start < decided)


@pytest.mark.parametrize("mode", MODES)
def test_a_model_that_fails_late_in_its_bake_is_found_within_as_few_sessions_as_at_once(mode: Mode) -> None:
    assert until_found(20, "baking", mode, FAILING) < until_found(0, "baking", mode, FAILING) + 40


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", [FAILING, Model(errors=0.2)])
def test_a_model_that_fails_after_a_week_of_an_ab_test_is_rolled_back_about_as_soon_as_at_once(
    mode: Mode, fault: Model
) -> None:
    assert until_found(7 * 24, "testing", mode, fault) < 6 * until_found(0, "testing", mode, fault)


def test_what_is_told_of_a_late_fault_is_of_the_time_since_it_began() -> None:
    fault = later_by(windows(replace(GOOD, errors=20), GOOD, 10), 20)
    judgement = judged(windows(GOOD, GOOD, 5000) + fault, after=21 * HOUR)
    assert (judgement.verdict, judgement.reason) == ("roll_back", "high_error_rate")
    assert "error_rate 20.0%, of the control 2.0%" in judgement.explanation
    assert judgement.evidence["candidate"]["error_rate"] < 0.03
    assert judgement.evidence["e_values"]["errors"]["since"] == fault[0].start.isoformat()


def test_what_is_told_of_a_bake_is_since_when_it_fails() -> None:
    bake = windows(GOOD, Arm(), 5000, step=3, share=1.0)
    fault = baked(60, 60, hours=20)
    judgement = judged(bake + fault, "baking", of=rollout(step=3), after=21 * HOUR, mode="watchdog")
    assert judgement.verdict == "recheck"
    assert judgement.evidence["bake"]["since"] == fault[0].start.isoformat()
    assert judgement.fails_since == fault[0].start
    assert f"{fault[0].start:%H:%M} UTC" in judgement.explanation


def test_where_nothing_can_be_split_too_many_errors_are_for_a_person() -> None:
    bad = windows(Arm(sessions=20, errors=8), Arm(), 30, share=1.0)
    switched = rollout(strategy="immediate", steps=ramp("immediate", 1.0, 4))
    assert judged(bad, "baking", of=rollout(strategy="canary", steps=switched.steps)).verdict == "recheck"
    judgement = judged(bad, "baking", of=switched)
    assert (judgement.verdict, judgement.reason) == ("hold", "high_error_rate")
    assert "a person decides" in judgement.explanation


def test_rewards_of_the_time_before_are_no_part_of_the_plain_rule() -> None:
    before = [Window(START - timedelta(hours=1), 0, 1.0, Arm(), Arm(rewards=(0.9,) * 50))]
    after = windows(Arm(rewards=(0.2,)), Arm(), share=1.0)
    switched = rollout(strategy="immediate", steps=ramp("immediate", 1.0, 4))
    found = judged(before + after, "baking", of=switched)
    assert (found.verdict, found.reason) == ("hold", "worse_than_before")
    assert found.evidence["one_after_the_other"]["difference"]["value"] == pytest.approx(-0.7)
    assert found.evidence["plain_rule"]["would_have_rolled_back_at"] is None
