"""What DeepSpeed says to our configurations, and what it estimates that they take."""

import json
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.training.plans.deepspeed_config import deepspeed_config, memory_estimate
from rl_pipeline.training.plans.model_size import ModelSize, NotAModel, size_of_model
from rl_pipeline.training.plans.plan import DistributionPlan, LoraPlan, OnlinePlan, OptimizationPlan, TrainingPlan
from rl_pipeline.training.plans.planning import with_memory
from rl_pipeline.training.plans.presets import load_presets, preset_of
from rl_pipeline_tests.training.plans.test_planning import PLAYABLE, TWO_A100, TWO_CORES, plan, request_with

STEPS = OptimizationPlan(learning_rate=3e-5, micro_batch=4, accumulation=2, max_gradient_norm=0.5)
# The models of the presets, from which their sizes can be computed.
SHAPES = {
    "0.5b": (896, 4864, 24, 14, 2, 151936, True),
    "1.5b": (1536, 8960, 28, 12, 2, 151936, True),
    "3b": (2048, 11008, 36, 16, 2, 151936, True),
    "7b": (3584, 18944, 28, 28, 4, 152064, False),
    "qwen2.5-32b-instruct": (5120, 27648, 64, 40, 8, 152064, False),
}


def accepted(made: TrainingPlan) -> Any:
    """The configuration as DeepSpeed reads it; alone in this process, it takes the plan to be that of one."""
    from deepspeed.runtime.config import DeepSpeedConfig

    alone = made.model_copy(update={"distribution": made.distribution.model_copy(update={"processes": 1})})
    return DeepSpeedConfig(deepspeed_config(alone))


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")


def plan_with(**distribution: Any) -> TrainingPlan:
    return TrainingPlan(
        job_id="j",
        algorithm="dpo",
        base_model="m",
        optimization=STEPS,
        distribution=DistributionPlan(processes=2, **distribution),
    )


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_deepspeed_reads_every_stage_as_it_was_meant(stage: int) -> None:
    read = accepted(plan_with(zero_stage=stage))
    assert read.zero_optimization_stage == stage
    assert (read.train_batch_size, read.train_micro_batch_size_per_gpu, read.gradient_accumulation_steps) == (8, 4, 2)
    assert read.gradient_clipping == 0.5
    assert deepspeed_config(plan_with(zero_stage=stage))["train_batch_size"] == 16, "of two processes"
    assert read.optimizer_name is None, "the trainer brings its own"


def test_deepspeed_reads_offloading_with_an_optimiser_of_its_own() -> None:
    read = accepted(plan_with(zero_stage=3, offload_optimizer=True, offload_parameters=True))
    assert read.zero_config.offload_optimizer.device == "cpu"
    assert read.zero_config.offload_param.device == "cpu"
    assert read.zero_config.gather_16bit_weights_on_model_save
    assert (read.optimizer_name, read.optimizer_params["lr"]) == ("adamw", 3e-5)


@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16"])
def test_deepspeed_reads_the_format_of_numbers(precision: str) -> None:
    read = accepted(plan_with(precision=precision))
    assert (read.float16_config.enabled, read.bfloat16_config.enabled) == (precision == "fp16", precision == "bf16")


@pytest.mark.parametrize("machine", [TWO_CORES, TWO_A100])
def test_deepspeed_accepts_the_plan_of_every_preset(machine: Any) -> None:
    for preset in load_presets():
        made = plan(base_model=preset.name, machine=machine)
        assert accepted(made).train_batch_size == made.global_batch // made.distribution.processes


@pytest.mark.parametrize("name", SHAPES)
def test_a_preset_knows_the_size_of_its_model(name: str) -> None:
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    hidden, intermediate, layers, heads, key_value_heads, vocabulary, tied = SHAPES[name]
    with torch.device("meta"):
        model = Qwen2ForCausalLM(
            Qwen2Config(
                hidden_size=hidden,
                intermediate_size=intermediate,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                num_key_value_heads=key_value_heads,
                vocab_size=vocabulary,
                tie_word_embeddings=tied,
            )
        )
    linear = [m for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and n != "lm_head"]
    assert preset_of(name).size == ModelSize(
        parameters=sum(p.numel() for p in model.parameters()),
        largest_layer=max(p.numel() for p in model.parameters()),
        adapter_parameters_per_rank=sum(sum(layer.weight.shape) for layer in linear),
    )


