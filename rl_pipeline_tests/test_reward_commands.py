"""The commands around rewards, as people use them."""

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from rl_pipeline.cli import main
from rl_pipeline.rewards.computing import compute_rewards
from rl_pipeline.rewards.configuration import RewardConfiguration
from rl_pipeline.rewards.storing import remember_configuration, write_signals
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline_tests.rewards.simulation import simulated_signals

STREAM = "RL_TRAJECTORIES"
NOW = datetime(2026, 2, 1, tzinfo=UTC)
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(
    *,
    tmp_path: Path,
    clickhouse_url: str,
    warehouse: ClickHouseWarehouse,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Run:
    variables = {
        "RL_PIPELINE_HOME": str(tmp_path / "home"),
        "CLICKHOUSE_URL": clickhouse_url,
        "CLICKHOUSE_DATABASE": warehouse.database,
    }

    def command(*arguments: str) -> tuple[int, str, str]:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(sys, "argv", ["rl-pipeline", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return command


def store_rewards(warehouse: ClickHouseWarehouse, count: int) -> None:
    configuration = RewardConfiguration()
    write_signals(warehouse, simulated_signals(count, 5).drop("revision").with_columns(stream=pl.lit(STREAM)), NOW)
    compute_rewards(warehouse, stream=STREAM, first=1, last=count, configuration=configuration, now=NOW)
    remember_configuration(warehouse, configuration.hash, configuration.scores_hash, configuration.as_json(), NOW)


def counted(warehouse: ClickHouseWarehouse) -> list[int]:
    tables = ("rewards", "reward_scores", "reward_configurations")
    return [warehouse.query(f"SELECT count() AS n FROM {table} FINAL")["n"][0] for table in tables]


def test_a_plan_shows_what_other_weights_would_change_and_writes_nothing(
    run: Run, warehouse: ClickHouseWarehouse
) -> None:
    store_rewards(warehouse, 200)
    before = counted(warehouse)
    code, said, _ = run("rescore", "--plan", "--weights", "task_completion=0.1,efficiency=0.9")
    assert code == 0
    assert "nothing is written" in said
    assert "enter" in said
    assert counted(warehouse) == before


def test_a_plan_without_rewards_says_what_to_do(run: Run) -> None:
    code, _, complained = run("rescore", "--plan")
    assert (code, "materialize trajectory_rewards first" in complained) == (1, True)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--weights", "task_completion"], "write weights as"),
        (["--weights", "task_completion=0.4"], "make them sum to 1"),
        (["--weights", "charm=1"], "there is no reward term 'charm'"),
        (["--configuration", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_a_wrong_proposal_gets_one_line(run: Run, arguments: list[str], complaint: str) -> None:
    code, _, complained = run("rescore", "--plan", *arguments)
    assert code == 1
    assert complaint in complained
    assert len(complained.strip().splitlines()) == 1


def test_a_re_score_is_carried_out_as_a_backfill(run: Run) -> None:
    code, _, complained = run("rescore")
    assert code == 1
    assert "backfill trajectory_rewards" in complained


def test_the_probes_of_a_configuration_are_shown(run: Run) -> None:
    code, said, _ = run("probe-rewards", "--weights", "task_completion=1")
    assert code == 0
    assert "padded headings" in said
