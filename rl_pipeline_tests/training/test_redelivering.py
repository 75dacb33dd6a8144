"""What was stored by a delivery that broke: recorded by the next attempt, or gone with the job."""

import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from rl_pipeline.automation.checkpoint_retention import prune_checkpoints
from rl_pipeline.curation.forgetting import drop_erased
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.ingestion.ledger import ERASED_REVISION
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.mlflow_tracker import MLflowTracker
from rl_pipeline.stores.objects import StoredObject
from rl_pipeline.training.attempting import TrainingFailed
from rl_pipeline.training.checkpoints.manifest import MANIFEST
from rl_pipeline.training.checkpoints.model_card import MODEL_CARD
from rl_pipeline.training.delivering import record, store, withdraw_abandoned
from rl_pipeline.training.jobs.job import State
from rl_pipeline.training.jobs.rows import write_attempt, write_job
from rl_pipeline_tests.training.broken_deliveries import AnswersTooLate, plan_of, undelivered
from rl_pipeline_tests.training.job_values import a_job, an_attempt
from rl_pipeline_tests.training.stored_training import (
    NOWHERE,
    TrainingPlace,
    leave_trained,
    recorded_episodes,
    scored_database,
    without_jobs,
    write_strict_model,
)


@pytest.fixture(scope="module")
def scored(nats_server: NatsServer, clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with scored_database(nats_server.url, clickhouse_url, recorded_episodes(12, 1)) as tables:
        yield tables


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


def erase_somebody(place: TrainingPlace) -> None:
    mark = {"verdict": pl.lit("erased"), "revision": pl.lit(ERASED_REVISION)}
    rows = place.tables.query("SELECT stream, sequence, stream_time FROM trajectory_ledger FINAL LIMIT 1")
    place.tables.insert("trajectory_ledger", rows.with_columns(**mark))
    copies = place.directory / "work"
    assert drop_erased(place.tables, place.datasets, "job.r1", datetime.now(UTC), copies=copies).trajectories == 1


def write_the_card_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_pipeline.training.delivering.model_card", lambda *_: "as a later release writes it")


@pytest.mark.parametrize("change", ["erasure", "release"])
def test_what_was_stored_is_recorded_as_it_is_whatever_a_card_would_say_now(
    place: TrainingPlace, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    attempt = undelivered(place)
    with pytest.raises(TrainingFailed, match="no answer"):
        place.carry_out(attempt, models=AnswersTooLate(place.models.root))
    stored = {name: place.models.get(f"job/final/{name}") for name in (MANIFEST, MODEL_CARD)}
    if change == "erasure":
        erase_somebody(place)
    else:
        write_the_card_otherwise(monkeypatch)
    done = place.carry_out(place.started(timedelta(seconds=601)))
    assert done.attempts[-1].outcome == "completed"
    assert {name: place.models.get(f"job/final/{name}") for name in stored} == stored
    assert done.curves == place.models.get("job/final/curves.png")


def test_what_was_stored_before_its_machine_was_lost_makes_room_for_what_is_trained_anew(place: TrainingPlace) -> None:
    write_strict_model(place.directory / "models" / "strict")
    attempt = undelivered(place, max_steps=1, evaluation=False)
    with pytest.raises(TrainingFailed, match="no answer"):
        place.carry_out(attempt, models=AnswersTooLate(place.models.root))
    stored = place.models.get(f"job/final/{MANIFEST}")
    shutil.rmtree(place.directory / "work")
    done = place.carry_out(place.started(timedelta(seconds=601)))
    assert done.attempts[-1].outcome == "completed"
    assert place.models.get(f"job/final/{MANIFEST}") != stored
    [row] = place.tables.query("SELECT manifest_sha256, attempt FROM model_checkpoints FINAL").rows()
    assert row == (done.released.manifest_sha256, 3)


class _BreaksWhenReleased(DiskObjects):
    """A store behind a bug: it writes, and then something else than a store is broken."""

    def create(self, key: str, data: bytes) -> StoredObject:
        super().create(key, data)
        raise KeyError("a bug")


def breaks_before_its_row(place: TrainingPlace, _: pytest.MonkeyPatch) -> DiskObjects:
    return _BreaksWhenReleased(place.models.root)


def breaks_after_its_row(place: TrainingPlace, monkeypatch: pytest.MonkeyPatch) -> DiskObjects:
    def broken(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr("rl_pipeline.training.carrying_out.register", broken)
    return place.models


@pytest.mark.parametrize("breaks", [breaks_before_its_row, breaks_after_its_row])
def test_of_a_job_that_has_failed_for_good_nothing_stays_released(
    place: TrainingPlace,
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[TrainingPlace, pytest.MonkeyPatch], DiskObjects],
) -> None:
    attempt = undelivered(place)
    with pytest.raises(TrainingFailed, match="a bug"):
        place.carry_out(attempt, models=breaks(place, monkeypatch))
    place.look()
    assert place.job("job").state == "failed"
    assert list(place.models.list()) == []
    assert place.tables.query("SELECT id FROM model_checkpoints FINAL WHERE pruned_at IS NULL OR is_best").is_empty()


def test_what_failed_and_cancelled_jobs_have_left_in_the_store_goes_at_night_and_nothing_else(
    place: TrainingPlace, clickhouse_url: str
) -> None:
    now = datetime.now(UTC)
    jobs: dict[str, State] = {
        "gave-up": "failed",
        "unwanted": "cancelled",
        "recorded": "failed",
        "stopping": "cancelled",
        "in-service": "failed",
        "delivers": "running",
        "done": "completed",
    }
    for job_id, state in jobs.items():
        job, work = a_job(job_id, state, now=now), place.work(an_attempt(job_id=job_id))
        write_job(place.tables, job)
        finished = leave_trained(work, plan_of(job_id), measure="success", improvement=0.5)
        released = store(finished, job, place.models, place.signing_key)
        if job_id in ("recorded", "in-service", "done"):
            record(place.tables, finished, job, f"{job_id}.r1", released)
    place.tables.execute(
        "INSERT INTO model_checkpoints SELECT * REPLACE (true AS deployed, version + 1 AS version) "
        "FROM model_checkpoints FINAL WHERE job_id = 'in-service'"
    )
    write_attempt(place.tables, an_attempt(job_id="stopping", begun=True))
    resources = place.resources(clickhouse_url)
    used = {name: resources[name] for name in ("warehouse", "training", "model_objects")}
    for _ in range(2):
        assert prune_checkpoints.execute_in_process(resources=used).success
    left = {stored.key.partition("/")[0] for stored in place.models.list()}
    assert left == {"stopping", "in-service", "delivers", "done"}
    assert withdraw_abandoned(place.tables, place.models, MLflowTracker(NOWHERE), now) == ()
    pruned = place.tables.query("SELECT job_id FROM model_checkpoints FINAL WHERE pruned_at IS NOT NULL")
    assert list(pruned["job_id"]) == ["recorded"]
