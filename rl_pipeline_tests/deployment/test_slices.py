"""Where a candidate did worse: known p-values, and noise in which nothing is found."""

import random

import pytest
from scipy.stats import fisher_exact

from rl_pipeline.deployment.slices import Session, Slice, excess_p_value, holm, slices_of, worst_of


@pytest.mark.parametrize(
    ("bad", "sessions", "control_bad", "control_sessions"),
    [(8, 100, 2, 100), (0, 10, 0, 10), (10, 10, 0, 10), (3, 7, 40, 9000), (400, 5000, 100, 5000), (5, 50, 20, 100)],
)
def test_the_p_value_is_fisher_s(bad: int, sessions: int, control_bad: int, control_sessions: int) -> None:
    counted = Slice("domain", "code", sessions, bad, control_sessions, control_bad)
    table = [[bad, sessions - bad], [control_bad, control_sessions - control_bad]]
    assert excess_p_value(counted) == pytest.approx(fisher_exact(table, alternative="greater").pvalue, rel=1e-6)


def test_holm_corrects_for_the_number_of_slices() -> None:
    slices = [Slice("d", name, 1, 0, 1, 0, p) for name, p in (("a", 0.01), ("b", 0.04), ("c", 0.03))]
    assert [(each.value, round(each.p_value, 6)) for each in holm(slices)] == [("a", 0.03), ("c", 0.06), ("b", 0.06)]


def test_a_session_with_several_values_is_in_each_of_their_slices() -> None:
    sessions = [Session(True, True, {"tool": ["shell", "browser", "shell"]})] * 6
    assert {(each.value, each.sessions, each.bad) for each in slices_of(sessions)} == {
        ("shell", 6, 6),
        ("browser", 6, 6),
    }


def test_a_slice_with_few_sessions_is_not_looked_at() -> None:
    assert slices_of([Session(True, True, {"domain": ["code"]})] * 4) == []


def test_the_slice_that_stands_out_is_found_and_a_large_one_without_excess_is_not() -> None:
    chance = random.Random(1)
    sessions = []
    for number in range(4000):
        is_candidate, is_long = number % 2 == 0, number // 2 % 5 == 2
        rate = 0.4 if is_candidate and is_long else 0.02
        values = {"context length": ["long" if is_long else "short"], "domain": [chance.choice(["code", "research"])]}
        sessions.append(Session(is_candidate, chance.random() < rate, values))
    bad = [sum(each.is_bad for each in sessions if each.is_candidate is arm) for arm in (True, False)]
    overall = Slice("all sessions", "", 2000, bad[0], 2000, bad[1])
    worst = worst_of(slices_of(sessions), overall)
    assert worst is not None
    assert (worst.dimension, worst.value) == ("context length", "long")
    assert worst.p_value < 1e-6


def test_noise_alone_makes_no_slice_stand_out_but_rarely() -> None:
    chance = random.Random(2)
    found = 0
    for _ in range(100):
        sessions = [
            Session(
                number % 2 == 0,
                chance.random() < 0.05,
                {"domain": [chance.choice("abcdef")], "hour": [chance.choice("0123456789")]},
            )
            for number in range(600)
        ]
        bad = [sum(each.is_bad for each in sessions if each.is_candidate is arm) for arm in (True, False)]
        found += worst_of(slices_of(sessions), Slice("all sessions", "", 300, bad[0], 300, bad[1])) is not None
    assert found <= 10


def test_failures_that_are_spread_evenly_have_no_slice() -> None:
    sessions = [
        Session(number % 2 == 0, number % 8 == 0, {"domain": ["ab"[number // 8 % 2]]}) for number in range(4000)
    ]
    overall = Slice("all sessions", "", 2000, 500, 2000, 0)
    assert worst_of(slices_of(sessions), overall) is None
