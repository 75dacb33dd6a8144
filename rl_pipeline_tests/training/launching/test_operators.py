"""The compiled operators: kept by version, compiled ahead, and freed of locks that nobody holds."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from rl_pipeline.training.launching.command import program_environment
from rl_pipeline.training.launching.operators import (
    OperatorsNotCompiled,
    needed_operators,
    operators_directory,
    operators_ready,
)
from rl_pipeline.training.plans.plan import DistributionPlan

OFFLOADING = DistributionPlan(offload_optimizer=True)


def lock_of(directory: Path) -> Path:
    """The file by which PyTorch says that it compiles an operator."""
    lock = directory / "cpu_adam" / "lock"
    lock.parent.mkdir(parents=True, exist_ok=True)
    lock.touch()
    return lock


def test_only_offloading_needs_an_operator() -> None:
    assert needed_operators(DistributionPlan()) == ()
    assert needed_operators(OFFLOADING) == ("CPUAdamBuilder",)
    assert needed_operators(OFFLOADING.model_copy(update={"deepspeed": False})) == ()


def test_operators_are_kept_apart_by_the_libraries_they_were_compiled_for(tmp_path: Path) -> None:
    assert "torch-2." in operators_directory(tmp_path).name
    assert "deepspeed-0." in operators_directory(tmp_path).name


def test_a_lock_that_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    lock = lock_of(tmp_path)
    with operators_ready(tmp_path, (), {}):
        assert not lock.exists()


def test_a_lock_of_a_training_that_runs_is_left_alone(tmp_path: Path) -> None:
    with operators_ready(tmp_path, (), {}):
        lock = lock_of(tmp_path)
        with operators_ready(tmp_path, (), {}):
            assert lock.exists()
    with operators_ready(tmp_path, (), {}):
        assert not lock.exists()


def test_an_operator_that_does_not_compile_is_a_clear_error(tmp_path: Path) -> None:
    environment = {**program_environment(OFFLOADING, os.environ, tmp_path), "CXX": "/nonexistent/compiler"}
    with (
        pytest.raises(OperatorsNotCompiled, match="offload_optimizer"),
        operators_ready(tmp_path, needed_operators(OFFLOADING), environment),
    ):
        pass


@pytest.mark.soak
@pytest.mark.cplusplus
def test_an_operator_is_compiled_once_and_found_again(tmp_path: Path, soak_count: Callable[[int, int], int]) -> None:
    """Compiling takes minutes of CPU time: at the small count there is nothing to compile."""
    needed = needed_operators(OFFLOADING)[: soak_count(0, 1)]
    with operators_ready(tmp_path, needed, program_environment(OFFLOADING, os.environ, tmp_path)):
        assert len(list(tmp_path.glob("*/*.so"))) == len(needed)
    with operators_ready(tmp_path, needed, {"PATH": ""}):
        assert len(list(tmp_path.glob("*/*.so"))) == len(needed), "and without a compiler now"
