"""Files that a request names: they become messages like all others, and their job waits for them, or fails."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.automation.imports import import_trajectories
from rl_pipeline.contracts import serialize
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.resources.training import TrainingResource
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.training.jobs.advancing import import_lease
from rl_pipeline_tests.fixtures.ingest import changed
from rl_pipeline_tests.fixtures.s3 import S3Server
from rl_pipeline_tests.training.job_tables import emptied, migrated_database
from rl_pipeline_tests.training.stored_training import NOWHERE, TrainingPlace, recorded_episodes

EPISODES = recorded_episodes(3, 2)
LINES = b"\n".join(serialize(one) for one in EPISODES)


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def place(tables: ClickHouseWarehouse, stream: JetStream, nats_server: NatsServer, tmp_path: Path) -> TrainingPlace:
    (tmp_path / "imports").mkdir()
    return TrainingPlace(stream, emptied(tables), nats_server.url, tmp_path)


@pytest.fixture
def resources(place: TrainingPlace, clickhouse_url: str) -> dict[str, Any]:
    return place.resources(clickhouse_url)


def ask(place: TrainingPlace, path: str) -> None:
    place.ask("job", source={"source": "s3" if path.startswith("s3:") else "local", "path": path})
    assert [job.request.training_config.dataset.path for job in place.look().imports] == [path]


def imported(resources: dict[str, Any], path: str) -> bool:
    """Whether the run that reads the job's files succeeds."""
    config = {"import_files": {"config": {"job_id": "job", "path": path}}}
    needed = {name: resources[name] for name in ("stream", "warehouse", "ingest", "training")}
    run = import_trajectories.execute_in_process(run_config={"ops": config}, resources=needed, raise_on_error=False)
    return run.success


def allowing(resources: dict[str, Any], *places: str) -> dict[str, Any]:
    """The same resources, of which the training may import from these places."""
    present = {name: getattr(resources["training"], name) for name in TrainingResource.model_fields}
    return {**resources, "training": TrainingResource(**{**present, "import_prefixes": list(places)})}


def ids(place: TrainingPlace) -> set[str]:
    rows = place.tables.query("SELECT trajectory_id FROM imported_trajectories WHERE job_id = 'job'")
    return set(rows["trajectory_id"])


def test_a_job_waits_until_the_trajectories_of_its_files_are_ingested(
    place: TrainingPlace, resources: dict[str, Any]
) -> None:
    (place.directory / "imports" / "episodes.jsonl").write_bytes(LINES)
    ask(place, "episodes.jsonl")
    assert imported(resources, "episodes.jsonl")
    assert place.messages.state("RL_TRAJECTORIES").messages == len(EPISODES)
    assert ids(place) == {one.trajectory_id for one in EPISODES}
    job = place.job("job")
    assert (job.state, job.through_sequence) == ("waiting", len(EPISODES))
    assert place.look().starts == [], "nothing of it is ingested"


def test_an_import_holds_its_lease_while_it_reads(
    place: TrainingPlace, resources: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []

    def files(*_: Any) -> Iterator[tuple[str, bytes]]:
        held.append(JetStreamLeases(place.messages).holder(import_lease("job")))
        yield "episodes.jsonl", LINES

    monkeypatch.setattr("rl_pipeline.automation.imports.files_below", files)
    ask(place, "episodes.jsonl")
    assert imported(resources, "episodes.jsonl")
    assert held != [None]
    assert JetStreamLeases(place.messages).holder(import_lease("job")) is None


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("missing.jsonl", "there is no 'missing.jsonl' in the directory of imports"),
        ("../outside.jsonl", "there is no '../outside.jsonl' in the directory of imports"),
        ("n" * 300, "in the directory of imports"),
        ("broken.jsonl", "broken.jsonl, line 1: is no JSON object"),
        ("s3://no bucket/", "is no object store"),
    ],
)
def test_what_cannot_be_imported_fails_the_job_with_the_reason_and_is_not_tried_again(
    place: TrainingPlace, resources: dict[str, Any], path: str, reason: str
) -> None:
    (place.directory / "outside.jsonl").write_bytes(LINES)
    (place.directory / "imports" / "broken.jsonl").write_text("root:x:0:0\n")
    ask(place, path)
    assert not imported(resources, path)
    assert place.job("job").state == "failed"
    status = place.statuses("job")[-1]
    assert status.error is not None
    assert (status.status, status.error.code) == ("failed", "DATA")
    assert reason in str(status.error.message)
    assert place.look().imports == []
    assert place.messages.state("RL_TRAJECTORIES").messages == 0


