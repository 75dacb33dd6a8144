"""What the demo's agents attempt, and what nobody may learn from."""

import json
import socket
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from threading import Event, Timer
from types import SimpleNamespace
from typing import Any

import pytest

from rl_pipeline.agents import Attempt
from rl_pipeline.collection import Outbox
from rl_pipeline.demo.careless import publish_carelessly
from rl_pipeline.demo.population import Population, measured_by
from rl_pipeline.demo.profile import DemoFailed, DemoProfile
from rl_pipeline.demo.scene import Scene
from rl_pipeline.demo.telling import Telling
from rl_pipeline.environments.worlds import Worlds, read_worlds
from rl_pipeline.training.small_model.building import WORLDS_FILE

WORLDS = Worlds(read_worlds(WORLDS_FILE)).names


def population(scene: Any = None, **profile: Any) -> Population:
    outbox: Any = None
    chosen = DemoProfile(**profile)
    return Population(scene, chosen, outbox, chosen.open_world())


def held_out(agents: Population) -> set[str]:
    return {task.id for task in agents._held_out()}


@pytest.fixture
def silent_gateway() -> Iterator[str]:
    """It takes every call, and answers none."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.timeout(45)  # less than an agent waits for one answer
def test_an_interrupt_ends_the_attempts_that_are_under_way(tmp_path: Path, silent_gateway: str) -> None:
    stop = Event()
    supervisor = SimpleNamespace(stop_requested=stop, tick=lambda: None)
    stack: Any = SimpleNamespace(supervisor=supervisor, addresses=SimpleNamespace(gateway=silent_gateway))
    nothing: Any = None
    outbox = Outbox(tmp_path / "outbox", "nats://127.0.0.1:1")
    scene, profile = Scene(stack, nothing, nothing, Telling(StringIO()), started=0.0), DemoProfile(agents=4)
    agents = Population(scene, profile, outbox, profile.open_world())
    interrupt = Timer(1.0, stop.set)
    interrupt.start()
    with pytest.raises(DemoFailed, match="interrupted"):
        agents.play(20)
    assert agents.attempts == []
    outbox.close()


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("count", [1, 2, 40])
def test_as_many_tasks_are_drawn_as_are_wanted_and_none_is_held_out(count: int, world: str) -> None:
    agents = population(world=world)
    assert len(held_out(agents)) > agents.profile.measured / 2, "a few tasks over and over would tell little"
    for seed in range(20):
        tasks = agents.tasks(count, seed=seed)
        assert len(tasks) == count
        assert not held_out(agents) & {task.id for task in tasks}


@pytest.mark.parametrize("world", WORLDS)
def test_what_a_careless_agent_attempts_is_not_held_out(world: str) -> None:
    published: list[Any] = []

    def publish_many(messages: list[Any]) -> list[Any]:
        published.extend(messages)
        return [SimpleNamespace(sequence=place) for place, _ in enumerate(messages, start=1)]

    agents = population(SimpleNamespace(stream=SimpleNamespace(publish_many=publish_many)), world=world)
    assert publish_carelessly(agents) == 2
    told = json.loads(published[0].data)
    assert told["task_context"]["task_status"] == "success"
    assert told["task_context"]["environment"] == world
    assert told["task_context"]["task_id"] not in held_out(agents)


def test_a_demo_in_which_a_held_out_task_could_be_learnt_from_fails() -> None:
    stored = [{"task_id": "crafting-book-of-another-world"}, {"task_id": ""}]
    agents = population(SimpleNamespace(rows=lambda _: stored))
    agents.check_held_out()
    stored.append({"task_id": min(held_out(agents))})
    with pytest.raises(DemoFailed, match="1 held-out tasks"):
        agents.check_held_out()


def test_a_measure_counts_the_turns_of_all_attempts_and_of_those_that_solved_their_task() -> None:
    [task] = population().tasks(1, seed=0)
    made = [Attempt(task, str(turns), won, turns, "v1", 0.5) for turns, won in ((3, True), (10, False), (5, True))]
    measured = measured_by("v1", made)
    assert (measured.successes, measured.attempts, measured.turns, measured.turns_of_solved) == (2, 3, 18, 8)
    assert (measured.turns_to_solve, measured.seconds) == (9.0, 1.5)
