"""The model that serves before any was trained."""

import pytest

from rl_pipeline.deployment.first_model import first_model


@pytest.mark.parametrize(
    ("base_model", "name"),
    [
        ("qwen2.5-32b-instruct", "qwen2.5-32b-instruct"),
        ("Qwen/Qwen2.5-0.5B", "Qwen-Qwen2.5-0.5B"),
        ("/models/small model/", "small-model"),
        ("s3://bucket/models/base", "base"),
        ("///", "base-model"),
    ],
)
def test_it_is_served_under_its_own_name_from_its_files(base_model: str, name: str) -> None:
    model = first_model(base_model, None)
    assert (model.model_id, model.checkpoint_path, model.endpoint) == (name, base_model, None)


def test_a_server_that_has_it_is_asked_for_it_by_the_name_that_it_knows() -> None:
    model = first_model("Qwen/Qwen2.5-0.5B", "http://vllm:8000")
    assert (model.endpoint, model.upstream_name) == ("http://vllm:8000", "Qwen/Qwen2.5-0.5B")
    assert model.checkpoint_path is None
