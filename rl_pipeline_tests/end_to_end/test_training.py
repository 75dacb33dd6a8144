"""Training in the embedded stack, as its user meets it: it starts by itself, it can be watched, it can be stopped."""

import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest

from rl_pipeline.contracts import TrainingStatus, parse_message, serialize
from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.environments.playing import play
from rl_pipeline.environments.recording import Recorder
from rl_pipeline.opening import open_stream, open_warehouse
from rl_pipeline.settings import Settings
from rl_pipeline.stores.object_addresses import open_objects
from rl_pipeline.training.releasing import download_checkpoint
from rl_pipeline.training.signing import PublicKeys
from rl_pipeline_tests.end_to_end.running_stack import RunningStack, run_command
from rl_pipeline_tests.waiting import wait_until

THRESHOLD = 240


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, small_model: Path) -> Iterator[RunningStack]:
    """A stack that trains RLOO on the small model once the threshold is crossed."""
    variables = {
        "MODEL_DIRECTORY": str(small_model.parent),
        "RL_TRAINING_THRESHOLD": str(THRESHOLD),
        "RL_ALGORITHM": "rloo",
        "TRAINING_PROCESSES": "2",
    }
    stack = RunningStack(tmp_path_factory.mktemp("home"), **variables)
    try:
        stack.wait_for_line("The UI is at")
        yield stack
    finally:
        stack.end()
