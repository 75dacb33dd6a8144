"""A constraint takes the whole reward where it is broken, and has no part in any other."""

from pathlib import Path

import polars as pl
import pytest

from rl_pipeline.rewards import formulas
from rl_pipeline.rewards.configuration import (
    DEFAULT_WEIGHTS,
    InvalidConfiguration,
    RewardConfiguration,
    read_configuration,
)
from rl_pipeline.rewards.scoring import History, score
from rl_pipeline.rewards.term import TermError, TermOptions
from rl_pipeline.rewards.terms.safety_constraint import SafetyConstraint
from rl_pipeline_tests.rewards.simulation import simulated_signals

FREE = RewardConfiguration()
BOUND = RewardConfiguration(constraints=("safety_constraint",))
TAMPERED = "tests were changed after they failed"


def signals() -> pl.DataFrame:
    """Sixty trajectories, of which the last three are a critical finding, tests that were changed, and neither."""
    made = simulated_signals(60, 3)
    last = pl.col("sequence")
    return made.with_columns(
        security_critical=pl.when(last == 58).then(2).otherwise(None).cast(pl.UInt32),
        tests_doubt=pl.when(last == 59).then(pl.lit(TAMPERED)).otherwise(pl.lit("")),
        revision=pl.lit(0, pl.UInt32),
    ).sort("sequence")


def test_what_breaks_it_is_worth_nothing_and_everything_else_is_worth_the_same() -> None:
    free, bound = (score(signals(), History.empty(), each) for each in (FREE, BOUND))
    broken = pl.col("sequence").is_in([58, 59])
    kept = ["trajectory_id", "raw_total", "total", "confidence", "cold_start", "credits", "turn_rewards"]
    assert free.filter(~broken).select(kept).equals(bound.filter(~broken).select(kept))
    for row in bound.filter(broken).iter_rows(named=True):
        assert (row["raw_total"], row["total"]) == (0.0, 0.0)
        assert sum(row["credits"]) == pytest.approx(0.0)
        assert sum(row["turn_rewards"]) == pytest.approx(0.0)
    assert free.filter(broken)["raw_total"].min() > 0  # type: ignore[operator]


def test_it_says_why_and_weighs_nothing() -> None:
    rows = score(signals(), History.empty(), BOUND).sort("sequence").to_dicts()
    said = [dict(zip(row["terms"], row["evidences"], strict=True))["safety_constraint"] for row in rows[-3:]]
    assert said == ["broken: 2 critical security findings", f"broken: {TAMPERED}", "nothing forbidden was seen"]
    for row in rows:
        weights = dict(zip(row["terms"], row["weights"], strict=True))
        assert (weights["safety_constraint"], sum(weights.values())) == (0.0, pytest.approx(1.0))


def test_the_batch_scores_as_the_formula_does() -> None:
    batch = signals()
    found = SafetyConstraint().score(batch, TermOptions())["score"].to_list()
    pairs = zip(batch["security_critical"], batch["tests_doubt"], strict=True)
    assert found == [formulas.safety_constraint(critical, doubt) for critical, doubt in pairs]


def test_a_configuration_with_constraints_is_another_and_one_without_is_the_same_as_ever(tmp_path: Path) -> None:
    assert BOUND.hash != FREE.hash
    assert BOUND.scores_hash != FREE.scores_hash
    assert "constraints" not in FREE.as_json()
    file = tmp_path / "rewards.toml"
    file.write_text('constraints = ["safety_constraint"]')
    assert read_configuration(file, DEFAULT_WEIGHTS) == BOUND
    assert set(BOUND.sources) == {*DEFAULT_WEIGHTS, "safety_constraint"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('constraints = "safety_constraint"', "must be a list"),
        ('constraints = ["kindness"]', "no reward term 'kindness'"),
        ('constraints = ["efficiency"]', "has a weight and is a constraint"),
    ],
)
def test_what_cannot_be_a_constraint_is_refused_with_what_to_do(tmp_path: Path, text: str, words: str) -> None:
    file = tmp_path / "rewards.toml"
    file.write_text(text)
    with pytest.raises((InvalidConfiguration, TermError), match=words):
        read_configuration(file, DEFAULT_WEIGHTS)
