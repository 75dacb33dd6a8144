"""Which days are due, and what is shown of rewards while configurations change."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import polars as pl

from rl_pipeline.rewards.computing import compute_rewards
from rl_pipeline.rewards.configuration import RewardConfiguration
from rl_pipeline.rewards.inspection import days_to_score, what_scoring_reads
from rl_pipeline.rewards.storing import current_rewards, remember_configuration, write_signals
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline_tests.rewards.simulation import NOON, simulated_signals

STREAM = "RL_TRAJECTORIES"
NOW = datetime(2026, 2, 1, tzinfo=UTC)
DEFAULT = RewardConfiguration(least_history=5, baseline=20, window=50)
OTHER = replace(DEFAULT, weights={"task_completion": 0.7, "efficiency": 0.3})


def measured(count: int) -> pl.DataFrame:
    return simulated_signals(count, 3).drop("revision").with_columns(stream=pl.lit(STREAM))


def compute(
    warehouse: ClickHouseWarehouse, first: int, last: int, configuration: RewardConfiguration = DEFAULT
) -> None:
    compute_rewards(warehouse, stream=STREAM, first=first, last=last, configuration=configuration, now=NOW)
    remember_configuration(
        warehouse, configuration.hash, configuration.scores_hash, configuration.as_json(), datetime.now(UTC)
    )


def restate(warehouse: ClickHouseWarehouse, signals: pl.DataFrame, revision: int, turns: int) -> None:
    again = signals.filter(pl.col("sequence") == 7).with_columns(
        ingest_revision=pl.lit(revision, pl.UInt32), turns=pl.lit(turns, pl.UInt32)
    )
    write_signals(warehouse, again, NOW + timedelta(minutes=revision))


def test_each_change_of_what_is_known_makes_a_day_due_also_one_that_was_there_before(
    warehouse: ClickHouseWarehouse,
) -> None:
    signals = measured(20)
    write_signals(warehouse, signals, NOW)
    compute(warehouse, 1, 20)
    first = int(signals.filter(pl.col("sequence") == 7)["turns"][0])
    for revision, turns in ((5, first + 3), (6, first), (7, first + 3)):
        assert days_to_score(warehouse, STREAM, 20) == []
        restate(warehouse, signals, revision, turns)
        assert days_to_score(warehouse, STREAM, 20) == [NOON.date()]
        compute(warehouse, 1, 20)
    restate(warehouse, signals, 8, first + 3)
    assert days_to_score(warehouse, STREAM, 20) == []


def test_another_configuration_makes_nothing_due_and_hides_nothing(warehouse: ClickHouseWarehouse) -> None:
    write_signals(warehouse, measured(20), NOW)
    compute(warehouse, 1, 20)
    compute(warehouse, 11, 20, OTHER)
    assert days_to_score(warehouse, STREAM, 20) == []
    shown = current_rewards(warehouse, STREAM)
    assert shown["configuration"].to_list() == [DEFAULT.hash] * 10 + [OTHER.hash] * 10
    compute(warehouse, 1, 20)
    assert set(current_rewards(warehouse, STREAM)["configuration"]) == {DEFAULT.hash}


def test_the_state_that_is_looked_at_changes_when_something_is_measured(warehouse: ClickHouseWarehouse) -> None:
    before = what_scoring_reads(warehouse)
    write_signals(warehouse, measured(1), NOW)
    assert what_scoring_reads(warehouse) != before


def test_the_scanner_decides_what_is_measured_and_no_score() -> None:
    bandit = replace(DEFAULT, options=replace(DEFAULT.options, security_scanner="bandit"))
    assert bandit.hash == DEFAULT.hash
