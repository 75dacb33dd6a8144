"""What a tracker does, on an MLflow database file and a real MLflow server; and what MLflow must not do to others."""

import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from rl_pipeline.stores.mlflow_tracker import MLflowTracker
from rl_pipeline.stores.tracker import TrackedDataset, TrackerRefused, TrackerUnavailable
from rl_pipeline_tests.waiting import wait_until

START = datetime(2026, 3, 1, tzinfo=UTC)


@contextmanager
def _server(directory: Path, database: str) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [Path(sys.executable).with_name("mlflow"), "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--workers", "1", "--backend-store-uri", database]
    quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=directory, env=os.environ | quiet, stdout=log, stderr=log, start_new_session=True
        )

    def answers() -> bool:
        assert process.poll() is None, (directory / "log").read_text()
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).status == 200
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    try:
        wait_until(answers, "an answer from MLflow")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> MLflowTracker:
    return MLflowTracker(f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'new' / 'mlflow.db'}")


@pytest.fixture(scope="module", params=["sqlite", "http"])
def tracker(
    request: pytest.FixtureRequest, database: MLflowTracker, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MLflowTracker]:
    if request.param == "sqlite":
        yield database
    else:
        with _server(tmp_path_factory.mktemp("server"), database.uri) as uri:
            yield MLflowTracker(uri)


@pytest.fixture
def job() -> str:
    return f'it\'s "job" {uuid4()}'


def test_an_attempt_has_one_run_however_often_it_is_started(tracker: MLflowTracker, job: str) -> None:
    first = tracker.start_run(job, 1, {"dataset": "d.r1"})
    first.end("preempted")
    again = MLflowTracker(tracker.uri).start_run(job, 1, {"dataset": "d.r2"})
    other = tracker.start_run(job, 2)
    assert first.run_id == again.run_id != other.run_id
    stored = tracker._client.get_run(first.run_id)
    assert stored.info.status == "RUNNING"
    assert {name: stored.data.tags[name] for name in ("job_id", "attempt", "dataset")} == {
        "job_id": job,
        "attempt": "1",
        "dataset": "d.r2",
    }


def test_curves_are_stored_in_bulk_with_their_steps_and_times(tracker: MLflowTracker, job: str) -> None:
    run = tracker.start_run(job, 1)
    points = [
        ({"loss": 1 / step, "reward_mean": step / 10}, step, START + timedelta(seconds=step)) for step in range(1, 1201)
    ]
    run.log_metrics(points)
    run.log_metrics(points[:10])
    run.log_metrics([])
    for name, value in (("loss", 1 / 1200), ("reward_mean", 120.0)):
        history = sorted(tracker._client.get_metric_history(run.run_id, name), key=lambda point: point.step)
        assert [point.step for point in history] == list(range(1, 1201))
        assert history[-1].value == value
        assert history[-1].timestamp == 1000 * (START + timedelta(seconds=1200)).timestamp()


def test_a_figure_that_is_not_finite_does_not_cost_the_others(tracker: MLflowTracker, job: str) -> None:
    run = tracker.start_run(job, 1)
    run.log_metrics([({"loss": float("nan"), "kl": float("inf"), "entropy": 1.5}, 1, START)])
    assert tracker._client.get_run(run.run_id).data.metrics["entropy"] == 1.5


def test_parameters_and_the_dataset_are_found_with_the_run(tracker: MLflowTracker, job: str) -> None:
    run = tracker.start_run(job, 1)
    parameters = {f"parameter_{number}": number for number in range(150)}
    dataset = TrackedDataset("job.r1", "ab" * 32, "s3://datasets/job.r1/manifest.json", {"trajectories": 500})
    for _ in range(2):
        run.log_parameters({**parameters, "lora": None, "notes": "n" * 10_000})
        run.log_dataset(dataset)
    stored = tracker._client.get_run(run.run_id)
    assert len(stored.data.params) == 152
    assert (stored.data.params["parameter_7"], stored.data.params["lora"]) == ("7", "None")
    (entry,) = stored.inputs.dataset_inputs
    assert (entry.dataset.name, entry.dataset.digest) == ("job.r1", ("ab" * 32)[:36])
    assert "s3://datasets/job.r1/manifest.json" in entry.dataset.source


def test_a_parameter_that_changes_is_refused_in_one_line(tracker: MLflowTracker, job: str) -> None:
    run = tracker.start_run(job, 1)
    run.log_parameters({"seed": 1})
    with pytest.raises(TrackerRefused, match="Changing param values") as caught:
        run.log_parameters({"seed": 2})
    assert "\n" not in str(caught.value)


def test_a_run_ends_as_its_attempt_did(tracker: MLflowTracker, job: str) -> None:
    ends = {"completed": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}
    for number, (outcome, status) in enumerate(ends.items(), 1):
        run = tracker.start_run(job, number)
        run.end(outcome)  # type: ignore[arg-type]  # the keys above are outcomes
        assert tracker._client.get_run(run.run_id).info.status == status


