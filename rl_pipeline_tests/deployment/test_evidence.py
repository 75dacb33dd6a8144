"""The e-processes: answers that were worked out by hand, and what makes them e-processes."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_pipeline.deployment import evidence
from rl_pipeline.deployment.columns import Columns, Floats
from rl_pipeline.deployment.evidence import (
    EvidencePath,
    Strata,
    combined,
    errors_path,
    feedback_path,
    limit_path,
    reward_path,
    sample_ratio_path,
)
from rl_pipeline.deployment.windows import Arm, Window

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
EVIDENCE = (errors_path, feedback_path, reward_path)
PATHS: tuple[Callable[[Columns], Floats], ...] = (
    lambda columns: errors_path(columns).values,
    lambda columns: feedback_path(columns).values,
    lambda columns: reward_path(columns).values,
    sample_ratio_path,
)


def columns(*arms: tuple[Arm, Arm], share: float = 0.5, steps: Sequence[int] | None = None) -> Columns:
    """Consecutive windows of candidate and control."""
    return Columns.of(
        [
            Window(NOON + timedelta(seconds=10 * place), steps[place] if steps else 0, share, *pair)
            for place, pair in enumerate(arms)
        ]
    )


def begun_at_once(value: float) -> float:
    """An e-process after its first stratum: half of its weight is on tests that begin later."""
    return (1 + value) / 2


def test_two_errors_of_the_candidate_and_none_of_the_control() -> None:
    # r² / (1 + (r - 1) / 2)² for each ratio, and their mean
    expected = np.mean([16 / 9, 9 / 4, 64 / 25, 144 / 49, 400 / 121, 2500 / 676])
    windows = columns((Arm(10, 2), Arm(10, 0)))
    assert errors_path(windows).values == pytest.approx([begun_at_once(expected)])
    assert feedback_path(windows).values == pytest.approx([1.0])


def test_the_observed_share_counts_and_not_the_configured_one() -> None:
    # Configured 10 %, observed one half: the same answer as above.
    observed = errors_path(columns((Arm(20, 2), Arm(20, 0)), share=0.1))
    assert observed.values == pytest.approx([begun_at_once(2.7551)], abs=1e-4)


def test_errors_of_the_control_speak_for_the_candidate() -> None:
    # 1 / (1 + (r - 1) / 2) for each ratio
    expected = np.mean([2 / 3, 1 / 2, 2 / 5, 2 / 7, 2 / 11, 1 / 13])
    assert errors_path(columns((Arm(10, 0), Arm(10, 1)))).values == pytest.approx([begun_at_once(expected)])


def test_strata_multiply_within_a_ratio_and_ratios_and_starts_are_averaged() -> None:
    once, twice = errors_path(columns(*[(Arm(10, 1), Arm(10, 0))] * 2)).values
    factors = np.array([4 / 3, 3 / 2, 8 / 5, 12 / 7, 20 / 11, 50 / 26])
    assert once == pytest.approx(begun_at_once(factors.mean()))
    to_come = 0.5 / (1 + np.log(520 / 500))
    assert twice == pytest.approx(0.5 * (factors**2).mean() + (0.5 - to_come) * factors.mean() + to_come)


def test_bad_ratings_count_among_rated_sessions_alone() -> None:
    rated = columns((Arm(1000, 0, rated=10, negative=2), Arm(1000, 0, rated=10, negative=0)))
    # Two bad ratings against none, as with errors; and ten good ones of the control against eight.
    praised = np.mean([r**10 / (1 + (r - 1) / 2) ** 18 for r in (2, 3, 4, 6, 10, 25)])
    assert feedback_path(rated).values == pytest.approx([begun_at_once((2.7551 + praised) / 2)], abs=1e-4)
    assert errors_path(rated).values == pytest.approx([1.0])


def test_a_stratum_without_one_of_the_arms_says_nothing() -> None:
    assert errors_path(columns((Arm(30, 9), Arm()), (Arm(), Arm(30, 9)))).values == pytest.approx([1, 1])
    assert reward_path(columns((Arm(rewards=(0.0,) * 9), Arm()))).values == pytest.approx([1.0])


def test_bets_on_pairs_of_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "STAKES", (0.5,))
    # The control has more: blocks (1, 0.8), (0.6), (0.4) against 0.5, 0.6, 0.2. D = 0.4, 0, 0.2.
    windows = columns((Arm(rewards=(0.5, 0.6, 0.2)), Arm(rewards=(1.0, 0.8, 0.6, 0.4))))
    assert reward_path(windows).values == pytest.approx([begun_at_once(1.2 * 1.0 * 1.1)])
    # The candidate has more: (0.5, 0.1, 0.3), (0.4, 0.2) against 0.7, 0.1. D = 0.4, -0.2.
    windows = columns((Arm(rewards=(0.5, 0.1, 0.3, 0.4, 0.2)), Arm(rewards=(0.7, 0.1))))
    assert reward_path(windows).values == pytest.approx([begun_at_once(1.2 * 0.9)])


def test_rewards_outside_of_their_range_are_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "STAKES", (0.5,))
    windows = columns((Arm(rewards=(-7.0,) * 3), Arm(rewards=(9.0,) * 3)))
    assert reward_path(windows).values == pytest.approx([begun_at_once(1.5**3)])


def test_windows_are_joined_until_both_arms_can_be_expected_to_have_some() -> None:
    one = (Arm(1, 0), Arm(3, 0))
    windows = columns(*[one] * 7, share=0.25)
    strata = Strata.of(windows, windows.sessions)
    assert (strata.first.tolist(), strata.last.tolist()) == ([0, 3], [2, 5])


def test_where_a_stratum_ends_does_not_depend_on_the_arms() -> None:
    windows = columns(*[(Arm(1), Arm(3)), (Arm(4), Arm()), (Arm(), Arm(4))] * 3, share=0.25)
    swapped = columns(*[(Arm(3), Arm(1)), (Arm(), Arm(4)), (Arm(4), Arm())] * 3, share=0.25)
    assert Strata.of(windows, windows.sessions).last.tolist() == Strata.of(swapped, swapped.sessions).last.tolist()


def test_no_stratum_reaches_over_two_steps() -> None:
    windows = columns(*[(Arm(2, 0), Arm(2, 0))] * 4, steps=[0, 1, 1, 1])
    strata = Strata.of(windows, windows.sessions)
    assert (strata.first.tolist(), strata.last.tolist()) == ([1], [2])


def test_rewards_of_the_step_before_that_are_read_meanwhile_break_up_no_stratum() -> None:
    sessions, rewards = (Arm(2), Arm(2)), (Arm(rewards=(0.5, 0.6)), Arm(rewards=(0.5, 0.6)))
    windows = columns(*[sessions, rewards] * 4, steps=[1, 0] * 4)
    of_sessions = Strata.of(windows, windows.sessions)
    assert (of_sessions.first.tolist(), of_sessions.last.tolist()) == ([0, 4], [2, 6])
    of_rewards = Strata.of(windows, windows.candidate.rewarded + windows.control.rewarded)
    assert (of_rewards.first.tolist(), of_rewards.last.tolist()) == ([1, 5], [3, 7])


def test_sessions_beyond_an_absolute_limit() -> None:
    # Of one failed session: each rate over the limit. Limit 0.2: rates 0.24, 0.28, 0.36, 0.52.
    once, twice = limit_path(np.array([1, 0]), np.array([1, 1]), 0.2).values
    assert once == pytest.approx(begun_at_once(np.mean([1.2, 1.4, 1.8, 2.6])))
    # The second one passed: 0.95, 0.9, 0.8 and 0.6, for the test of both and for the one that begins there.
    both, second = np.mean([1.2 * 0.95, 1.4 * 0.9, 1.8 * 0.8, 2.6 * 0.6]), np.mean([0.95, 0.9, 0.8, 0.6])
    to_come = 0.5 / (1 + np.log(501 / 500))
    assert twice == pytest.approx(0.5 * both + (0.5 - to_come) * second + to_come)


def test_windows_without_a_session_do_not_change_an_absolute_limit() -> None:
    path = limit_path(np.array([0, 1, 0]), np.array([0, 1, 0]), 0.2).values
    assert path == pytest.approx([1.0, *[begun_at_once(np.mean([1.2, 1.4, 1.8, 2.6]))] * 2])
    assert limit_path(np.zeros(2, np.int64), np.zeros(2, np.int64), 0.2).values == pytest.approx([1, 1])


GOOD, BAD = Arm(50, 1, 50, 1, (0.9, 0.5, 0.9, 0.5)), Arm(50, 6, 50, 6, (0.3,) * 4)
CONTROL = Arm(50, 1, 50, 1, (0.5, 0.9, 0.5, 0.9))


@pytest.mark.parametrize("evidence_of", EVIDENCE)
@pytest.mark.parametrize("healthy", [300, 3000])
def test_a_fault_that_begins_late_takes_few_more_windows_than_one_at_the_beginning(
    evidence_of: Callable[[Columns], EvidencePath], healthy: int
) -> None:
    def windows_until_found(before: int) -> int:
        path = evidence_of(columns(*[(GOOD, CONTROL)] * before, *[(BAD, CONTROL)] * 40))
        assert (path.values[:before] < 20).all()
        place = int((path.values >= 20).argmax())
        assert before - 5 <= path.since[place] <= place, "the evidence is of the windows since the fault"
        return place - before + 1

    assert 1 < windows_until_found(0) <= windows_until_found(healthy) < 5 * windows_until_found(0)


@pytest.mark.parametrize("limit", [0.05, 0.20])
def test_an_absolute_limit_that_is_broken_late_takes_few_more_sessions(limit: float) -> None:
    def sessions_until_found(before: int) -> int:
        errors, sessions = np.concatenate([np.arange(before) % 50 == 0, np.ones(200)]), np.ones(before + 200)
        path = limit_path(errors.astype(np.int64), sessions.astype(np.int64), limit)
        place = int((path.values >= 20).argmax())
        assert path.since[place] >= before - 60
        return place - before + 1

    assert 0 < sessions_until_found(0) <= sessions_until_found(100_000) < 8 * sessions_until_found(0)


def test_the_evidence_of_a_fault_from_the_beginning_is_of_everything() -> None:
    for evidence_of in EVIDENCE:
        assert evidence_of(columns(*[(BAD, CONTROL)] * 40)).since.max() == 0


def test_the_sample_ratio_by_hand() -> None:
    # With a prior of 50 and 50 the third session of the candidate in a row was predicted with 50/100 · 51/101 · 52/102.
    windows = columns((Arm(1), Arm()), (Arm(2), Arm()))
    assert sample_ratio_path(windows) == pytest.approx([1.0, 51 / 101 * 52 / 102 / 0.25])


def test_a_new_share_begins_a_new_test_of_the_sample_ratio_and_keeps_what_was_found() -> None:
    first = columns((Arm(40), Arm(10)))
    later = Columns.of(
        [Window(NOON, 0, 0.5, Arm(40), Arm(10)), Window(NOON + timedelta(seconds=10), 1, 0.25, Arm(1), Arm(0))]
    )
    assert sample_ratio_path(later) == pytest.approx([sample_ratio_path(first)[0]] * 2)


def test_the_average_is_weighted() -> None:
    paths = {"errors": np.array([1.0, 10.0]), "feedback": np.array([1.0, 20.0])}
    assert combined(paths, {"errors": 0.7, "feedback": 0.3}) == pytest.approx([1.0, 13.0])
    assert combined(paths, {"errors": 0.5, "feedback": 0.2}) == pytest.approx([1.0, 5.0 + 4.0 + 0.3])


def test_overwhelming_evidence_is_still_a_number() -> None:
    path = errors_path(columns(*[(Arm(1000, 900), Arm(1000, 0))] * 50))
    assert np.isfinite(path.values).all()


@settings(deadline=None)
@given(st.integers(6, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n - 1), st.integers(0, n))))
def test_no_division_of_alike_sessions_is_evidence_on_average(sizes: tuple[int, int, int]) -> None:
    """All ways to give some of n sessions to the candidate, of which some fail: the mean is at most 1, exactly."""
    n, of_candidate, failed = sizes
    values = []
    for chosen in combinations(range(n), of_candidate):
        errors = sum(place < failed for place in chosen)
        pair = (Arm(of_candidate, errors), Arm(n - of_candidate, failed - errors))
        values.append(errors_path(columns(pair)).values[-1])
    assert np.mean(values) <= 1 + 1e-12


ARMS = st.builds(
    lambda passed, errors, rated, negative, rewards: Arm(passed + errors, errors, rated + negative, negative, rewards),
    st.integers(0, 5),
    st.integers(0, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.lists(st.floats(0, 1), max_size=4).map(tuple),
)
WINDOWS = st.lists(st.tuples(ARMS, ARMS, st.sampled_from([(0, 0.1), (1, 0.25), (2, 0.5)])), max_size=40)


@settings(deadline=None)
@given(WINDOWS, st.integers(0, 40))
def test_later_windows_do_not_change_what_was_there(found: list[tuple[Arm, Arm, tuple[int, float]]], cut: int) -> None:
    windows = [
        Window(NOON + timedelta(seconds=10 * place), *step, candidate, control)
        for place, (candidate, control, step) in enumerate(found)
    ]
    for path in PATHS:
        assert path(Columns.of(windows[:cut])) == pytest.approx(path(Columns.of(windows))[:cut], rel=1e-12)
    for evidence_of in EVIDENCE:
        since = evidence_of(Columns.of(windows)).since
        assert evidence_of(Columns.of(windows[:cut])).since.tolist() == since[:cut].tolist()
        assert (since <= np.arange(len(windows))).all()


def test_the_mean_is_at_most_one_if_the_models_are_alike() -> None:
    """2,000 short rollouts in changing weather: rates and mean reward are others in every window, for both arms."""
    random = np.random.default_rng(5)
    ends: list[list[float]] = []
    for _ in range(2000):
        windows = columns(*(weathered_pair(random, 0.25) for _ in range(4)), share=0.25)
        absolute = limit_path(random.binomial(5, 0.05, 4), np.full(4, 5), 0.05).values
        ends.append([*(float(path(windows)[-1]) for path in PATHS), float(absolute[-1])])
    means, spreads = np.mean(ends, axis=0), np.std(ends, axis=0)
    assert (means <= 1 + 3 * spreads / np.sqrt(len(ends))).all(), means
    assert (spreads > 0.1).all(), "what never moves has a mean of 1, too"


def weathered_pair(random: np.random.Generator, share: float) -> tuple[Arm, Arm]:
    """Sessions that go to either arm at random and fare alike in both."""
    rate, level = random.choice([0.02, 0.3]), random.uniform(0.2, 0.8)
    sessions = int(random.poisson(20))
    candidate = int(random.binomial(sessions, share))
    return weathered_arm(random, candidate, rate, level), weathered_arm(random, sessions - candidate, rate, level)


def weathered_arm(random: np.random.Generator, sessions: int, rate: float, level: float) -> Arm:
    errors, negative = random.binomial(sessions, rate, 2).tolist()
    return Arm(sessions, errors, sessions, negative, tuple(random.normal(level, 0.25, sessions).clip(0, 1).tolist()))
