"""States of the optimiser and weights that DeepSpeed moves out of the processes that train, by its compiled optimiser.

Without a GPU they go from the machine's memory to the machine's memory: what is shown is that the program trains, saves
and resumes with them as without, not that a GPU has more room.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.training.checkpoints.storage import newest_verified, verify
from rl_pipeline.training.launching.command import program_environment, program_variables
from rl_pipeline.training.launching.exits import Exit
from rl_pipeline.training.launching.operators import needed_operators, operators_ready
from rl_pipeline.training.plans.plan import DistributionPlan
from rl_pipeline.training.work_directory import WorkDirectory
from rl_pipeline_tests.training.tiny_jobs import WIDE, lay_out, losses, plan_of, result, write_tiny_model
from rl_pipeline_tests.training.warm_program import log_of, run

OFFLOADING = DistributionPlan(offload_optimizer=True)
PLAIN = {"deepspeed": False, "processes": 1}
# The algorithm, the stage of ZeRO, adapters or not; weights are offloaded by the third stage alone.
WAYS = [("sft", 1, False), ("sft", 2, False), ("dpo", 2, True), ("sft", 3, False), ("dpo", 3, True)]
STEPS = 8


def attempt(
    root: Path, model: Path, number: int = 1, steps: int = STEPS, *, algorithm: str, lora: bool, **distribution: Any
) -> WorkDirectory:
    """An attempt that went well. Its schedule does not depend on how many steps it takes."""
    plan = plan_of(
        algorithm,
        number,
        distribution=distribution,
        optimization={
            "learning_rate": 1e-3,
            "schedule": "constant",
            "micro_batch": 4 // distribution["processes"],
            "max_steps": steps,
        },
        checkpoints={"save_interval": STEPS // 2},
        lora={"rank": 4, "alpha": 8.0, "dropout": 0.0} if lora else None,
    )
    work = lay_out(root, model, plan)
    variables = program_variables(plan.distribution, os.environ, model.parent / "operators")
    assert run(work, distribution["processes"], **variables) == Exit.DONE, log_of(work)
    return work


def offloads_and_resumes(root: Path, model: Path, stage: int, **how: Any) -> None:
    """In one go, and in two with a state between them, it trains as one process does by PyTorch's own optimiser."""
    offloaded = {"processes": 2, "zero_stage": stage, "offload_optimizer": True, "offload_parameters": stage == 3}
    plain = attempt(root / "plain", model, **PLAIN, **how)
    half = attempt(root / "offloaded", model, 1, STEPS // 2, **offloaded, **how)
    whole = attempt(root / "offloaded", model, 2, **offloaded, **how)
    assert {**losses(half), **losses(whole)} == pytest.approx(losses(plain), abs=1e-5)
    assert set(losses(whole)) == set(range(STEPS // 2 + 1, STEPS + 1)), "it began anew, in place of going on"
    told = result(whole)
    assert (told["optimizer"], told["zero_stage"], told["processes"]) == ("DeepSpeedCPUAdam", stage, 2)
    assert told["final"] == pytest.approx(result(plain)["final"], abs=1e-4)
    assert verify(whole.final).meta.step == STEPS
    state = newest_verified(whole.checkpoints)
    assert state is not None
    assert verify(state).meta.step == STEPS


@pytest.mark.soak
@pytest.mark.cplusplus
def test_what_is_offloaded_trains_the_same_model_and_resumes(
    tmp_path: Path, soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    """Compiling the optimiser takes minutes of CPU time: at the small count nothing is offloaded."""
    ways = WAYS[: soak_count(0, len(WAYS))]
    write_tiny_model(tmp_path / "model", width=WIDE)
    operators = tmp_path / "operators"
    needed = needed_operators(OFFLOADING)[: len(ways)]
    with operators_ready(operators, needed, program_environment(OFFLOADING, os.environ, operators)):
        for algorithm, stage, lora in ways:
            root = tmp_path / f"{algorithm}-{stage}-{lora}"
            offloads_and_resumes(root, tmp_path / "model", stage, algorithm=algorithm, lora=lora)
    record_property("ways of offloading", len(ways))
