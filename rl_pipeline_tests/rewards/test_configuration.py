"""Reading a configuration, refusing a wrong one, and what its hashes tell apart."""

from pathlib import Path

import pytest

from rl_pipeline.errors import PipelineError
from rl_pipeline.rewards.configuration import DEFAULT_WEIGHTS, RewardConfiguration, read_configuration
from rl_pipeline.rewards.term import TermOptions
from rl_pipeline.settings import Settings
from rl_pipeline_tests.rewards.simulation import Column

WEIGHTS = {"task_completion": 0.5, "user_feedback": 0.5}


def test_the_default_is_that_of_the_specification() -> None:
    configuration = read_configuration(None, Settings().reward_weights)
    assert configuration.weights == DEFAULT_WEIGHTS
    assert (configuration.method, configuration.window) == ("z-score", 1000)
    assert [term.name for term in configuration.terms] == sorted(DEFAULT_WEIGHTS)


def test_a_file_says_what_differs(tmp_path: Path) -> None:
    file = tmp_path / "rewards.toml"
    file.write_text('method = "min-max"\nwindow = 500\n[weights]\ntask_completion = 1\n[options]\nstars = "centred"\n')
    configuration = read_configuration(file, WEIGHTS)
    assert (configuration.method, configuration.window, configuration.baseline) == ("min-max", 500, 200)
    assert configuration.weights == {"task_completion": 1}
    assert configuration.options == TermOptions(stars="centred")


def test_weights_come_from_the_settings_where_the_file_has_none(tmp_path: Path) -> None:
    file = tmp_path / "rewards.toml"
    file.write_text("gamma = 0.9\n")
    assert read_configuration(file, WEIGHTS) == RewardConfiguration(WEIGHTS, gamma=0.9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("method = ", "is no TOML"),
        ('method = "best"', "method: choose one of z-score, min-max, none"),
        ("windows = 3", "windows is no setting: choose from baseline, constraints, credit, gamma"),
        ('credit = "fair"', "credit: choose one of shapley, difference"),
        ("window = 10", "window: choose a whole number from 30 to 5,000"),
        ("window = 100.5", "window: choose a whole number"),
        ("window = true", "window must be a number"),
        ('gamma = "high"', "gamma must be a number"),
        ("gamma = 1.5", "gamma: choose a number from 0 to 1"),
        ("baseline = 2000", "baseline: choose a whole number from 30 to 1,000"),
        ("weights = 3", "weights must be a table"),
        ("[weights]\ntask_completion = 0.5", "the weights sum to 0.5: make them sum to 1"),
        ("[weights]\ntask_completion = 1.5\nefficiency = -0.5", "task_completion is 1.5"),
        ("[weights]\ntask_completion = nan", "task_completion is nan"),
        ('[weights]\ntask_completion = "all"', "the weight of task_completion must be a number"),
        ("[weights]\ncharm = 1", "no reward term 'charm'"),
        ("[options]\nstar = 1", "options.star is no setting"),
        ('[options]\nstars = "many"', "stars: choose literal or centred"),
        ('[options]\nerror_weight = "little"', "options.error_weight must be a number"),
    ],
)
def test_a_wrong_file_is_refused_by_name_with_what_to_change(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "rewards.toml"
    file.write_text(text)
    with pytest.raises(PipelineError) as refused:
        read_configuration(file, WEIGHTS)
    assert str(refused.value).startswith(str(file))
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match=r"absent\.toml: No such file"):
        read_configuration(tmp_path / "absent.toml", WEIGHTS)


def test_the_hashes_are_stable_and_short() -> None:
    one, two = RewardConfiguration(), RewardConfiguration(dict(reversed(DEFAULT_WEIGHTS.items())))
    assert one.hash == two.hash
    assert one.scores_hash == two.scores_hash != one.hash
    assert {len(one.hash), len(one.scores_hash)} == {16}


def test_a_weight_of_nothing_is_no_weight() -> None:
    assert RewardConfiguration({**DEFAULT_WEIGHTS, "voting": 0.0}).hash == RewardConfiguration().hash


def test_what_changes_only_the_totals_changes_only_the_whole_hash() -> None:
    known = RewardConfiguration()
    moved = {**DEFAULT_WEIGHTS, "efficiency": 0.15, "code_quality": 0.20}
    for changed in (
        RewardConfiguration(moved),
        RewardConfiguration(method="none"),
        RewardConfiguration(window=900),
        RewardConfiguration(gamma=0.9),
    ):
        assert changed.hash != known.hash
        assert changed.scores_hash == known.scores_hash


def test_what_changes_scores_changes_both_hashes() -> None:
    known = RewardConfiguration({"novelty": 1}, own_terms=(Column("novelty"),))
    for changed in (
        RewardConfiguration({"novelty": 1}, own_terms=(Column("novelty", version=2),)),
        RewardConfiguration({"novelty": 1}, own_terms=known.own_terms, options=TermOptions(stars="centred")),
        RewardConfiguration({"novelty": 1}, own_terms=known.own_terms, baseline=100),
        RewardConfiguration({"novelty": 1}, own_terms=known.own_terms, least_history=31),
        RewardConfiguration({"novelty": 0.5, "efficiency": 0.5}, own_terms=known.own_terms),
    ):
        assert changed.hash != known.hash
        assert changed.scores_hash != known.scores_hash
