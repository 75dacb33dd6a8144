"""The door of S3, with a real gateway, outbox and stream behind it."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from random import Random
from typing import Any

import aiohttp
import pytest

from rl_pipeline.agents import InProcessMemory, MDPAgentController, OpinionRule, PipelineClient, Player
from rl_pipeline.agents.controller import UnknownTask
from rl_pipeline.collection import Outbox
from rl_pipeline.contracts import TrainingRequest, parse_message
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.environments.agentgym import AgentGymWorld
from rl_pipeline.environments.environment import WorldUnavailable
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.agents.test_player import CRAFTING, guesses_wrong, knows_nothing, knows_the_way
from rl_pipeline_tests.collection.recordings import OpenOutbox, arrived, sent_by
from rl_pipeline_tests.environments.agentgym_server import agentgym_server
from rl_pipeline_tests.serving.gateway_world import World
from rl_pipeline_tests.serving.running_gateway import GatewayProcess
from rl_pipeline_tests.serving.stub_backend import answer_500

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
TASKS = {task.id: task for task in CRAFTING.tasks(12, seed=2, tiers=(1,))}
TASK = next(iter(TASKS))


@pytest.fixture(scope="module")
def shared_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """Patient: a hundred come at once."""
    with GatewayProcess(tmp_path_factory.mktemp("gateway"), {"silence_seconds": 30.0}) as running:
        yield running


@pytest.fixture
def outbox(open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer) -> Outbox:
    del stream  # its streams are there
    return open_outbox(nats_server.url)


class Run:
    """Makes controllers of agents that play at the world's gateway."""

    def __init__(self, world: World, outbox: Outbox, stream: JetStream, nats_url: str) -> None:
        self.world, self.outbox, self.stream, self.nats_url = world, outbox, stream, nats_url

    @asynccontextmanager
    async def controller(self, where: Any = CRAFTING, tasks: Any = TASKS, trace: Any = (), **more: Any) -> Any:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), trace_configs=list(trace)) as http:

            def player(agent_id: str) -> Player:
                url, quiet = f"http://127.0.0.1:{self.world.gateway.port}", OpinionRule(one_in=10**9)
                return Player(where, url, self.outbox, http, agent_id, "policy", temperature=0.7, opinions=quiet)

            ticks = (NOW + timedelta(seconds=tick) for tick in count())  # each request has a time of its own
            client, luck = PipelineClient(self.stream, lambda: next(ticks)), Random(self.world.generation)
            yield MDPAgentController(tasks, player, client, luck, **more)

    def requests(self) -> list[TrainingRequest]:
        told = [parse_message("agent.rl.training.request.v1", json.dumps(one).encode()) for one in self.asked()]
        return [one for one in told if isinstance(one, TrainingRequest)]

    def asked(self) -> list[dict[str, Any]]:
        return arrived(self.stream, "RL_TRAINING")


@pytest.fixture
def run(world: World, outbox: Outbox, stream: JetStream, nats_server: NatsServer) -> Run:
    world.old.behaviour = knows_the_way
    return Run(world, outbox, stream, nats_server.url)


def test_a_task_is_done_rewarded_recorded_and_remembered_the_next_time(run: Run) -> None:
    memory = InProcessMemory()

    async def twice() -> None:
        async with run.controller(memory_manager=memory) as controller:
            first = await controller.execute_with_learning(TASK, "agent-1")
            assert (first.success, first.task.id) == (True, TASK)
            await controller.execute_with_learning(TASK, "agent-2")
            assert set(controller.mdp_agents) == {"agent-1", "agent-2"}

    asyncio.run(twice())
    second, first = memory.retrieve_relevant(CRAFTING.open(TASKS[TASK]).observe())
    assert (first.agent_id, first.task_id, first.state) == ("agent-1", TASK, CRAFTING.open(TASKS[TASK]).observe())
    assert first.reward == pytest.approx((0.40 + 0.25 * 0.5) / 0.65), "reached, and nobody has said anything"
    told, remembering = sent_by(run.outbox, run.stream)
    assert list(first.action) == [turn["action"]["raw_response"] for turn in told["turns"]]
    assert first.next_state == told["turns"][-1]["result"]["output"]
    assert "; ".join(first.action) in remembering["turns"][0]["observation"]["content"]
    assert "Earlier" not in told["turns"][0]["observation"]["content"]
    assert second.agent_id == "agent-2"
    assert {body["temperature"] for body in run.world.old.bodies} == {0.7}, "it explores"


