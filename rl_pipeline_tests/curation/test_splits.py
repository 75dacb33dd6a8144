"""What is trained on and what is measured on have nothing in common."""

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.curation.checks import leakage
from rl_pipeline.curation.splits import lot_of, split
from rl_pipeline_tests.curation.frames import PROPERTY, candidates, shuffled, some_candidates


def sides(rows: pl.DataFrame, share: float = 0.1, seed: int = 0) -> dict[str, str]:
    found = split(rows, share, seed)
    return dict(found.select("task", "split").iter_rows())


def test_about_the_share_of_the_tasks_is_held_out_by_their_names_alone() -> None:
    rows = candidates(*({"task": f"task-{number}"} for number in range(2000)))
    found = sides(rows, 0.1)
    assert 150 < sum(side == "holdout" for side in found.values()) < 250
    assert all((side == "holdout") == (lot_of(f"task {task}", 0) < 0.1) for task, side in found.items())


def test_a_task_is_on_the_same_side_in_every_dataset_and_another_seed_deals_anew() -> None:
    many = sides(candidates(*({"task": f"task-{number}"} for number in range(300))))
    few = sides(candidates(*({"task": f"task-{number}"} for number in range(100, 200))))
    assert few.items() <= many.items()
    assert sides(candidates(*({"task": f"task-{number}"} for number in range(300))), seed=1) != many


def test_tasks_that_open_with_the_same_long_request_stay_together() -> None:
    rows = candidates(*({"task": f"task-{number}", "opening": 1, "asked": 500} for number in range(50)))
    assert len(set(sides(rows).values())) == 1


def test_a_request_is_on_the_same_side_in_every_dataset_whatever_its_tasks_are_called() -> None:
    def asking(first: int) -> dict[str, str]:
        numbers = range(first, first + 300)
        rows = candidates(*({"task": f"task-{one}", "opening": one % 60, "asked": 500} for one in numbers))
        return dict(split(rows, 0.2, 0).select("opening", "split").iter_rows())

    assert asking(0) == asking(1000)
    assert 4 <= sum(side == "holdout" for side in asking(0).values()) <= 20, "families are not held out for their size"


def test_tasks_that_begin_with_the_same_greeting_are_kept_apart() -> None:
    rows = candidates(*({"task": f"task-{number}", "opening": 1, "asked": 5} for number in range(200)))
    assert set(sides(rows).values()) == {"train", "holdout"}


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
    rows = candidates(*({"task": f"task-{number}"} for number in range(20)))
    assert set(sides(rows, 0.0).values()) == {"train"}
    assert set(sides(rows, 1.0).values()) == {"holdout"}


@PROPERTY
@given(some_candidates(), st.floats(0, 1), st.integers(0, 99))
def test_nothing_is_on_both_sides(rows: pl.DataFrame, share: float, seed: int) -> None:
    found = split(rows, share, seed)
    assert leakage(found).total == 0
    assert found.height == rows.height


@PROPERTY
@given(shuffled())
def test_the_order_of_the_rows_does_not_matter(orders: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    one, other = (sides(rows, 0.3) for rows in orders)
    assert one == other
