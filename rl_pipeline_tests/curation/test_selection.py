"""The best of each task in turn, within quotas and caps."""

from collections import Counter

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.curation.balance import cap_of
from rl_pipeline.curation.selection import Caps, Room, quotas_for, select_demonstrations
from rl_pipeline_tests.curation.frames import (
    DOMAINS,
    OPEN_POLICY,
    POLICY,
    PROPERTY,
    candidates,
    criteria,
    shuffled,
    some_candidates,
)


def ids(frame: pl.DataFrame) -> list[str]:
    return list(frame["trajectory_id"])


def test_the_best_of_each_task_come_before_the_second_best() -> None:
    rows = candidates(
        {"trajectory_id": "a1", "task": "a", "reward": 0.9},
        {"trajectory_id": "a2", "task": "a", "reward": 0.8},
        {"trajectory_id": "b1", "task": "b", "reward": 0.6},
        {"trajectory_id": "b2", "task": "b", "reward": 0.5},
    )
    chosen = select_demonstrations(rows, criteria(sample_size=2), OPEN_POLICY)
    assert ids(chosen.kept) == ["a1", "b1"]
    assert chosen.left_out == Counter(beyond_sample=2)
    assert ids(select_demonstrations(rows, criteria(sample_size=3), OPEN_POLICY).kept) == ["a1", "a2", "b1"]


def test_of_equally_good_ones_the_newest_is_taken() -> None:
    rows = candidates({"at": 1, "task": "a"}, {"at": 2, "task": "a"})
    assert ids(select_demonstrations(rows, criteria(sample_size=1), OPEN_POLICY).kept) == ["t001"]


def test_a_domain_that_has_too_little_is_not_filled_up_by_others() -> None:
    rows = candidates(*[{"domain": "coding"}] * 20, *[{"domain": "research"}] * 2)
    asked = criteria(filters={"domain_shares": {"coding": 0.4, "research": 0.3, "general": 0.3}}, sample_size=10)
    chosen = select_demonstrations(rows, asked, OPEN_POLICY)
    assert chosen.quotas == {"coding": 4, "general": 3, "research": 3}
    assert Counter(chosen.kept["domain"].cast(pl.String)) == Counter(coding=4, research=2)
    assert chosen.left_out == Counter(beyond_sample=16)


def test_a_source_gets_no_more_than_its_cap_however_good_it_is() -> None:
    flood = [{"source": "flood", "reward": 1.0}] * 30
    rows = candidates(*flood, *[{"source": "quiet", "reward": 0.5}] * 30)
    chosen = select_demonstrations(rows, criteria(sample_size=20), POLICY)
    assert Counter(chosen.kept["source"].cast(pl.String)) == Counter(flood=10, quiet=10)
    assert chosen.left_out["source_cap"] == 20
    assert chosen.lost_to_caps == 0, "others had their places"


def test_what_caps_cost_is_what_there_was_still_room_for() -> None:
    rows = candidates(*[{"source": "flood"}] * 30, *[{"source": "quiet"}] * 10)
    for size, lost in ((20, 0), (30, 10), (1000, 20)):
        assert select_demonstrations(rows, criteria(sample_size=size), POLICY).lost_to_caps == lost
    both = candidates(*[{"domain": "coding", "source": "flood"}] * 30, *[{"domain": "coding", "source": "quiet"}] * 30)
    asked = criteria(filters={"domain_shares": {"coding": 0.5, "research": 0.5}}, sample_size=40)
    chosen = select_demonstrations(both, asked, POLICY)
    assert chosen.lost_to_caps == 20 - chosen.kept.height, "the 20 places of the other domain are no loss"


def test_a_user_gets_no_more_than_a_share_and_nobody_in_particular_has_no_cap() -> None:
    rows = candidates(*[{"user": 1, "reward": 1.0}] * 30, *[{"user": user, "reward": 0.5} for user in range(2, 20)])
    chosen = select_demonstrations(rows, criteria(sample_size=20), POLICY)
    assert chosen.kept.filter(pl.col("user") == 1).height == 2
    nobody = candidates(*[{"user": 0}] * 30)
    assert select_demonstrations(nobody, criteria(sample_size=20), POLICY).kept.height == 20


def flooded(share: float | None = None, **common: object) -> Counter[str]:
    """How much there is of each source in a dataset of far fewer than were asked for."""
    rows = candidates(*[{"source": "flood", "reward": 1.0, **common}] * 400, *[{"source": "quiet", **common}] * 100)
    filters = {} if share is None else {"source_share": share}
    chosen = select_demonstrations(rows, criteria(filters=filters), POLICY)
    assert chosen.kept.height + chosen.left_out.total() == 500
    return Counter(chosen.kept["source"].cast(pl.String))


def test_a_cap_is_a_share_of_what_is_chosen_however_much_more_was_asked_for() -> None:
    assert flooded() == Counter(flood=100, quiet=100)
    assert flooded(0.75) == Counter(flood=300, quiet=100), "a request may say otherwise"
    assert flooded(1.0) == Counter(flood=400, quiet=100)


