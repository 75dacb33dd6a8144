"""Rewards of stored trajectories: computed in any way, resumed after any death, they are the same bits."""

import multiprocessing
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from rl_pipeline.ingestion.ledger import ERASED_REVISION
from rl_pipeline.rewards.computing import POINTS, compute_rewards, measure, rewards_under
from rl_pipeline.rewards.configuration import RewardConfiguration
from rl_pipeline.rewards.inspection import day_of_rewards, days_to_score
from rl_pipeline.rewards.storing import first_unscored, read_rewards, read_signals, sequences_of_day, write_signals
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline_tests.ingestion.stored_rows import NOW as TODAY
from rl_pipeline_tests.ingestion.stored_rows import rows
from rl_pipeline_tests.rewards.simulation import NOON, bits, simulated_signals

STREAM = "RL_TRAJECTORIES"
NOW = datetime(2026, 2, 1, tzinfo=UTC)
DEFAULT = RewardConfiguration(least_history=5, baseline=20, window=50)


def stored_signals(warehouse: ClickHouseWarehouse, count: int, seed: int = 3, without: int = 0) -> pl.DataFrame:
    """Simulated signals, a minute apart, as measuring would have stored them; one sequence may have brought none."""
    simulated = simulated_signals(count, seed).filter(pl.col("sequence") != without)
    signals = simulated.drop("revision").with_columns(stream=pl.lit(STREAM), ingest_revision=pl.lit(1, pl.UInt32))
    write_signals(warehouse, signals, NOW)
    return signals


def compute(
    warehouse: ClickHouseWarehouse, first: int, last: int, configuration: RewardConfiguration = DEFAULT, **more: object
) -> tuple[int, int, int]:
    report = compute_rewards(
        warehouse,
        stream=STREAM,
        first=first,
        last=last,
        configuration=configuration,
        now=NOW,
        **more,  # type: ignore[arg-type]
    )
    return report.rewards, report.unchanged, report.scored_before


def rewards_of(
    warehouse: ClickHouseWarehouse, count: int, configuration: RewardConfiguration = DEFAULT
) -> dict[str, object]:
    found = read_rewards(warehouse, STREAM, configuration.hash, 1, count)
    assert found.height == count
    return bits(found.drop("scored_at", "published_sequence"))


def in_one_go(warehouse: ClickHouseWarehouse, count: int) -> dict[str, object]:
    expected = rewards_under(warehouse, stream=STREAM, first=1, last=count, configuration=DEFAULT)
    ordered = expected.sort("sequence", "trajectory_id", "revision")
    return bits(ordered.with_columns(stream=pl.lit(STREAM)).select(_columns(warehouse)))


def _columns(warehouse: ClickHouseWarehouse) -> list[str]:
    none = read_rewards(warehouse, STREAM, "", 0, 0)
    return [name for name in none.columns if name not in {"scored_at", "published_sequence"}]


def test_rewards_are_stored_once_and_computing_them_again_changes_nothing(warehouse: ClickHouseWarehouse) -> None:
    stored_signals(warehouse, 300)
    assert compute(warehouse, 1, 300) == (300, 0, 0)
    before = rewards_of(warehouse, 300)
    assert compute(warehouse, 1, 300) == (0, 300, 0)
    assert rewards_of(warehouse, 300) == before == in_one_go(warehouse, 300)


def test_days_in_any_order_give_the_bits_of_one_go(warehouse: ClickHouseWarehouse) -> None:
    count = 3000
    stored_signals(warehouse, count)
    expected = in_one_go(warehouse, count)
    days = [(NOON + timedelta(days=n)).date() for n in range(3)]
    for day in (days[2], days[0], days[1]):
        first, last = sequences_of_day(warehouse, STREAM, day) or (1, 0)
        compute(warehouse, first, last)
    assert rewards_of(warehouse, count) == expected


@pytest.mark.parametrize("revision", [1, 2])
def test_a_trajectory_that_a_lower_sequence_brings_later_has_one_place_and_the_same_bits(
    warehouse: ClickHouseWarehouse, revision: int
) -> None:
    """Sequence 40 was refused, and a replay accepts it, under the same revision or a newer one: 2,000 repeats it."""
    count, place, lower = 3000, 2000, 40
    stored_signals(warehouse, count, without=lower)
    days = [(NOON + timedelta(days=n)).date() for n in range(3)]

    def compute_days() -> int:
        return sum(compute(warehouse, *(sequences_of_day(warehouse, STREAM, day) or (1, 0)))[0] for day in days)

    assert compute_days() == count - 1
    brought = rows(1, TODAY, first=lower, revision=revision).with_columns(trajectory_id=pl.lit(f"trajectory-{place}"))
    warehouse.insert("trajectories", brought)
    restated = revision - 1
    assert measure(warehouse, stream=STREAM, last=count, checker=None, now=NOW).trajectories == restated
    assert measure(warehouse, stream=STREAM, last=count, checker=None, now=NOW).trajectories == 0
    assert read_signals(warehouse, STREAM, place, place)["ingest_revision"].to_list() == [1, 2][:revision]
    assert compute_days() == restated
    found = read_rewards(warehouse, STREAM, DEFAULT.hash, 1, count)
    of_it = found.filter(pl.col("trajectory_id") == f"trajectory-{place}")
    assert of_it.select("sequence", "revision").rows() == [(place, n) for n in range(revision)]
    assert found["reward_id"].n_unique() == found.height == count - 1 + restated
    assert bits(found.drop("scored_at", "published_sequence")) == in_one_go(warehouse, count)
    assert first_unscored(warehouse, STREAM, DEFAULT.scores_hash, count + 1) == count + 1
    assert days_to_score(warehouse, STREAM, count) == []


