"""The worlds of a deployment, by name: crafting, and those that its file of worlds sets up.

```toml
[reasoning-gym.chain_sum]        # the world reasoning-gym:chain_sum; what stands here is the family's configuration
max_terms = 3
max_digits = 2

[agentgym.textcraft]             # the world agentgym:textcraft
url = "http://127.0.0.1:36001"   # of its server
items = [0, 544]                 # its tasks: the first, and the first that does not count
timeout_seconds = 60             # 120 if left out
```

Trajectories name worlds and tasks, and nobody has to trust them: what they name is played only if it is set up here.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError, model_validator

from rl_pipeline.environments import agentgym, reasoning
from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.environments.environment import InvalidWorld, UnknownWorld, World
from rl_pipeline.setting_types import HttpUrl

_Place = Annotated[int, Field(ge=0)]


class AgentGymServer(BaseModel):
    """Where a server is, and which of its tasks count."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: HttpUrl
    items: tuple[_Place, _Place]
    timeout_seconds: Annotated[float, Field(gt=0)] = 120.0

    @model_validator(mode="after")
    def _has_items(self) -> Self:
        if self.items[0] >= self.items[1]:
            raise ValueError("items are the first task and the first that does not count: give two that leave some")
        return self


class WorldDefinitions(BaseModel):
    """What a file of worlds says."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    reasoning_gym: Mapping[str, Mapping[str, JsonValue]] = Field({}, alias="reasoning-gym")
    agentgym: Mapping[str, AgentGymServer] = {}

    @model_validator(mode="after")
    def _are_known(self) -> Self:
        unknown = sorted(set(self.agentgym) - set(agentgym.protocols()))
        if unknown:
            raise ValueError(
                f"AgentGym's {unknown[0][:80]!r} is not known: it may be {', '.join(sorted(agentgym.protocols()))}"
            )
        return self


class Worlds:
    """Finds worlds. What a world needs is imported when it first sets a task."""

    def __init__(self, definitions: WorldDefinitions | None = None) -> None:
        """Crafting alone, without `definitions`. Raises `InvalidWorld`."""
        told = definitions or WorldDefinitions()
        found: list[World] = [CraftingWorld()]
        found += [reasoning.ReasoningGymWorld(family, config) for family, config in told.reasoning_gym.items()]
        found += [
            agentgym.AgentGymWorld(name, server.url, server.items, server.timeout_seconds)
            for name, server in told.agentgym.items()
        ]
        self._worlds = {world.name: world for world in found}

    @property
    def names(self) -> list[str]:
        """In order."""
        return sorted(self._worlds)

    def get(self, name: str | None) -> World | None:
        """The world called `name`, if there is one."""
        return self._worlds.get(name or "")

    def find(self, name: str) -> World:
        """The world called `name`; `UnknownWorld` if there is none."""
        if name not in self._worlds:
            raise UnknownWorld(f"there is no world {name[:80]!r}: use one of {', '.join(self.names)}")
        return self._worlds[name]


WORLDS = Worlds()
"""Those that need nothing to be set up."""


def read_worlds(file: Path | None) -> WorldDefinitions:
    """What the file says; nothing without one. Raises `InvalidWorld`."""
    if file is None:
        return WorldDefinitions()
    try:
        told: dict[str, Any] = tomllib.loads(file.read_text(encoding="utf-8"))
        definitions = WorldDefinitions.model_validate(told)
        Worlds(definitions)
    except OSError as refused:
        raise InvalidWorld(f"{file}: {refused.strerror}: name a file of worlds that exists") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as broken:
        raise InvalidWorld(f"{file} is no TOML ({broken}): correct it") from None
    except ValidationError as wrong:
        first = wrong.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidWorld(f"{file}: {f'{place}: ' if place else ''}{first['msg']}") from None
    except InvalidWorld as wrong_world:
        raise InvalidWorld(f"{file}: {wrong_world}") from None
    return definitions
