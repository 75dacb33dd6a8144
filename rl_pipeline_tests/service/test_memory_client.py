"""An agent that asks the service for memories: what one learnt another recalls, and trouble never breaks it."""

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from rl_pipeline.agents import MDPTransition, ServiceMemory
from rl_pipeline.collection.memories import MemoryClient
from rl_pipeline_tests.service.running_service import KEY, NOBODY, ServiceProcess


@pytest.fixture
def client(service: ServiceProcess) -> MemoryClient:
    return MemoryClient(service.url, KEY, patience_seconds=60)


def done(goal: str, *actions: str, reward: float = 1.0, agent: str = "first") -> MDPTransition:
    return MDPTransition(goal, list(actions), reward, f"after {goal}", agent, f"task of {goal}")


def test_what_one_agent_did_another_recalls_the_most_alike_first(client: MemoryClient) -> None:
    memory = ServiceMemory(client)
    memory.store_episodic(done("Goal: a harpsichord", "get brass", "craft harpsichord"))
    memory.store_episodic(done("Goal: a spinet of walnut", "get walnut", reward=0.0))
    found = ServiceMemory(client).retrieve_relevant("Goal: harpsichord!")
    assert found[0] == done("Goal: a harpsichord", "get brass", "craft harpsichord")
    assert memory.retrieve_relevant("qqq zzz") == []


def test_what_worked_often_is_recalled_as_a_procedure_with_how_often(client: MemoryClient, service: Any) -> None:
    memory = ServiceMemory(client, memory_types=("procedural",))
    for reward in (1.0, 1.0, 0.0):
        memory.store_episodic(done("Goal: a theremin", "get copper", "craft theremin", reward=reward))
    assert memory.retrieve_relevant("theremin") == []
    assert client._post("consolidate", {})["sets"]
    [recalled] = memory.retrieve_relevant("theremin")
    assert list(recalled.action) == ["get copper", "craft theremin"]
    assert (round(recalled.reward, 3), recalled.next_state) == (0.667, "It worked in 2 of 3 attempts.")


def test_a_hundred_agents_remember_and_recall_at_once(client: MemoryClient) -> None:
    def work(number: int) -> bool:
        memory = ServiceMemory(client, k=1)
        memory.store_episodic(done(f"Goal: gadget{number}", f"craft gadget{number}", agent=f"agent-{number}"))
        [recalled] = memory.retrieve_relevant(f"gadget{number}")
        return recalled.agent_id == f"agent-{number}"

    with ThreadPoolExecutor(100) as crew:
        assert all(crew.map(work, range(100)))


@pytest.mark.parametrize(("url", "key"), [(NOBODY, KEY), (None, "nobodys"), ("http://no.such.host.invalid", KEY)])
def test_an_agent_without_memories_goes_on_and_says_why_once(
    service: ServiceProcess, caplog: pytest.LogCaptureFixture, url: str | None, key: str
) -> None:
    memory = ServiceMemory(MemoryClient(url or service.url, key, patience_seconds=5))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            memory.store_episodic(done("Goal: nothing", "wait"))
            assert memory.retrieve_relevant("nothing") == []
    assert len({record.getMessage().partition(" ")[2] for record in caplog.records}) == len(caplog.records) == 1
    assert KEY not in caplog.text
