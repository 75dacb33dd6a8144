"""All suites for the embedded model, made from a seed."""

from rl_pipeline.validation.suite import Suite
from rl_pipeline.validation.suites.crafting_benchmarks import crafting_benchmarks
from rl_pipeline.validation.suites.crafting_safety import crafting_safety


def embedded_suites(*, seed: int = 0, items: int = 800) -> list[Suite]:
    """The four benchmarks, with `items` tasks each, and the five safety suites."""
    return [*crafting_benchmarks(seed=seed, items=items), *crafting_safety(seed=seed)]
