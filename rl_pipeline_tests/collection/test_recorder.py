"""What a recorder's block says is what arrives, and the agent never notices."""

import asyncio
import contextlib
import contextvars
import json
import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.collection import Recorder, current_trajectory
from rl_pipeline.contracts import validate_trajectory
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.collection.recordings import NOWHERE, OpenOutbox, journals, sent_by

AGENT: dict[str, Any] = {"agent_id": "agent-1", "model": "model-1"}


def test_a_block_becomes_a_trajectory_of_the_contract(
    open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer
) -> None:
    outbox = open_outbox(nats_server.url)
    recorder = Recorder(
        outbox,
        **AGENT,
        session_id="session-1",
        instructions="What is 6 * 7?",
        task_context={"domain": "general", "user_id": "ada"},
        metadata={"framework": "mine"},
    )
    with recorder as trajectory:
        with trajectory.turn("What is 6 * 7?", context={"available_tools": ["calculate"]}) as turn:
            turn.think("Multiply.")
            turn.answer(
                "calculate(6 * 7)",
                model_version="v7",
                prompt_token_ids=[1, 2, 3],
                completion_token_ids=(4, 5),
                logprobs=[-0.5, -0.25],
            )
            turn.call("calculate", {"expression": "6 * 7"})
            turn.succeed(42)
        trajectory.respond("42", model_version="v7", prompt_tokens=10, completion_tokens=1)
        trajectory.add_task_context(task_type="arithmetic")
        trajectory.add_metadata(temperature=0.5)
        trajectory.end("partial", completion_percentage=90)
    [sent] = sent_by(outbox, stream)
    validate_trajectory(sent)
    assert (sent["trajectory_id"], sent["session_id"]) == (trajectory.trajectory_id, "session-1")
    first, second = sent["turns"]
    assert first["observation"]["context"] == {"available_tools": ["calculate"]}
    assert first["thought_process"] == ["Multiply."]
    assert first["action"] == {
        "type": "tool_call",
        "tool_name": "calculate",
        "tool_args": {"expression": "6 * 7"},
        "raw_response": "calculate(6 * 7)",
    }
    assert (first["result"]["success"], first["result"]["output"]) == (True, {"parts": [42]})
    assert first["result"]["execution_time_ms"] >= 0
    assert first["sampling"] == {
        "model_version": "v7",
        "prompt_token_ids": [1, 2, 3],
        "completion_token_ids": [4, 5],
        "logprobs": [-0.5, -0.25],
    }
    assert second["observation"] == {"type": "tool_result", "content": {"parts": [42]}}
    assert second["action"] == {"type": "response", "raw_response": "42"}
    assert sent["task_context"] == {
        "instructions": "What is 6 * 7?",
        "domain": "general",
        "user_id": "ada",
        "task_type": "arithmetic",
        "task_status": "partial",
        "completion_percentage": 90.0,
    }
    assert sent["metadata"] == {
        "model": "model-1",
        "model_version": "v7",
        "framework": "mine",
        "temperature": 0.5,
        "prompt_tokens": 13,
        "completion_tokens": 3,
        "total_tokens": 16,
    }
    times = [datetime.fromisoformat(moment) for moment in (sent["start_timestamp"], first["timestamp"])]
    assert times == sorted(times)


def test_a_trajectory_of_two_model_versions_claims_neither(
    open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer
) -> None:
    outbox = open_outbox(nats_server.url)
    with Recorder(outbox, **AGENT) as trajectory:
        trajectory.respond("one", model_version="v1")
        trajectory.respond("two", model_version="v2")
    with Recorder(outbox, **AGENT, model_version="v3") as trajectory:
        trajectory.respond("one")
    mixed, told = sent_by(outbox, stream)
    assert "model_version" not in mixed["metadata"]
    assert [turn["sampling"]["model_version"] for turn in mixed["turns"]] == ["v1", "v2"]
    assert told["metadata"]["model_version"] == "v3"


@pytest.mark.parametrize(
    ("error", "status"),
    [(ValueError("no"), "failed"), (KeyboardInterrupt(), "abandoned"), (asyncio.CancelledError(), "abandoned")],
)
def test_an_exception_ends_the_trajectory_and_goes_on_its_way(
    open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer, error: BaseException, status: str
) -> None:
    outbox = open_outbox(nats_server.url)

    def work() -> None:
        with Recorder(outbox, **AGENT) as trajectory:
            trajectory.respond("so far so good")
            trajectory.end("success")
            with trajectory.turn() as turn:
                turn.call("explode")
                raise error

    with pytest.raises(type(error)) as caught:
        work()
    assert caught.value is error
    [sent] = sent_by(outbox, stream)
    assert sent["task_context"]["task_status"] == status
    assert [turn["result"]["success"] for turn in sent["turns"]] == [True, False]
    assert sent["turns"][1]["result"]["error"].startswith(type(error).__name__)
    assert current_trajectory() is None