def test_the_run_of_an_attempt_is_ended_by_another_process_and_none_is_made_for_that(
    tracker: MLflowTracker, job: str
) -> None:
    started = tracker.start_run(job, 1)
    ending = MLflowTracker(tracker.uri)
    for number in (1, 2):
        ending.end_run(job, number, "failed")
    stored = tracker._client.get_run(started.run_id)
    assert stored.info.status == "FAILED"
    runs = tracker._client.search_runs([stored.info.experiment_id])
    assert [run.info.run_id for run in runs if run.data.tags["job_id"] == job] == [started.run_id]


def test_people_get_an_address_where_there_are_pages_to_see(tracker: MLflowTracker, job: str) -> None:
    run = tracker.start_run(job, 1)
    page = f"#/experiments/{tracker._client.get_run(run.run_id).info.experiment_id}/runs/{run.run_id}"
    assert run.url == (None if tracker.uri.startswith("sqlite") else f"{tracker.uri}/{page}")
    shown = MLflowTracker(tracker.uri, pages="https://mlflow.example/ui/").start_run(job, 1)
    assert shown.url == f"https://mlflow.example/ui/{page}"


@pytest.mark.parametrize("url", ["s3://models/rl-checkpoints/job-1/final", "file:///var/models/job-1/final"])
def test_a_released_checkpoint_is_registered_once(tracker: MLflowTracker, job: str, url: str) -> None:
    model = f"policy-{uuid4()}"
    run = tracker.start_run(job, 1)
    version = tracker.register(model, url, run.run_id, {"manifest_sha256": "ab"})
    assert tracker.register(model, url, run.run_id) == version
    assert (version.url, version.run_id, version.tags["manifest_sha256"]) == (url, run.run_id, "ab")
    newer = tracker.register(model, f"{url}-2", run.run_id)
    assert (version.version, newer.version) == ("1", "2")


def test_an_alias_means_one_version_at_a_time(tracker: MLflowTracker, job: str) -> None:
    model = f"policy-{uuid4()}"
    assert tracker.find_alias(model, "candidate") is None
    run = tracker.start_run(job, 1)
    first, second = (tracker.register(model, f"s3://models/{number}/final", run.run_id) for number in (1, 2))
    assert tracker.find_alias(model, "candidate") is None
    for version in (first, second):
        tracker.set_alias(version, "candidate")
        assert tracker.find_alias(model, "candidate") == version
    tracker.set_alias(first, "shadow")
    assert (tracker.find_alias(model, "shadow"), tracker.find_alias(model, "candidate")) == (first, second)


def test_an_alias_is_taken_from_the_checkpoint_that_has_it_and_from_no_other(tracker: MLflowTracker, job: str) -> None:
    model = f"policy-{uuid4()}"
    tracker.remove_alias(model, "candidate", "s3://models/1/final")
    run = tracker.start_run(job, 1)
    version = tracker.register(model, "s3://models/1/final", run.run_id)
    for alias in ("candidate", "shadow"):
        tracker.set_alias(version, alias)
    tracker.remove_alias(model, "candidate", "s3://models/2/final")
    assert tracker.find_alias(model, "candidate") == version
    for _ in range(2):
        tracker.remove_alias(model, "candidate", "s3://models/1/final")
        assert (tracker.find_alias(model, "candidate"), tracker.find_alias(model, "shadow")) == (None, version)


def _log_forty(uri: str, number: int) -> None:
    run = MLflowTracker(uri).start_run("job", number)
    for step in range(40):
        run.log_metrics([({"loss": float(step)}, step, START)])


def test_processes_that_meet_in_a_new_database_lose_nothing(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    import mlflow.store.tracking.sqlalchemy_store  # noqa: F401  # before the fork: once is enough

    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_log_forty, args=(uri, number)) for number in (1, 2, 3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 3
    tracker = MLflowTracker(uri)
    for number in (1, 2, 3):
        assert len(tracker._client.get_metric_history(tracker.start_run("job", number).run_id, "loss")) == 40


@pytest.mark.parametrize("uri", ["http://user:hunter2@127.0.0.1:9", "sqlite:////proc/nowhere/mlflow.db"])
def test_a_tracker_that_is_not_there_is_named_without_its_password(uri: str) -> None:
    with pytest.raises(TrackerUnavailable, match=r"does not answer .*MLFLOW_TRACKING_URI") as caught:
        MLflowTracker(uri).start_run("job", 1)
    assert "hunter2" not in str(caught.value)
    assert "\n" not in str(caught.value)


QUIET = """
import sys
from rl_pipeline.stores.mlflow_tracker import MLflowTracker
tracker = MLflowTracker(sys.argv[1])
assert "mlflow" not in sys.modules
run = tracker.start_run("job", 1)
tracker.register("policy", "file:///model", run.run_id)
run.end("completed")
from mlflow.telemetry import get_telemetry_client
assert get_telemetry_client() is None
"""


def test_mlflow_says_nothing_tells_nobody_and_leaves_nothing_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    command = [sys.executable, "-c", QUIET, f"sqlite:///{tmp_path / 'mlflow.db'}"]
    outcome = subprocess.run(command, cwd=tmp_path / "here", capture_output=True, text=True, check=False)
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, "", "")
    assert list((tmp_path / "here").iterdir()) == []
