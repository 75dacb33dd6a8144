"""What is trained on and what is measured on have nothing in common."""

from itertools import combinations
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.curation.splits import lot_of
from rl_pipeline_tests.curation.frames import PROPERTY, candidates, dealt, shuffled, some_candidates


def sides(rows: pl.DataFrame, share: float = 0.1, seed: int = 0) -> dict[str, str]:
    return dict(dealt(rows, share, seed).select("task", "split").iter_rows())


def many(count: int, **common: Any) -> pl.DataFrame:
    """Rows of as many tasks, which have in common what is given."""
    return candidates(*({"task": f"task-{number}", **common} for number in range(count)))


def test_about_the_share_of_the_requests_is_held_out_by_what_they_say_alone() -> None:
    rows = dealt(many(2000), 0.1)
    assert 150 < rows.filter(pl.col("split") == "holdout").height < 250
    for opening, side in rows.select("opening_words", "split").iter_rows():
        assert (side == "holdout") == (lot_of(f"request {opening}", 0) < 0.1)


def test_a_request_is_on_the_same_side_whatever_its_tasks_are_called_and_another_seed_deals_anew() -> None:
    def asking(first: int, seed: int = 0) -> dict[str, str]:
        rows = candidates(*({"task": f"task-{one}", "opening": one % 60} for one in range(first, first + 300)))
        return dict(dealt(rows, 0.2, seed).select("opening", "split").iter_rows())

    assert asking(0) == asking(1000) != asking(0, seed=1)
    assert 4 <= sum(side == "holdout" for side in asking(0).values()) <= 20, "families are not held out for their size"


@pytest.mark.parametrize(
    "common",
    [
        pytest.param({"opening": 1, "asked": 500}, id="a long request"),
        pytest.param({"opening": 1, "asked": 5}, id="a short request"),
        pytest.param({"opening": 1, "actions": 1, "asked": 5}, id="everything"),
        pytest.param({"setup": 7}, id="the setup of a world"),
        pytest.param({"called": 7}, id="the id of a task of which they are groups"),
    ],
)
def test_tasks_that_have_this_in_common_stay_together_under_whatever_name(common: dict[str, Any]) -> None:
    assert len(set(sides(many(60, **common)).values())) == 1


def test_tasks_of_a_world_that_open_in_the_same_words_are_kept_apart_by_their_setups() -> None:
    same = {"opening": 1, "asked": 500, "opening_likeness": 99}
    rows = candidates(*({**same, "task": f"task-{number}", "setup": 1 + number} for number in range(200)))
    assert set(sides(rows).values()) == {"train", "holdout"}
    stray = candidates({**same, "trajectory_id": "stray", "task": "without a setup"})
    assert len(set(sides(pl.concat([rows, stray])).values())) == 1


def test_whoever_asked_and_wrote_the_same_stays_together_in_whatever_setup() -> None:
    same = {"opening": 1, "actions": 1}
    rows = candidates(*({**same, "task": f"task-{number}", "setup": 1 + number} for number in range(60)))
    assert len(set(sides(rows).values())) == 1


def test_near_copies_under_other_names_stay_together() -> None:
    copies = {"written": 900, "asked": 500, "likeness": 77, "kernel": 4, "opening_likeness": 99}
    rows = candidates(*({**copies, "task": f"task-{number}"} for number in range(60)))
    assert len(set(sides(rows).values())) == 1


def test_of_two_tasks_one_is_held_out_and_of_one_none() -> None:
    for seed in range(5):
        found = sides(candidates({"task": "a"}, {"task": "b"}), 0.1, seed)
        assert sorted(found.values()) == ["holdout", "train"]
    assert sides(candidates({"task": "a"}, {"task": "a"}), 0.1) == {"a": "train"}


def test_a_share_of_nothing_or_of_everything_is_obeyed() -> None:
    rows = many(20)
    assert set(sides(rows, 0.0).values()) == {"train"}
    assert set(sides(rows, 1.0).values()) == {"holdout"}


@PROPERTY
@given(some_candidates(), st.floats(0, 1), st.integers(0, 99))
def test_nothing_is_on_both_sides(rows: pl.DataFrame, share: float, seed: int) -> None:
    found = dealt(rows, share, seed)
    assert found.height == rows.height
    people = list(found.iter_rows(named=True))
    for one, other in combinations(people, 2):
        told_apart = 0 not in (one["setup"], other["setup"]) and one["setup"] != other["setup"]
        says_the_same = (
            one["task"] == other["task"]
            or one["setup"] == other["setup"] != 0
            or (one["opening"] == other["opening"] and (one["actions"] == other["actions"] or not told_apart))
        )
        assert one["split"] == other["split"] or not says_the_same


@PROPERTY
@given(shuffled())
def test_the_order_of_the_rows_does_not_matter(orders: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    one, other = (sides(rows, 0.3) for rows in orders)
    assert one == other
