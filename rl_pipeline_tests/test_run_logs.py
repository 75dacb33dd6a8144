"""What Dagster's runs say is in the home's logs, by the instance's own configuration."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

import rl_pipeline.embedded

SECRET = "what the user wrote"
TAGS = {"rl/job": "job-7"}


class Outcome(dg.Config):
    fails: bool


@dg.op
def learn(context: dg.OpExecutionContext, config: Outcome) -> None:
    context.log.info("attempt %d begins", 1)
    if config.fails:
        raise ValueError(SECRET)


@dg.job
def train_something() -> None:
    learn()


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dg.DagsterInstance]:
    """As `rl-pipeline up` makes it."""
    (tmp_path / "dagster").mkdir()
    shutil.copy(Path(rl_pipeline.embedded.__file__).with_name("dagster.yaml"), tmp_path / "dagster")
    monkeypatch.setenv("RL_PIPELINE_HOME", str(tmp_path))
    with dg.DagsterInstance.from_config(str(tmp_path / "dagster")) as made:
        yield made


def run(instance: dg.DagsterInstance, *, fails: bool) -> str:
    """Its id."""
    config = {"ops": {"learn": {"config": {"fails": fails}}}}
    outcome = train_something.execute_in_process(instance=instance, run_config=config, tags=TAGS, raise_on_error=False)
    return outcome.run_id


def lines(home: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (home / "logs" / "runs.log").read_text().splitlines()]


def test_a_run_says_what_it_did_and_for_which_training(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    run_id = run(instance, fails=False)
    told = lines(tmp_path)
    assert f"{run_id[:8]}: attempt 1 begins" in [line["message"] for line in told]
    assert {(line["component"], line["logger"], line["job_id"]) for line in told} == {
        ("runs", "run.train_something", "job-7")
    }
    assert any("Finished execution of run" in line["message"] for line in told)
    assert len(told) < 8, "steps are the UI's"


def test_a_run_that_fails_is_told_without_what_its_error_quotes(instance: dg.DagsterInstance, tmp_path: Path) -> None:
    run(instance, fails=True)
    written = (tmp_path / "logs" / "runs.log").read_text()
    assert {line["level"] for line in lines(tmp_path)} >= {"info", "error"}
    assert "learn" in written
    assert SECRET not in written
