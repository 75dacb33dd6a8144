"""The presets: complete, valid, and found by name or by size."""

from typing import get_args

import pytest

from rl_pipeline.contracts.training_request import Algorithm
from rl_pipeline.training.plans.plan import TrainingPlan
from rl_pipeline.training.plans.presets import UnknownSource, hub_name_of, load_presets, preset_of, source_preset

BEYOND_THE_PLAN = {"reporting", "lora"}


@pytest.mark.parametrize("algorithm", get_args(Algorithm))
def test_every_preset_names_only_what_a_plan_has(algorithm: Algorithm) -> None:
    for preset in load_presets():
        for part, values in preset.sections_for(algorithm).items():
            if part not in BEYOND_THE_PLAN:
                known = TrainingPlan.model_fields[part].annotation
                assert values.keys() <= known.model_fields.keys() | {"batch_size"}, f"{preset.name}: {part}"


def test_every_preset_says_how_fast_each_algorithm_learns() -> None:
    for preset in load_presets():
        for algorithm in get_args(Algorithm):
            assert 0 < preset.sections_for(algorithm)["optimization"]["learning_rate"] < 0.01


def test_presets_are_in_the_order_of_their_sizes_and_name_their_models() -> None:
    names = [preset.name for preset in load_presets()]
    assert names == ["embedded-small", "0.5b", "1.5b", "3b", "7b", "qwen2.5-32b-instruct"]
    assert hub_name_of("qwen2.5-32b-instruct") == "Qwen/Qwen2.5-32B-Instruct"
    assert hub_name_of("embedded-small") is None


@pytest.mark.parametrize(
    ("base_model", "parameters", "preset"),
    [
        ("qwen2.5-32b-instruct", None, "qwen2.5-32b-instruct"),
        ("Qwen/Qwen2.5-32B-Instruct", None, "qwen2.5-32b-instruct"),
        ("embedded-small", 350_000, "embedded-small"),
        ("/models/mine", 350_000, "embedded-small"),
        ("/models/mine", 1_300_000_000, "1.5b"),
        ("meta-llama/Llama-3.2-3B-Instruct", None, "3b"),
        ("someone/model-70b", None, "qwen2.5-32b-instruct"),
        ("someone/model", None, "7b"),
    ],
)
def test_a_preset_is_found_by_name_then_by_size(base_model: str, parameters: int | None, preset: str) -> None:
    assert preset_of(base_model, parameters).name == preset


def test_online_algorithms_share_what_is_said_of_them() -> None:
    preset = preset_of("qwen2.5-32b-instruct")
    rates = {name: preset.sections_for(name)["optimization"]["learning_rate"] for name in ("ppo", "rloo", "sft")}
    assert rates == {"ppo": 1e-5, "rloo": 1e-5, "sft": 1e-4}


def test_ppo_clips_something_in_every_preset() -> None:
    for preset in load_presets():
        assert preset.sections_for("ppo")["online"]["updates_per_iteration"] > 1, preset.name


def test_massgen_has_its_own_defaults() -> None:
    source = source_preset("massgen")
    assert source.algorithm == "grpo"
    assert source.sections["optimization"] == {"learning_rate": 1e-5, "epochs": 10, "batch_size": 32}


def test_an_unknown_source_is_answered_with_those_that_are_known() -> None:
    with pytest.raises(UnknownSource, match="agent-zero, massgen"):
        source_preset("nobody")


def test_what_was_tuned_for_one_algorithm_leaves_the_others_as_they_are() -> None:
    small = preset_of("embedded-small")
    rloo, ppo = small.sections_for("rloo"), small.sections_for("ppo")
    assert (rloo["optimization"]["max_steps"], ppo["optimization"]["max_steps"]) == (60, 40)
    assert {"curriculum_floor", "shaping"} <= rloo["online"].keys() - ppo["online"].keys()
    assert rloo["optimization"]["batch_size"] == ppo["optimization"]["batch_size"]
