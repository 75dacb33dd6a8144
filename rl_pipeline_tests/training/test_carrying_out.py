"""What an attempt ends in when it breaks before or after its program: what passes by itself is tried again."""

import errno
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rl_pipeline.contracts.training_status import FailureCode
from rl_pipeline.curation.datasets import DatasetDamaged
from rl_pipeline.curation.forgetting import drop_erased
from rl_pipeline.curation.manifest import ManifestUnreadable
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.ingestion.ledger import ERASED_REVISION
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.mlflow_tracker import MLflowTracker
from rl_pipeline.stores.objects import CorruptObject, ObjectMissing
from rl_pipeline.training.attempting import TrainingFailed
from rl_pipeline.training.carrying_out import ending_in_its_row
from rl_pipeline.training.checkpoints.manifest import CheckpointCorrupt
from rl_pipeline.training.plans.base_models import BaseModels, BaseModelUnavailable, HubUnreachable
from rl_pipeline_tests.training.stored_training import (
    TrainingPlace,
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
def place(scored: ClickHouseWarehouse, stream: JetStream, nats_server: NatsServer, tmp_path: Path) -> TrainingPlace:
    return TrainingPlace(stream, without_jobs(scored), nats_server.url, tmp_path)


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "INFRA"),
        (OSError(errno.EIO, "Input/output error"), "INFRA"),
        (ConnectionResetError("Connection reset by peer"), "INFRA"),
        (HubUnreachable("the hub is away"), "INFRA"),
        (CheckpointCorrupt("final", "'model.safetensors' was changed"), "INFRA"),
        (DatasetDamaged("the manifest is not the one that was stored"), "INFRA"),
        (ManifestUnreadable("it is half a manifest"), "INFRA"),
        (CorruptObject("conversations.parquet"), "INFRA"),
        (ObjectMissing("conversations.parquet"), "INFRA"),
        (BaseModelUnavailable("there is no such model"), "UNKNOWN"),
        (KeyError("a bug"), "UNKNOWN"),
    ],
)
def test_what_may_pass_is_tried_again_and_nothing_else(
    place: TrainingPlace, broken: Exception, code: FailureCode
) -> None:
    place.ask("job")
    attempt = place.started()
    with pytest.raises(TrainingFailed) as failed, ending_in_its_row(place.tables, attempt, lambda: False):
        raise broken
    assert failed.value.failure.code == code
    ended = place.attempts("job")[-1]
    assert (ended.outcome, ended.failure_code) == ("failed", code)


def test_who_is_erased_while_the_base_model_is_fetched_is_not_trained_on_and_the_attempt_goes_on(
    place: TrainingPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = BaseModels.find

    def find_slowly(*arguments: Any) -> Path:
        mark = {"verdict": pl.lit("erased"), "revision": pl.lit(ERASED_REVISION)}
        rows = place.tables.query("SELECT stream, sequence, stream_time FROM trajectory_ledger FINAL LIMIT 1")
        place.tables.insert("trajectory_ledger", rows.with_columns(**mark))
        dropped = drop_erased(
            place.tables, place.datasets, "job.r1", datetime.now(UTC), copies=place.directory / "work"
        )
        assert dropped.trajectories == 1
        return find(*arguments)

    monkeypatch.setattr(BaseModels, "find", find_slowly)
    write_strict_model(place.directory / "models" / "strict")
    place.ask("job", max_steps=1, evaluation=False)
    attempt = place.started()
    curated = place.curated(attempt).report.kept
    done = place.carry_out(attempt)
    assert (place.attempts("job")[-1].outcome, done.result["samples"]) == ("completed", curated - 1)


def test_without_a_key_to_sign_with_nothing_is_trained(place: TrainingPlace) -> None:
    write_strict_model(place.directory / "models" / "strict")
    place.ask("job", max_steps=1)
    attempt = place.started()
    place.curated(attempt)
    with pytest.raises(TrainingFailed, match="CHECKPOINT_SIGNING_KEY"):
        place.carry_out(attempt, signs=False)
    assert not place.work(attempt).log_file.exists(), "the program was started"


@pytest.mark.parametrize(
    ("broken", "outcome", "status"),
    [
        (OSError("the program was killed"), "failed", "FAILED"),
        (KeyboardInterrupt(), "cancelled", "KILLED"),
    ],
)
def test_what_a_killed_program_has_begun_in_the_tracker_ends_as_its_attempt(
    place: TrainingPlace, monkeypatch: pytest.MonkeyPatch, broken: BaseException, outcome: str, status: str
) -> None:
    def kill(*_: object, **__: object) -> None:
        tracker.start_run("job", 1)
        raise broken

    monkeypatch.setattr("rl_pipeline.training.carrying_out.finished_before", kill)
    place.tracking_uri = f"sqlite:///{place.directory / 'mlflow.db'}"
    tracker = MLflowTracker(place.tracking_uri)
    place.ask("job")
    attempt = place.started()
    with pytest.raises((TrainingFailed, KeyboardInterrupt)):
        place.carry_out(attempt, canceling=True)
    assert place.attempts("job")[-1].outcome == outcome
    from mlflow import MlflowClient

    client = MlflowClient(place.tracking_uri)
    experiment = client.get_experiment_by_name("rl_pipeline").experiment_id
    assert [run.info.status for run in client.search_runs([experiment])] == [status]
