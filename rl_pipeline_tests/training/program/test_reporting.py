"""How a training tells of itself: the file first, everyone else in their own time and at their own risk."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import pairwise
from pathlib import Path

import pytest

from rl_pipeline.contracts import TrainingStatus, parse_message
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.mlflow_tracker import MLflowTracker
from rl_pipeline.stores.stream import StreamUnavailable
from rl_pipeline.stores.tracker import TrackedDataset
from rl_pipeline.training.launching.exits import Exit
from rl_pipeline.training.program.listeners import LogLines, Outbox, StatusMessages, TrackedFigures
from rl_pipeline.training.program.reporting import Line, Reporter, beat_while_bytes_move
from rl_pipeline_tests.training.tiny_jobs import lay_out, plan_of, result, write_tiny_model
from rl_pipeline_tests.training.warm_program import log_of, run
from rl_pipeline_tests.waiting import wait_until

SUBJECT = "agent.rl.training.status.v1"
DATASET = TrackedDataset("dataset-1", "a" * 64, "dataset-1", {"trajectories": 3})


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def lines_of(file: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_line_is_on_disk_at_once_with_its_place_and_its_figures(tmp_path: Path) -> None:
    file, clock = tmp_path / "progress.jsonl", Clock()
    reporter = Reporter(file, clock=clock)
    reporter.phase("loading")
    reporter.phase("training")
    for step in (1, 2, 3):
        clock.now += 2
        reporter.step(step, 10, step / 5, 2.0)
        reporter.log({"loss": 0.5 / step, "entropy": 1.5, "tokens": 100 * step, "grad_norm": float("inf")})
    loading, training, *steps = lines_of(file)
    assert (loading["phase"], training["phase"]) == ("loading", "training")
    last = steps[-1]
    assert (last["step"], last["total_steps"], last["epoch"], last["total_epochs"]) == (3, 10, 1, 2)
    assert (last["policy_entropy"], last["tokens_per_second"], last["eta_seconds"]) == (1.5, 50.0, 14.0)
    assert "grad_norm" not in last
    assert reporter.step_reached == 3


def test_steps_without_figures_leave_a_sign_of_life_every_second(tmp_path: Path) -> None:
    file, clock = tmp_path / "progress.jsonl", Clock()
    reporter = Reporter(file, clock=clock)
    reporter.phase("training")
    for step in range(1, 101):
        clock.now += 0.1
        reporter.step(step, 100, None, 1)
    steps = [line["step"] for line in lines_of(file) if "step" in line]
    assert len(steps) == 10
    assert steps == sorted(steps)


def test_large_files_leave_signs_of_life_while_their_bytes_move(tmp_path: Path) -> None:
    file, files = tmp_path / "progress.jsonl", tmp_path / "saving"
    files.mkdir()
    reporter = Reporter(file)
    reporter.phase("saving")
    with reporter.while_bytes_move(files), (files / "weights").open("wb") as weights:

        def written() -> bool:
            weights.write(bytes(2_000_000))
            return len(lines_of(file)) > 2

        wait_until(written, "a sign of life")


def test_a_disk_that_stands_still_leaves_no_sign_of_life(tmp_path: Path) -> None:
    ticks = iter([False, False, True])
    beat_while_bytes_move(lambda: pytest.fail("nothing was read or written"), tmp_path, lambda _: next(ticks))


def test_playing_between_steps_is_no_news(tmp_path: Path) -> None:
    heard: list[str] = []
    reporter = Reporter(tmp_path / "progress.jsonl", [LogLines(heard.append)])
    reporter.phase("training")
    for step in (1, 2, 3):
        reporter.phase("playing")
        reporter.phase("training")
        reporter.step(step, 3, None, 1)
    assert heard == ["training"]


def test_a_note_is_on_disk_and_told_to_people(tmp_path: Path) -> None:
    heard: list[str] = []
    reporter = Reporter(tmp_path / "progress.jsonl", [LogLines(heard.append)])
    reporter.note("its optimizer begins anew")
    reporter.phase("training")
    assert heard == ["its optimizer begins anew", "training"]
    assert [line.get("note") for line in lines_of(tmp_path / "progress.jsonl")] == [heard[0], None]


def test_only_the_first_process_reports(tmp_path: Path) -> None:
    silent = Reporter(None, [LogLines(pytest.fail)])
    silent.phase("training")
    silent.step(1, 2, 0.5, 1)
    silent.log({"loss": 1.0})
    silent.close("completed")
    assert silent.step_reached == 1


def test_a_listener_that_fails_hears_no_more_and_the_others_do(tmp_path: Path) -> None:
    heard: list[str] = []

    def fall_over(_: str) -> None:
        raise RuntimeError("gone")

    reporter = Reporter(tmp_path / "progress.jsonl", [LogLines(fall_over), LogLines(heard.append)])
    reporter.phase("training")
    reporter.step(1, 2, 0.5, 1)
    reporter.log({"loss": 1.0, "reward_mean": 0.25})
    reporter.measured("final", {"success_sampled": 0.5})
    reporter.close("completed")
    assert heard == ["training", "step 1 of 2: loss 1, reward_mean 0.25", "final/success_sampled 0.5", "completed"]


def test_people_hear_of_each_percent_once() -> None:
    heard: list[str] = []
    lines = LogLines(heard.append)
    for step in range(1, 5_001):
        lines.hear({"phase": "training", "step": step, "total_steps": 5_000}, {"loss": 1 / step})
    assert len(heard) == 101
    assert heard[-1] == "step 5000 of 5000: loss 0.0002"


def told(plan_steps: int, seconds_per_step: float, stream: JetStream) -> list[TrainingStatus]:
    """The messages of a training of so many steps."""
    clock = Clock()
    plan = plan_of()

    @contextmanager
    def connected() -> Iterator[JetStream]:
        yield stream

    messages = StatusMessages(plan, connected, clock)
    for step in range(1, plan_steps + 1):
        clock.now += seconds_per_step
        line: Line = {"phase": "training", "step": step, "total_steps": plan_steps, "epoch": 1, "total_epochs": 3}
        reward = 0.9 if step == plan_steps // 2 else 0.5
        messages.hear({**line, "eta_seconds": 5.0}, {"loss": 1 / step, "kl_divergence": -0.01, "reward_mean": reward})
        for phase in ("saving", "playing"):
            messages.hear({**line, "phase": phase}, {})
    messages.hear({"phase": "evaluation", "step": plan_steps, "total_steps": plan_steps}, {})
    messages.close("completed")
    return stored_statuses(stream)


def stored_statuses(stream: JetStream) -> list[TrainingStatus]:
    stored = [message for batch in stream.read("RL_TRAINING", 1, 10**6, 100) for message in batch]
    return [parse_message(SUBJECT, message.data) for message in stored]  # type: ignore[misc]  # of one subject


def test_a_job_says_each_percent_once_in_messages_of_the_contract(stream: JetStream) -> None:
    statuses = told(plan_steps=5_000, seconds_per_step=5, stream=stream)
    assert 100 <= len(statuses) < 110
    last = statuses[-2]
    assert (last.training_job_id, last.status) == ("job-1", "running")
    assert last.progress is not None
    assert (last.progress.percent_complete, last.progress.total_epochs, last.progress.eta_seconds) == (100, 3, 5)
    assert last.metrics is not None
    assert last.metrics.current is not None
    assert last.metrics.current.loss == pytest.approx(1 / 5_000)
    assert last.metrics.best is not None
    assert (last.metrics.best.step, last.metrics.best.reward_mean) == (2_500, 0.9)
    assert last.metadata is not None
    assert last.metadata.attempt == 1


def test_a_training_whose_percent_takes_hours_is_heard_of_every_five_minutes(stream: JetStream) -> None:
    statuses = told(plan_steps=1_000, seconds_per_step=60, stream=stream)
    steps = [status.progress.current_step or 0 for status in statuses if status.progress]
    assert max(later - earlier for earlier, later in pairwise(steps)) == 5, "a percent takes ten of these minutes"
    assert len(steps) < 1_000 / 5 + 10


def test_an_iteration_that_plays_for_an_hour_is_heard_of_every_five_minutes(stream: JetStream) -> None:
    clock, plan = Clock(), plan_of()
    messages = StatusMessages(plan, lambda: nullcontext(stream), clock)
    place: Line = {"step": 3, "total_steps": 100}
    messages.hear({"phase": "playing", **place}, {})
    messages.hear({"phase": "training", **place}, {})
    for _ in range(60):
        clock.now += 60
        messages.hear({"phase": "playing", **place}, {})
    clock.now += 60
    messages.hear({"phase": "training", **place}, {})
    messages.close("completed")
    phases = [status.metadata.phase for status in stored_statuses(stream) if status.metadata]  # type: ignore[attr-defined]
    assert phases == ["training", *["playing"] * 12], "to go on as before is no news"


def test_no_two_messages_are_in_a_hurry(stream: JetStream) -> None:
    statuses = told(plan_steps=50, seconds_per_step=0.1, stream=stream)
    assert len(statuses) == 4, "one at once, one every two seconds, and one for the new phase"


class Flaky:
    """A receiver that is away for its first two calls."""

    def __init__(self) -> None:
        self.received: list[int] = []
        self.attempts = 0

    @contextmanager
    def __call__(self) -> Iterator[Callable[[Sequence[int]], None]]:
        self.attempts += 1
        if self.attempts <= 2:
            raise StreamUnavailable("away")
        yield self.received.extend


def test_what_could_not_be_delivered_is_delivered_later_and_the_outage_is_named_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    receiver = Flaky()
    outbox = Outbox("somebody", receiver, retry_seconds=0.01)
    for item in range(5):
        outbox.put(item)
    wait_until(lambda: len(receiver.received) == 5)
    outbox.put(5)
    outbox.close()
    assert receiver.received == [0, 1, 2, 3, 4, 5]
    assert caplog.text.count("somebody does not answer (StreamUnavailable)") == 1


def test_a_receiver_that_never_answers_holds_nobody_up() -> None:
    asked = threading.Event()

    @contextmanager
    def stuck() -> Iterator[Callable[[Sequence[int]], None]]:
        asked.set()
        threading.Event().wait()
        yield list

    outbox: Outbox[int] = Outbox("somebody", stuck)
    for item in range(20_000):
        outbox.put(item)
    assert asked.wait(60)
    outbox.close(patience_seconds=0.01)


@pytest.fixture(scope="module")
def mlflow_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database that is made once: that takes MLflow seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


def test_the_tracker_gets_the_plan_the_dataset_and_the_curves(tmp_path: Path, mlflow_uri: str) -> None:
    tracker = MLflowTracker(mlflow_uri)
    figures = TrackedFigures(plan_of(job_id="job-2"), lambda: DATASET, tracker)
    reporter = Reporter(tmp_path / "progress.jsonl", [figures])
    for step in range(1, 4):
        reporter.step(step, 3, 1.0, 1)
        reporter.log({"loss": 1 / step, "rewards/accuracies": 0.5})
    reporter.close("failed")
    run_id = tracker.start_run("job-2", 1).run_id
    from mlflow import MlflowClient

    client = MlflowClient(mlflow_uri)
    stored = client.get_run(run_id)
    assert stored.data.params["optimization.learning_rate"] == "0.001"
    assert stored.data.tags["dataset"] == "a" * 64
    assert [dataset.dataset.name for dataset in stored.inputs.dataset_inputs] == ["dataset-1"]
    assert [(point.step, point.value) for point in client.get_metric_history(run_id, "loss")] == [
        (1, 1.0),
        (2, 0.5),
        (3, pytest.approx(1 / 3)),
    ]
    assert "rewards/accuracies" in stored.data.metrics


def test_the_program_itself_tells_nats_and_mlflow(
    tmp_path: Path, stream: JetStream, nats_server: NatsServer, mlflow_uri: str
) -> None:
    write_tiny_model(tmp_path / "model")
    manifest = "s3://datasets/dataset-1/manifest.json"
    work = lay_out(tmp_path / "job", tmp_path / "model", plan_of(dataset_url=manifest))
    assert run(work, NATS_URL=nats_server.url, MLFLOW_TRACKING_URI=mlflow_uri) == Exit.DONE, log_of(work)
    stored = [message for batch in stream.read("RL_TRAINING", 1, 100, 100) for message in batch]
    assert len(stored) >= 1
    assert all(parse_message(SUBJECT, message.data).status == "running" for message in stored)  # type: ignore[union-attr]
    from mlflow import MlflowClient

    client = MlflowClient(mlflow_uri)
    experiment = client.get_experiment_by_name("rl_pipeline").experiment_id
    [tracked] = client.search_runs([experiment], "tags.job_id = 'job-1'")
    assert tracked.info.status == "FINISHED"
    assert [json.loads(each.dataset.source) for each in tracked.inputs.dataset_inputs] == [{"uri": manifest}]
    history = client.get_metric_history(tracked.info.run_id, "loss")
    assert [point.value for point in history] == pytest.approx([loss for _, loss in result(work)["curves"]["loss"]])
    assert tracked.data.metrics["final/holdout_loss"] == pytest.approx(result(work)["final"]["holdout_loss"])