def test_the_preset_of_32_billion_parameters_fits_on_two_a100() -> None:
    made = plan()
    size = preset_of(made.base_model).size
    assert size is not None
    assert made.lora is not None
    estimate = memory_estimate(made, size)
    assert 36 < estimate.device_gb < 39, "of 80 GB: the rest is for activations and the cache of generation"
    assert estimate.playing_gb == 0, "the weights are not gathered to play"
    assert 139 < estimate.host_gb < 142, "two copies are held when it is delivered"
    scored = plan(dataset=replace(PLAYABLE, environment=None))
    assert 69 < memory_estimate(scored, size).device_gb < 71, "with its share of a reward model"
    whole = with_memory(plan(request_with(hyperparameters={"gather_for_generation": True})), estimate, TWO_A100)
    gathered = memory_estimate(whole, size)
    assert gathered.playing_gb == pytest.approx(2 * size.parameters / 1e9, abs=0.001)
    assert gathered.device_gb == pytest.approx(estimate.device_gb + gathered.playing_gb, abs=0.002)
    notes = with_memory(whole, gathered, TWO_A100).notes
    assert ["103 GB on each GPU, which has 86" in notes[0], "gather_for_generation = false" in notes[1]] == [True, True]


@pytest.mark.parametrize(("environment", "gathers"), [("crafting", True), (None, False)])
def test_a_model_that_is_measured_by_playing_is_gathered_too(environment: str | None, gathers: bool) -> None:
    made = plan(base_model="7b", algorithm="sft", dataset=replace(PLAYABLE, environment=environment))
    size = preset_of("7b").size
    assert size is not None
    assert (memory_estimate(made, size).playing_gb > 0) is gathers


def test_all_32_billion_weights_need_most_of_a_terabyte_of_the_host() -> None:
    asked = request_with(
        hyperparameters={"lora_rank": 0}, compute={"offload_optimizer": True, "offload_parameters": True}
    )
    made = plan(asked)
    size = preset_of(made.base_model).size
    assert size is not None
    estimate = memory_estimate(made, size)
    assert estimate.device_gb < 4
    assert 1010 < estimate.host_gb < 1020
    imitates = memory_estimate(made.model_copy(update={"algorithm": "sft"}), size)
    assert 940 < imitates.host_gb < 960, "there is nothing to compare with"
    without = memory_estimate(plan(request_with(hyperparameters={"lora_rank": 0})), size)
    assert without.device_gb > 300, "which no GPU has"


def test_the_estimate_is_deepspeeds_own_with_what_is_only_read_on_top() -> None:
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs

    size = ModelSize(1_000_000_000, 100_000_000, 1_000_000)
    host, device = estimate_zero2_model_states_mem_needs(1_000_000_000, 2, 1, cpu_offload=False)
    made = plan_with(zero_stage=2, device="cuda", precision="bf16")
    trained = memory_estimate(made.model_copy(update={"algorithm": "sft"}), size)
    assert (trained.device_gb, trained.host_gb) == (device / 1e9, host / 1e9)
    compared = memory_estimate(made, size)
    assert compared.device_gb == pytest.approx(device / 1e9 + 2)
    scored = made.model_copy(update={"algorithm": "ppo", "online": OnlinePlan(rollouts="reward_model")})
    assert memory_estimate(scored, size).device_gb == pytest.approx(device / 1e9 + 4)
    adapted = memory_estimate(made.model_copy(update={"lora": LoraPlan()}), size)
    assert adapted.device_gb < compared.device_gb / 4


def test_without_gpus_the_host_holds_everything() -> None:
    size = ModelSize(1_000_000, 100_000, 1_000)
    estimate = memory_estimate(plan_with(zero_stage=2), size)
    assert estimate.host_gb >= 2 * estimate.device_gb


def write_safetensors(path: Path, **shapes: list[int]) -> None:
    header = {"__metadata__": {"format": "pt"}, **{name: {"shape": shape} for name, shape in shapes.items()}}
    encoded = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(encoded)) + encoded)


def test_the_size_of_a_model_is_read_from_its_files(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model-1.safetensors", embed_tokens=[100, 8], norm=[8])
    write_safetensors(tmp_path / "model-2.safetensors", q_proj=[8, 16], up_proj=[8, 32])
    assert size_of_model(tmp_path) == ModelSize(800 + 8 + 128 + 256, 800, (8 + 16) + (8 + 32))


def test_a_directory_without_weights_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(NotAModel, match="no safetensors files"):
        size_of_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(NotAModel, match="fetch the model again"):
        size_of_model(tmp_path)
