"""Makes the embedded base model: demonstrations, tokenizer, weights and warm start, all from one seed."""

import fcntl
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.errors import PipelineError
from rl_pipeline.training.small_model.demonstrations import demonstrate
from rl_pipeline.training.small_model.tokenizer import train_tokenizer
from rl_pipeline.training.small_model.warm_start import imitate, lessons_of, new_model

REVISION = 1
"""Counts the recipes of this model: another one makes another model of the same seed."""

DEMONSTRATIONS = 2800
"""Enough to know most of tiers 1 and 2, too few to be good at them: there is something left to learn."""

_RECIPE = "recipe.json"
_PLAN = "training_plan.json"
"""Beside the weights of every checkpoint."""
_VOCABULARY = 512


class AnotherSmallModel(PipelineError):
    """The directory is taken by something else."""


def build_small_model(directory: Path, *, seed: int = 0, demonstrations: int = DEMONSTRATIONS) -> Path:
    """The model in `directory`, in Hugging Face's layout; made if it is not there.

    The same arguments make the same model; with fewer demonstrations it knows less. It appears whole or not at all, and
    of several builders at once one builds.
    """
    recipe = {"revision": REVISION, "seed": seed, "demonstrations": demonstrations}
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _sole_builder(directory):
        if not directory.exists():
            _build(directory, recipe)
        elif not _was_built_by(directory, recipe):
            raise AnotherSmallModel(f"{directory} holds another model than was asked for: remove it or choose another")
    return directory


def is_small_model(directory: Path) -> bool:
    """Whether a model was made here: it knows nothing but the crafting world."""
    return (directory / _RECIPE).is_file()


def descends_from_small_model(directory: Path, find: Callable[[str], Path]) -> bool:
    """Whether a model was made here, or trained from one that was; `find` gives the directory of a base model."""
    plan = directory / _PLAN
    if is_small_model(directory) or not plan.is_file():
        return is_small_model(directory)
    return descends_from_small_model(find(str(json.loads(plan.read_text())["base_model"])), find)


def _build(directory: Path, recipe: dict[str, int]) -> None:
    unfinished = directory.parent / f".{directory.name}.unfinished"
    if unfinished.exists():
        shutil.rmtree(unfinished)
    unfinished.mkdir()
    _make(unfinished, recipe["seed"], recipe["demonstrations"])
    (unfinished / _RECIPE).write_text(json.dumps(recipe))
    unfinished.rename(directory)


def _make(directory: Path, seed: int, count: int) -> None:
    world, randomness = CraftingWorld(), Random(f"small model {seed}")  # noqa: S311 - to repeat it is the point
    demonstrations = [
        demonstrate(world, task, randomness) for task in world.tasks(count, seed=randomness.getrandbits(32))
    ]
    texts = (message["content"] for demonstration in demonstrations for message in demonstration.messages)
    tokenizer = train_tokenizer(texts, _VOCABULARY)
    with _one_thread():
        model = new_model(tokenizer, seed)
        imitate(model, lessons_of(demonstrations, tokenizer), seed)
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)


def _was_built_by(directory: Path, recipe: dict[str, int]) -> bool:
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
