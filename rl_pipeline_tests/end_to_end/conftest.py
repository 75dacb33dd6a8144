"""What the end-to-end tests share."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_pipeline_tests.end_to_end.running_stack import RunningStack
from rl_pipeline_tests.end_to_end.training_stack import THRESHOLD, TrainingStack

# Each of its trainings takes a minute: `make soak` has the time.
collect_ignore = [] if os.environ.get("RL_PIPELINE_SOAK") else ["test_training_at_length.py"]


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory, small_model: Path) -> Iterator[TrainingStack]:
    """A stack on which the threshold starts RLOO on the small model, in two processes under DeepSpeed."""
    stack = RunningStack(
        tmp_path_factory.mktemp("home"),
        RL_BASE_MODEL=str(small_model),
        RL_TRAINING_THRESHOLD=str(THRESHOLD),
        RL_ALGORITHM="rloo",
        TRAINING_PROCESSES="2",
    )
    try:
        stack.wait_for_line("The UI is at")
        training = TrainingStack(stack)
        training.publish_episodes(small_model)
        yield training
    finally:
        stack.end()
