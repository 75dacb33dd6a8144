"""What each algorithm learns from, whatever the order of the candidates."""

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.curation.choosing import choose
from rl_pipeline_tests.curation.frames import (
    OPEN_POLICY,
    POLICY,
    PROPERTY_OF_ALL,
    candidates,
    criteria,
    shuffled,
    some_candidates,
    told,
)

ALGORITHMS = ("sft", "dpo", "ppo", "rloo", "grpo", "reinforce")


@PROPERTY_OF_ALL
@given(some_candidates(), st.sampled_from(ALGORITHMS))
def test_every_candidate_is_kept_or_left_out_for_one_reason(rows: pl.DataFrame, algorithm: str) -> None:
    choice = choose(rows, criteria(algorithm, sample_size=10), POLICY)
    assert choice.rows.height + choice.left_out.total() == rows.height
    assert choice.rows["trajectory_id"].is_unique().all()
    assert choice.rows.height <= 10


@PROPERTY_OF_ALL
@given(shuffled(), st.sampled_from(ALGORITHMS))
def test_the_order_of_the_candidates_does_not_matter(orders: tuple[pl.DataFrame, pl.DataFrame], algorithm: str) -> None:
    one, other = (choose(rows, criteria(algorithm, sample_size=10), POLICY) for rows in orders)
    assert one.rows.equals(other.rows)
    assert one.pairs.equals(other.pairs)
    assert one.tasks.equals(other.tasks)
    assert one.left_out == other.left_out


@PROPERTY_OF_ALL
@given(some_candidates())
def test_both_sides_of_a_pair_are_on_one_side_of_the_split(rows: pl.DataFrame) -> None:
    choice = choose(rows, criteria("dpo"), OPEN_POLICY)
    choice = choice.dealt(told(choice.rows), 0.3, 0)
    sides = dict(choice.rows.select("trajectory_id", "split").iter_rows())
    for chosen, rejected, side in choice.pairs.select("chosen_id", "rejected_id", "split").iter_rows():
        assert sides[chosen] == sides[rejected] == side


def attempts(environment: str) -> pl.DataFrame:
    same = {"task": "a", "opening": 1, "environment": environment}
    return candidates(*({**same, "reward": reward} for reward in (0.1, 0.5, 0.9)))


@pytest.mark.parametrize("algorithm", ["ppo", "rloo", "grpo", "reinforce"])
def test_online_algorithms_get_pairs_unless_everything_can_be_played_in_one_world(algorithm: str) -> None:
    played = choose(attempts("crafting"), criteria(algorithm), OPEN_POLICY)
    assert (played.has_pairs, played.tasks["attempts"].to_list()) == (False, [3])
    for stray in ("", "another"):
        rows = pl.concat([attempts("crafting"), candidates({"trajectory_id": "stray", "environment": stray})])
        assert choose(rows, criteria(algorithm), OPEN_POLICY).has_pairs
    logged = choose(attempts(""), criteria(algorithm), OPEN_POLICY)
    assert (logged.has_pairs, logged.pairs.height) == (True, 2)


def test_what_turns_out_to_be_useless_takes_its_pairs_and_its_task_with_it() -> None:
    choice = choose(attempts(""), criteria("rloo"), OPEN_POLICY)
    without_best = choice.without({"t002": "nothing_written"})
    assert without_best.pairs.is_empty(), "both pairs had the best attempt"
    assert without_best.left_out["nothing_written"] == 1
    assert without_best.rows.height == 2
    assert choice.without(dict.fromkeys(choice.rows["trajectory_id"], "gone")).tasks.is_empty()


def test_nothing_gives_an_empty_choice() -> None:
    for algorithm in ALGORITHMS:
        choice = choose(candidates(), criteria(algorithm), POLICY)
        assert (choice.rows.height, choice.pairs.height, choice.tasks.height) == (0, 0, 0)
