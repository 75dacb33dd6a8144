"""What becomes of a training that has come to its end: who finds its checkpoint, and under which name."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.stores.mlflow_tracker import MLflowTracker
from rl_pipeline.stores.objects import StoredObject
from rl_pipeline.stores.topology import LEASES
from rl_pipeline.training.attempting import FinishedTraining, TrainingFailed, TrainingStopped
from rl_pipeline.training.checkpoints.manifest import MANIFEST
from rl_pipeline.training.checkpoints.model_card import MODEL_CARD, CardDataset
from rl_pipeline.training.checkpoints.releasing import ReleasedCheckpoint, download_checkpoint
from rl_pipeline.training.checkpoints.retention import prune_released
from rl_pipeline.training.checkpoints.signing import PublicKeys, new_signing_key
from rl_pipeline.training.checkpoints.storage import verify
from rl_pipeline.training.delivering import AGENT, NobodySigns, describe, record, register, result_of, store, withdraw
from rl_pipeline.training.jobs.advancing import TRAINING_LEASE
from rl_pipeline.training.jobs.job import Job
from rl_pipeline.training.jobs.statuses import completed
from rl_pipeline.training.plans.plan import DistributionPlan, TrainingPlan
from rl_pipeline.training.site import TrainingSite
from rl_pipeline.training.work_directory import WorkDirectory
from rl_pipeline_tests.training.broken_deliveries import AnswersTooLate, plan_of, undelivered
from rl_pipeline_tests.training.job_values import a_job, an_attempt
from rl_pipeline_tests.training.stored_training import (
    NOWHERE,
    TrainingPlace,
    leave_trained,
    recorded_episodes,
    scored_database,
    without_jobs,
)

KEY = new_signing_key()
CARD = CardDataset("job.r1", "0" * 64, "file:///datasets/job.r1/manifest.json", 10, 2)


def measured(measure: str, key: str, reached: float | None, base: float | None = None) -> dict[str, Any]:
    base = base if base is not None else 0.9 if key == "holdout_loss" else 0.05
    final = {} if reached is None else {key: reached}
    gain = None if reached is None else (base - reached if key == "holdout_loss" else reached - base)
    return {"measure": measure, "base": {key: base}, "final": final, "improvement": gain}


class Deliveries:
    """Trainings that are delivered one after the other."""

    def __init__(self, tables: ClickHouseWarehouse, directory: Path) -> None:
        self.tables = tables
        self.objects = DiskObjects(directory / "released")
        self._directory = directory

    def finished(self, job_id: str, **result: Any) -> FinishedTraining:
        plan = plan_of(job_id, base_model=result.pop("base_model", "small"))
        return leave_trained(WorkDirectory(self._directory / job_id, 1), plan, **result)

    def deliver(self, job_id: str, *, shadow: bool = False, **result: Any) -> FinishedTraining:
        finished = self.finished(job_id, **result)
        self.record(finished, a_job(job_id, metadata={"shadow": shadow}))
        return finished

    def record(self, finished: FinishedTraining, job: Job) -> ReleasedCheckpoint:
        released = store(finished, job, self.objects, KEY)
        record(self.tables, finished, job, f"{job.job_id}.r1", released)
        return released

    def best(self) -> list[str]:
        rows = self.tables.query("SELECT job_id FROM model_checkpoints FINAL WHERE is_best ORDER BY job_id")
        return list(rows["job_id"])


@pytest.fixture(scope="module")
def scored(nats_server: NatsServer, clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with scored_database(nats_server.url, clickhouse_url, recorded_episodes(12, 1)) as tables:
        yield tables


@pytest.fixture
def deliveries(scored: ClickHouseWarehouse, tmp_path: Path) -> Deliveries:
    return Deliveries(without_jobs(scored), tmp_path)


def test_what_people_read_lies_beside_the_weights_and_is_the_same_whenever_it_is_written(
    deliveries: Deliveries,
) -> None:
    finished = deliveries.finished("job", **measured("success", "success_sampled", 0.6), curves={"loss": [[1, 0.5]]})
    lineage = {"training job": "job", "attempt": "1"}
    picture = describe(finished, CARD, lineage)
    files = verify(finished.work.final).files
    assert set(files) == {"model.safetensors", MODEL_CARD, "curves.png", "training_plan.json"}
    assert (finished.work.final / "curves.png").read_bytes() == picture
    assert TrainingPlan.model_validate_json((finished.work.final / "training_plan.json").read_bytes()) == finished.plan
    assert "0.6" in (finished.work.final / MODEL_CARD).read_text()
    manifest = (finished.work.final / MANIFEST).read_bytes()
    describe(finished, CARD, lineage)
    assert (finished.work.final / MANIFEST).read_bytes() == manifest


def test_a_stored_checkpoint_is_signed_and_may_be_stored_again(deliveries: Deliveries, tmp_path: Path) -> None:
    finished = deliveries.finished("job")
    with pytest.raises(NobodySigns, match="CHECKPOINT_SIGNING_KEY"):
        store(finished, a_job("job"), deliveries.objects, None)
    assert list(deliveries.objects.list()) == []
    released = [store(finished, a_job("job"), deliveries.objects, KEY) for _ in range(2)]
    assert released[0] == released[1]
    fetched = download_checkpoint(
        *(deliveries.objects, "job/final", tmp_path / "fetched", PublicKeys.parse(KEY.public_text())),
        manifest_sha256=released[0].manifest_sha256,
    )
    assert fetched.meta.job_id == "job"


def test_the_row_of_a_checkpoint_says_what_it_is_and_what_it_was_made_of(deliveries: Deliveries) -> None:
    finished = deliveries.finished("job", **measured("success", "success_sampled", 0.6))
    for _ in range(2):
        released = deliveries.record(finished, a_job("job"))
    [row] = deliveries.tables.query("SELECT * FROM model_checkpoints FINAL").to_dicts()
    assert (row["id"], row["job_id"], row["attempt"], row["dataset_id"]) == ("job/final", "job", 1, "job.r1")
    assert (row["checkpoint_path"], row["manifest_sha256"]) == (released.url, released.manifest_sha256)
    assert (row["base_model"], row["algorithm"], row["training_iteration"]) == ("small", "dpo", 5)
    assert (row["is_best"], row["deployed"], row["shadow"], row["key_id"]) == (True, False, False, KEY.key_id)
    assert '"success_sampled": 0.6' in row["performance_metrics"]
    lineage = deliveries.tables.query("SELECT checkpoint_id, dataset_id FROM checkpoint_datasets FINAL").rows()
    assert lineage == [("job/final", "job.r1")]


@pytest.mark.parametrize(
    ("measure", "key", "good", "better"),
    [
        ("success", "success_sampled", 0.5, 0.7),
        ("preference_accuracy", "preference_accuracy", 0.5, 0.7),
        ("holdout_loss", "holdout_loss", 0.7, 0.5),
        ("reward", "reward_mean", 0.5, 0.7),
    ],
)
def test_the_best_checkpoint_is_marked_and_the_earlier_best_no_longer_is(
    deliveries: Deliveries, measure: str, key: str, good: float, better: float
) -> None:
    deliveries.deliver("first", **measured(measure, key, good))
    assert deliveries.best() == ["first"]
    deliveries.deliver("second", **measured(measure, key, better))
    assert deliveries.best() == ["second"]
    deliveries.deliver("third", **measured(measure, key, good))
    deliveries.deliver("equal", **measured(measure, key, better))
    assert deliveries.best() == ["second"]


def test_the_best_is_the_one_that_gained_most_whatever_its_tasks_were(deliveries: Deliveries) -> None:
    deliveries.deliver("hard-tasks", **measured("success", "success_sampled", 0.5, base=0.1))
    deliveries.deliver("easy-tasks", **measured("success", "success_sampled", 0.9, base=0.8))
    assert deliveries.best() == ["hard-tasks"]


def test_each_base_and_each_measure_has_a_best_of_its_own(deliveries: Deliveries) -> None:
    deliveries.deliver("a", **measured("success", "success_sampled", 0.9))
    deliveries.deliver("b", **measured("holdout_loss", "holdout_loss", 0.4))
    deliveries.deliver("c", base_model="large", **measured("success", "success_sampled", 0.1))
    assert deliveries.best() == ["a", "b", "c"]


def test_what_was_not_measured_what_is_a_shadow_and_what_is_worse_than_its_base_are_never_the_best(
    deliveries: Deliveries,
) -> None:
    deliveries.deliver("unmeasured")
    deliveries.deliver("incomplete", **measured("success", "success_sampled", None))
    deliveries.deliver("shadow", shadow=True, **measured("success", "success_sampled", 0.9))
    deliveries.deliver("worse", **measured("success", "success_sampled", 0.3, base=0.4))
    assert deliveries.best() == []
    deliveries.deliver("plain", **measured("success", "success_sampled", 0.3))
    assert deliveries.best() == ["plain"]


def test_a_delivery_that_died_before_the_earlier_best_was_told_is_made_whole_by_the_next(
    deliveries: Deliveries,
) -> None:
    deliveries.deliver("first", **measured("success", "success_sampled", 0.5))
    finished = deliveries.deliver("second", **measured("success", "success_sampled", 0.7))
    deliveries.tables.execute(
        "INSERT INTO model_checkpoints SELECT * REPLACE (true AS is_best, version + 1 AS version) "
        "FROM model_checkpoints FINAL WHERE job_id = 'first'"
    )
    assert deliveries.best() == ["first", "second"]
    deliveries.record(finished, a_job("second"))
    assert deliveries.best() == ["second"]


def test_when_the_best_is_withdrawn_the_best_of_the_others_is_marked_again_and_kept(
    deliveries: Deliveries, tracker: MLflowTracker
) -> None:
    now = datetime.now(UTC)
    for job_id, reached in (("first", 0.15), ("incomplete", None), ("lesser", 0.1), ("second", 0.7)):
        deliveries.deliver(job_id, **measured("success", "success_sampled", reached))
    deliveries.deliver("shadow", shadow=True, **measured("success", "success_sampled", 0.9))
    deliveries.deliver("large", base_model="large", **measured("success", "success_sampled", 0.8))
    for _ in range(2):
        withdraw(deliveries.tables, deliveries.objects, tracker, a_job("second"), now)
    assert deliveries.best() == ["first", "large"]
    pruned = prune_released(deliveries.tables, deliveries.objects, now + timedelta(days=91)).pruned
    assert set(pruned) == {"incomplete/final", "lesser/final", "shadow/final"}


@pytest.fixture(scope="module")
def tracker(tmp_path_factory: pytest.TempPathFactory) -> MLflowTracker:
    return MLflowTracker(f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}")


def registered(deliveries: Deliveries, tracker: MLflowTracker, job_id: str, *, shadow: bool) -> str | None:
    job, finished = a_job(job_id, metadata={"shadow": shadow}), deliveries.finished(job_id)
    released = store(finished, job, deliveries.objects, KEY)
    versions = {register(tracker, finished, job, f"{job_id}.r1", released).version for _ in range(2)}
    assert len(versions) == 1, "said again, it is the same version"
    return versions.pop()


def named(tracker: MLflowTracker, alias: str) -> tuple[str, str] | None:
    found = tracker.find_alias(AGENT, alias)
    return (found.version, found.tags["training_job_id"]) if found else None


def test_a_checkpoint_is_registered_as_the_candidate_and_that_of_a_shadow_job_never_is(
    deliveries: Deliveries, tracker: MLflowTracker
) -> None:
    first = registered(deliveries, tracker, "first", shadow=False)
    assert (named(tracker, "candidate"), named(tracker, "shadow")) == ((first, "first"), None)
    shadow = registered(deliveries, tracker, "silent", shadow=True)
    assert (named(tracker, "candidate"), named(tracker, "shadow")) == ((first, "first"), (shadow, "silent"))
    second = registered(deliveries, tracker, "second", shadow=False)
    assert (named(tracker, "candidate"), named(tracker, "shadow")) == ((second, "second"), (shadow, "silent"))


def test_what_is_withdrawn_is_no_longer_the_candidate(deliveries: Deliveries, tracker: MLflowTracker) -> None:
    registered(deliveries, tracker, "older", shadow=False)
    newest = registered(deliveries, tracker, "newest", shadow=False)
    for job_id, left in (("older", (newest, "newest")), ("newest", None), ("newest", None)):
        withdraw(deliveries.tables, deliveries.objects, tracker, a_job(job_id), datetime.now(UTC))
        assert named(tracker, "candidate") == left


def test_a_tracker_that_is_away_holds_up_no_checkpoint(deliveries: Deliveries, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    finished = deliveries.finished("job")
    released = store(finished, a_job("job"), deliveries.objects, KEY)
    registration = register(MLflowTracker(NOWHERE), finished, a_job("job"), "job.r1", released)
    assert (registration.version, registration.run_url) == (None, None)
    assert "MLFLOW_TRACKING_URI" in registration.note
    withdraw(deliveries.tables, deliveries.objects, MLflowTracker(NOWHERE), a_job("job"), datetime.now(UTC))
    assert list(deliveries.objects.list()) == []


@pytest.mark.parametrize(("device", "hours", "cost"), [("cpu", "cpu_hours", 0.01), ("cuda", "gpu_hours", 4.0)])
def test_the_result_of_an_attempt_is_what_its_status_tells(
    deliveries: Deliveries, tmp_path: Path, device: Any, hours: str, cost: float
) -> None:
    figures = measured("success", "success_sampled", 0.6) | {"seconds": 3600.0, "peak_memory_gb": 2.5}
    finished = deliveries.finished("job", **figures)
    spread = finished.plan.model_copy(update={"distribution": DistributionPlan(device=device, processes=2)})
    site = TrainingSite(tmp_path, tmp_path, gpu_hour_usd=2.0, cpu_hour_usd=0.005)
    released = store(finished, a_job("job"), deliveries.objects, KEY)
    result = result_of(FinishedTraining(spread, finished.work, finished.result), released, site, 10)
    attempt = an_attempt(job_id="job", begun=True).ended("completed", datetime.now(UTC), result=json.dumps(result))
    status = completed(attempt, datetime.now(UTC)).status
    assert status.resource_usage is not None
    told = status.resource_usage.model_dump(exclude_none=True)
    assert told == {hours: 2.0, "cost_usd": cost, "peak_memory_gb": 2.5, "total_training_time_seconds": 3600.0}
    assert status.artifacts is not None
    assert status.artifacts.model_card == f"{released.url}/{MODEL_CARD}"
    assert status.evaluation_results is not None
    assert status.evaluation_results.improvement_over_baseline == pytest.approx(0.55)


@pytest.fixture
def place(
    scored: ClickHouseWarehouse,
    stream: JetStream,
    nats_server: NatsServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> TrainingPlace:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    return TrainingPlace(stream, without_jobs(scored), nats_server.url, tmp_path)


def when_trained(do: Any) -> Any:
    """A log of the run that does something as soon as the training is over, before anything is stored."""
    return lambda line: do() if line.startswith("trained") else None


def test_a_cancelled_job_releases_nothing(place: TrainingPlace) -> None:
    attempt = undelivered(place)

    def cancel() -> None:
        place.cancel("job")
        place.look()

    with pytest.raises(TrainingStopped, match="nothing more is kept"):
        place.carry_out(attempt, tell=when_trained(cancel))
    ended = place.attempts("job")[-1]
    assert (ended.number, ended.outcome, ended.failure_code) == (2, "cancelled", None)
    place.look()
    assert [status.status for status in place.statuses("job")] == ["queued", "queued", "cancelled"]
    assert list(place.models.list()) == []
    assert place.tables.query("SELECT * FROM model_checkpoints").is_empty()


class InterruptedWhenReleased(DiskObjects):
    """A store whose user is interrupted as soon as a checkpoint in it is complete."""

    interrupt: Callable[[], None] = staticmethod(lambda: None)

    def create(self, key: str, data: bytes) -> StoredObject:
        super().create(key, data)
        self.interrupt()
        raise KeyboardInterrupt


def test_of_a_job_that_is_cancelled_while_its_model_is_stored_nothing_stays(place: TrainingPlace) -> None:
    attempt = undelivered(place)
    models = InterruptedWhenReleased(place.directory / "released")

    def cancel() -> None:
        assert list(models.list())
        place.cancel("job")
        place.look()

    models.interrupt = cancel
    with pytest.raises(KeyboardInterrupt):
        place.carry_out(attempt, models=models, canceling=True)
    assert place.attempts("job")[-1].outcome == "cancelled"
    assert list(models.list()) == []


@pytest.mark.parametrize(
    ("canceling", "outcome"), [(True, "cancelled"), (False, "failed")], ids=["cancelled", "machine stops"]
)
def test_of_a_run_that_is_cancelled_in_the_ui_while_its_model_is_stored_nothing_stays(
    place: TrainingPlace, canceling: bool, outcome: str
) -> None:
    attempt = undelivered(place)
    models = InterruptedWhenReleased(place.directory / "released")
    with pytest.raises(KeyboardInterrupt):
        place.carry_out(attempt, models=models, canceling=canceling)
    assert place.attempts("job")[-1].outcome == outcome
    assert bool(list(models.list())) is not canceling


def test_a_run_that_has_lost_its_lease_releases_nothing(place: TrainingPlace) -> None:
    attempt = undelivered(place)

    def lose() -> None:
        place.messages.request(f"STREAM.PURGE.{LEASES.name}")
        assert JetStreamLeases(place.messages).acquire(TRAINING_LEASE, "somebody else", 60)

    with pytest.raises(TrainingFailed, match="no longer holds the lease"):
        place.carry_out(attempt, tell=when_trained(lose))
    ended = place.attempts("job")[-1]
    assert (ended.outcome, ended.failure_code) == ("failed", "INFRA")
    assert list(place.models.list()) == []


def test_a_checkpoint_that_was_stored_without_an_answer_is_the_one_that_the_next_attempt_records(
    place: TrainingPlace,
) -> None:
    late = AnswersTooLate(place.models.root)
    with pytest.raises(TrainingFailed, match="no answer"):
        place.carry_out(undelivered(place), models=late)
    stored = place.models.get(f"job/final/{MANIFEST}")
    done = place.carry_out(place.started(timedelta(seconds=601)))
    assert place.models.get(f"job/final/{MANIFEST}") == stored
    assert [attempt.outcome for attempt in done.attempts] == ["failed", "failed", "completed"]
    [row] = place.tables.query("SELECT manifest_sha256, attempt FROM model_checkpoints FINAL").rows()
    assert row == (done.released.manifest_sha256, 1)


def test_a_model_that_was_damaged_meanwhile_is_not_delivered(place: TrainingPlace) -> None:
    attempt = undelivered(place, base_model="missing")
    weights = place.work(attempt).final / "model.safetensors"
    weights.write_text("something else")
    # It would be trained again, for which there is no base model.
    with pytest.raises(TrainingFailed, match="no base model 'missing'"):
        place.carry_out(attempt)
    assert list(place.models.list()) == []
