"""Tools record themselves where a trajectory is open, and are themselves everywhere else."""

import asyncio
from typing import Any

import pytest

from rl_pipeline.collection import Recorder, recorded_tool
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.collection.recordings import OpenOutbox, sent_by

AGENT: dict[str, Any] = {"agent_id": "agent-1", "model": "model-1"}


@recorded_tool
def add(left: int, right: int = 1, *more: int, **named: int) -> int:
    """Adds."""
    return left + right + sum(more) + sum(named.values())


@recorded_tool(name="look-up")
async def look_up(word: str) -> dict[str, str]:
    await asyncio.sleep(0)
    return {"meaning": f"of {word}"}


@recorded_tool
def explode() -> None:
    raise ValueError("bang")


@recorded_tool
def twice(number: int) -> int:
    return add(number, number)


class Shelf:
    @recorded_tool
    def take(self, book: str) -> str:
        return book.upper()


def test_outside_a_block_a_tool_is_as_it_was() -> None:
    assert add(1, 2) == 3
    assert (add.__name__, add.__doc__) == ("add", "Adds.")
    assert asyncio.run(look_up("word")) == {"meaning": "of word"}
    with pytest.raises(ValueError, match="bang"):
        explode()
    with pytest.raises(TypeError):
        add()  # type: ignore[call-arg]


def test_calls_are_turns_with_arguments_result_and_duration(
    open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer
) -> None:
    outbox = open_outbox(nats_server.url)
    with Recorder(outbox, **AGENT, instructions="go"):
        assert add(1, 2, 3, four=4) == 10
        assert Shelf().take("b") == "B"
        assert twice(4) == 8
        with pytest.raises(ValueError, match="bang"):
            explode()
        with pytest.raises(TypeError):
            add()  # type: ignore[call-arg]
    [sent] = sent_by(outbox, stream)
    calls = [(turn["action"]["tool_name"], turn["action"]["tool_args"]) for turn in sent["turns"]]
    assert calls == [
        ("add", {"left": 1, "right": 2, "more": [3], "named": {"four": 4}}),
        ("take", {"book": "b"}),
        ("twice", {"number": 4}),
        ("explode", {}),
        ("add", {"args": []}),
    ]
    results = [turn["result"] for turn in sent["turns"]]
    assert [result["success"] for result in results] == [True, True, True, False, False]
    assert (results[0]["output"], results[1]["output"]) == ({"parts": [10]}, "B")
    assert results[3]["error"] == "ValueError: bang"
    assert all(result["execution_time_ms"] >= 0 for result in results)
    seen = [turn["observation"] for turn in sent["turns"]]
    assert seen[0] == {"type": "user_message", "content": "go"}
    assert seen[1] == {"type": "tool_result", "content": {"parts": [10]}}
    assert seen[4] == {"type": "tool_result", "content": "ValueError: bang"}


def test_a_call_is_the_action_of_the_turn_around_it_and_further_calls_are_turns_beside_it(
    open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer
) -> None:
    outbox = open_outbox(nats_server.url)

    async def act() -> None:
        async with Recorder(outbox, **AGENT) as trajectory:
            with trajectory.turn("find both") as turn:
                turn.answer("look up a and b", model_version="v1")
                await asyncio.gather(look_up("a"), look_up("b"))

    asyncio.run(act())
    [sent] = sent_by(outbox, stream)
    words = {turn["action"]["tool_args"]["word"]: turn for turn in sent["turns"]}
    assert set(words) == {"a", "b"}
    assert {turn["observation"]["content"] for turn in sent["turns"]} == {"find both"}
    assert words["a"]["action"]["raw_response"] == "look up a and b"
    assert words["a"]["sampling"] == {"model_version": "v1"}
    assert "sampling" not in words["b"]
    assert words["b"]["result"]["output"] == {"meaning": "of b"}


def test_a_subordinate_inside_a_tool_records_its_own_tools(
    open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer
) -> None:
    outbox = open_outbox(nats_server.url)

    @recorded_tool
    def delegate() -> int:
        with Recorder(outbox, agent_id="helper", model="small"):
            return add(1)

    with Recorder(outbox, **AGENT):
        delegate()
    helper, superior = sent_by(outbox, stream)
    assert [turn["action"]["tool_name"] for turn in helper["turns"]] == ["add"]
    assert [turn["action"]["tool_name"] for turn in superior["turns"]] == ["delegate"]
    assert helper["metadata"]["parent_trajectory_id"] == superior["trajectory_id"]


def test_a_tool_that_outlives_its_block_is_not_recorded_and_not_harmed(
    open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer
) -> None:
    outbox = open_outbox(nats_server.url)

    async def act() -> dict[str, str]:
        async with Recorder(outbox, **AGENT) as trajectory:
            with trajectory.turn("go") as turn:
                turn.answer("look up later")
                later = asyncio.create_task(look_up("late"))
        return await later

    assert asyncio.run(act()) == {"meaning": "of late"}
    [sent] = sent_by(outbox, stream)
    assert [turn["action"]["type"] for turn in sent["turns"]] == ["response"]
