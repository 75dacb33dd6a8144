"""The file of worlds."""

from pathlib import Path

import pytest

from rl_pipeline.environments.environment import InvalidWorld
from rl_pipeline.environments.worlds import WorldDefinitions, Worlds, read_worlds

FILE = """
[reasoning-gym.chain_sum]
max_terms = 3

[reasoning-gym.gcd]

[agentgym.textcraft]
url = "http://127.0.0.1:36001"
items = [0, 544]
timeout_seconds = 60
"""


def read(directory: Path, content: str) -> WorldDefinitions:
    file = directory / "worlds.toml"
    file.write_text(content)
    return read_worlds(file)


def test_the_file_sets_up_worlds_beside_crafting(tmp_path: Path) -> None:
    worlds = Worlds(read(tmp_path, FILE))
    assert worlds.names == ["agentgym:textcraft", "crafting", "reasoning-gym:chain_sum", "reasoning-gym:gcd"]
    assert [worlds.find(name).name for name in worlds.names] == worlds.names
    assert worlds.find("agentgym:textcraft").task({"item": 543}).setup == {"item": 543}
    assert worlds.find("reasoning-gym:chain_sum").tasks(1, seed=1)[0].setup["config"] == {"max_terms": 3}


def test_there_is_only_crafting_without_a_file() -> None:
    assert Worlds(read_worlds(None)).names == ["crafting"]


def test_what_the_file_says_travels_in_a_plan(tmp_path: Path) -> None:
    told = read(tmp_path, FILE)
    assert WorldDefinitions.model_validate_json(told.model_dump_json()) == told


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[nonsense", "is no TOML"),
        ("[atlantis.gcd]", "atlantis"),
        ("[agentgym.atlantis]\nurl = 'http://a:1'\nitems = [0, 1]", "'atlantis' is not known: it may be academia"),
        ("[agentgym.textcraft]\nitems = [0, 1]", "agentgym.textcraft.url"),
        ("[agentgym.textcraft]\nurl = 'file:///etc'\nitems = [0, 1]", "must be an address"),
        ("[agentgym.textcraft]\nurl = 'http://a:1'\nitems = [5, 5]", "give two that leave some"),
        ("[agentgym.textcraft]\nurl = 'http://a:1'\nitems = [0, 1]\nspeed = 1", "speed"),
        ("[reasoning-gym.countdown]", "countdown of reasoning-gym is not offered"),
    ],
)
def test_a_wrong_file_is_refused_with_its_name_and_what_is_wrong(tmp_path: Path, content: str, said: str) -> None:
    with pytest.raises(InvalidWorld) as refused:
        read(tmp_path, content)
    assert str(tmp_path / "worlds.toml") in str(refused.value)
    assert said in str(refused.value)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidWorld, match=r"none\.toml: No such file"):
        read_worlds(tmp_path / "none.toml")
