"""What making a job's dataset leaves behind, as Dagster shows it and as the job's next step depends on it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from rl_pipeline.assets.curated_datasets import curated_datasets
from rl_pipeline.assets.trajectory_rewards import trajectory_rewards
from rl_pipeline.curation.datasets import manifest_of, newest_dataset
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.partitions import training_jobs
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.training.jobs.advancing import TRAINING_LEASE
from rl_pipeline.training.jobs.job import Attempt
from rl_pipeline_tests.training.stored_training import (
    NOWHERE,
    TrainingPlace,
    recorded_episodes,
    scored_database,
    without_jobs,
)

trained_on: list[str] = []


@dg.asset(deps=["curated_datasets"], partitions_def=training_jobs)
def whatever_learns_from_it(context: dg.AssetExecutionContext) -> None:
    trained_on.append(context.partition_key)


@pytest.fixture(scope="module")
def scored(nats_server: NatsServer, clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with scored_database(nats_server.url, clickhouse_url, recorded_episodes(30, 2)) as tables:
        yield tables


@pytest.fixture
def place(scored: ClickHouseWarehouse, stream: JetStream, nats_server: NatsServer, tmp_path: Path) -> TrainingPlace:
    trained_on.clear()
    return TrainingPlace(stream, without_jobs(scored), nats_server.url, tmp_path)


@pytest.fixture
def resources(place: TrainingPlace, clickhouse_url: str) -> dict[str, Any]:
    return place.resources(clickhouse_url)


def materialize(resources: dict[str, Any], job_id: str, attempt: Attempt | None = None) -> dg.ExecuteInProcessResult:
    """The run that is started for an attempt, or by a person."""
    with dg.DagsterInstance.ephemeral() as instance:
        instance.add_dynamic_partitions("training_jobs", [job_id])
        return dg.materialize(
            [trajectory_rewards, curated_datasets, whatever_learns_from_it],
            selection=dg.AssetSelection.assets(curated_datasets, whatever_learns_from_it),
            partition_key=job_id,
            tags=attempt.tags if attempt else {},
            resources=resources,
            instance=instance,
            raise_on_error=False,
        )


def failure_of(result: dg.ExecuteInProcessResult) -> str:
    [event] = [event for event in result.all_events if event.is_step_failure]
    error = event.step_failure_data.error
    return f"{error.message} {error.cause.message if error and error.cause else ''}" if error else ""


def verdicts(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {evaluation.check_name: evaluation.passed for evaluation in result.get_asset_check_evaluations()}


def test_a_job_gets_its_dataset_and_people_see_what_is_in_it(place: TrainingPlace, resources: dict[str, Any]) -> None:
    place.ask("job")
    attempt = place.started()
    result = materialize(resources, "job", attempt)
    assert result.success
    assert set(verdicts(result).values()) == {True}
    assert trained_on == ["job"]
    [event] = result.asset_materializations_for_node("curated_datasets")
    shown = {label: value.value for label, value in event.metadata.items()}
    stored = newest_dataset(place.tables, "job")
    assert (
        (shown["dataset"], shown["manifest_hash"])
        == (stored.dataset_id, stored.manifest_hash)
        == (
            "job.r1",
            manifest_of(place.datasets, "job.r1").hash,
        )
    )
    assert shown["dagster/row_count"] == stored.trajectories == shown["train"] + shown["holdout"]
    assert shown["holdout"] > 0
    assert shown["environments"] == "crafting"
    assert "conversations.parquet" in shown["files"]
    assert "general" in shown["domains"]
    [begun] = place.attempts("job")
    assert (begun.number, begun.run_id, begun.is_open) == (attempt.number, result.run_id, True)


def test_a_domain_that_is_missing_is_shown_and_stops_nothing(place: TrainingPlace, resources: dict[str, Any]) -> None:
    place.ask("job", domains=("general", "coding"))
    result = materialize(resources, "job", place.started())
    assert result.success
    assert [name for name, passed in verdicts(result).items() if not passed] == ["every_domain_is_present"]
    assert trained_on == ["job"]


def test_an_empty_dataset_stops_the_run_is_made_once_more_and_then_given_up(
    place: TrainingPlace, resources: dict[str, Any]
) -> None:
    place.ask("job", domains=("coding",))
    for number in (1, 2):
        attempt = place.started()
        assert (attempt.number, attempt.starts_from) == (number, "dataset")
        result = materialize(resources, "job", attempt)
        assert not result.success
        assert not verdicts(result)["the_dataset_is_not_empty"]
        ended = place.attempts("job")[-1]
        assert (ended.outcome, ended.failure_code) == ("failed", "DATA")
        assert "0 of 60 trajectories kept; left out: 60 other_domain" in ended.message
    place.look()
    assert trained_on == []
    assert newest_dataset(place.tables, "job").dataset_id == "job.r2"
    told = place.statuses("job")
    assert [status.status for status in told] == ["queued", "queued", "failed"]
    assert [status.error and status.error.code for status in told] == [None, "DATA", "DATA"]


def test_nothing_is_launched_where_there_is_nothing_to_compare(place: TrainingPlace, resources: dict[str, Any]) -> None:
    place.ask("job", algorithm="dpo", filters={"pair_margin": 1.0})
    result = materialize(resources, "job", place.started())
    assert not result.success
    assert trained_on == []
    assert not verdicts(result)["there_are_pairs_to_learn_from"]
    [ended] = place.attempts("job")
    assert (ended.outcome, ended.failure_code) == ("failed", "DATA")
    assert "try requests more than once" in ended.message


def test_a_store_that_is_away_is_tried_again_later(
    place: TrainingPlace, clickhouse_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)  # which remembers the credentials that it found first
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tests")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tests")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    away = place.resources(clickhouse_url, objects_url="s3://datasets", objects_endpoint_url=NOWHERE)
    place.ask("job")
    assert not materialize(away, "job", place.started()).success
    [ended] = place.attempts("job")
    assert (ended.outcome, ended.failure_code) == ("failed", "INFRA")
    place.look()
    assert place.attempts("job")[-1].starts_from == "dataset"


def test_a_partition_that_nobody_asked_for_says_how_to_ask(resources: dict[str, Any]) -> None:
    assert "rl-pipeline train" in failure_of(materialize(resources, "nobody"))


def test_a_job_whose_turn_it_is_not_is_left_alone(place: TrainingPlace, resources: dict[str, Any]) -> None:
    place.ask("first")
    place.ask("second")
    assert place.started().job_id == "first"
    assert "its runs are started for it when it is its turn" in failure_of(materialize(resources, "second"))
    [waiting] = place.attempts("second")
    assert (waiting.has_begun, waiting.is_open) == (False, True)


def test_a_person_who_starts_a_run_of_a_job_that_runs_is_told_what_to_do_and_disturbs_nothing(
    place: TrainingPlace, resources: dict[str, Any]
) -> None:
    place.ask("job")
    place.started()
    assert "ask for another job with `rl-pipeline train`" in failure_of(materialize(resources, "job"))
    [waiting] = place.attempts("job")
    assert (waiting.has_begun, waiting.is_open) == (False, True)


def test_a_dataset_is_made_under_the_lease_of_the_training(place: TrainingPlace, resources: dict[str, Any]) -> None:
    place.ask("job")
    attempt = place.started()
    assert JetStreamLeases(place.messages).acquire(TRAINING_LEASE, "another#1#run", 60)
    assert "another#1#run holds the lease" in failure_of(materialize(resources, "job", attempt))
    assert trained_on == []
