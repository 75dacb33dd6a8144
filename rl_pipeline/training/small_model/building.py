"""Makes the embedded base models: demonstrations, tokenizer, weights and warm start, all from one seed.

Each knows one world, crafting if none is named. The others are those of `worlds.toml`, a file of worlds: questions of a
size that a model of this size learns.
"""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any

from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.environments.reasoning import PREFIX, ReasoningGymWorld
from rl_pipeline.environments.worlds import Worlds, read_worlds
from rl_pipeline.errors import PipelineError
from rl_pipeline.training.small_model.demonstrations import Demonstration, answer, answer_carelessly, demonstrate
from rl_pipeline.training.small_model.held_out import MOST_HELD_OUT, held_out_tasks
from rl_pipeline.training.small_model.tokenizer import train_tokenizer
from rl_pipeline.training.small_model.warm_start import (
    ON_ANSWERS,
    ON_ATTEMPTS,
    ON_CARELESS_ANSWERS,
    imitate,
    lessons_of,
    new_model,
)

REVISION = 1
"""Counts the recipes of this model: another one makes another model of the same seed."""

DEMONSTRATIONS = 2800
"""Enough to know most of tiers 1 and 2, too few to be good at them: there is something left to learn."""

ANSWERS = 24_000
"""In a world of single questions, each of which teaches a few tokens: enough to understand most of what is asked."""

SmallWorld = CraftingWorld | ReasoningGymWorld

WORLDS_FILE = Path(__file__).parent / "worlds.toml"
"""The worlds beside crafting that a small model can be made for; a deployment may name it as its file of worlds."""

_RECIPE = "recipe.json"
_PLAN = "training_plan.json"
"""Beside the weights of every checkpoint."""
_VOCABULARY = 512


class AnotherSmallModel(PipelineError):
    """The directory is taken by something else."""


def build_small_model(
    directory: Path, *, world: str = CraftingWorld.name, seed: int = 0, demonstrations: int | None = None
) -> Path:
    """The model in `directory`, in Hugging Face's layout; made if it is not there.

    The same arguments make the same model; with fewer demonstrations it knows less. It appears whole or not at all, and
    of several builders at once one builds. Raises `UnknownWorld` and `AnotherSmallModel`.
    """
    named = _named(world)
    count = demonstrations or (ANSWERS if named else DEMONSTRATIONS)
    recipe = {"revision": REVISION, "seed": seed, "demonstrations": count, **named}
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _sole_builder(directory):
        if not directory.exists():
            _build(directory, recipe)
        elif not _was_built_by(directory, recipe):
            raise AnotherSmallModel(f"{directory} holds another model than was asked for: remove it or choose another")
    return directory


def small_world(name: str) -> SmallWorld:
    """The world of this name, as the small model of it has it. Raises `UnknownWorld`."""
    return _world(_named(name))


def world_of_small_model(directory: Path) -> SmallWorld | None:
    """The world that a model knows, and nothing but it, if the model was made here."""
    if not (directory / _RECIPE).is_file():
        return None
    return _world(json.loads((directory / _RECIPE).read_text()))


def world_of_ancestor(directory: Path, find: Callable[[str], Path]) -> SmallWorld | None:
    """The world of the model that was made here, if this is one or was trained from one; `find` gives the directory of
    a base model."""
    world, plan = world_of_small_model(directory), directory / _PLAN
    if world is not None or not plan.is_file():
        return world
    return world_of_ancestor(find(str(json.loads(plan.read_text())["base_model"])), find)


def _named(world: str) -> dict[str, Any]:
    """What a recipe says of its world: nothing of crafting, which was the only one once."""
    if world == CraftingWorld.name:
        return {}
    known = read_worlds(WORLDS_FILE)
    Worlds(known).find(world)
    return {"world": world, "config": known.reasoning_gym[world.removeprefix(PREFIX)]}


def _world(recipe: Mapping[str, Any]) -> SmallWorld:
    if "world" not in recipe:
        return CraftingWorld()
    return ReasoningGymWorld(str(recipe["world"]).removeprefix(PREFIX), recipe["config"])


def _build(directory: Path, recipe: Mapping[str, Any]) -> None:
    unfinished = directory.parent / f".{directory.name}.unfinished"
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir()
    _make(unfinished, _world(recipe), recipe["seed"], recipe["demonstrations"])
    (unfinished / _RECIPE).write_text(json.dumps(recipe))
    unfinished.rename(directory)


def _make(directory: Path, world: SmallWorld, seed: int, count: int) -> None:
    demonstrations = demonstrations_in(world, count, Random(f"small model {seed}"))  # noqa: S311 - to repeat it is the point
    texts = (message["content"] for demonstration in demonstrations for message in demonstration.messages)
    answers = isinstance(world, ReasoningGymWorld)
    tokenizer = train_tokenizer(texts, _VOCABULARY, single_digits=answers)
    lessons = lessons_of(demonstrations, tokenizer)
    with _one_thread():
        model = new_model(tokenizer, seed)
        if answers:
            last = _careless(lessons)
            imitate(model, lessons[:-last], seed, ON_ANSWERS)
            imitate(model, lessons[-last:], seed, ON_CARELESS_ANSWERS)
        else:
            imitate(model, lessons, seed, ON_ATTEMPTS)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def demonstrations_in(world: SmallWorld, count: int, randomness: Random) -> list[Demonstration]:
    """What a model is shown: so many, without those of single questions that are held out."""
    tasks = world.tasks(count, seed=randomness.getrandbits(32))
    if isinstance(world, CraftingWorld):
        return [demonstrate(world, task, randomness) for task in tasks]
    held_out = {task.id for task in held_out_tasks(world, MOST_HELD_OUT)}
    shown = [task for task in tasks if task.id not in held_out]
    last = _careless(shown)
    return [
        *(answer(world, task) for task in shown[:-last]),
        *(answer_carelessly(world, task, randomness.choice(shown), randomness) for task in shown[-last:]),
    ]


def _careless(shown: Sequence[object]) -> int:
    """How many of what is shown come last, and teach that wrong answers are given too."""
    return max(1, len(shown) // 6)


def _was_built_by(directory: Path, recipe: Mapping[str, Any]) -> bool:
    try:
        return bool(json.loads((directory / _RECIPE).read_text()) == recipe)
    except (OSError, ValueError):
        return False


@contextmanager
def _sole_builder(directory: Path) -> Iterator[None]:
    with (directory.parent / f".{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _one_thread() -> Iterator[None]:
    """Several threads would be slower at this size, and would add in another order."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
