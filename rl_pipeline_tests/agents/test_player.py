"""The embedded agent against a real gateway, with what it recorded read from a real stream."""

import asyncio
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from rl_pipeline.agents import Attempt, OpinionRule, Player, play_all
from rl_pipeline.collection import Outbox
from rl_pipeline.contracts import validate_trajectory
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.environments.crafting import CraftingWorld, next_command
from rl_pipeline.environments.environment import Task
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.collection.recordings import OpenOutbox, arrived, sent_by
from rl_pipeline_tests.serving.gateway_world import World
from rl_pipeline_tests.serving.stub_backend import StubBackend, answer_500

CRAFTING = CraftingWorld()
ALWAYS, NEVER = OpinionRule(one_in=1, slips_in=10**9), OpinionRule(one_in=10**9)


def answered(command: str, **more: Any) -> web.Response:
    choice = {"index": 0, "message": {"role": "assistant", "content": command}, "finish_reason": "stop", **more}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return web.json_response({"id": "x", "object": "chat.completion", "choices": [choice], "usage": usage})


def command_for(messages: list[dict[str, str]]) -> str:
    """What leads on from what was said so far."""
    first = messages[0]["content"].rpartition("Goal: ")[2]
    goal, _, have = first.partition(". Have ")
    things: list[str] = []
    for thing in [] if have == "nothing" else have.split(", "):
        count, _, name = thing.rpartition(" ")
        things += [name] * int(count or 1)
    environment = CRAFTING.open(CRAFTING.task({"goal": goal, "have": things}))
    for message in messages[1::2]:
        environment.step(message["content"])
    return next_command(environment.goal, environment.inventory)