def test_what_breaks_the_contract_is_counted_and_the_rest_is_imported(
    place: TrainingPlace, resources: dict[str, Any]
) -> None:
    (place.directory / "imports" / "episodes.jsonl").write_bytes(LINES + b'\n{"trajectory_id": "no-uuid"}')
    ask(place, "episodes.jsonl")
    config = {"import_files": {"config": {"job_id": "job", "path": "episodes.jsonl"}}}
    needed = {name: resources[name] for name in ("stream", "warehouse", "ingest", "training")}
    run = import_trajectories.execute_in_process(run_config={"ops": config}, resources=needed)
    [output] = [event.step_output_data for event in run.all_events if event.is_successful_output]
    told = {label: value.value for label, value in output.metadata.items()}
    assert told == {"files": 1, "published": len(EPISODES), "repeated": 0, "erased": 0, "refused": 1}
    assert place.job("job").state == "waiting"


@pytest.fixture
def bucket(s3_server: S3Server, s3_client: Any, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of a bucket with two months of files, to which boto3 finds the credentials."""
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)  # which remembers the credentials that it found first
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_server.secret_key)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3_client.put_object(Bucket=s3_bucket, Key="march/episodes.jsonl", Body=LINES)
    s3_client.put_object(Bucket=s3_bucket, Key="april/others.jsonl", Body=b"not read")
    return f"s3://{s3_bucket}"


def test_files_of_a_bucket_are_imported_and_one_that_is_away_is_tried_again(
    place: TrainingPlace, resources: dict[str, Any], s3_server: S3Server, bucket: str
) -> None:
    path = f"{bucket}/march"
    resources = allowing(resources, "s3://another-bucket", f"{bucket}/march/")
    ask(place, path)
    assert not imported(changed(resources, objects_endpoint_url=NOWHERE), path)
    assert place.job("job").state == "importing"
    assert len(place.look().imports) == 1
    assert imported(changed(resources, objects_endpoint_url=s3_server.endpoint_url), path)
    assert ids(place) == {one.trajectory_id for one in EPISODES}
    assert place.job("job").state == "waiting"


@pytest.mark.parametrize("allowed", [(), ("/april",), ("/mar",), ("/march/episodes.jsonl",)])
def test_files_of_a_place_that_is_not_allowed_are_not_read(
    place: TrainingPlace, resources: dict[str, Any], s3_server: S3Server, bucket: str, allowed: tuple[str, ...]
) -> None:
    path = f"{bucket}/march"
    ask(place, path)
    reachable = changed(resources, objects_endpoint_url=s3_server.endpoint_url)
    assert not imported(allowing(reachable, *(f"{bucket}{each}" for each in allowed)), path)
    assert (place.job("job").state, ids(place)) == ("failed", set())
    assert "TRAINING_IMPORT_PREFIXES" in place.job("job").explanation


def test_a_job_that_was_cancelled_meanwhile_stays_cancelled(place: TrainingPlace, resources: dict[str, Any]) -> None:
    (place.directory / "imports" / "episodes.jsonl").write_bytes(LINES)
    ask(place, "episodes.jsonl")
    place.cancel("job")
    place.look()
    assert imported(resources, "episodes.jsonl")
    assert place.job("job").state == "cancelled"
