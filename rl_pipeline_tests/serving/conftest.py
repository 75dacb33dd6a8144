"""A model small enough to be served in a test, and a gateway in front of real servers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_pipeline.training.small_model.tokenizer import train_tokenizer
from rl_pipeline.training.small_model.warm_start import new_model
from rl_pipeline_tests.serving.gateway_world import World, numbers
from rl_pipeline_tests.serving.running_gateway import GatewayProcess
from rl_pipeline_tests.serving.states import steady
from rl_pipeline_tests.serving.stub_backend import stub_backends


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded model's shape with random weights, in Hugging Face's layout."""
    directory = tmp_path_factory.mktemp("model") / "tiny"
    tokenizer = train_tokenizer(["get wood", "craft a chair of two planks", "look around"], 300)
    new_model(tokenizer, seed=0).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def shared_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    options = {
        "silence_seconds": 1.0,
        "patient_seconds": 0.5,
        "connect_seconds": 1.0,
        "largest_body_bytes": 2**20,
        "drain_seconds": 1.0,
    }
    with GatewayProcess(tmp_path_factory.mktemp("gateway"), options) as running:
        yield running


@pytest.fixture
def world(shared_gateway: GatewayProcess) -> Iterator[World]:
    generation = next(numbers)
    with stub_backends(f"old-{generation}", f"new-{generation}") as (old, new):
        world = World(shared_gateway, old, new, generation)
        shared_gateway.follow(steady(generation, world.control, world.candidate))
        world.wait_until_ready()
        yield world
