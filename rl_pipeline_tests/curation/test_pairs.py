"""Pairs of attempts at one task with a margin between them."""

from collections import Counter
from itertools import chain

import polars as pl
from hypothesis import given

from rl_pipeline.curation.pairs import pairs_across_requests, possible_pairs, select_pairs
from rl_pipeline.curation.policy import CurationPolicy
from rl_pipeline_tests.curation.frames import (
    OPEN_POLICY,
    POLICY,
    PROPERTY,
    candidates,
    criteria,
    shuffled,
    some_candidates,
)


def attempts(*rewards: float, **rest: object) -> list[dict[str, object]]:
    return [{"task": "a", "opening": 1, "reward": reward, **rest} for reward in rewards]


def sides(pairs: pl.DataFrame) -> list[tuple[str, str]]:
    return list(pairs.select("chosen_id", "rejected_id").iter_rows())


def test_the_best_is_set_against_the_worst() -> None:
    pairs = possible_pairs(candidates(*attempts(0.9, 0.8, 0.3, 0.1)), 0.1, CurationPolicy(pairs_per_trajectory=1))
    assert sides(pairs) == [("t000", "t003"), ("t001", "t002")]
    assert pairs["margin"].round(9).to_list() == [0.8, 0.5]


def test_three_attempts_give_two_pairs_and_nobody_is_in_more_than_two() -> None:
    pairs = possible_pairs(candidates(*attempts(0.9, 0.5, 0.1)), 0.1, POLICY)
    assert sides(pairs) == [("t000", "t002"), ("t000", "t001")]


def test_a_margin_that_is_too_small_gives_no_pair_and_an_exact_one_does() -> None:
    assert possible_pairs(candidates(*attempts(0.55, 0.5)), 0.1, POLICY).is_empty()
    assert possible_pairs(candidates(*attempts(0.6, 0.5)), 0.1, POLICY).height == 1


def test_attempts_at_other_tasks_and_from_other_starts_are_not_compared() -> None:
    assert possible_pairs(candidates({"reward": 1.0}, {"reward": 0.0}), 0.1, POLICY).is_empty()
    other_start = candidates({"task": "a", "opening": 1, "reward": 1.0}, {"task": "a", "opening": 2, "reward": 0.0})
    assert possible_pairs(other_start, 0.1, POLICY).is_empty()


def test_rewards_of_two_configurations_are_not_compared() -> None:
    rows = candidates(*attempts(0.9, configuration="c1"), *attempts(0.4, 0.1, configuration="c2"))
    assert sides(possible_pairs(rows, 0.1, POLICY)) == [("t001", "t002")]


def test_who_did_the_same_is_not_compared() -> None:
    assert possible_pairs(candidates(*attempts(1.0, 0.0, actions=5)), 0.1, POLICY).is_empty()


def test_trajectories_without_a_partner_are_accounted_for() -> None:
    rows = candidates(*attempts(0.9, 0.1), {"reward": 0.7})
    chosen, pairs = select_pairs(rows, criteria("dpo"), OPEN_POLICY)
    assert list(chosen.kept["trajectory_id"]) == ["t000", "t001"]
    assert (pairs.height, chosen.left_out) == (1, Counter(no_partner=1))


def test_one_pair_of_each_task_comes_before_a_second_one() -> None:
    rows = candidates(
        *attempts(1.0, 0.9, 0.1, 0.0),
        *({**one, "task": "b", "opening": 2} for one in attempts(0.6, 0.4)),
    )
    _, pairs = select_pairs(rows, criteria("dpo", sample_size=4), OPEN_POLICY)
    assert set(pairs["task"]) == {"a", "b"}


def test_across_requests_one_conversation_of_each_task_is_in_one_pair_of_its_type() -> None:
    types = ["bug", "bug", "essay", "essay", "bug", "bug"]
    rows = candidates(
        *({"reward": reward} for reward in (0.9, 0.1, 0.8, 0.2)),
        *({"task": "tried twice", "reward": reward} for reward in (1.0, 0.0)),
    ).with_columns(task_type=pl.Series(types), split=pl.lit("train"))
    pairs = pairs_across_requests(rows, 0.1, POLICY)
    one_of_two = sides(pairs_across_requests(rows[:4], 0.1, POLICY))
    assert sorted(one_of_two) == [("t000", "t001"), ("t002", "t003")]
    assert max(Counter(chain.from_iterable(sides(pairs))).values()) == 1
    assert pairs.height == 2, "of three tasks of a type, one is in no pair"
    apart = rows[:2].with_columns(split=pl.Series(["train", "holdout"]))
    assert pairs_across_requests(apart, 0.1, POLICY).is_empty()
    scored_apart = rows[:2].with_columns(configuration=pl.Series(["c1", "c2"], dtype=pl.Categorical))
    assert pairs_across_requests(scored_apart, 0.1, POLICY).is_empty()


@PROPERTY
@given(some_candidates())
def test_what_holds_of_all_pairs(rows: pl.DataFrame) -> None:
    asked = criteria("dpo", {"domain_shares": {"coding": 0.5, "research": 0.3, "general": 0.2}}, sample_size=12)
    chosen, pairs = select_pairs(rows, asked, POLICY)
    known = {row["trajectory_id"]: row for row in rows.iter_rows(named=True)}
    for better, worse, margin in pairs.select("chosen_id", "rejected_id", "margin").iter_rows():
        one, other = known[better], known[worse]
        assert (one["task"], one["opening"]) == (other["task"], other["opening"])
        assert one["actions"] != other["actions"]
        assert one["configuration"] == other["configuration"]
        assert margin >= asked.pair_margin - 1e-9
        assert abs(one["reward"] - other["reward"] - margin) < 1e-12
    uses = Counter(chain.from_iterable(sides(pairs)))
    assert max(uses.values(), default=0) <= POLICY.pairs_per_trajectory
    assert max(Counter(pairs["task"]).values(), default=0) <= POLICY.pairs_per_task
    assert set(uses) == set(chosen.kept["trajectory_id"]), "only what is in a pair is kept"
    domains = Counter(chosen.kept["domain"].cast(pl.String))
    assert all(count <= chosen.quotas[domain] for domain, count in domains.items())
    sources = Counter(chosen.kept["source"].cast(pl.String))
    assert max(sources.values(), default=0) <= chosen.caps.source
    assert chosen.kept.height + chosen.left_out.total() == rows.height
    assert chosen.lost_to_caps <= min(
        12 - chosen.kept.height, chosen.left_out["source_cap"] + chosen.left_out["user_cap"]
    )


@PROPERTY
@given(shuffled())
def test_the_order_of_the_candidates_does_not_matter(orders: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    (one, some), (other, same) = (select_pairs(rows, criteria("dpo", sample_size=8), POLICY) for rows in orders)
    assert list(one.kept["trajectory_id"]) == list(other.kept["trajectory_id"])
    assert sides(some) == sides(same)
    assert one.left_out == other.left_out
