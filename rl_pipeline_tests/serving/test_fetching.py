"""Which files a model is served from."""

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from rl_pipeline.deployment.state import ServedModel
from rl_pipeline.serving.fetching import ModelElsewhere, ModelFetcher
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.training.checkpoints.releasing import release
from rl_pipeline.training.checkpoints.signing import PublicKeys, SignatureRejected, new_signing_key
from rl_pipeline.training.checkpoints.storage import saving
from rl_pipeline.training.plans.base_models import BaseModels

KEY = new_signing_key()


@pytest.fixture
def objects(tmp_path: Path) -> DiskObjects:
    return DiskObjects(tmp_path / "objects")


def fetcher(tmp_path: Path, objects: DiskObjects, trusted: str = KEY.public_text()) -> ModelFetcher:
    base = BaseModels(tmp_path / "models", lambda _: objects, PublicKeys.parse(trusted))
    return ModelFetcher(base, lambda: objects, tmp_path / "served")


def released(tmp_path: Path, objects: DiskObjects) -> ServedModel:
    with saving(
        tmp_path / "trained", {"job_id": "job", "step": 1, "created": datetime(2026, 3, 1, tzinfo=UTC)}
    ) as made:
        (made / "config.json").write_text("{}")
    found = release(tmp_path / "trained", objects, "job/final", KEY)
    return ServedModel(
        model_id="agent-zero-rl-v1",
        base_model="base",
        checkpoint_path=found.url,
        manifest_sha256=found.manifest_sha256,
    )


def test_a_checkpoint_is_fetched_once_and_only_as_it_was_recorded(tmp_path: Path, objects: DiskObjects) -> None:
    model, fetching = released(tmp_path, objects), fetcher(tmp_path, objects)
    directory = fetching.fetch(model)
    assert (directory / "config.json").read_text() == "{}"
    assert fetching.fetch(model) == directory
    with pytest.raises(SignatureRejected, match="another checkpoint"):
        fetching.fetch(model.model_copy(update={"manifest_sha256": "0" * 64}))


def test_a_checkpoint_that_nobody_trusted_has_signed_is_not_served(tmp_path: Path, objects: DiskObjects) -> None:
    model = released(tmp_path, objects)
    with pytest.raises(SignatureRejected):
        fetcher(tmp_path, objects, new_signing_key().public_text()).fetch(model)


def test_a_checkpoint_in_another_store_is_refused_with_what_to_set(tmp_path: Path, objects: DiskObjects) -> None:
    model = released(tmp_path, objects).model_copy(update={"checkpoint_path": "s3://elsewhere/job/final"})
    with pytest.raises(ModelElsewhere, match="MODEL_STORAGE_PATH"):
        fetcher(tmp_path, objects).fetch(model)


def test_a_base_model_is_served_from_where_trainings_find_it(tmp_path: Path, objects: DiskObjects) -> None:
    directory = tmp_path / "models" / "base"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    save_file({"weights": np.zeros(1, np.float32)}, directory / "model.safetensors")
    model = ServedModel(model_id="base", base_model="base", checkpoint_path="base")
    assert fetcher(tmp_path, objects).fetch(model) == directory
