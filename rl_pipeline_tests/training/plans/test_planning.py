"""From a request to a plan: whose word counts, and what is changed where it cannot be had."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.contracts.training_request import (
    Algorithm,
    Checkpointing,
    Compute,
    Dataset,
    DatasetFilter,
    Evaluation,
    Hyperparameters,
    TrainingConfig,
    TrainingRequest,
)
from rl_pipeline.environments.worlds import AgentGymServer, WorldDefinitions
from rl_pipeline.training.plans.machine import Gpu, Machine, inspect_machine, parse_gpus
from rl_pipeline.training.plans.plan import MemoryEstimate, TrainingPlan
from rl_pipeline.training.plans.planning import DatasetFacts, UnplannableRequest, plan_of, split_batch, with_memory
from rl_pipeline.training.plans.presets import load_presets, preset_of
from rl_pipeline.training.site import TrainingSite

A100 = Gpu(0, "NVIDIA A100-SXM4-80GB", 85.9, 8.0)
V100 = Gpu(0, "Tesla V100", 34.4, 7.0)
TWO_CORES = Machine(cores=2, memory_gb=24)
TWO_A100 = Machine(cores=48, memory_gb=340, gpus=(A100, replace(A100, index=1)))
PLAYABLE = DatasetFacts(train=5_000, holdout=500, environment="crafting")
SITE = TrainingSite(work=Path("work"), models=Path("models"), seed=7)


def request_with(**config: Any) -> TrainingRequest:
    return TrainingRequest.model_validate(
        {
            "training_job_id": "job-1",
            "timestamp": "2025-12-08T13:00:00Z",
            "requester": "admin",
            "trigger_reason": "manual",
            "training_config": config,
        }
    )


def plan(
    request: TrainingRequest | None = None,
    *,
    algorithm: Algorithm = "ppo",
    base_model: str = "qwen2.5-32b-instruct",
    machine: Machine = TWO_A100,
    site: TrainingSite = SITE,
    dataset: DatasetFacts = PLAYABLE,
) -> TrainingPlan:
    return plan_of(
        request or request_with(),
        algorithm=algorithm,
        base_model=base_model,
        preset=preset_of(base_model),
        machine=machine,
        site=site,
        dataset=dataset,
    )


def test_the_specified_default_is_ppo_on_two_a100_in_bf16() -> None:
    made = plan()
    assert (made.algorithm, made.base_model, made.seed) == ("ppo", "qwen2.5-32b-instruct", 7)
    assert (made.optimization.learning_rate, made.global_batch, made.optimization.epochs) == (1e-5, 32, 3)
    assert (made.distribution.processes, made.distribution.device, made.distribution.precision) == (2, "cuda", "bf16")
    assert (made.online.clip_epsilon, made.online.gamma, made.online.gae_lambda) == (0.2, 0.99, 0.95)
    assert (made.checkpoints.save_interval, made.checkpoints.max_checkpoints) == (50, 5)
    assert (made.optimization.max_gradient_norm, made.optimization.schedule) == (1.0, "cosine")
    assert made.notes == ()


@pytest.mark.parametrize("algorithm", get_args(Algorithm))
@pytest.mark.parametrize("machine", [TWO_CORES, TWO_A100, replace(TWO_CORES, has_compiler=False)])
def test_every_preset_makes_a_plan_for_every_algorithm_everywhere(algorithm: Algorithm, machine: Machine) -> None:
    for preset in load_presets():
        made = plan_of(
            request_with(),
            algorithm=algorithm,
            base_model=preset.name,
            preset=preset,
            machine=machine,
            site=SITE,
            dataset=PLAYABLE,
        )
        assert made.algorithm == algorithm
        assert TrainingPlan.model_validate_json(made.model_dump_json()) == made


def test_what_the_request_says_counts_more_than_the_source_and_the_preset() -> None:
    said = {"learning_rate": 3e-6, "batch_size": 48, "epochs": 7, "clip_epsilon": 0.1, "gamma": 1.0, "gae_lambda": 0.9}
    made = plan(request_with(preset="massgen", hyperparameters=said, checkpointing={"save_interval": 10}))
    assert (made.optimization.learning_rate, made.global_batch, made.optimization.epochs) == (3e-6, 48, 7)
    assert (made.online.clip_epsilon, made.online.gamma, made.online.gae_lambda) == (0.1, 1.0, 0.9)
    assert (made.checkpoints.save_interval, made.checkpoints.max_checkpoints) == (10, 5)


def test_the_source_counts_more_than_the_preset_of_the_model() -> None:
    made = plan(request_with(preset="massgen"), algorithm="grpo", base_model="embedded-small", machine=TWO_CORES)
    assert (made.optimization.epochs, made.optimization.learning_rate, made.global_batch) == (10, 1e-5, 32)
    assert plan(base_model="embedded-small", machine=TWO_CORES).optimization.learning_rate > 1e-5


def test_epochs_that_were_asked_for_are_not_cut_off_by_the_preset() -> None:
    embedded = {"base_model": "embedded-small", "machine": TWO_CORES}
    assert plan(**embedded).optimization.max_steps is not None
    made = plan(request_with(hyperparameters={"epochs": 2}), **embedded)
    assert (made.optimization.epochs, made.optimization.max_steps) == (2, None)
    limited = plan(request_with(hyperparameters={"epochs": 2, "max_steps": 9}), **embedded)
    assert limited.optimization.max_steps == 9


def test_a_request_may_set_more_than_the_contract_names() -> None:
    said = {"beta": 0.3, "max_steps": 50, "kl_coefficient": 0.1, "lora_rank": 64, "schedule": "linear"}
    made = plan(request_with(hyperparameters=said, compute={"zero_stage": 2, "gradient_checkpointing": False}))
    assert (made.preference.beta, made.optimization.max_steps, made.online.kl_coefficient) == (0.3, 50, 0.1)
    assert (made.distribution.zero_stage, made.distribution.gradient_checkpointing) == (2, False)
    assert made.optimization.schedule == "linear"
    assert made.lora is not None
    assert (made.lora.rank, made.lora.alpha) == (64, 32.0)


def test_a_rank_of_zero_trains_all_weights() -> None:
    assert plan().lora is not None
    assert plan(request_with(hyperparameters={"lora_rank": 0})).lora is None


def test_what_is_not_known_is_said_and_changes_nothing() -> None:
    made = plan(request_with(hyperparameters={"momentum": 0.9}, compute={"cluster": "x"}))
    assert made.model_copy(update={"notes": ()}) == plan()
    assert ["'momentum'" in made.notes[0], "'cluster'" in made.notes[1]] == [True, True]


@pytest.mark.parametrize(
    ("hyperparameters", "named"),
    [({"beta": -1}, "preference.beta"), ({"max_steps": "many"}, "max_steps"), ({"micro_batch": "x"}, "micro_batch")],
)
def test_a_value_that_makes_no_plan_is_named(hyperparameters: dict[str, Any], named: str) -> None:
    with pytest.raises(UnplannableRequest, match=named):
        plan(request_with(hyperparameters=hyperparameters))


def test_a_machine_without_gpus_trains_in_fp32_on_its_cores_and_says_so() -> None:
    asked = {"gpu_count": 2, "gpu_type": "a100", "mixed_precision": "bf16"}
    made = plan(request_with(compute=asked), machine=TWO_CORES)
    assert (made.distribution.device, made.distribution.processes, made.distribution.precision) == ("cpu", 2, "fp32")
    assert ["no GPU" in made.notes[0], "fp32 in place of bf16" in made.notes[1]] == [True, True]


def test_gpus_without_bf16_train_in_fp16_and_say_so() -> None:
    machine = replace(TWO_A100, gpus=(V100, replace(V100, index=1)))
    made = plan(request_with(compute={"mixed_precision": "bf16"}), machine=machine)
    assert made.distribution.precision == "fp16"
    assert "fp16 in place of bf16" in made.notes[0]


def test_a_machine_without_a_compiler_trains_in_one_process_without_deepspeed_and_says_so() -> None:
    made = plan(base_model="embedded-small", machine=replace(TWO_CORES, has_compiler=False))
    assert (made.distribution.deepspeed, made.distribution.processes) == (False, 1)
    assert made.global_batch == plan(base_model="embedded-small", machine=TWO_CORES).global_batch
    assert "no C++ compiler" in made.notes[0]


def test_nodes_whose_cpus_are_asked_for_are_left_alone_where_there_is_no_compiler(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("worker-1 slots=2\nworker-2 slots=2\n")
    without = replace(TWO_CORES, has_compiler=False)
    asked = request_with(compute={"gpu_count": 0})
    made = plan(asked, machine=without, site=replace(SITE, hostfile=hostfile)).distribution
    assert (made.device, made.deepspeed, made.processes, made.nodes, made.hostfile) == ("cpu", False, 1, 1, None)
    assert made.threads == 2


def test_gpus_without_a_compiler_keep_deepspeed_and_do_without_offloading() -> None:
    asked = request_with(compute={"offload_optimizer": True, "offload_parameters": True})
    made = plan(asked, machine=replace(TWO_A100, has_compiler=False))
    assert (made.distribution.deepspeed, made.distribution.processes) == (True, 2)
    assert (made.distribution.offload_optimizer, made.distribution.offload_parameters) == (False, False)
    assert (made.distribution.can_compile, plan().distribution.can_compile) == (False, True)
    assert "no C++ compiler" in made.notes[0]


def test_fewer_gpus_than_asked_for_are_used_and_said() -> None:
    made = plan(request_with(compute={"gpu_count": 8}))
    assert made.distribution.processes == 2
    assert "no 8 to be had" in made.notes[0]
    assert plan(request_with(compute={"gpu_count": 1})).distribution.processes == 1
    assert plan(site=replace(SITE, processes=1)).distribution.processes == 1


def test_a_request_that_is_not_distributed_has_one_process() -> None:
    assert plan(request_with(compute={"distributed": False})).distribution.processes == 1


def test_nodes_come_from_the_hostfile(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# two nodes\nworker-1 slots=8\nworker-2 slots=4\n")
    made = plan(site=replace(SITE, hostfile=hostfile), machine=TWO_CORES)
    assert (made.distribution.nodes, made.distribution.processes, made.distribution.device) == (2, 8, "cuda")
    assert "4 processes" in made.notes[0]
    hostfile.write_text("nothing\n")
    with pytest.raises(UnplannableRequest, match="slots=8"):
        plan(site=replace(SITE, hostfile=hostfile))


def test_nodes_are_those_of_the_hostfile_whatever_number_was_asked_for(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("worker-1 slots=4\nworker-2 slots=4\n")
    site = replace(SITE, hostfile=hostfile)
    made = plan(request_with(compute={"gpu_count": 2}), site=site)
    assert made.distribution.processes == 8
    assert "8 processes, those of the hostfile, in place of 2" in made.notes[0]
    assert plan(request_with(compute={"gpu_count": 8}), site=site).notes == ()
    assert made.distribution.threads == 12, "48 cores for 4 processes"


@pytest.mark.parametrize(("machine", "device"), [(TWO_CORES, "cpu"), (TWO_A100, "cuda")])
def test_a_request_that_is_not_distributed_trains_on_what_this_machine_has_and_not_on_the_nodes(
    tmp_path: Path, machine: Machine, device: str
) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("worker-1 slots=4\nworker-2 slots=4\n")
    made = plan(request_with(compute={"distributed": False}), machine=machine, site=replace(SITE, hostfile=hostfile))
    spread = made.distribution
    assert (spread.device, spread.processes, spread.nodes, spread.hostfile) == (device, 1, 1, None)
    assert "not on the nodes of the hostfile" in made.notes[0]


def test_each_process_has_its_share_of_the_cores() -> None:
    assert plan().distribution.threads == 24
    assert plan(machine=TWO_CORES).distribution.threads == 1


# What a request may set, with another value than would be taken without it; None where others follow it.
SET_BY_REQUEST: dict[str, dict[str, Any]] = {
    "hyperparameters": {
        "learning_rate": 3e-6,
        "batch_size": 48,
        "epochs": 7,
        "clip_epsilon": 0.1,
        "gamma": 1.0,
        "gae_lambda": 0.9,
    },
    "compute": {"gpu_count": 8, "gpu_type": "h100", "distributed": False, "mixed_precision": "fp16"},
    "checkpointing": {"save_interval": 10, "max_checkpoints": 2, "storage_path": "s3://elsewhere/models"},
    "evaluation": {"enabled": False, "holdout_size": None, "metrics": ["loss"], "benchmark_tasks": ["tool_usage"]},
    # Followed before there is a plan: by curation, and by whoever calls for the plan.
    "dataset": dict.fromkeys(Dataset.model_fields),
    "filter": dict.fromkeys(DatasetFilter.model_fields),
    "training_config": {
        **dict.fromkeys(("algorithm", "base_model")),
        **dict.fromkeys(("dataset", "hyperparameters", "compute", "checkpointing"), None),
    },
}


def request_setting(section: str, name: str, value: Any) -> TrainingRequest:
    fields = {name: value}
    if section == "evaluation":
        return request_with().model_copy(update={"evaluation": Evaluation.model_validate(fields)})
    if section == "training_config":
        return request_with(**fields)
    return request_with(**({"dataset": {"filter": fields}} if section == "filter" else {section: fields}))


def test_no_field_of_a_request_is_dropped_without_a_note() -> None:
    sections = {
        "training_config": TrainingConfig,
        "hyperparameters": Hyperparameters,
        "compute": Compute,
        "checkpointing": Checkpointing,
        "evaluation": Evaluation,
        "dataset": Dataset,
        "filter": DatasetFilter,
    }
    for section, model in sections.items():
        assert SET_BY_REQUEST[section].keys() == model.model_fields.keys(), f"{section} has fields that nobody tries"
        for name, value in SET_BY_REQUEST[section].items():
            if value is not None:
                assert plan(request_setting(section, name, value)) != plan(), f"{section}.{name}"
        made = plan(request_setting(section, "surprise", 1))
        assert "'surprise' is not known" in made.notes[-1], section
        assert made.model_copy(update={"notes": ()}) == plan()


def test_what_the_sections_of_a_request_leave_open_is_followed_where_it_is_known() -> None:
    assert plan(request_setting("evaluation", "episodes", 12)).evaluation.episodes == 12
    assert plan(request_setting("filter", "literal_filter", True)) == plan()


@pytest.mark.parametrize(
    ("asked", "machine", "trains_on"),
    [("a100", TWO_A100, None), ("any", TWO_A100, None), ("h100", TWO_A100, "A100"), ("a100", TWO_CORES, "CPUs")],
)
def test_another_gpu_than_was_asked_for_is_said(asked: str, machine: Machine, trains_on: str | None) -> None:
    notes = plan(request_with(compute={"gpu_type": asked}), machine=machine).notes
    assert len(notes) == (trains_on is not None)
    assert all(trains_on in note for note in notes if trains_on)


def test_a_dataset_that_cannot_be_played_is_scored_by_a_reward_model() -> None:
    made = plan(dataset=replace(PLAYABLE, environment=None))
    assert (made.online.rollouts, made.online.environment) == ("reward_model", None)
    assert "reward model" in made.notes[0]
    assert (plan().online.rollouts, plan().online.environment) == ("environment", "crafting")
    assert plan(dataset=replace(PLAYABLE, environment=None), algorithm="sft").notes == ()


def test_a_batch_that_cannot_be_shared_is_the_nearest_and_said() -> None:
    made = plan(request_with(hyperparameters={"batch_size": 33}))
    assert made.global_batch == 34
    assert "34 in place of 33" in made.notes[0]


@given(
    batch=st.integers(min_value=1, max_value=5_000),
    processes=st.integers(min_value=1, max_value=64),
    most=st.integers(min_value=1, max_value=64),
)
def test_the_global_batch_is_exact_where_it_can_be_and_else_the_nearest(batch: int, processes: int, most: int) -> None:
    micro, accumulation = split_batch(batch, processes, most)
    whole = processes * micro * accumulation
    assert 1 <= micro <= most
    if batch % processes == 0:
        assert whole == batch
    assert whole == processes or abs(whole - batch) * 2 <= processes


def test_a_dataset_smaller_than_a_batch_is_said() -> None:
    assert "fewer than a batch" in plan(algorithm="dpo", dataset=replace(PLAYABLE, train=5)).notes[0]


def test_memory_that_is_not_there_is_said() -> None:
    made = with_memory(plan(), MemoryEstimate(device_gb=300, host_gb=900), TWO_A100)
    assert made.memory == MemoryEstimate(device_gb=300, host_gb=900)
    assert ["300 GB on each GPU" in made.notes[0], "900 GB of the machine's memory" in made.notes[1]] == [True, True]
    assert with_memory(plan(), MemoryEstimate(device_gb=40, host_gb=90), TWO_A100).notes == ()


def test_gpus_are_read_from_what_their_driver_lists() -> None:
    listing = "0, NVIDIA A100-SXM4-80GB, 81920, 8.0, GPU-0a1b\n1, Tesla V100, 32768, 7.0, GPU-2c3d-4e5f\n"
    first, second = parse_gpus(listing)
    assert (first.name, round(first.memory_gb), first.computes_bf16) == ("NVIDIA A100-SXM4-80GB", 86, True)
    assert not second.computes_bf16
    assert parse_gpus(listing, "1") == (second,)
    assert parse_gpus(listing, "") == ()
    assert parse_gpus(listing, "GPU-2c3d-4e5f, GPU-0a1b") == (second, first)
    assert parse_gpus(listing, "GPU-2c") == (second,), "as much of it as tells it from others"
    assert parse_gpus(listing, "GPU-9") == ()


def test_a_machine_without_its_programs_has_neither_gpus_nor_a_compiler(tmp_path: Path) -> None:
    here = inspect_machine({"PATH": str(tmp_path)})
    assert (here.gpus, here.has_compiler) == ((), False)
    assert here.cores >= 1
    assert here.memory_gb > 0
    (tmp_path / "c++").touch(mode=0o755)
    assert inspect_machine({"PATH": str(tmp_path)}).has_compiler


def test_the_worlds_are_those_of_the_site_and_no_request_names_others() -> None:
    worlds = WorldDefinitions(agentgym={"textcraft": AgentGymServer(url="http://127.0.0.1:1", items=(0, 9))})
    made = plan(site=replace(SITE, worlds=worlds))
    assert made.worlds == worlds
    assert TrainingPlan.model_validate_json(made.model_dump_json()) == made
    elsewhere = {"agentgym": {"textcraft": {"url": "http://elsewhere:1", "items": [0, 9]}}}
    asked = plan(
        request_with(hyperparameters={"worlds": elsewhere}, worlds=elsewhere), site=replace(SITE, worlds=worlds)
    )
    assert asked.worlds == worlds
    assert any("worlds" in note for note in asked.notes)
