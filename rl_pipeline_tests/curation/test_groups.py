"""Tasks for the online algorithms: the undecided first, the decided last."""

from collections import Counter

import polars as pl
import pytest
from hypothesis import given

from rl_pipeline.curation.groups import one_task_for_each_request, select_attempts, task_statistics
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


def distinct(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(copies=pl.lit(1, pl.UInt32))


def chosen_tasks(rows: pl.DataFrame, sample_size: int) -> set[str]:
    asked = criteria("rloo", sample_size=sample_size)
    return set(select_attempts(rows, task_statistics(rows), asked, OPEN_POLICY).kept["task"])


ROWS = distinct(
    candidates(
        *({"task": "solved", "reward": 1.0} for _ in range(2)),
        *({"task": "undecided", "reward": reward} for reward in (0.0, 1.0)),
        *({"task": "uneven", "reward": reward} for reward in (0.4, 0.6)),
        {"task": "tried once", "reward": 0.3},
    )
)


def test_attempts_at_one_request_are_at_one_task_and_two_setups_of_a_world_are_two() -> None:
    rows = candidates(
        {"task": "run-3", "opening": 1},
        {"task": "run-2", "opening": 1},
        {"task": "run-2", "opening": 2},
        {"task": "run-1", "opening": 2},
        {"task": "other", "opening": 3},
        *({"task": f"setup-{setup}", "opening": 4, "setup": setup} for setup in (7, 8)),
        *({"task": f"silent-{number}", "opening": 5, "asked": 1} for number in range(2)),
    )
    tasks = one_task_for_each_request(rows)["task"].to_list()
    assert tasks == [*["run-1"] * 4, "other", "setup-7", "setup-8", "silent-0", "silent-1"]


def test_undecided_tasks_come_first_and_decided_ones_last() -> None:
    assert chosen_tasks(ROWS, 2) == {"undecided"}
    assert chosen_tasks(ROWS, 4) == {"undecided", "uneven"}
    assert chosen_tasks(ROWS, 5) == {"undecided", "uneven", "tried once"}
    assert chosen_tasks(ROWS, 7) == {"undecided", "uneven", "tried once", "solved"}


def test_statistics_are_of_all_attempts_copies_included() -> None:
    rows = candidates({"task": "a", "reward": 1.0}, {"task": "a", "reward": 0.0}).with_columns(
        copies=pl.Series([3, 1], dtype=pl.UInt32)
    )
    task, attempts, mean, deviation = task_statistics(rows).row(0)
    assert (task, attempts) == ("a", 4)
    assert (mean, deviation) == (pytest.approx(0.75), pytest.approx(3**0.5 / 4))


def test_equal_rewards_deviate_by_nothing_whatever_floats_make_of_them() -> None:
    rows = distinct(candidates(*({"task": "a", "reward": 0.1} for _ in range(7))))
    assert task_statistics(rows)["reward_std"].to_list() == [0.0]


def test_of_a_task_that_was_tried_too_often_some_attempts_are_drawn() -> None:
    rows = distinct(candidates(*({"task": "a", "reward": number % 2} for number in range(50))))
    chosen = select_attempts(rows, task_statistics(rows), criteria("grpo"), CurationPolicy(attempts_per_task=8))
    assert chosen.kept.height == 8
    assert chosen.left_out == Counter(enough_of_task=42)
    assert sorted(chosen.kept["draw"]) == sorted(rows["draw"])[:8], "by lot, not by reward"


@PROPERTY
@given(some_candidates())
def test_what_holds_of_all_groups(rows: pl.DataFrame) -> None:
    rows = distinct(rows)
    policy = CurationPolicy(attempts_per_task=3)
    asked = criteria("ppo", {"domain_shares": {"coding": 0.5, "research": 0.3, "general": 0.2}}, sample_size=12)
    chosen = select_attempts(rows, task_statistics(rows), asked, policy)
    domains = Counter(chosen.kept["domain"].cast(pl.String))
    assert all(count <= chosen.quotas[domain] for domain, count in domains.items())
    assert max(Counter(chosen.kept["task"]).values(), default=0) <= 3
    assert chosen.kept.height + chosen.left_out.total() == rows.height


@PROPERTY
@given(shuffled())
def test_the_order_of_the_candidates_does_not_matter(orders: tuple[pl.DataFrame, pl.DataFrame]) -> None:
    asked = criteria("rloo", sample_size=8)
    one, other = (select_attempts(distinct(rows), task_statistics(distinct(rows)), asked, POLICY) for rows in orders)
    assert list(one.kept["trajectory_id"]) == list(other.kept["trajectory_id"])
