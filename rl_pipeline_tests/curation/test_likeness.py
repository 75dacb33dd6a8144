"""Which trajectories are copies of each other, and which only look like it."""

from collections import Counter

import polars as pl
from hypothesis import given

from rl_pipeline.curation.likeness import near_pairs, without_copies
from rl_pipeline_tests.curation.frames import PROPERTY, candidates, shuffled, some_candidates

LONG = {"written": 900, "asked": 500, "opening_likeness": 0xABCD}
SIMHASH = 0b1011_0110_1110_0001_1001_0110_1110_0011


def kept(*rows: dict[str, object]) -> list[str]:
    return list(without_copies(candidates(*rows))["trajectory_id"])


def test_the_same_actions_after_the_same_request_are_copies_whatever_their_tasks_are_called() -> None:
    same = {"opening": 1, "actions": 5}
    found = without_copies(candidates({**same, "at": 9}, {**same, "at": 3, "task": "a"}, {**same, "at": 7}))
    assert list(found["trajectory_id"]) == ["t001"]
    assert list(found["copies"]) == [3]


def test_other_actions_at_the_same_task_are_no_copies_however_short_they_are() -> None:
    assert len(kept(*({"task": "a", "opening": 1, "actions": number, "likeness": 0} for number in range(20)))) == 20


def test_the_same_short_actions_at_another_task_are_no_copies() -> None:
    assert len(kept(*({"task": task, "actions": 5} for task in "abc"))) == 3


def test_two_tasks_of_a_world_are_two_though_they_open_with_the_same() -> None:
    assert len(kept(*({"opening": 1, "actions": 5, "setup": setup} for setup in (7, 8, 8)))) == 2


def test_who_ends_differently_is_no_copy() -> None:
    same = {"task": "a", "opening": 1, "actions": 5}
    assert len(kept({**same, "reward": 0.9}, {**same, "reward": 0.2})) == 2
    assert len(kept({**same, "status": "success"}, {**same, "status": "failed"})) == 2
    long = {**LONG, "task": "a", "opening": 1, "likeness": SIMHASH}
    assert len(kept({**long, "reward": 0.9}, {**long, "reward": 0.2})) == 2


def test_long_trajectories_that_differ_in_a_few_words_are_near_copies() -> None:
    long = {**LONG, "task": "a", "opening": 1}
    assert len(kept({**long, "likeness": SIMHASH}, {**long, "likeness": SIMHASH ^ 0b111})) == 1
    assert len(kept({**long, "likeness": SIMHASH}, {**long, "likeness": SIMHASH ^ 0b1111})) == 2


def test_near_copies_used_the_same_tools_in_the_same_order() -> None:
    long = {**LONG, "task": "a", "opening": 1, "likeness": SIMHASH}
    assert len(kept({**long, "tools": 1}, {**long, "tools": 2})) == 2


def test_near_copies_under_other_names_are_found_by_an_action_or_the_opening_that_they_share() -> None:
    renamed = [{**LONG, "likeness": SIMHASH, "task": task, "kernel": 4} for task in "ab"]
    assert len(kept(*renamed)) == 1
    assert len(kept(*({**one, "kernel": number} for number, one in enumerate(renamed)))) == 2
    assert len(kept(*({**one, "kernel": number, "opening": 1} for number, one in enumerate(renamed)))) == 1


def test_the_same_answer_to_another_request_is_no_copy() -> None:
    renamed = [{**LONG, "likeness": SIMHASH, "task": task, "kernel": 4} for task in "ab"]
    asked = [{**one, "opening_likeness": likeness} for one, likeness in zip(renamed, (0xABCD, 0x1234), strict=True)]
    assert len(kept(*asked)) == 2
    short = [{**one, "asked": 10, "opening_likeness": 0} for one in renamed]
    assert len(kept(*short)) == 2, "of a short opening a simhash says nothing"


def test_a_crowd_of_near_copies_leaves_one_for_each_kind() -> None:
    kinds = [SIMHASH, SIMHASH ^ 0xFFFF, SIMHASH ^ 0xFFFF0000]
    crowd = [{**LONG, "task": "a", "opening": 1, "likeness": kind ^ (1 << bit)} for bit in range(8) for kind in kinds]
    found = without_copies(candidates(*crowd))
    assert (found.height, sorted(found["copies"])) == (3, [8, 8, 8])


@PROPERTY
@given(some_candidates())
def test_copies_are_counted_and_what_is_left_has_no_copy_any_more(rows: pl.DataFrame) -> None:
    found = without_copies(rows)
    assert found["copies"].sum() == rows.height
    keys = found.select("opening", "setup", "actions", "status", (pl.col("reward") * 20).round())
    assert keys.is_unique().all()
    assert without_copies(found.drop("copies")).height == found.height


@PROPERTY
@given(some_candidates())
def test_nothing_disappears_but_for_one_with_the_same_outcome(rows: pl.DataFrame) -> None:
    def outcomes(frame: pl.DataFrame) -> set[tuple[object, ...]]:
        return set(frame.select(pl.col("status").cast(pl.String), (pl.col("reward") * 20).round()).iter_rows())

    assert outcomes(without_copies(rows)) == outcomes(rows)


@PROPERTY
@given(shuffled())
def test_the_order_of_the_candidates_does_not_matter(orders: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    one, other = map(without_copies, orders)
    assert one.equals(other)


def test_near_pairs_are_found_whatever_their_outcome() -> None:
    rows = candidates(
        {**LONG, "likeness": SIMHASH, "task": "a", "opening": 1, "reward": 0.9},
        {**LONG, "likeness": SIMHASH ^ 1, "task": "b", "opening": 1, "reward": 0.1},
        {**LONG, "likeness": SIMHASH ^ 0xFFFF, "task": "c", "opening": 1},
        {**LONG, "likeness": SIMHASH, "task": "a", "opening": 1},
    )
    assert near_pairs(rows) == [(0, 1), (1, 3)]


@PROPERTY
@given(some_candidates(25))
def test_near_pairs_agree_with_comparing_everybody(rows: pl.DataFrame) -> None:
    people = list(rows.iter_rows(named=True))

    def near(one: dict[str, int], other: dict[str, int]) -> bool:
        opens_alike = one["opening"] == other["opening"] or (
            min(one["asked"], other["asked"]) >= 100
            and (one["opening_likeness"] ^ other["opening_likeness"]).bit_count() <= 3
        )
        return (
            min(one["written"], other["written"]) >= 400
            and one["tools"] == other["tools"]
            and one["task"] != other["task"]
            and (one["likeness"] ^ other["likeness"]).bit_count() <= 3
            and (one["opening"] == other["opening"] or one["kernel"] == other["kernel"])
            and opens_alike
        )

    pairs = [(one, two) for two in range(len(people)) for one in range(two) if near(people[one], people[two])]
    assert Counter(near_pairs(rows)) == Counter(pairs)
