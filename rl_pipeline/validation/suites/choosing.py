"""Which suites a model is validated by: those of its world, the general ones, or a deployment's own files and tasks."""

from pathlib import Path

from rl_pipeline.environments.environment import World
from rl_pipeline.environments.reasoning import ReasoningGymWorld
from rl_pipeline.validation.suite import BENCHMARKS, SAFETY, Suite, UnknownSuite
from rl_pipeline.validation.suites.embedded import embedded_suites
from rl_pipeline.validation.suites.general_language import general_suites
from rl_pipeline.validation.suites.inspect_file import inspect_suites
from rl_pipeline.validation.suites.questions import question_suites


def suites_for(
    world: World | None, directory: Path | None, *, items: int, inspect_file: Path | None = None
) -> list[Suite]:
    """The suites of a model, which may know nothing but a `world`.

    A file `<suite>.jsonl` (or `.csv`) in `directory` takes the place of the general suite of that name; tasks of
    `inspect_file` take the place of suites of their names, or stand beside them. Raises `UnknownSuite` where there is
    no such directory, or a file of it bears the name of no suite, and `InspectFileInvalid`.
    """
    run_by_inspect = inspect_suites(inspect_file) if inspect_file else []
    replaced = {suite.name for suite in run_by_inspect}
    ours = _our_suites(world, directory, items)
    return [*(suite for suite in ours if suite.name not in replaced), *run_by_inspect]


def _our_suites(world: World | None, directory: Path | None, items: int) -> list[Suite]:
    if directory is None:
        return _suites_of_world(world, items) if world else general_suites()
    if not directory.is_dir():
        raise UnknownSuite(f"there is no directory {directory} of suites: correct VALIDATION_SUITES")
    files = sorted(each for each in directory.iterdir() if each.suffix in {".jsonl", ".csv"})
    unknown = [file.name for file in files if file.stem not in {*BENCHMARKS, *SAFETY}]
    if unknown:
        raise UnknownSuite(f"{unknown[0]} in {directory} is no suite: name files {', '.join((*BENCHMARKS, *SAFETY))}")
    return general_suites({file.stem: file for file in files})


def _suites_of_world(world: World, items: int) -> list[Suite]:
    if isinstance(world, ReasoningGymWorld):
        return question_suites(world, items=items)
    return embedded_suites(items=items)
