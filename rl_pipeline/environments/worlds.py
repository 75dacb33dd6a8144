"""The worlds that exist, by name."""

from collections.abc import Mapping
from types import MappingProxyType

from rl_pipeline.environments.crafting import CraftingWorld
from rl_pipeline.environments.environment import UnknownWorld, World

WORLDS: Mapping[str, World] = MappingProxyType({world.name: world for world in (CraftingWorld(),)})


def find_world(name: str) -> World:
    """The world called `name`; `UnknownWorld` if there is none."""
    if name not in WORLDS:
        raise UnknownWorld(f"there is no world {name[:80]!r}: use one of {', '.join(sorted(WORLDS))}")
    return WORLDS[name]