async def knows_the_way(_stub: StubBackend, _request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    return answered(command_for(body["messages"]))


async def knows_nothing(_stub: StubBackend, _request: web.Request, _body: dict[str, Any]) -> web.StreamResponse:
    return answered("well …")


async def tells_its_tokens(_stub: StubBackend, _request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
    assert body["return_token_ids"]
    told = [{"token": text, "logprob": chance} for text, chance in (("get", -0.5), ("", -0.25))]
    whole = answered(command_for(body["messages"]), token_ids=[4, 1], logprobs={"content": told})
    assert isinstance(whole.body, bytes)
    return web.Response(body=whole.body[:-1] + b', "prompt_token_ids": [9, 8]}', content_type="application/json")


@pytest.fixture
def outbox(open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer) -> Iterator[Outbox]:
    del stream  # its streams are there
    return open_outbox(nats_server.url)


def attempts(
    world: World, outbox: Outbox, tasks: list[Task], *, players: int = 1, seed: object = None, **more: Any
) -> list[Attempt]:
    async def play() -> list[Attempt]:
        async with aiohttp.ClientSession() as http:
            gateway = f"http://127.0.0.1:{world.gateway.port}"
            crew = [
                Player(
                    CRAFTING,
                    gateway,
                    outbox,
                    http,
                    agent_id=f"agent-{n}",
                    model="policy",
                    **{"opinions": NEVER, **more},
                )
                for n in range(players)
            ]
            heard: list[Attempt] = []
            luck = world.generation if seed is None else seed
            made = await play_all(crew, tasks, seed=luck, ended=heard.append)
            assert heard == made, "each is told as it ends"
            return made

    return asyncio.run(play())


def test_what_it_did_arrives_with_its_task_its_turns_and_who_answered(
    world: World, outbox: Outbox, stream: JetStream
) -> None:
    world.old.behaviour = knows_the_way
    [task] = CRAFTING.tasks(1, seed=2, tiers=(2,))
    [made] = attempts(world, outbox, [task])
    assert (made.success, made.model_version, made.error) == (True, world.old.name, None)
    [told] = sent_by(outbox, stream)
    trajectory = validate_trajectory(told)
    assert str(trajectory.trajectory_id) == made.trajectory_id
    context = trajectory.task_context
    assert (context.task_id, context.task_status) == (task.id, "success")
    assert told["task_context"]["environment_task"] == dict(task.setup), "from which the task can be set again"
    assert told["metadata"]["model_version"] == world.old.name
    assert len(trajectory.turns) == made.turns
    assert told["turns"][0]["observation"]["type"] == "user_message"
    assert [turn["result"]["output"] for turn in told["turns"]][:-1] == [
        turn["observation"]["content"] for turn in told["turns"]
    ][1:], "each turn sees what the last one brought"


def test_an_attempt_that_leads_nowhere_is_recorded_as_failed(world: World, outbox: Outbox, stream: JetStream) -> None:
    world.old.behaviour = knows_nothing
    [made] = attempts(world, outbox, CRAFTING.tasks(1, seed=2))
    assert (made.success, made.error) == (False, None)
    [told] = sent_by(outbox, stream)
    assert told["task_context"]["task_status"] == "failed"
    assert {turn["result"]["success"] for turn in told["turns"]} == {False}


def test_how_answers_were_drawn_is_recorded_where_the_server_tells_it(
    world: World, outbox: Outbox, stream: JetStream
) -> None:
    world.old.behaviour = tells_its_tokens
    attempts(world, outbox, CRAFTING.tasks(1, seed=2, tiers=(1,)))
    [told] = sent_by(outbox, stream)
    drawn = told["turns"][0]["sampling"]
    assert (drawn["prompt_token_ids"], drawn["completion_token_ids"]) == ([9, 8], [4, 1])
    assert drawn["logprobs"] == [-0.5, -0.25]


def test_many_at_once_attempt_every_task_once_and_each_stays_with_its_model(
    world: World, outbox: Outbox, stream: JetStream
) -> None:
    world.ramp(0.5)
    world.old.behaviour = world.new.behaviour = knows_the_way
    tasks = CRAFTING.tasks(60, seed=4)
    made = attempts(world, outbox, tasks, players=20)
    assert Counter(one.task.id for one in made) == Counter(task.id for task in tasks)
    told = sent_by(outbox, stream)
    answered_by = [{turn["sampling"]["model_version"] for turn in one["turns"]} for one in told]
    assert all(len(models) == 1 for models in answered_by)
    assert set.union(*answered_by) == {world.old.name, world.new.name}


def test_the_seed_and_the_place_of_a_task_decide_what_is_drawn_and_not_who_was_free(
    world: World, outbox: Outbox
) -> None:
    drawn: dict[str, list[int]] = {}

    async def listens(stub: StubBackend, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        drawn.setdefault(body["messages"][0]["content"], []).append(body["seed"])
        return await knows_the_way(stub, request, body)

    world.old.behaviour = listens
    tasks = list({task.id: task for task in CRAFTING.tasks(20, seed=4)}.values())

    def seeds_of(seed: str, players: int) -> dict[str, list[int]]:
        drawn.clear()
        attempts(world, outbox, tasks, players=players, seed=seed, evaluation=True)
        return dict(drawn)

    alone = seeds_of("one", players=1)
    every = [seed for seeds in alone.values() for seed in seeds]
    assert len(set(every)) == len(every), "each answer is drawn by luck of its own"
    assert seeds_of("one", players=7) == alone
    assert seeds_of("another", players=7) != alone


def test_a_gateway_without_an_answer_ends_the_attempt_and_is_told(
    world: World, outbox: Outbox, stream: JetStream
) -> None:
    world.old.behaviour = answer_500
    [made] = attempts(world, outbox, CRAFTING.tasks(1, seed=2))
    assert made.error is not None
    assert "500" in made.error
    [told] = sent_by(outbox, stream)
    assert told["task_context"]["task_status"] == "failed"


@pytest.mark.parametrize(
    ("behaviour", "kind", "negative"), [(knows_the_way, "thumbs_up", 0), (knows_nothing, "thumbs_down", 1)]
)
def test_what_its_user_thinks_reaches_the_gateway_and_is_there_to_be_published(
    world: World, outbox: Outbox, behaviour: Any, kind: str, negative: int
) -> None:
    world.old.behaviour = behaviour
    [made] = attempts(world, outbox, CRAFTING.tasks(1, seed=2, tiers=(1,)), opinions=ALWAYS)
    assert made.feedback is not None
    assert (made.feedback.kind, str(made.feedback.trajectory_id)) == (kind, made.trajectory_id)
    assert world.metrics(world.old.name)["negative_feedback"] == negative


def test_the_documented_example_plays_and_is_recorded(
    world: World, outbox_directory: Path, stream: JetStream, nats_server: NatsServer
) -> None:
    world.old.behaviour = knows_the_way
    page = (Path(__file__).parents[2] / "docs" / "collection.md").read_text()
    [example] = [text for text in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "Player(" in text]
    example = example.replace("http://127.0.0.1:3030", f"http://127.0.0.1:{world.gateway.port}")
    example = example.replace('"nats://127.0.0.1:4222"', f'"{nats_server.url}", disk_seconds=60, exit_seconds=60')
    outcome = subprocess.run(
        [sys.executable, "-c", example], cwd=outbox_directory.parent, capture_output=True, text=True, check=False
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout == "200 of 200 solved\n"
    assert len(arrived(stream)) == 200


def test_attempts_to_measure_with_leave_nothing(world: World, outbox: Outbox, stream: JetStream) -> None:
    world.old.behaviour = knows_the_way
    [made] = attempts(world, outbox, CRAFTING.tasks(1, seed=2), evaluation=True, opinions=ALWAYS)
    assert (made.success, made.feedback) == (True, None)
    assert sent_by(outbox, stream) == []
