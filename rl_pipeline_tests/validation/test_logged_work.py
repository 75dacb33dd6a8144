"""The off-policy estimate from what really was played, published, ingested and scored."""

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import polars as pl
import pytest

from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.training.small_model.building import build_small_model
from rl_pipeline.training.small_model.experience import crafting_experience
from rl_pipeline.validation import logged_work
from rl_pipeline.validation.logged_work import LoggedWork, estimate_from_logs, read_logged_work
from rl_pipeline_tests.training.stored_training import recorded_episodes, scored_database

LOGGED, SCRIPTED = 60, 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_small_model(tmp_path_factory.mktemp("models") / "logged", demonstrations=256)


@pytest.fixture(scope="module")
def tables(nats_server: NatsServer, clickhouse_url: str, model: Path) -> Iterator[ClickHouseWarehouse]:
    """What the model did, and before it some work of a script that drew no tokens."""
    played = crafting_experience(model, tasks=LOGGED // 3, attempts=3, seed=2, start=datetime.now(UTC))
    with scored_database(nats_server.url, clickhouse_url, [*recorded_episodes(SCRIPTED, 1), *played]) as tables:
        yield tables


@pytest.fixture
def work(tables: ClickHouseWarehouse) -> LoggedWork:
    return read_logged_work(tables, "job")


def test_the_model_that_did_the_work_would_earn_what_it_earned(work: LoggedWork, model: Path) -> None:
    found = estimate_from_logs(work, model, seed=1)
    logged = [work.rewards[str(one.trajectory_id)] for one in work.trajectories if one.metadata.model != "scripted"]
    assert (found.available, found.trajectories) == (True, LOGGED)
    assert found.effective_sample_size == pytest.approx(LOGGED, rel=1e-3)
    assert found.self_normalised == pytest.approx(sum(logged) / LOGGED, abs=1e-3)
    assert found.interval is not None
    assert found.interval[0] < float(found.doubly_robust or 0) < found.interval[1]


def test_a_model_that_has_moved_away_has_an_estimate_of_its_own(work: LoggedWork, model: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    moved = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        for weights in moved.parameters():
            weights.mul_(1 + 0.02 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(1)))
    moved.save_pretrained(tmp_path / "moved")
    AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path / "moved")
    found, own = (estimate_from_logs(work, directory, seed=1) for directory in (tmp_path / "moved", model))
    assert found.available
    assert found.effective_sample_size < 0.99 * LOGGED
    assert found.self_normalised != pytest.approx(own.self_normalised, abs=1e-4)


def test_only_so_many_of_the_newest_are_read(
    tables: ClickHouseWarehouse, work: LoggedWork, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = read_logged_work(tables, "job", most=7)
    assert [one.trajectory_id for one in few.trajectories] == [one.trajectory_id for one in work.trajectories[:7]]
    assert "scripted" not in {one.metadata.model for one in few.trajectories}, "the oldest"
    found = estimate_from_logs(few, model, seed=1)
    assert found.reason.startswith("not available: 7 of 7 logged trajectories have a reward")
    lengths = [
        len(one.turns[-1].sampling.prompt_token_ids or ()) for one in work.trajectories if one.turns[-1].sampling
    ]
    monkeypatch.setattr(logged_work, "MOST_TOKENS", sum(lengths[:40]))
    assert 30 <= estimate_from_logs(work, model, seed=1).trajectories <= 40


def test_what_the_checkpoint_was_trained_on_says_nothing_about_it(
    tables: ClickHouseWarehouse, work: LoggedWork
) -> None:
    learnt, held_out = ([str(one.trajectory_id) for one in work.trajectories[n : n + 5]] for n in (0, 5))
    used = [(one, "train") for one in learnt] + [(one, "holdout") for one in held_out]
    rows = pl.DataFrame(used, ["trajectory_id", "split"], orient="row")
    tables.insert("dataset_provenance", rows.with_columns(dataset_id=pl.lit("trained.r1"), role=pl.lit("prompt")))
    checkpoint = {"id": "trained-1", "job_id": "trained", "dataset_id": "trained.r1", "created_at": datetime.now(UTC)}
    tables.insert("model_checkpoints", pl.DataFrame([checkpoint]))
    assert set(read_logged_work(tables, "trained").rewards) == set(work.rewards) - set(learnt)


def test_nor_does_what_its_ancestors_were_trained_on(tables: ClickHouseWarehouse, work: LoggedWork) -> None:
    learnt = [[str(one.trajectory_id) for one in work.trajectories[n : n + 3]] for n in (10, 13)]
    for generation, ids in enumerate(learnt):
        used = pl.DataFrame({"trajectory_id": ids}).with_columns(
            dataset_id=pl.lit(f"d{generation}"), split=pl.lit("train"), role=pl.lit("prompt")
        )
        tables.insert("dataset_provenance", used)
        made = {"id": f"g{generation}", "job_id": f"job-{generation}", "dataset_id": f"d{generation}"}
        place = {"checkpoint_path": f"s3://models/{generation}", "base_model": f"s3://models/{generation - 1}"}
        tables.insert("model_checkpoints", pl.DataFrame([{**made, **place, "created_at": datetime.now(UTC)}]))
    assert set(read_logged_work(tables, "job-1").rewards) == set(work.rewards) - {*learnt[0], *learnt[1]}
    assert set(read_logged_work(tables, "job-0").rewards) == set(work.rewards) - set(learnt[0])


def test_tokens_of_another_model_mean_other_words(work: LoggedWork, tmp_path: Path) -> None:
    other = build_small_model(tmp_path / "other", seed=9, demonstrations=16)
    found = estimate_from_logs(work, other, seed=1)
    assert not found.available
    assert found.reason.startswith("not available: ")
    assert f"of {LOGGED + SCRIPTED} logged trajectories" in found.reason


@pytest.mark.parametrize("broken", ["elsewhere", "no model", "a tokenizer alone"])
def test_where_the_likelihoods_cannot_be_had_the_report_says_why(
    broken: str, work: LoggedWork, model: Path, tmp_path: Path
) -> None:
    from transformers import AutoTokenizer

    if broken == "elsewhere":
        assert "is served elsewhere" in estimate_from_logs(work, None, seed=1).reason
        return
    if broken == "a tokenizer alone":
        AutoTokenizer.from_pretrained(model).save_pretrained(tmp_path)
    found = estimate_from_logs(work, tmp_path, seed=1)
    assert not found.available
    assert "the likelihoods cannot be computed (" in found.reason


def test_without_any_logged_work_the_report_says_so(tables: ClickHouseWarehouse, model: Path) -> None:
    found = estimate_from_logs(read_logged_work(tables, "job", most=0), model, seed=1)
    assert found.reason.startswith("not available: 0 of 0 logged trajectories")