def test_next_to_nothing_of_one_more_source_costs_the_others_nothing() -> None:
    rows = candidates(*[{"source": "agent"}] * 490, *[{"source": "trial"}] * 10)
    assert select_demonstrations(rows, criteria(), POLICY).kept.height == 500


def test_a_user_has_no_more_than_a_tenth_of_what_is_chosen() -> None:
    rows = candidates(*[{"user": 1, "reward": 1.0}] * 500, *({"user": 2 + number % 20} for number in range(100)))
    chosen = select_demonstrations(rows, criteria(), POLICY).kept
    assert chosen.filter(pl.col("user") == 1).height == 11
    assert chosen.height == 111
    with_nobody = candidates(*[{"user": 1}] * 500, *({"user": 2 + number} for number in range(9)), *[{"user": 0}] * 91)
    chosen = select_demonstrations(with_nobody, criteria(), POLICY).kept
    assert (chosen.filter(pl.col("user") == 1).height, chosen.height) == (11, 111)


def test_the_only_source_and_the_only_user_have_everything_and_few_of_them_equal_parts() -> None:
    alone = candidates(*[{"user": 1}] * 40, *[{"user": 0}] * 3)
    assert select_demonstrations(alone, criteria(), POLICY).kept.height == 43
    three = candidates(*({"user": user} for user, count in ((1, 40), (2, 12), (3, 5)) for _ in range(count)))
    assert Counter(select_demonstrations(three, criteria(), POLICY).kept["user"]) == Counter({1: 19, 2: 12, 3: 5})


@PROPERTY
@given(some_candidates(), st.sampled_from([10, 10_000]))
def test_nobody_has_more_than_the_share_that_is_possible(rows: pl.DataFrame, sample_size: int) -> None:
    kept = select_demonstrations(rows, criteria(sample_size=sample_size), POLICY).kept
    for column, share in (("source", POLICY.source_share), ("user", POLICY.user_share)):
        counts = kept.filter(pl.col("user") != 0 if column == "user" else pl.lit(True))[column].value_counts()["count"]
        offered = rows.filter(pl.col("user") != 0 if column == "user" else pl.lit(True))[column].value_counts()["count"]
        nobodys = rows.height - offered.sum()
        cap, strict = cap_of(offered.to_list(), nobodys, sample_size, share)
        assert max(counts, default=0) <= cap
        assert max(counts, default=0) <= max(1, max(strict, 1 / max(len(counts), 1)) * kept.height + 1e-9)


@PROPERTY
@given(some_candidates())
def test_quotas_and_caps_are_never_exceeded_and_every_row_is_accounted_for(rows: pl.DataFrame) -> None:
    asked = criteria(filters={"domain_shares": {"coding": 0.4, "research": 0.3, "general": 0.3}}, sample_size=10)
    chosen = select_demonstrations(rows, asked, POLICY)
    domains = Counter(chosen.kept["domain"].cast(pl.String))
    assert all(domains[domain] <= chosen.quotas[domain] for domain in DOMAINS)
    sources = Counter(chosen.kept["source"].cast(pl.String))
    users = Counter(user for user in chosen.kept["user"] if user)
    assert max(sources.values(), default=0) <= chosen.caps.source
    assert max(users.values(), default=0) <= chosen.caps.user
    assert chosen.kept.height + chosen.left_out.total() == rows.height


@PROPERTY
@given(some_candidates())
def test_quotas_are_met_wherever_there_is_enough_and_no_cap_binds(rows: pl.DataFrame) -> None:
    asked = criteria(filters={"domain_shares": {"coding": 0.4, "research": 0.3, "general": 0.3}}, sample_size=10)
    chosen = select_demonstrations(rows, asked, OPEN_POLICY)
    supply = Counter(rows["domain"].cast(pl.String))
    kept = Counter(chosen.kept["domain"].cast(pl.String))
    assert {domain: kept[domain] for domain in DOMAINS} == {
        domain: min(supply[domain], chosen.quotas[domain]) for domain in DOMAINS
    }


@PROPERTY
@given(shuffled())
def test_the_order_of_the_candidates_does_not_matter(orders: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    one, other = (select_demonstrations(rows, criteria(sample_size=9), POLICY) for rows in orders)
    assert ids(one.kept) == ids(other.kept)
    assert one.left_out == other.left_out


def test_the_domains_that_were_asked_for_have_quotas_even_where_nothing_is_there() -> None:
    rows = candidates({"domain": "coding"})
    asked = criteria(filters={"task_domains": ["coding", "writing"]}, sample_size=10)
    assert quotas_for(rows, asked) == {"coding": 5, "writing": 5}
    assert quotas_for(rows, criteria(sample_size=10)) == {"coding": 10}


def test_what_is_taken_whole_is_taken_whole_or_not_at_all() -> None:
    room = Room(candidates({}, {}, {}), {"coding": 2}, Caps(source=9, user=9))
    assert room.take(0, 1) == ""
    assert room.take(0, 2) == "beyond_sample"
    assert room.take(1, 0) == "", "what was taken before costs nothing"
    assert room.taken == {0, 1}
    assert room.is_full
