"""The training program as processes: what it trains on what, what it leaves behind, and how it says that it failed."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from math import log
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rl_pipeline.training.checkpoints.storage import newest_verified, verify
from rl_pipeline.training.launching.exits import Exit, read_failures
from rl_pipeline.training.work_directory import WorkDirectory
from rl_pipeline_tests.training.tiny_jobs import (
    WIDE,
    lay_out,
    losses,
    plan_of,
    progress,
    result,
    said,
    write_tiny_model,
)
from rl_pipeline_tests.training.warm_program import NOWHERE, log_of, run, running
from rl_pipeline_tests.waiting import wait_until

Layout = Callable[..., WorkDirectory]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_tiny_model(directory)
    return directory


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("wide")
    write_tiny_model(directory, width=WIDE)
    return directory


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, model: Path, wide_model: Path) -> Callable[..., WorkDirectory]:
    """Attempts that went well, each run once for all tests."""
    done: dict[str, WorkDirectory] = {}

    def attempt(
        algorithm: str, zero_stage: int | None = None, processes: int = 1, *, lora: bool = False, wide: bool = False
    ) -> WorkDirectory:
        name = f"{algorithm}-{zero_stage}-{processes}-{lora}-{wide}"
        if name not in done:
            plan = plan_of(
                algorithm,
                distribution={
                    "deepspeed": zero_stage is not None,
                    "zero_stage": zero_stage or 0,
                    "processes": processes,
                },
                optimization={"learning_rate": 1e-3, "micro_batch": 4 // processes, "max_steps": 8},
                checkpoints={"save_interval": 3, "max_checkpoints": 2},
                lora={"rank": 4, "alpha": 8.0, "dropout": 0.0} if lora else None,
            )
            work = lay_out(tmp_path_factory.mktemp(name), wide_model if wide else model, plan)
            assert run(work, processes) == Exit.DONE, log_of(work)
            done[name] = work
        return done[name]

    return attempt


LAID_OUT = [("sft", 2, 1), ("sft", 3, 2), ("dpo", 2, 2)]
OF_ZERO_1 = [("sft", 1, 1), ("sft", 1, 2), ("dpo", 1, 2)]
EVERY_OTHER = [*OF_ZERO_1, ("sft", 2, 2), ("sft", 3, 1), ("dpo", 2, 1), ("dpo", 3, 1), ("dpo", 3, 2)]


def same_training(finished: Layout, algorithm: str, zero_stage: int, processes: int, **more: Any) -> None:
    more["wide"] = zero_stage == 3
    plain, spread = finished(algorithm, **more), finished(algorithm, zero_stage, processes, **more)
    told = result(spread)
    assert (told["engine"], told["zero_stage"], told["processes"]) == ("DeepSpeedEngine", zero_stage, processes)
    assert losses(spread) == pytest.approx(losses(plain), abs=1e-5)
    assert told["final"] == pytest.approx(result(plain)["final"], abs=1e-4)
    assert told["tokens"] == result(plain)["tokens"]
    assert logits(spread.final) == pytest.approx(logits(plain.final), abs=1e-4)


def logits(directory: Path) -> list[float]:
    reloaded = AutoModelForCausalLM.from_pretrained(directory)
    with torch.no_grad():
        return reloaded(torch.arange(20).unsqueeze(0)).logits.flatten().tolist()


@pytest.mark.parametrize(("algorithm", "zero_stage", "processes"), LAID_OUT)
def test_spread_over_processes_it_trains_the_same_model(
    finished: Layout, algorithm: str, zero_stage: int, processes: int
) -> None:
    same_training(finished, algorithm, zero_stage, processes)


@pytest.mark.soak
def test_every_way_of_spreading_trains_the_same_model(
    finished: Layout, soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    ways = [(*way, lora) for way in EVERY_OTHER for lora in (False, True)]
    count = soak_count(1, len(ways))
    for algorithm, zero_stage, processes, lora in ways[-count:]:
        same_training(finished, algorithm, zero_stage, processes, lora=lora)
    record_property("ways", count)


@pytest.mark.soak
def test_in_bf16_adapters_to_shared_out_weights_learn_what_is_preferred(
    tmp_path: Path,
    wide_model: Path,
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    """What the presets of large models ask for, all at once."""
    spread = {"processes": 2, "zero_stage": 3, "precision": "bf16", "gradient_checkpointing": True}
    plan = plan_of(
        "dpo",
        distribution=spread,
        optimization={"learning_rate": 3e-3, "micro_batch": 2, "accumulation": 2, "max_steps": 12},
        online={"gather_for_generation": False},
        lora={"rank": 4, "alpha": 8.0, "dropout": 0.05},
    )
    count = soak_count(0, 1)
    for number in range(count):
        work = lay_out(tmp_path / str(number), wide_model, plan)
        assert run(work, 2) == Exit.DONE, log_of(work)
        found = losses(work)
        assert found[1] == pytest.approx(log(2), abs=2**-8), "but for rounding, it begins as its own reference"
        assert found[12] < 0.8 * found[1]
        delivered = load_file(work.final / "model.safetensors")
        base = load_file(wide_model / "model.safetensors")
        assert {weight.dtype for weight in delivered.values()} == {torch.bfloat16}
        assert any(not delivered[name].equal(base[name].bfloat16()) for name in base)
        assert result(work)["zero_stage"] == 3
    record_property("trainings in bf16", count)


def test_a_plain_process_needs_no_deepspeed_and_says_what_ran(finished: Layout) -> None:
    told = result(finished("sft"))
    assert (told["engine"], told["zero_stage"], told["processes"]) == ("Qwen2ForCausalLM", None, 1)


def test_the_result_says_what_was_reached_and_how(finished: Layout) -> None:
    told = result(finished("sft"))
    assert told["measure"] == "holdout_loss"
    assert told["improvement"] == pytest.approx(told["base"]["holdout_loss"] - told["final"]["holdout_loss"])
    assert told["improvement"] > 0
    assert told["steps"] == 8
    assert [step for step, _ in told["curves"]["loss"]] == list(range(1, 9))
    assert {"policy_entropy", "learning_rate"} <= told["curves"].keys()
    compared = result(finished("dpo"))
    assert compared["measure"] == "preference_accuracy"
    assert compared["improvement"] > 0


def test_the_progress_tells_phases_steps_and_figures(finished: Layout) -> None:
    lines = progress(finished("sft"))
    phases = [line["phase"] for line in lines]
    assert [phase for n, phase in enumerate(phases) if phase not in phases[:n]] == [
        "loading",
        "base_evaluation",
        "training",
        "saving",
        "evaluation",
    ]
    figures = {"loss", "learning_rate", "policy_entropy", "peak_memory_gb", "epoch", "total_epochs", "total_steps"}
    assert all(figures <= line.keys() for line in lines if "loss" in line)
    assert lines[-1]["step"] == lines[-1]["total_steps"] == 8


def test_the_states_and_the_model_are_whole_and_hold_no_pickle_of_the_model(finished: Layout) -> None:
    for work in (finished("sft"), finished("sft", 3, 2, wide=True)):
        assert [state.name for state in sorted(work.checkpoints.iterdir())] == ["step-00000006", "step-00000008"]
        newest = newest_verified(work.checkpoints)
        assert newest is not None
        assert verify(newest).meta.step == 8
        manifest = verify(work.final)
        assert manifest.meta.metrics == result(work)["final"]
        assert {"model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"} <= manifest.files.keys()
        assert not [name for name in manifest.files if name.endswith((".bin", ".pt", ".pth", ".pkl"))]


def test_an_adapter_is_delivered_by_itself_and_merged(finished: Layout) -> None:
    work = finished("sft", lora=True)
    assert result(work)["engine"] == "PeftModelForCausalLM"
    adapted = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(work.base), work.final / "adapter")
    with torch.no_grad():
        by_adapter = adapted(torch.arange(20).unsqueeze(0)).logits.flatten().tolist()
    assert logits(work.final) == pytest.approx(by_adapter, abs=1e-5)
    assert logits(work.final) != pytest.approx(logits(work.base), abs=1e-5)
    told = json.loads((work.final / "adapter" / "adapter_config.json").read_text())
    assert told["base_model_name_or_path"] == ""


def test_nobody_who_listens_is_needed(finished: Layout) -> None:
    text = log_of(finished("sft"))
    assert text.count("NATS does not answer") == 1
    assert text.count("MLflow does not answer") == 1


def online_parts(rollouts: str, *, processes: int = 2, **online: Any) -> dict[str, Any]:
    return {
        "distribution": {"deepspeed": True, "zero_stage": 3, "processes": processes},
        "optimization": {"learning_rate": 1e-3, "micro_batch": 2, "accumulation": 2, "max_steps": 2},
        "online": {"rollouts": rollouts, "group_size": 4, "max_new_tokens": 4, "max_turns": 2, **online},
        "reward_model": {"learning_rate": 3e-3, "epochs": 5, "batch": 8},
        "evaluation": {"episodes": 4},
    }


def played(root: Path, model: Path, algorithm: str, parts: dict[str, Any]) -> WorkDirectory:
    work = lay_out(root, model, plan_of(algorithm, **parts))
    assert run(work, parts["distribution"]["processes"]) == Exit.DONE, log_of(work)
    return work


def test_weights_that_come_and_go_play_as_those_that_are_all_there(tmp_path: Path, wide_model: Path) -> None:
    # The untrained model earns nothing: what it is trained by is the entropy of what it has played.
    ways = {
        gathers: online_parts("environment", entropy_coefficient=0.1, gather_for_generation=gathers)
        for gathers in (False, True)
    }
    apart, whole = (played(tmp_path / str(gathers), wide_model, "ppo", parts) for gathers, parts in ways.items())
    for measured in ("base", "final"):
        assert result(apart)[measured] == pytest.approx(result(whole)[measured], abs=1e-5)
    assert set(result(apart)["curves"]) == set(result(whole)["curves"])
    for name, curve in result(apart)["curves"].items():
        assert dict(curve) == pytest.approx(dict(result(whole)["curves"][name]), abs=1e-5), name
    assert len({0.0, *losses(apart).values()}) == 3, "two losses that move"
    assert logits(apart.final) == pytest.approx(logits(whole.final), abs=1e-5)
    assert logits(apart.final) != pytest.approx(logits(wide_model), abs=1e-3)
    assert "playing" in {line["phase"] for line in progress(apart)}


def test_a_reward_model_judges_what_spread_weights_write(tmp_path: Path, wide_model: Path) -> None:
    work = played(tmp_path, wide_model, "rloo", online_parts("reward_model", gather_for_generation=False))
    assert result(work)["measure"] == "success", "the tasks can be played too"
    assert result(work)["final"]["reward_model_accuracy"] == 1.0
    assert verify(work.reward_model).meta.metrics == {"reward_model_accuracy": 1.0}
    assert len(losses(work)) == 2


def failed(root: Path, model: Path, *, broken: dict[str, str] | None = None, **parts: Any) -> tuple[int, WorkDirectory]:
    work = lay_out(root, model, plan_of(**parts), broken)
    return run(work), work


def test_rows_that_cannot_be_read_end_it_with_their_ids(tmp_path: Path, model: Path) -> None:
    code, work = failed(tmp_path, model, broken={"trajectory-7": "[", "trajectory-9": "[]"})
    [record] = read_failures(work.attempt_directory)
    assert (code, record.code) == (Exit.DATA, "DATA")
    assert record.trajectory_ids == ("trajectory-7", "trajectory-9")


def test_a_loss_that_is_no_number_ends_it_before_it_is_saved(tmp_path: Path, model: Path) -> None:
    # The first step of the warm-up moves nothing, the second everything.
    ruinous = {"learning_rate": 1e38, "warmup_share": 0.1, "micro_batch": 4, "max_steps": 50}
    code, work = failed(tmp_path, model, optimization=ruinous, checkpoints={"save_interval": 1})
    [record] = read_failures(work.attempt_directory)
    assert (code, record.code) == (Exit.CONVERGENCE, "CONVERGENCE")
    good = newest_verified(work.checkpoints)
    assert good is not None
    assert record.step == verify(good).meta.step + 1


def test_a_process_that_needs_more_memory_than_it_may_have_ends_for_that_reason(tmp_path: Path) -> None:
    write_tiny_model(tmp_path / "model", width=64)
    turn = [said("user", "make planks, please"), said("assistant", "craft planks now, and wait")]
    long = {f"trajectory-{row}": json.dumps(turn * 110) for row in range(48)}
    code, work = failed(
        tmp_path / "job",
        tmp_path / "model",
        broken=long,
        distribution={"deepspeed": False, "memory_limit_gb": 2.0},
        optimization={"micro_batch": 40, "max_steps": 1},
        evaluation={"enabled": False},
    )
    [record] = read_failures(work.attempt_directory)
    assert (code, record.code) == (Exit.OOM, "OOM"), record
    assert progress(work)[-1]["phase"] == "training", "the limit leaves room for all but the step"


def test_a_disk_that_refuses_its_state_ends_it_for_that_reason(tmp_path: Path, model: Path) -> None:
    work = lay_out(tmp_path, model, plan_of(checkpoints={"save_interval": 2}))
    assert run(work, largest_file=50_000) == Exit.INFRA, log_of(work)
    [record] = read_failures(work.attempt_directory)
    assert (record.code, record.step) == ("INFRA", 2)
    assert "CheckpointStorageFailed" in record.message
    assert list(work.checkpoints.iterdir()) == [], "what was written in vain takes no room"


def test_a_base_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    code, work = failed(tmp_path / "job", tmp_path / "missing")
    [record] = read_failures(work.attempt_directory)
    assert code == Exit.UNKNOWN
    assert "put the base model there" in record.message


def test_a_signal_saves_the_state_at_the_end_of_a_step_on_all_processes(tmp_path: Path, model: Path) -> None:
    plan = plan_of(
        distribution={"deepspeed": True, "zero_stage": 2, "processes": 2},
        optimization={"micro_batch": 2, "max_steps": 100_000},
    )
    work = lay_out(tmp_path, model, plan)
    with running(work, 2) as ranks:
        wait_until(lambda: losses(work) or not ranks[0].is_alive(), "a step")
        os.kill(ranks[1].pid or 0, signal.SIGTERM)
        for process in ranks:
            process.join()
    assert [process.exitcode for process in ranks] == [Exit.SAVED] * 2, log_of(work)
    state = newest_verified(work.checkpoints)
    assert state is not None
    assert verify(state).meta.step == max(losses(work))
    assert not work.result_file.exists()
    assert read_failures(work.attempt_directory) == ()


PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-m", "rl_pipeline.training_program", *sys.argv[1:]])
print(child.pid, flush=True)
time.sleep(600)
"""


def test_started_from_the_command_line_it_trains_and_does_not_outlive_its_parent(tmp_path: Path, model: Path) -> None:
    work = lay_out(tmp_path, model, plan_of(optimization={"micro_batch": 4, "max_steps": 100_000}))
    arguments = ["--work", str(work.root), "--attempt", "1"]
    with work.log_file.open("wb") as log:
        parent = subprocess.Popen(
            [sys.executable, "-c", PARENT, *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            env={**os.environ, **NOWHERE, "OMP_NUM_THREADS": "1"},
        )
        assert parent.stdout is not None
        program = psutil.Process(int(parent.stdout.readline()))
        wait_until(lambda: losses(work) or not program.is_running(), "a step")
        assert not [mapped for mapped in program.memory_maps() if "deepspeed" in mapped.path]
        parent.kill()
        parent.wait()
        wait_until(lambda: not program.is_running() or program.status() == psutil.STATUS_ZOMBIE, "its end")
    assert losses(work), work.log_file.read_text()
    parent.stdout.close()