def test_an_error_after_the_result_does_not_change_the_result(
    open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer
) -> None:
    outbox = open_outbox(nats_server.url)
    with Recorder(outbox, **AGENT) as trajectory, contextlib.suppress(ValueError), trajectory.turn() as turn:
        turn.call("search")
        turn.succeed("found")
        raise ValueError("of the agent's own")
    [sent] = sent_by(outbox, stream)
    assert sent["turns"][0]["result"]["success"] is True


def test_async_blocks_in_parallel_keep_to_themselves(
    open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer
) -> None:
    outbox = open_outbox(nats_server.url)

    async def play(number: int) -> str:
        async with Recorder(outbox, **AGENT, instructions=f"task {number}") as trajectory:
            for turn in range(3):
                await asyncio.sleep(0)
                here = current_trajectory()
                assert here is trajectory
                here.respond(f"{number}.{turn}")
            return trajectory.trajectory_id

    async def play_all() -> list[str]:
        return await asyncio.gather(*(play(number) for number in range(20)))

    ids = asyncio.run(play_all())
    sent = {one["trajectory_id"]: one for one in sent_by(outbox, stream)}
    assert set(sent) == set(ids)
    for number, identity in enumerate(ids):
        answers = [turn["action"]["raw_response"] for turn in sent[identity]["turns"]]
        assert answers == [f"{number}.{turn}" for turn in range(3)]


def test_the_event_loop_goes_on_while_the_disk_is_waited_for(
    open_outbox: OpenOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = open_outbox()
    other_ran = threading.Event()
    synced = outbox._working().writer._redaction.part

    def slow(name: str, content: dict[str, Any], secrets: Any) -> dict[str, Any]:
        assert name != "end" or other_ran.wait(60), "the loop stood still"
        return synced(name, content, secrets)

    monkeypatch.setattr(outbox._working().writer._redaction, "part", slow)

    async def record() -> None:
        async with Recorder(outbox, **AGENT) as trajectory:
            trajectory.respond("done")

    async def both() -> None:
        recording = asyncio.create_task(record())
        await asyncio.sleep(0)
        other_ran.set()
        await recording

    asyncio.run(both())
    assert outbox.counts.finished == 1


def test_threads_keep_to_themselves(open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer) -> None:
    outbox = open_outbox(nats_server.url)

    def play(number: int) -> None:
        with Recorder(outbox, **AGENT, instructions=f"task {number}"):
            for turn in range(5):
                here = current_trajectory()
                assert here is not None
                here.respond(f"{number}.{turn}")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(play, range(40)))
    sent = sent_by(outbox, stream)
    assert sorted(one["task_context"]["instructions"] for one in sent) == sorted(f"task {n}" for n in range(40))
    for one in sent:
        number = one["task_context"]["instructions"].split()[1]
        assert [turn["action"]["raw_response"] for turn in one["turns"]] == [f"{number}.{turn}" for turn in range(5)]


def test_a_block_inside_another_is_a_subordinates(
    open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer
) -> None:
    outbox = open_outbox(nats_server.url)
    with Recorder(outbox, **AGENT, session_id="session-9") as superior, superior.turn() as turn:
        turn.call("delegate", kind="subordinate_call")
        with Recorder(outbox, agent_id="helper", model="small", subordinate_profile="developer") as subordinate:
            assert current_trajectory() is subordinate
            subordinate.respond("done")
        assert current_trajectory() is superior
        turn.succeed("done")
    of_helper, of_superior = sent_by(outbox, stream)
    assert of_helper["metadata"]["parent_trajectory_id"] == of_superior["trajectory_id"] == superior.trajectory_id
    assert of_helper["session_id"] == of_superior["session_id"] == "session-9"
    assert of_helper["subordinate_profile"] == "developer"
    assert "parent_trajectory_id" not in of_superior["metadata"]


def test_whole_turns_are_taken_as_they_are_in_the_order_in_which_they_began(
    open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer
) -> None:
    outbox = open_outbox(nats_server.url)
    with Recorder(outbox, **AGENT) as trajectory:
        for moment in ("2026-01-01T10:00:02Z", "2026-01-01T11:00:01+01:00"):
            trajectory.add_turn(
                {
                    "timestamp": moment,
                    "agent_id": "other",
                    "observation": {"type": "system_message", "content": "go"},
                    "action": {"type": "response"},
                    "result": {"success": True},
                }
            )
    [sent] = sent_by(outbox, stream)
    assert [turn["timestamp"] for turn in sent["turns"]] == ["2026-01-01T10:00:01Z", "2026-01-01T10:00:02Z"]
    assert [turn["turn_id"] for turn in sent["turns"]] == [1, 2]
    assert sent["turns"][0]["agent_id"] == "other"


