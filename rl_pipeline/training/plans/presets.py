"""What a plan starts from, by the size of the model and by who asks: the tables in `model_presets/*.toml`.

A preset has the sections of `TrainingPlan` and, under `algorithms.<name>`, sections that hold for one algorithm alone;
`online` stands for all that make their own data. `optimization.batch_size` is the global batch, `micro_batch` the most
that a process can take at once, and `reporting.log_interval` the plan's own.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any

from rl_pipeline.contracts.training_request import Algorithm
from rl_pipeline.errors import PipelineError
from rl_pipeline.training.plans.model_size import ModelSize
from rl_pipeline.training.plans.plan import ONLINE_ALGORITHMS

Sections = dict[str, dict[str, Any]]

_DIRECTORY = "model_presets"
_SOURCES_FILE = "sources.toml"
_SIZE_IN_NAME = re.compile(r"(?:^|[-_/])(\d+(?:\.\d+)?)b(?=$|[-_.])")
# Of a model whose size nobody knows: it fits on one large GPU, and is not trained too fast.
_OF_UNKNOWN_SIZE = "7b"


class UnknownSource(PipelineError):
    """A request names a source for which there are no defaults."""


@dataclass(frozen=True)
class Preset:
    """The defaults for models up to a size."""

    name: str
    models: Mapping[str, str]
    """Models by the names that requests use, with their names on the hub; empty where the hub has none."""
    max_parameters: int
    size: ModelSize | None
    sections: Sections
    algorithms: Mapping[str, Sections] = field(default_factory=dict)

    def sections_for(self, algorithm: Algorithm) -> Sections:
        """The sections of a plan, with what holds for this algorithm laid over what holds for all."""
        of_kind = self.algorithms.get("online", {}) if algorithm in ONLINE_ALGORITHMS else {}
        return overlaid(overlaid(self.sections, of_kind), self.algorithms.get(algorithm, {}))


@dataclass(frozen=True)
class SourcePreset:
    """The defaults of one family of agents, in the words of a request."""

    name: str
    algorithm: Algorithm
    sections: Sections


def preset_of(base_model: str, parameters: int | None = None) -> Preset:
    """The preset of a model: by its name, else by how many parameters it has, else by the size in its name."""
    known = load_presets()
    for preset in known:
        if base_model.lower() in {name.lower() for pair in preset.models.items() for name in pair}:
            return preset
    if parameters is None and (found := _SIZE_IN_NAME.search(base_model.lower())):
        parameters = int(float(found.group(1)) * 1e9)
    if parameters is None:
        return next(preset for preset in known if preset.name == _OF_UNKNOWN_SIZE)
    return next((preset for preset in known if parameters <= preset.max_parameters), known[-1])


def hub_name_of(base_model: str) -> str | None:
    """The name on the hub of a model that a preset knows."""
    return next((preset.models[base_model] for preset in load_presets() if preset.models.get(base_model)), None)


@cache
def load_presets() -> tuple[Preset, ...]:
    """All presets, the smallest models first."""
    directory = files("rl_pipeline.training.plans").joinpath(_DIRECTORY)
    tables = {file.name.removesuffix(".toml"): file.read_text() for file in directory.iterdir()}
    presets = [_preset(name, tomllib.loads(text)) for name, text in tables.items() if f"{name}.toml" != _SOURCES_FILE]
    return tuple(sorted(presets, key=lambda preset: preset.max_parameters))


def source_names() -> list[str]:
    """The sources that have defaults of their own."""
    return sorted(_sources())


def source_preset(name: str) -> SourcePreset:
    """The defaults of a source. Raises `UnknownSource`."""
    if name not in source_names():
        raise UnknownSource(f"There are no defaults for {name[:80]!r}: name one of {', '.join(source_names())}.")
    source = _sources()[name]
    return SourcePreset(name, source["algorithm"], source["sections"])


def overlaid(below: Sections, above: Sections) -> Sections:
    """Both sets of sections; where a field is in both, it is as above."""
    return {part: {**below.get(part, {}), **above.get(part, {})} for part in below.keys() | above.keys()}


@cache
def _sources() -> dict[str, Any]:
    return tomllib.loads(files("rl_pipeline.training.plans").joinpath(_DIRECTORY, _SOURCES_FILE).read_text())


def _preset(name: str, table: dict[str, Any]) -> Preset:
    size = table.pop("size", None)
    return Preset(
        name=name,
        models=table.pop("models", {}),
        max_parameters=table.pop("max_parameters"),
        size=ModelSize(**size) if size else None,
        algorithms=table.pop("algorithms", {}),
        sections=table,
    )
