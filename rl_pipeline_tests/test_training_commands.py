"""The commands around training jobs, as people use them."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.cli import main
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.trainer_tools import request_training
from rl_pipeline.training.jobs.rows import write_attempt, write_job
from rl_pipeline.training.spoken import EXAMPLE, UnclearSentence
from rl_pipeline_tests.training.job_tables import emptied, migrated_database
from rl_pipeline_tests.training.job_values import NOW, a_job, an_attempt

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def warehouse(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(tables)


@pytest.fixture
def environment(
    *,
    tmp_path: Path,
    nats_server: NatsServer,
    stream: JetStream,
    clickhouse_url: str,
    warehouse: ClickHouseWarehouse,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variables = {
        "RL_PIPELINE_HOME": str(tmp_path / "home"),
        "NATS_URL": nats_server.url,
        "CLICKHOUSE_URL": clickhouse_url,
        "CLICKHOUSE_DATABASE": warehouse.database,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def run(environment: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def command(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["rl-pipeline", *arguments])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        return int(ended.value.code or 0), *capsys.readouterr()

    return command


def published(stream: JetStream) -> dict[str, Any]:
    assert stream.state("RL_TRAINING").messages == 1
    message = stream.get("RL_TRAINING", 1)
    content: dict[str, Any] = json.loads(message.data)
    return {"subject": message.subject, **content}


def test_a_sentence_asks_for_a_training_and_is_answered_for_the_superior(run: Run, stream: JetStream) -> None:
    code, said, _ = run("train", EXAMPLE)
    request = published(stream)
    assert (code, said.splitlines()) == (
        0,
        ["Initiating RL training job #1 with 10K samples", request["training_job_id"]],
    )
    assert request["subject"] == "agent.rl.training.request.v1"
    assert request["training_job_id"].startswith("manual-")
    assert (request["trigger_reason"], request["priority"], request["requester"]) == ("manual", "high", "admin-manual")
    assert request["training_config"]["dataset"]["filter"]["last_days"] == 30


def test_options_ask_for_what_they_say_and_leave_the_rest_to_the_pipeline(run: Run, stream: JetStream) -> None:
    code, said, _ = run(
        *("train", "--algorithm", "dpo", "--base-model", "small", "--samples", "500", "--days", "7"),
        *("--domains", "coding=0.4,research=0.6", "--learning-rate", "0.001", "--batch-size", "8", "--epochs", "1"),
        *("--priority", "low", "--shadow", "--job", "trial-1"),
    )
    request = published(stream)
    config = request["training_config"]
    assert (code, said.splitlines()[1]) == (0, "trial-1")
    assert (request["training_job_id"], request["priority"], request["metadata"]) == (
        "trial-1",
        "low",
        {"shadow": True},
    )
    assert (config["algorithm"], config["base_model"]) == ("dpo", "small")
    assert (config["dataset"]["source"], config["dataset"]["sample_size"]) == ("clickhouse", 500)
    assert config["dataset"]["filter"]["domain_shares"] == {"coding": 0.4, "research": 0.6}
    assert config["dataset"]["filter"]["last_days"] == 7
    assert config["hyperparameters"] == {"learning_rate": 0.001, "batch_size": 8, "epochs": 1}
    assert "compute" not in config


def test_a_person_who_names_no_priority_has_that_of_people(run: Run, stream: JetStream) -> None:
    run("train", "--samples", "500")
    assert (published(stream)["trigger_reason"], published(stream)["priority"]) == ("manual", "high")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["train", "Please do something"], "does not ask for a training"),
        (["train", EXAMPLE, "--samples", "5"], "in words or with options, not both"),
        (["train", EXAMPLE, "--priority", "urgent"], "in words or with options, not both"),
        (["train", EXAMPLE, "--priority", "high"], "in words or with options, not both"),
        (["train", "--source", "local"], "say with --path where the files are"),
        (["train", "--domains", "coding"], "write domains as"),
        (["train", "--domains", "cooking=1"], "domain_shares"),
        (["train", "--job", "../etc"], "training_job_id breaks pattern"),
        (["train", "--learning-rate", "-1"], "learning_rate breaks exclusive_minimum"),
        (["cancel", "a/b"], "training_job_id breaks pattern"),
        (["jobs", "nobody"], "there is no training job nobody"),
    ],
)
def test_a_mistake_gets_one_line_and_nothing_is_published(
    run: Run, stream: JetStream, arguments: list[str], complaint: str
) -> None:
    code, _, complained = run(*arguments)
    assert (code, complaint in complained) == (1, True), complained
    assert len(complained.strip().splitlines()) == 1
    assert stream.state("RL_TRAINING").messages == 0


def test_a_job_is_cancelled_by_a_message(run: Run, stream: JetStream, warehouse: ClickHouseWarehouse) -> None:
    write_job(warehouse, a_job(state="running"))
    code, said, _ = run("cancel", "job-1", "--reason", "the wrong model")
    assert (code, said.strip()) == (0, "asked to cancel job-1; it is running")
    message = published(stream)
    assert message["subject"] == "agent.rl.training.cancel.v1"
    assert (message["training_job_id"], message["requester"], message["reason"]) == (
        *("job-1", "admin-manual", "the wrong model"),
    )


def test_a_job_that_is_not_known_yet_can_be_cancelled(run: Run, stream: JetStream) -> None:
    code, said, _ = run("cancel", "job-1")
    assert (code, "not known yet" in said) == (0, True)
    assert published(stream)["training_job_id"] == "job-1"


def test_a_job_that_has_ended_cannot_be_cancelled(run: Run, stream: JetStream, warehouse: ClickHouseWarehouse) -> None:
    write_job(warehouse, a_job(state="completed"))
    code, _, complained = run("cancel", "job-1")
    assert (code, "job-1 is completed already" in complained) == (1, True)
    assert stream.state("RL_TRAINING").messages == 0


def test_the_jobs_are_listed_and_one_is_told_with_its_attempts(run: Run, warehouse: ClickHouseWarehouse) -> None:
    write_job(warehouse, a_job(state="running", priority="low", metadata={"shadow": True}))
    write_job(warehouse, a_job("job-2", "completed"))
    write_attempt(warehouse, an_attempt(1, begun=True).ended("failed", NOW, failure_code="OOM", message="too large"))
    write_attempt(warehouse, an_attempt(2))
    code, said, _ = run("jobs")
    assert (code, len(said.splitlines())) == (0, 2)
    assert "running    low     manual" in said
    assert said.splitlines()[0].endswith("shadow")
    code, said, _ = run("jobs", "job-1")
    assert code == 0
    assert "Training job ID: job-1" in said
    assert "attempt 1 from the dataset: failed OOM  too large" in said
    assert "attempt 2 from the dataset: open" in said


@pytest.mark.usefixtures("environment")
def test_the_trainer_s_tool_asks_in_words(stream: JetStream, warehouse: ClickHouseWarehouse) -> None:
    for number in range(46):
        write_job(warehouse, a_job(f"job-{number}"))
    report, job_id = request_training(message=EXAMPLE).splitlines()
    assert report == "Initiating RL training job #47 with 10K samples"
    request = published(stream)
    assert (request["training_job_id"], request["requester"]) == (job_id, "rl-trainer-subordinate")
    with pytest.raises(UnclearSentence):
        request_training("Do what you think is best")


@pytest.mark.usefixtures("environment")
def test_the_trainer_s_tool_asks_even_if_nobody_can_tell_the_number(
    stream: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLICKHOUSE_URL", "http://127.0.0.1:9")
    report, job_id = request_training(EXAMPLE).splitlines()
    assert report == f"Initiating RL training job {job_id} with 10K samples"
    assert published(stream)["training_job_id"] == job_id
