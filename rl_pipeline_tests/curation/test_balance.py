"""How many trajectories each domain may have."""

from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.curation.balance import cap_of, cap_within, largest_remainder, quotas_of
from rl_pipeline_tests.curation.frames import PROPERTY


def test_shares_are_met_to_the_last_trajectory() -> None:
    shares = {"coding": 0.4, "research": 0.3, "general": 0.3}
    assert quotas_of(10_000, shares, []) == {"coding": 4000, "general": 3000, "research": 3000}


def test_what_does_not_divide_goes_to_the_largest_remainders() -> None:
    assert largest_remainder(10, {"a": 0.55, "b": 0.27, "c": 0.18}) == {"a": 5, "b": 3, "c": 2}


def test_without_shares_every_domain_has_the_same() -> None:
    assert quotas_of(10, {}, ["writing", "coding", "research"]) == {"coding": 4, "research": 3, "writing": 3}


def test_shares_count_in_proportion_to_their_sum() -> None:
    assert quotas_of(90, {"coding": 0.2, "general": 0.1}, []) == {"coding": 60, "general": 30}


def test_there_is_no_quota_where_there_is_no_domain() -> None:
    assert quotas_of(10, {}, []) == {}


@PROPERTY
@given(
    st.integers(1, 10**6),
    st.dictionaries(st.text("abcdef", min_size=1), st.floats(1e-6, 1, allow_nan=False), min_size=1, max_size=6),
)
def test_quotas_sum_to_the_sample_and_stay_within_one_of_their_share(total: int, shares: dict[str, float]) -> None:
    quotas = largest_remainder(total, shares)
    assert sum(quotas.values()) == total
    for domain, share in shares.items():
        assert abs(quotas[domain] - total * share / sum(shares.values())) < 1 + 1e-6


@PROPERTY
@given(st.dictionaries(st.text("abcdef", min_size=1), st.floats(0.01, 1), min_size=2), st.integers(1, 1000))
def test_quotas_do_not_depend_on_the_order_of_the_shares(shares: dict[str, float], total: int) -> None:
    backwards = dict(reversed(shares.items()))
    equal_sums = sum(shares.values()) == sum(backwards.values())
    assert not equal_sums or largest_remainder(total, shares) == largest_remainder(total, backwards)


def test_a_cap_is_a_share_of_the_sample_where_there_are_enough_for_it() -> None:
    assert cap_of([40, 30], 0, 1000, 0.5) == cap_of([40] * 9, 0, 1000, 0.5) == (500, 0.5)
    assert cap_of([1] * 50, 0, 3, 0.1) == (1, 0.1)


def test_few_have_an_equal_part_of_what_there_is() -> None:
    assert cap_of([600, 300, 3], 0, 10_000, 0.1) == (301, 1.0)
    assert cap_of([600, 300, 3], 0, 300, 0.1) == (100, 1.0)


def test_beside_next_to_nothing_there_is_no_cap() -> None:
    assert cap_of([40], 0, 1000, 0.5) == cap_of([], 0, 1000, 0.5) == cap_of([4990, 10], 0, 1000, 0.5) == (1000, 1.0)
    assert cap_of([500, *[5] * 20], 0, 1000, 0.1) == (100, 0.1)


@PROPERTY
@given(st.lists(st.integers(1, 300), max_size=15), st.integers(0, 50), st.floats(0.01, 1))
def test_the_cap_is_the_largest_that_holds_for_what_is_left(held: list[int], of_nobody: int, share: float) -> None:
    def is_right(cap: int) -> bool:
        left = of_nobody + sum(min(has, cap) for has in held)
        return cap <= max(share, 1 / len(held)) * left + 1e-9

    right = [cap for cap in range(1, max(held, default=0) + 1) if is_right(cap)]
    assert cap_within(held, of_nobody, share) == max(right, default=1)
