"""How many trajectories each domain may have."""

from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.curation.balance import cap_of, largest_remainder, quotas_of
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


def test_the_only_source_has_no_cap_and_few_users_share_equally() -> None:
    assert cap_of(1000, 0.5, 1) == 1000
    assert cap_of(1000, 0.5, 2) == cap_of(1000, 0.5, 9) == 500
    assert cap_of(1000, 0.1, 4) == 250
    assert cap_of(3, 0.1, 50) == 1