def test_what_fails_is_worth_less(run: Run) -> None:
    memory = InProcessMemory()
    run.world.old.behaviour = knows_nothing

    async def once() -> None:
        async with run.controller(memory_manager=memory) as controller:
            assert not (await controller.execute_with_learning(TASK, "agent")).success

    asyncio.run(once())
    [remembered] = memory.retrieve_relevant(CRAFTING.open(TASKS[TASK]).observe())
    assert remembered.reward == pytest.approx(0.25 * 0.5 / 0.65)


def test_a_full_batch_asks_for_one_training(run: Run) -> None:
    async def five() -> None:
        async with run.controller(batch_size=3) as controller:
            done = [controller.execute_with_learning(TASK, f"agent-{number}") for number in range(5)]
            await asyncio.gather(*done)
            assert not controller.should_trigger_learning()

    asyncio.run(five())
    [request] = run.requests()
    assert (request.trigger_reason, request.requester) == ("threshold_reached", "mdp-agent-controller")


def test_without_a_batch_size_the_training_is_left_to_the_pipeline(run: Run) -> None:
    async def once() -> None:
        async with run.controller() as controller:
            await controller.execute_with_learning(TASK, "agent")

    asyncio.run(once())
    assert run.asked() == []


def test_a_training_that_cannot_be_asked_for_is_asked_for_again_and_no_task_is_lost(run: Run) -> None:
    async def twice() -> None:
        async with run.controller(batch_size=1) as controller:
            there, away = controller.rl_client, JetStream.connect(run.nats_url, patience_seconds=0.1)
            away.close()
            controller.rl_client = PipelineClient(away, lambda: NOW)
            assert (await controller.execute_with_learning(TASK, "agent")).success
            assert controller.should_trigger_learning()
            controller.rl_client = there
            await controller.execute_with_learning(TASK, "agent")
            assert not controller.should_trigger_learning()

    asyncio.run(twice())
    assert len(run.requests()) == 1


def test_what_was_cut_off_is_neither_rewarded_nor_remembered(run: Run) -> None:
    run.world.old.behaviour = answer_500
    memory = InProcessMemory()

    async def once() -> None:
        async with run.controller(memory_manager=memory, batch_size=1) as controller:
            assert (await controller.execute_with_learning(TASK, "agent")).error

    asyncio.run(once())
    assert memory.retrieve_relevant(CRAFTING.open(TASKS[TASK]).observe()) == []
    assert run.asked() == []


def test_no_more_is_begun_than_the_world_bears_and_a_world_that_is_away_is_told(run: Run) -> None:
    run.world.old.behaviour = guesses_wrong

    async def four(where: AgentGymWorld) -> list[Any]:
        tasks = {task.id: task for task in where.tasks(4, seed=1)}
        async with run.controller(where, tasks) as controller:
            done = [controller.execute_with_learning(task, f"agent-{task}") for task in tasks]
            return await asyncio.gather(*done, return_exceptions=True)

    with agentgym_server("webarena") as (gym, url):
        far = AgentGymWorld("webarena", url, (3, 8), 60)
        assert [one.error for one in asyncio.run(four(far))] == [None] * 4
        assert len(gym.games) == far.max_at_once == 1
    assert {type(one) for one in asyncio.run(four(far))} == {WorldUnavailable}


def test_a_hundred_agents_learn_at_once(run: Run) -> None:
    memory, agents = InProcessMemory(), 100

    async def all_at_once() -> list[Any]:
        # Nobody's first question goes out before everybody has one.
        everybody, asked = asyncio.Barrier(agents), set()

        async def wait_for_the_others(_session: Any, _context: Any, request: Any) -> None:
            who = request.headers.get("X-Session-Id")
            if who not in asked:
                asked.add(who)
                await everybody.wait()

        trace = aiohttp.TraceConfig()
        trace.on_request_start.append(wait_for_the_others)
        tasks = list(TASKS)
        async with run.controller(trace=[trace], memory_manager=memory) as controller:
            done = [
                controller.execute_with_learning(tasks[number % len(tasks)], f"agent-{number}")
                for number in range(agents)
            ]
            return await asyncio.gather(*done)

    results = asyncio.run(all_at_once())
    assert {(one.success, one.error) for one in results} == {(True, None)}
    assert {one["agent_id"] for one in sent_by(run.outbox, run.stream)} == {f"agent-{n}" for n in range(agents)}


def test_a_task_that_nobody_knows_is_refused(run: Run) -> None:
    async def once() -> None:
        async with run.controller() as controller:
            await controller.execute_with_learning("no-such-task", "agent")

    with pytest.raises(UnknownTask, match="there is no task 'no-such-task'"):
        asyncio.run(once())
