"""What scores on the same items say about a difference."""

from math import isclose, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.validation.statistics import ALPHA, Estimate, combined, estimate, judge, spending

SCORES = st.lists(st.sampled_from([-1.0, -0.5, 0.0, 0.5, 1.0]), min_size=2, max_size=60)


def known(mean: float, error: float, families: int = 100) -> Estimate:
    return Estimate(count=200, families=families, mean=mean, centre=mean, standard_error=error, degrees_of_freedom=99)


@given(SCORES)
def test_items_of_their_own_families_have_the_error_of_students_t(values: list[float]) -> None:
    found = estimate(values, [str(number) for number in range(len(values))])
    all_of_them = np.array([*values, -1.0, 1.0])
    assert isclose(found.standard_error, all_of_them.std(ddof=1) / sqrt(len(all_of_them)), rel_tol=1e-9)
    assert isclose(found.degrees_of_freedom, len(all_of_them) - 1, rel_tol=1e-9)
    assert found.centre == pytest.approx(all_of_them.mean())
    assert found.mean == pytest.approx(np.mean(values))


def test_an_interval_is_that_of_the_tables() -> None:
    found = known(0.1, 0.05)
    assert found.lower(0.025) == pytest.approx(0.1 - 1.9842 * 0.05, abs=1e-4)
    assert found.upper(0.05) == pytest.approx(0.1 + 1.6604 * 0.05, abs=1e-4)
    assert found.p_value == pytest.approx(0.04824, abs=1e-4)


def test_repeated_items_of_one_family_prove_no_more_than_the_families() -> None:
    values, families = [1.0, 0.0, 0.0, -1.0, 1.0, 0.0], list("abcdef")
    once = estimate(values, families)
    repeated = estimate(values * 50, families * 50)
    assert repeated.standard_error > 0.8 * once.standard_error
    assert repeated.degrees_of_freedom < 6
    alone = estimate(values * 50, [str(number) for number in range(300)])
    assert repeated.standard_error > 5 * alone.standard_error


def test_no_difference_in_few_items_is_no_proof_and_in_many_it_is() -> None:
    outcomes = {
        count: judge({"suite": estimate([0.0] * count, [str(number) for number in range(count)])}, ALPHA)["suite"]
        for count in (10, 30, 100, 400)
    }
    assert outcomes == {10: "INCONCLUSIVE", 30: "INCONCLUSIVE", 100: "PASS", 400: "PASS"}


def test_uneven_families_have_fewer_degrees_of_freedom_than_even_ones() -> None:
    even = estimate([0.0] * 60, [str(number % 6) for number in range(60)])
    uneven = estimate([0.0] * 60, ["big"] * 50 + [str(number % 5) for number in range(10)])
    assert uneven.degrees_of_freedom < even.degrees_of_freedom


@pytest.mark.parametrize(
    ("mean", "error", "outcome"),
    [
        pytest.param(-0.10, 0.02, "FAIL", id="worse and sure"),
        pytest.param(-0.10, 0.08, "INCONCLUSIVE", id="worse, perhaps"),
        pytest.param(-0.049, 0.0001, "PASS", id="a little worse, within the margin, and sure"),
        pytest.param(-0.049, 0.01, "INCONCLUSIVE", id="a little worse, and not sure"),
        pytest.param(0.0, 0.02, "PASS", id="equal and sure"),
        pytest.param(0.0, 0.05, "INCONCLUSIVE", id="equal, perhaps"),
        pytest.param(0.3, 0.05, "PASS", id="better"),
    ],
)
def test_three_outcomes(mean: float, error: float, outcome: str) -> None:
    assert judge({"suite": known(mean, error)}, ALPHA) == {"suite": outcome}


@pytest.mark.parametrize(
    ("mean", "error", "outcome"),
    [
        pytest.param(-0.01, 0.004, "FAIL", id="a little below and sure"),
        pytest.param(-0.01, 0.01, "INCONCLUSIVE", id="below, perhaps"),
        pytest.param(0.0, 0.0001, "INCONCLUSIVE", id="neither"),
        pytest.param(0.01, 0.01, "INCONCLUSIVE", id="above, perhaps"),
        pytest.param(0.01, 0.004, "PASS", id="a little above and sure"),
    ],
)
def test_without_a_margin_the_sign_decides(mean: float, error: float, outcome: str) -> None:
    found = {"suite": known(mean, error), "other": known(-0.02, 0.001)}
    assert judge(found, ALPHA, strict={"suite"}) == {"suite": outcome, "other": "PASS"}


def test_few_families_pass_nothing() -> None:
    assert judge({"suite": known(0.3, 0.01, families=4)}, ALPHA) == {"suite": "INCONCLUSIVE"}


def test_failures_are_found_by_holm() -> None:
    # p-values of 0.011, 0.02 and 0.04: the second fails at 0.05 / 2 only because the first failed at 0.05 / 3.
    found = {name: known(-0.1, 0.1 / t) for name, t in (("a", 2.59), ("b", 2.365), ("c", 2.08))}
    assert [round(one.p_value, 3) for one in found.values()] == [0.011, 0.02, 0.04]
    assert judge(found, ALPHA) == {"a": "FAIL", "b": "FAIL", "c": "FAIL"}
    assert judge({"b": found["b"], "c": found["c"], "d": known(0, 0.1)}, ALPHA)["b"] == "INCONCLUSIVE"
    assert judge({"b": found["b"]}, ALPHA, tests=3)["b"] == "INCONCLUSIVE"


def test_the_error_is_spent_late_and_never_more_than_all_of_it() -> None:
    assert spending((200, 400, 800)) == pytest.approx([0.003125, 0.009375, 0.0375])
    assert sum(spending((50, 60, 900))) == pytest.approx(ALPHA)
    for sizes in ((), (0,), (5, 5), (9, 3)):
        with pytest.raises(ValueError, match="grow"):
            spending(sizes)


def test_the_mean_of_suites_has_the_error_of_independent_means() -> None:
    both = combined([known(0.1, 0.03), known(0.3, 0.04)])
    assert both.mean == pytest.approx(0.2)
    assert both.standard_error == pytest.approx(0.025)
    assert 99 < both.degrees_of_freedom < 198


def test_nothing_has_no_mean() -> None:
    with pytest.raises(ValueError, match="there should be values"):
        estimate([], [])
