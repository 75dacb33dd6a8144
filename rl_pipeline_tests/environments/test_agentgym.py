"""Worlds behind AgentGym's servers, against a server that speaks each of their dialects."""

import gc
import socket
from collections.abc import Callable, Sequence
from threading import Event, Thread

import pytest

from rl_pipeline.environments.agentgym import AgentGymWorld, protocols
from rl_pipeline.environments.environment import InvalidTask, WorldUnavailable
from rl_pipeline.environments.playing import Conversation, play
from rl_pipeline_tests.environments.agentgym_server import ITEMS, agentgym_server

ANSWERS = {"sqlgym": "Like so: ```sql\n{}\n```"} | dict.fromkeys(
    ["webarena", "weather", "movie", "academia", "todo", "sheet"], "{}"
)


def world_at(environment: str, url: str, seconds: float = 60) -> AgentGymWorld:
    return AgentGymWorld(environment, url, (3, 8), seconds)


def saying(environment: str, say: Callable[[str], str]) -> Callable[[Sequence[Conversation]], list[str]]:
    """A policy that knows the item from the first message, told as the environment's answers are."""
    form = ANSWERS.get(environment, "Thought: Hm.\n\nAction: {}")

    def act(conversations: Sequence[Conversation]) -> list[str]:
        items = [one.messages[0]["content"].partition("item ")[2].partition(".")[0] for one in conversations]
        return [form.format(say(item)) for item in items]

    return act


@pytest.mark.parametrize("environment", sorted(ITEMS))
def test_an_attempt_is_won_on_every_environment_in_its_own_dialect(environment: str) -> None:
    with agentgym_server(environment) as (gym, url):
        world = world_at(environment, url)
        tasks = world.tasks(5, seed=1)
        episodes = play(world, tasks, saying(environment, lambda item: f"say {item}"))
        assert all(episode.success and episode.total_reward == 1 for episode in episodes)
        assert sorted(gym.actions) == sorted(f"say {task.setup['item']}" for task in tasks)
        assert all(f"Guess item {each.task.setup['item']}." in each.messages[0]["content"] for each in episodes)
        assert len(gym.games) <= world.max_at_once


def test_every_environment_that_is_known_has_a_dialect_here() -> None:
    assert set(protocols()) == set(ITEMS)


def test_what_is_told_for_each_action_sums_up_to_the_last_score() -> None:
    with agentgym_server("sciworld") as (_, url):
        world = world_at("sciworld", url)
        environment = world.open(world.task({"item": 4}))
        assert environment.observe() == "Find the number.\nGuess item 4."
        assert [environment.step(f"Action: say {each}").reward for each in (1, 2, 4)] == [0.5, 0, 0.5]
        after = environment.step("Action: say 1")
        assert (after.done, after.success, after.reward, after.accepted) == (True, True, 0, False)


def test_the_available_actions_are_shown() -> None:
    with agentgym_server("alfworld") as (_, url):
        world = world_at("alfworld", url)
        assert world.open(world.task({"item": 4})).observe() == "Guess item 4.\nAvailable actions: say 1, say 2"


def test_environments_are_used_again_when_their_attempts_are_over() -> None:
    with agentgym_server("textcraft") as (gym, url):
        world = world_at("textcraft", url)
        for seed in range(3):
            play(world, world.tasks(4, seed=seed), saying("textcraft", lambda item: f"say {item}"))
            gc.collect()
        assert len(gym.games) == 4


def test_a_server_that_was_started_again_gives_new_environments() -> None:
    with agentgym_server("textcraft") as (gym, url):
        world = world_at("textcraft", url)
        world.open(world.task({"item": 4}))
        gc.collect()
        gym.games.clear()
        assert world.open(world.task({"item": 5})).observe() == "Guess item 5."


def test_no_more_attempts_are_under_way_than_the_server_keeps_apart() -> None:
    with agentgym_server("webarena") as (gym, url):
        world = world_at("webarena", url)
        assert all(e.success for e in play(world, world.tasks(3, seed=1), saying("webarena", lambda i: f"say {i}")))
        assert len(gym.games) == 1


@pytest.mark.parametrize("environment", ["textcraft", "webshop"])
def test_an_action_at_which_the_server_fails_ends_that_attempt_and_no_other(environment: str) -> None:
    with agentgym_server(environment) as (_, url):
        world = world_at(environment, url)
        tasks = [world.task({"item": item}) for item in (4, 5)]
        episodes = play(
            world, tasks, saying(environment, lambda item: "crash" if item == "4" else f"say {item}"), max_turns=2
        )
        assert [episode.ended for episode in episodes] == ["stuck", "goal"]
        assert "500" in episodes[0].messages[-1]["content"]
        assert not episodes[0].outcomes[-1].accepted


def test_a_server_that_vanishes_in_the_middle_is_said_to_be_away() -> None:
    with agentgym_server("textcraft") as (_, url):
        world = world_at("textcraft", url)
        environment = world.open(world.task({"item": 4}))
        assert not environment.step("Action: say 1").done
    with pytest.raises(WorldUnavailable, match=r"127\.0\.0\.1:\d+/step gives no answer .* see that it runs"):
        environment.step("Action: say 4")
    assert WorldUnavailable.code == "INFRA", "a training then begins again later"


def test_a_server_that_never_answers_is_waited_for_no_longer_than_was_said() -> None:
    with agentgym_server("textcraft") as (gym, url):
        world = world_at("textcraft", url, seconds=0.5)
        environment = world.open(world.task({"item": 4}))
        gym.stuck.set()
        with pytest.raises(WorldUnavailable, match="gives no answer"):
            environment.step("Action: say 4")


def test_a_server_that_answers_drop_by_drop_is_not_waited_for() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
                try:
                    while True:
                        connection.sendall(b" ")
                        ended.wait(0.05)
                except OSError:
                    return

        ended = Event()
        thread = Thread(target=drip)
        thread.start()
        with pytest.raises(WorldUnavailable, match="too long"):
            world_at("textcraft", f"http://127.0.0.1:{listening.getsockname()[1]}", 0.5).open(
                world_at("textcraft", "http://127.0.0.1:1").task({"item": 4})
            )
        thread.join()


def test_a_server_of_another_environment_is_named_as_the_cause() -> None:
    with agentgym_server("webshop") as (_, url):
        world = world_at("textcraft", url)
        with pytest.raises(WorldUnavailable, match=r"agentgym:textcraft does not begin its task 4"):
            world.open(world.task({"item": 4}))


def test_tasks_are_those_that_the_file_names_and_the_same_seed_gives_the_same() -> None:
    world = world_at("textcraft", "http://127.0.0.1:1")
    assert sorted(task.setup["item"] for task in world.tasks(5, seed=2)) == [3, 4, 5, 6, 7]
    assert world.tasks(9, seed=2) == world.tasks(9, seed=2) != world.tasks(9, seed=3)
    assert world.task({"item": 3}) == next(task for task in world.tasks(5, seed=2) if task.setup["item"] == 3)
    for wrong in ({}, {"item": 8}, {"item": "3"}, {"item": True}, {"item": 3.0}):
        with pytest.raises(InvalidTask, match="from 3 to 7"):
            world.task(wrong)