@pytest.mark.parametrize("midway", [False, True])
def test_of_a_user_who_opted_out_nothing_is_kept(
    open_outbox: OpenOutbox, outbox_directory: Path, stream: JetStream, nats_server: NatsServer, midway: bool
) -> None:
    outbox = open_outbox(nats_server.url)
    with Recorder(outbox, **AGENT, opt_out=not midway) as trajectory:
        trajectory.respond("first")
        if midway:
            trajectory.opt_out()
        trajectory.respond("second")
    assert sent_by(outbox, stream) == []
    assert journals(outbox_directory) == []
    assert (outbox.counts.opted_out, outbox.counts.finished) == (1, 0)


def test_a_block_without_a_turn_sends_nothing(open_outbox: OpenOutbox, outbox_directory: Path) -> None:
    outbox = open_outbox()
    with Recorder(outbox, **AGENT):
        pass
    assert journals(outbox_directory) == []
    assert outbox.counts.empty == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"task_context": {"domain": "mathematics"}}, "task_context.domain"),
        ({"model": "x" * 600}, "metadata.model"),
        ({"agent_id": ""}, "agent_id"),
        ({"trajectory_id": "no-uuid"}, "trajectory_id"),
    ],
)
def test_what_breaks_the_contract_is_logged_with_its_place_and_the_agent_goes_on(
    open_outbox: OpenOutbox, caplog: pytest.LogCaptureFixture, arguments: dict[str, Any], told: str
) -> None:
    outbox = open_outbox()
    with caplog.at_level(logging.WARNING), Recorder(outbox, **{**AGENT, **arguments}) as trajectory:
        trajectory.respond("done")
    assert (outbox.counts.refused, outbox.counts.finished) == (1, 0)
    assert told in caplog.text


def test_a_turn_that_breaks_the_contract_refuses_the_whole_trajectory(
    open_outbox: OpenOutbox, outbox_directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outbox = open_outbox()
    with caplog.at_level(logging.WARNING), Recorder(outbox, **AGENT) as trajectory:
        trajectory.respond("good")
        with trajectory.turn("?", kind="rumour"):  # type: ignore[arg-type]
            pass
        trajectory.respond("good")
    assert "turns[0].observation.type" in caplog.text
    assert (outbox.counts.refused, journals(outbox_directory)) == (1, [])


def test_misuse_is_counted_and_never_raised(open_outbox: OpenOutbox, caplog: pytest.LogCaptureFixture) -> None:
    outbox = open_outbox()
    with caplog.at_level(logging.WARNING), Recorder(outbox, **AGENT) as trajectory:
        with trajectory.turn() as turn:
            turn.succeed("one", "too many")  # type: ignore[call-arg]
            turn.answer("a", prompt_tokens="many")  # type: ignore[arg-type]
        trajectory.add_turn("no turn")  # type: ignore[arg-type]
        trajectory.respond("a", unknown=1)
    assert outbox.counts.failures == 4
    assert "TypeError" in caplog.text
    assert outbox.counts.finished == 1


def test_a_block_that_another_context_ends_does_no_harm(open_outbox: OpenOutbox) -> None:
    outbox = open_outbox()
    recorder = Recorder(outbox, **AGENT)
    contextvars.copy_context().run(recorder.__enter__).respond("done")
    recorder.__exit__(None, None, None)
    assert outbox.counts.finished == 1


def test_a_recorder_that_may_not_wait_does_not(open_outbox: OpenOutbox) -> None:
    outbox = open_outbox(NOWHERE, disk_seconds=0)
    with Recorder(outbox, **AGENT) as trajectory:
        trajectory.respond("done")
    assert outbox.counts.late == 0
    outbox._working().writer.wait_until_written(60)
    assert outbox.counts.finished == 1


def test_a_disk_that_hangs_holds_the_agent_up_no_longer_than_told(
    open_outbox: OpenOutbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    outbox = open_outbox(disk_seconds=0.05)
    goes_on = threading.Event()
    redaction = outbox._working().writer._redaction
    monkeypatch.setattr(redaction, "part", lambda _, content, __: goes_on.wait(60) and content)
    with Recorder(outbox, **AGENT) as trajectory:
        trajectory.respond("done")
    assert (outbox.counts.late, outbox.counts.finished) == (1, 0)
    goes_on.set()
    outbox._working().writer.wait_until_written(60)
    assert outbox.counts.finished == 1


def test_the_journal_reads_as_json_lines(open_outbox: OpenOutbox, outbox_directory: Path) -> None:
    with Recorder(open_outbox(), **AGENT) as trajectory:
        trajectory.respond("done")
    [journal] = journals(outbox_directory)
    kinds = [next(iter(json.loads(line))) for line in journal.read_text().splitlines()]
    assert kinds == ["begin", "redacted_by", "turn", "end"]


def test_a_recorder_that_is_entered_again_records_another_trajectory(
    open_outbox: OpenOutbox, outbox_directory: Path
) -> None:
    recorder = Recorder(open_outbox(), **AGENT)
    ids = set()
    for _ in range(2):
        with recorder as trajectory:
            trajectory.respond("done")
        ids.add(trajectory.trajectory_id)
    assert {path.stem for path in journals(outbox_directory)} == ids
    assert len(ids) == 2
