"""A training that was killed goes on as if it had not been, whatever the next attempt does otherwise."""

import os
import shutil
import signal
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from rl_pipeline.training.checkpoints.storage import states, verify
from rl_pipeline.training.launching.exits import Exit
from rl_pipeline.training.program.taking_over import layout_of, note_on
from rl_pipeline.training.work_directory import WorkDirectory
from rl_pipeline_tests.training.tiny_jobs import (
    WIDE,
    lay_out,
    losses,
    plan_of,
    progress,
    result,
    write_dataset,
    write_tiny_model,
)
from rl_pipeline_tests.training.warm_program import log_of, run, running
from rl_pipeline_tests.waiting import wait_until

ADAPTERS = {"rank": 4, "alpha": 8.0, "dropout": 0.1}
# Answers that a reward model scores, which is learnt before the first step.
SCORED = {
    "online": {"rollouts": "reward_model", "group_size": 2, "max_new_tokens": 4},
    "reward_model": {"learning_rate": 3e-3, "epochs": 5, "batch": 8},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    write_tiny_model(directory)
    return directory


def parts(steps: int, *, zero_stage: int | None = None, processes: int = 1, **more: Any) -> dict[str, Any]:
    return {
        "distribution": {"deepspeed": zero_stage is not None, "zero_stage": zero_stage or 0, "processes": processes},
        "optimization": {"learning_rate": 1e-3, "micro_batch": 4 // processes, "max_steps": steps},
        "checkpoints": {"save_interval": 10, "max_checkpoints": 3},
        "evaluation": {"enabled": False},
    } | more


def interrupt(work: WorkDirectory, after: int, signal_number: signal.Signals, processes: int = 1) -> None:
    """Let an attempt run until it has done `after` steps, and send the signal to all of its processes."""
    with running(work, processes) as ranks:
        wait_until(lambda: max(losses(work), default=0) >= after or not ranks[0].is_alive(), f"step {after}")
        for process in ranks:
            os.kill(process.pid or 0, signal_number)
        for process in ranks:
            process.join()


def killed_and_resumed(
    root: Path, model: Path, algorithm: str, steps: int, processes: int = 1, **more: Any
) -> tuple[WorkDirectory, WorkDirectory]:
    """The same training twice: in one go, and killed after half of its steps."""
    plan = parts(steps, processes=processes, **more)
    whole = lay_out(root / "whole", model, plan_of(algorithm, **plan))
    assert run(whole, processes) == Exit.DONE, log_of(whole)
    first = lay_out(root / "killed", model, plan_of(algorithm, **plan))
    interrupt(first, steps // 2 + 3, signal.SIGKILL, processes)
    second = lay_out(root / "killed", model, plan_of(algorithm, attempt=2, **plan))
    assert run(second, processes) == Exit.DONE, log_of(second)
    return whole, second


def same_end(whole: WorkDirectory, resumed: WorkDirectory, steps: int) -> None:
    expected, found = losses(whole), losses(resumed)
    assert 1 < min(found) <= steps // 2 + 10, "it began at the last state, not at the beginning"
    assert sorted(found) == list(range(min(found), steps + 1))
    assert found == pytest.approx({step: expected[step] for step in found}, abs=1e-6)
    assert dict(result(resumed)["curves"]["loss"]) == pytest.approx(dict(result(whole)["curves"]["loss"]), abs=1e-6)
    assert result(resumed)["tokens"] == result(whole)["tokens"]
    ours, theirs = (load_file(work.final / "model.safetensors") for work in (whole, resumed))
    assert all((ours[name] - theirs[name]).abs().max().item() <= 1e-6 for name in ours)


@pytest.mark.parametrize("lora", [None, ADAPTERS], ids=["all weights", "adapters with dropout"])
def test_killed_after_fifty_steps_it_ends_as_if_it_had_done_a_hundred_in_one_go(
    tmp_path: Path, model: Path, lora: dict[str, Any] | None
) -> None:
    same_end(*killed_and_resumed(tmp_path, model, "sft", 100, lora=lora), 100)


@pytest.mark.soak
def test_every_way_of_training_resumes_where_it_was_killed(
    tmp_path: Path,
    model: Path,
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    write_tiny_model(wide := tmp_path / "wide", width=WIDE)
    ways: list[tuple[str, int, dict[str, Any]]] = [("ppo", 2, SCORED), ("ppo", 2, {**SCORED, "lora": ADAPTERS})]
    ways += product(("sft", "dpo"), (2, 3), ({}, {"lora": ADAPTERS}))
    count = soak_count(1, len(ways))
    for number, (algorithm, stage, more) in enumerate(ways[-count:]):
        root, base = tmp_path / str(number), wide if stage == 3 else model
        same_end(*killed_and_resumed(root, base, algorithm, 24, 2, zero_stage=stage, **more), 24)
    record_property("ways", count)


@pytest.mark.soak
def test_killed_while_it_saves_it_goes_on_from_the_newest_whole_state(
    tmp_path: Path, soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    write_tiny_model(wide := tmp_path / "wide", width=WIDE)  # whose states take a while to be written
    keeping = {"checkpoints": {"save_interval": 2, "max_checkpoints": 2}}
    kills = soak_count(1, 4)
    done = torn = 0
    while done < kills or (torn == 0 and done < 12):
        first = lay_out(tmp_path / str(done), wide, plan_of(**parts(1_000, zero_stage=2, processes=2, **keeping)))
        done += 1
        with running(first, 2) as ranks:
            wait_until(
                lambda work=first: states(work.checkpoints) and any(work.checkpoints.glob(".saving-*")),
                "a save after the first",
                seconds=300,
            )
            for process in ranks:
                os.kill(process.pid or 0, signal.SIGKILL)
        torn += any(first.checkpoints.glob(".saving-*"))
        begun = max(verify(state).meta.step for state in states(first.checkpoints))
        second = lay_out(first.root, wide, plan_of(attempt=2, **parts(begun + 3, zero_stage=2, processes=2, **keeping)))
        assert run(second, 2) == Exit.DONE, log_of(second)
        assert sorted(losses(second)) == [begun + 1, begun + 2, begun + 3]
        assert not [path.name for path in first.checkpoints.iterdir() if not path.name[5:].isdigit()]
    record_property("kills while the program saved", done)
    record_property("of these in the middle of a state", torn)
    assert torn > 0, "no kill hit a save: the test shows nothing"


def steady(steps: int, schedule: str = "constant", processes: int = 1, **more: Any) -> dict[str, Any]:
    """Parts of a plan in which the same four sequences make a step, however many processes share them."""
    rates = {"learning_rate": 1e-3, "schedule": schedule, "warmup_share": 0.0}
    batch = {"micro_batch": 4 // processes, "max_steps": steps}
    return parts(steps, processes=processes, optimization={**rates, **batch}, **more)


def optimizer_steps(state: Path) -> set[float]:
    """How many steps the optimizer of a state has taken, by what it remembers of each weight."""
    steps = set()
    for file in (*state.glob("optimizer.pt"), *state.glob("*/*_optim_states.pt")):
        saved = torch.load(file, weights_only=False)
        # DeepSpeed keeps what is its own around it, by other names in each stage.
        for name in ("optimizer_state_dict", "base_optimizer_state", "optimizer_state_dict"):
            saved = saved.get(name, saved)
        steps |= {float(weight["step"]) for weight in saved["state"].values()}
    return steps


@pytest.mark.soak
def test_other_processes_go_on_with_the_weights_of_the_state_and_a_new_optimizer_and_say_so(
    tmp_path: Path,
    model: Path,
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    write_tiny_model(wide := tmp_path / "wide", width=WIDE)
    adapters = {"lora": {**ADAPTERS, "dropout": 0.0}}
    plain: dict[str, Any] = {}
    one, two, shared = {"zero_stage": 2}, {"zero_stage": 2, "processes": 2}, {"zero_stage": 3, "processes": 2}
    ways: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
        (two, one, {}),
        (one, plain, {}),
        (plain, two, {}),
        (two, plain, adapters),
        (plain, shared, adapters),
        (shared, plain, {}),
        (shared, two, adapters),
        (plain, shared, {}),
    ]
    count = soak_count(3, len(ways))
    in_one_go: dict[str, dict[int, float]] = {}
    for number, (before, after, more) in enumerate(ways[:count]):
        root, base = tmp_path / str(number), wide if shared in (before, after) else model
        if (same := f"{base.name} {more}") not in in_one_go:
            whole = lay_out(root / "whole", base, plan_of(**steady(9, **more)))
            assert run(whole) == Exit.DONE, log_of(whole)
            in_one_go[same] = losses(whole)
        first = lay_out(root / "job", base, plan_of(**steady(6, **before, **more)))
        assert run(first, before.get("processes", 1)) == Exit.DONE, log_of(first)
        second = lay_out(root / "job", base, plan_of(attempt=2, **steady(9, "linear", **after, **more)))
        assert run(second, after.get("processes", 1)) == Exit.DONE, log_of(second)
        assert sorted(losses(second)) == [7, 8, 9]
        assert losses(second)[7] == pytest.approx(in_one_go[same][7], abs=1e-5), "these are not the state's weights"
        rates = [line["learning_rate"] for line in progress(second) if "loss" in line]
        assert rates == pytest.approx([1e-3 * 3 / 9, 1e-3 * 2 / 9, 1e-3 * 1 / 9], abs=1e-8)
        newest = states(second.checkpoints)[0]
        assert optimizer_steps(newest) == {3.0}
        [note] = [line["note"] for line in progress(second) if "note" in line]
        assert "The state after step 6" in note
        assert [result(work)["notes"] for work in (first, second)] == [[], [note]]
        assert (verify(newest).meta.model_extra or {})["notes"] == [note], "a later attempt would not know of it"
    record_property("ways", count)


@pytest.mark.parametrize(
    ("changed", "fits"),
    [
        ({"gradient_checkpointing": True, "threads": 2, "memory_limit_gb": 9.0}, True),
        ({"processes": 1}, False),
        ({"deepspeed": False}, False),
        ({"zero_stage": 3}, False),
        ({"offload_optimizer": True}, False),
        ({"precision": "fp16"}, False),
        ({"device": "cpu"}, False),
    ],
)
def test_a_state_fits_the_same_processes_with_the_same_optimizer(changed: dict[str, Any], fits: bool) -> None:
    before = {"processes": 2, "device": "cuda", "precision": "bf16"}
    saved, now = (layout_of(plan_of(distribution=part)) for part in (before, {**before, **changed}))
    assert (saved == now) is fits
    assert ("that offloads" in note_on(6, saved, now)) is ("offload_optimizer" in changed)


def stopped(root: Path, model: Path, **plan: Any) -> WorkDirectory:
    """An attempt that was asked to stop after some steps."""
    work = lay_out(root, model, plan_of(**plan))
    interrupt(work, 5, signal.SIGTERM)
    assert states(work.checkpoints), log_of(work)
    return work


@pytest.mark.parametrize("zero_stage", [None, 2], ids=["plain", "ZeRO-2"])
def test_the_learning_rate_is_that_of_the_attempts_own_plan(
    tmp_path: Path, model: Path, zero_stage: int | None
) -> None:
    steady = {"micro_batch": 4, "max_steps": 10_000, "schedule": "constant", "warmup_share": 0.0}
    before = parts(0, zero_stage=zero_stage, optimization={"learning_rate": 1e-3, **steady})
    done = max(losses(stopped(tmp_path, model, **before)))
    halved = {"learning_rate": 5e-4, **steady, "max_steps": done + 4}
    work = lay_out(tmp_path, model, plan_of(attempt=2, **{**before, "optimization": halved}))
    assert run(work) == Exit.DONE, log_of(work)
    rates = {line["step"]: line["learning_rate"] for line in progress(work) if "loss" in line}
    assert rates == pytest.approx(dict.fromkeys(range(done + 1, done + 5), 5e-4))


def test_smaller_batches_that_are_accumulated_go_on_with_the_same_training(tmp_path: Path, model: Path) -> None:
    whole = lay_out(tmp_path / "whole", model, plan_of(**parts(24)))
    assert run(whole) == Exit.DONE
    stopped(tmp_path / "job", model, **parts(24))
    smaller = {"learning_rate": 1e-3, "micro_batch": 1, "accumulation": 4, "max_steps": 24}
    work = lay_out(tmp_path / "job", model, plan_of(attempt=2, **parts(24, optimization=smaller)))
    assert run(work) == Exit.DONE, log_of(work)
    expected = losses(whole)
    assert losses(work) == pytest.approx({step: expected[step] for step in losses(work)}, abs=1e-4)


def test_a_state_that_was_damaged_is_not_resumed_from(tmp_path: Path, model: Path) -> None:
    plan = parts(10_000)
    first = lay_out(tmp_path, model, plan_of(**plan))
    interrupt(first, 23, signal.SIGKILL)
    newest, older, *_ = states(first.checkpoints)
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    second = lay_out(tmp_path, model, plan_of(attempt=2, **parts(verify(older).meta.step + 3)))
    assert run(second) == Exit.DONE, log_of(second)
    assert min(losses(second)) == verify(older).meta.step + 1
    assert "model.safetensors" in log_of(second)


@pytest.mark.parametrize("damage", ["truncated", "missing"])
def test_an_older_state_that_was_damaged_does_not_keep_the_next_from_being_saved(
    tmp_path: Path, model: Path, damage: str
) -> None:
    interrupt(first := lay_out(tmp_path, model, plan_of(**parts(10_000))), 23, signal.SIGKILL)
    newest, older, *_ = states(first.checkpoints)
    manifest = older / "manifest.json"
    manifest.unlink() if damage == "missing" else manifest.write_bytes(manifest.read_bytes()[:20])
    begun = verify(newest).meta.step
    second = lay_out(tmp_path, model, plan_of(attempt=2, **parts(begun + 13)))
    assert run(second) == Exit.DONE, log_of(second)
    assert min(losses(second)) == begun + 1
    assert older not in states(second.checkpoints)
    assert [verify(state).meta.step for state in states(second.checkpoints)] == [begun + 13, begun + 10, begun]


def test_another_dataset_is_another_training(tmp_path: Path, model: Path) -> None:
    first = stopped(tmp_path, model, **parts(10_000))
    write_dataset(first.dataset, rows=36)
    second = lay_out(tmp_path, model, plan_of(attempt=2, **parts(3)))
    assert run(second) == Exit.DONE, log_of(second)
    assert min(losses(second)) == 1
    assert [state.name for state in states(second.checkpoints)] == ["step-00000003"]


def test_a_training_that_was_over_when_its_attempt_failed_only_has_to_be_delivered(tmp_path: Path, model: Path) -> None:
    plan = parts(7, log_interval=3)
    first = lay_out(tmp_path, model, plan_of(**plan))
    assert run(first) == Exit.DONE, log_of(first)
    delivered = load_file(first.final / "model.safetensors")
    shutil.rmtree(first.final)
    second = lay_out(tmp_path, model, plan_of(attempt=2, **plan))
    assert run(second) == Exit.DONE, log_of(second)
    assert losses(second) == {}
    again = load_file(second.final / "model.safetensors")
    assert all(delivered[name].equal(again[name]) for name in delivered)
    assert [result(work)["steps"] for work in (first, second)] == [7, 7]
    assert result(second)["tokens"] == result(first)["tokens"]


def test_what_the_base_could_do_is_measured_once_for_all_attempts(tmp_path: Path, model: Path) -> None:
    plan = parts(10_000, evaluation={"enabled": True})
    first = stopped(tmp_path, model, **plan)
    base = first.base_measures.read_text()
    done = max(losses(first))
    second = lay_out(tmp_path, model, plan_of(attempt=2, **parts(done + 2, evaluation={"enabled": True})))
    assert run(second) == Exit.DONE, log_of(second)
    assert first.base_measures.read_text() == base
    assert result(second)["improvement"] > 0
    assert "base_evaluation" not in {line["phase"] for line in progress(second)}