def test_feedback_that_is_erased_takes_no_revision_from_what_comes_later(warehouse: ClickHouseWarehouse) -> None:
    stored_signals(warehouse, 50)

    def hear(sequence: int, revision: int = 1, **said: str) -> None:
        heard = NOON + timedelta(days=sequence)
        row = {"stream": "RL_FEEDBACK", "sequence": sequence, "stream_time": heard, "revision": revision}
        warehouse.insert("trajectory_feedback", pl.DataFrame([{**row, "trajectory_id": "trajectory-7", **said}]))

    for sequence in (1, 2):
        hear(sequence, verdict="accepted", feedback_id=f"f-{sequence}", kind="thumbs_down", user=f"user-{sequence}")
    assert compute(warehouse, 1, 50) == (52, 0, 0)
    for sequence in (1, 2):
        hear(sequence, revision=ERASED_REVISION, verdict="erased")
    assert compute(warehouse, 1, 50) == (0, 52, 0)
    hear(3, verdict="accepted", feedback_id="f-3", kind="thumbs_up", user="user-3")
    assert compute(warehouse, 1, 50) == (1, 52, 0)
    [newest] = read_rewards(warehouse, STREAM, DEFAULT.hash, 7, 7).tail(1).iter_rows(named=True)
    assert newest["revision"] == 3
    assert newest["evidences"][newest["terms"].index("user_feedback")].endswith("thumbs up")


def test_a_day_scored_first_scores_what_came_before_it_as_its_history(warehouse: ClickHouseWarehouse) -> None:
    stored_signals(warehouse, 400)
    assert compute(warehouse, 301, 400) == (100, 0, 300)
    assert compute(warehouse, 301, 400) == (0, 100, 0)
    assert compute(warehouse, 1, 300) == (300, 0, 0)
    assert rewards_of(warehouse, 400) == in_one_go(warehouse, 400)


def test_other_weights_are_other_rewards_beside_the_old_ones_without_scoring_terms_again(
    warehouse: ClickHouseWarehouse,
) -> None:
    stored_signals(warehouse, 200)
    compute(warehouse, 1, 200)
    old = rewards_of(warehouse, 200)
    other = replace(
        DEFAULT, weights={"task_completion": 0.7, "efficiency": 0.1, "code_quality": 0.1, "user_feedback": 0.1}
    )
    assert other.scores_hash == DEFAULT.scores_hash
    assert compute(warehouse, 101, 200, other) == (100, 0, 0)
    assert compute(warehouse, 1, 200, other) == (100, 100, 0)
    assert rewards_of(warehouse, 200) == old
    assert rewards_of(warehouse, 200, other) != old


def test_a_plan_writes_nothing(warehouse: ClickHouseWarehouse) -> None:
    stored_signals(warehouse, 100)
    compute(warehouse, 1, 100)
    other = replace(DEFAULT, least_history=6)
    planned = rewards_under(warehouse, stream=STREAM, first=51, last=100, configuration=other)
    assert planned.height == 50
    for table in ("rewards", "reward_scores"):
        assert warehouse.query(f"SELECT count() AS n FROM {table} FINAL")["n"][0] == 100
    assert warehouse.query("SELECT count() AS n FROM reward_configurations")["n"][0] == 0


def test_a_day_is_due_until_it_has_its_rewards(warehouse: ClickHouseWarehouse) -> None:
    stored_signals(warehouse, 50)
    compute(warehouse, 1, 50)
    assert days_to_score(warehouse, STREAM, 50) == []
    feedback = {
        "stream": "RL_FEEDBACK",
        "sequence": 1,
        "stream_time": NOON + timedelta(days=1),
        "verdict": "accepted",
        "feedback_id": "late",
        "trajectory_id": "trajectory-7",
        "kind": "thumbs_down",
        "user": "somebody else",
        "revision": 1,
    }
    warehouse.insert("trajectory_feedback", pl.DataFrame([feedback]))
    assert days_to_score(warehouse, STREAM, 50) == [NOON.date()]
    assert compute(warehouse, 1, 50) == (1, 50, 0)
    assert days_to_score(warehouse, STREAM, 50) == []
    day = day_of_rewards(warehouse, STREAM, NOON.date(), DEFAULT.hash)
    assert (day.trajectories, day.revised, day.out_of_bounds, day.unbalanced) == (50, 1, 0, 0)
    assert sum(day.raw_histogram) == 50


def _killed_at(url: str, database: str, count: int, point: str, times: int) -> None:
    passed = 0

    def reached(name: str) -> None:
        nonlocal passed
        passed += name == point
        if passed == times:
            os.kill(os.getpid(), signal.SIGKILL)

    warehouse = ClickHouseWarehouse.connect(url, database)
    for first in range(1, count + 1, 500):
        last = first + 499
        compute_rewards(
            warehouse, stream=STREAM, first=first, last=last, configuration=DEFAULT, now=NOW, reached=reached
        )


@pytest.mark.soak
def test_who_is_killed_while_scoring_goes_on_to_the_same_bits(
    warehouse: ClickHouseWarehouse, clickhouse_url: str, soak_count: Callable[[int, int], int]
) -> None:
    """Each point in turn, in a process of its own that is killed there, again and again until one gets through."""
    count = soak_count(2_000, 20_000)
    stored_signals(warehouse, count)
    expected = in_one_go(warehouse, count)
    spawn = multiprocessing.get_context("spawn")
    for attempt in range(soak_count(3, 12)):
        point = [name for name in POINTS if name != "after_signals"][attempt % 2]
        process = spawn.Process(
            target=_killed_at, args=(clickhouse_url, warehouse.database, count, point, 1 + attempt // 2)
        )
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    compute(warehouse, 1, count)
    assert rewards_of(warehouse, count) == expected
