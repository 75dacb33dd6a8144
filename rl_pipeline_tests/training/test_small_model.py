"""The embedded base model: its tokenizer, what it can do before any training, and how it is built."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from random import Random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from rl_pipeline.environments.crafting import COMMANDS, CraftingWorld
from rl_pipeline.environments.environment import UnknownWorld
from rl_pipeline.environments.reasoning import ReasoningGymWorld
from rl_pipeline.environments.worlds import Worlds, read_worlds
from rl_pipeline.training.program.generation import play_with_model
from rl_pipeline.training.small_model.building import (
    WORLDS_FILE,
    AnotherSmallModel,
    SmallWorld,
    build_small_model,
    demonstrations_in,
    small_world,
    world_of_ancestor,
    world_of_small_model,
)
from rl_pipeline.training.small_model.held_out import MOST_HELD_OUT, held_out_tasks
from rl_pipeline.training.small_model.tokenizer import SPECIAL_TOKENS, train_tokenizer
from rl_pipeline.training.small_model.warm_start import Manner, imitate, lessons_of, new_model
from rl_pipeline_tests.waiting import wait_until

WORLD = CraftingWorld()
MATRICES = "reasoning-gym:rotate_matrix"
FEW = 48
"""Demonstrations of a model that only has to be built."""
BUILDER = (
    "import sys, pathlib; from rl_pipeline.training.small_model.building import build_small_model;"
    f"build_small_model(pathlib.Path(sys.argv[1]), demonstrations={FEW})"
)


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer([WORLD.instructions, *COMMANDS], 400)


def digests(directory: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


@given(text=st.text().filter(lambda text: not any(token in text for token in SPECIAL_TOKENS)))
@settings(deadline=None)
def test_every_text_has_tokens_and_comes_back_from_them(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_a_command_is_two_tokens_and_its_end() -> None:
    texts = [*COMMANDS, *(f"Have {command.split()[1]}" for command in COMMANDS)] * 20
    tokenizer = train_tokenizer(texts, 512)
    assert {len(tokenizer(command)["input_ids"]) for command in COMMANDS} == {2}


def test_the_template_marks_what_the_assistant_wrote_with_its_end(tokenizer: PreTrainedTokenizerFast) -> None:
    call = {"type": "function", "function": {"name": "get", "arguments": {"thing": "wood"}}}
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "craft plank"},
        {"role": "assistant", "content": "get wood"},
        {"role": "tool", "content": "Have wood"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    rendered = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    marked = [
        token if mark else "|" for token, mark in zip(rendered["input_ids"], rendered["assistant_masks"], strict=True)
    ]
    written = [tokenizer.decode([token]) for token in marked if token != "|"]
    assert "".join(written) == 'get wood<|end|><|call|>{"name": "get", "arguments": {"thing": "wood"}}<|end|>'
    text = tokenizer.apply_chat_template(messages[:2], tokenize=False, add_generation_prompt=True, tools=[call])
    assert text.startswith('<|system|>[{"type": "function"')
    assert text.endswith("<|system|>be brief<|end|><|user|>craft plank<|end|><|assistant|>")


def test_the_base_model_can_do_something_and_has_much_to_learn(small_model: Path) -> None:
    tokenizer, model = AutoTokenizer.from_pretrained(small_model), AutoModelForCausalLM.from_pretrained(small_model)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    assert 300_000 <= parameters <= 1_000_000
    tasks = WORLD.tasks(255, seed=2_000_003)
    randomness = torch.Generator().manual_seed(5)
    played = play_with_model(WORLD, tasks, model, tokenizer, generator=randomness, max_new_tokens=8)
    success = {tier: [episode.success for episode, _ in played if episode.task.tier == tier] for tier in (1, 2, 3)}
    share = {tier: sum(reached) / len(reached) for tier, reached in success.items()}
    assert 0.2 <= sum(episode.success for episode, _ in played) / len(played) <= 0.5
    assert share[1] > share[2] > share[3]
    assert share[3] < 0.09


def test_the_same_seed_builds_the_same_model_and_another_seed_another(tmp_path: Path) -> None:
    once = digests(build_small_model(tmp_path / "once", demonstrations=FEW))
    state = torch.get_rng_state()
    again = digests(build_small_model(tmp_path / "again", demonstrations=FEW))
    other = digests(build_small_model(tmp_path / "other", seed=1, demonstrations=FEW))
    assert once == again
    assert other["model.safetensors"] != once["model.safetensors"]
    assert {"config.json", "generation_config.json", "tokenizer.json", "chat_template.jinja"} <= set(once)
    assert torch.equal(torch.get_rng_state(), state), "building draws nothing from the caller's randomness"


def test_two_builders_at_once_make_one_model(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as builders:
        asked = [builders.submit(build_small_model, tmp_path / "model", demonstrations=FEW) for _ in range(2)]
    assert [one.result() for one in asked] == [tmp_path / "model"] * 2, "without the lock they trip over each other"
    assert digests(tmp_path / "model") == digests(build_small_model(tmp_path / "alone", demonstrations=FEW))


def test_a_killed_builder_leaves_nothing_that_counts_and_the_next_one_builds(tmp_path: Path) -> None:
    directory, unfinished = tmp_path / "model", tmp_path / ".model.unfinished"
    builder = subprocess.Popen([sys.executable, "-c", BUILDER, str(directory)])
    wait_until(unfinished.exists, "the build")
    builder.kill()
    builder.wait()
    assert not directory.exists()
    build_small_model(directory, demonstrations=FEW)
    assert AutoModelForCausalLM.from_pretrained(directory).num_parameters() > 0
    assert not unfinished.exists()


def test_a_directory_with_something_else_is_not_taken_for_the_model(tmp_path: Path) -> None:
    built = build_small_model(tmp_path / "model", demonstrations=FEW)
    assert build_small_model(built, demonstrations=FEW) == built
    (tmp_path / "other").mkdir()
    for directory, seed in ((built, 1), (tmp_path / "other", 0)):
        with pytest.raises(AnotherSmallModel, match="remove it"):
            build_small_model(directory, seed=seed, demonstrations=FEW)


def test_a_model_of_another_world_says_which_it_knows_and_sees_every_digit(tmp_path: Path) -> None:
    built = build_small_model(tmp_path / "matrices", world=MATRICES, demonstrations=FEW)
    assert build_small_model(built, world=MATRICES, demonstrations=FEW) == built
    with pytest.raises(AnotherSmallModel, match="remove it"):
        build_small_model(built, demonstrations=FEW)
    known, world = Worlds(read_worlds(WORLDS_FILE)).find(MATRICES), world_of_small_model(built)
    assert isinstance(world, ReasoningGymWorld)
    assert world.tasks(3, seed=1) == known.tasks(3, seed=1), "the recipe has the configuration"
    tokenizer = AutoTokenizer.from_pretrained(built)
    assert [tokenizer.decode([token]) for token in tokenizer("1234")["input_ids"]] == list("1234")
    randomness = torch.Generator().manual_seed(5)
    model = AutoModelForCausalLM.from_pretrained(built)
    assert len(play_with_model(world, world.tasks(4, seed=2), model, tokenizer, generator=randomness)) == 4


def test_no_lesson_shows_a_question_that_is_held_out() -> None:
    world = small_world(MATRICES)
    assert isinstance(world, ReasoningGymWorld)
    held_out = {world.question(task) for task in held_out_tasks(world, MOST_HELD_OUT)}
    drawn = [world.question(task) for task in world.tasks(200, seed=1)]
    assert any(question in held_out for question in drawn), "some would be"
    shown = [one.messages[0]["content"] for one in demonstrations_in(world, 200, Random(1))]
    assert len(shown) > 100
    assert not any(question in text for text in shown for question in held_out)


def test_fewer_held_out_tasks_are_the_first_of_more() -> None:
    worlds: list[SmallWorld] = [WORLD, small_world(MATRICES)]
    for world in worlds:
        assert held_out_tasks(world, 30)[:10] == held_out_tasks(world, 10)


def test_to_read_what_lessons_begin_with_once_teaches_the_same() -> None:
    world = small_world(MATRICES)
    shown = demonstrations_in(world, 12, Random(1))
    tokenizer = train_tokenizer([message["content"] for one in shown for message in one.messages], 300)
    lessons, taught = lessons_of(shown, tokenizer), []
    for once in (False, True):
        model = new_model(tokenizer, 0)
        imitate(model, lessons, 0, Manner(batch=4, learning_rate=1e-2, beginning_once=once))
        taught.append(model.state_dict())
    untaught = new_model(tokenizer, 0).state_dict()
    for name, weights in taught[0].items():
        assert torch.allclose(weights, taught[1][name], atol=1e-3), name
        assert not torch.allclose(weights, untaught[name], atol=1e-3), name


def test_no_model_is_made_for_any_other_world(tmp_path: Path) -> None:
    for world in ("reasoning-gym:family_relationships", "chain_sum", "agentgym:textcraft"):
        with pytest.raises(UnknownWorld, match=f"use one of crafting, .*{MATRICES}"):
            build_small_model(tmp_path / "model", world=world, demonstrations=FEW)


def test_what_was_trained_from_a_small_model_knows_its_world(tmp_path: Path) -> None:
    for name, recipe in {
        "crafts": {"revision": 1},
        "rotates": {"revision": 1, "world": MATRICES, "config": {"max_n": 2}},
    }.items():
        base, child, grandchild = (tmp_path / f"{name}{generation}" for generation in range(3))
        for directory in (base, child, grandchild):
            directory.mkdir()
        (base / "recipe.json").write_text(json.dumps(recipe))
        (child / "training_plan.json").write_text(json.dumps({"base_model": base.name}))
        (grandchild / "training_plan.json").write_text(json.dumps({"base_model": child.name}))
        found = [world_of_ancestor(one, tmp_path.joinpath) for one in (base, child, grandchild)]
        assert [world.name for world in found if world] == [recipe.get("world", WORLD.name)] * 3
    assert world_of_ancestor(tmp_path, tmp_path.joinpath) is None
