"""Agent Zero 0.9.x, in a host that calls extensions as it does.

The host in `agent_zero_earlier_host` is ours and small. Of 0.9.x it keeps what the extensions meet: they are
coroutines, every message passes `hist_add_before`, masked first, and `monologue_end` is called whatever ends the
monologue, and also when it only begins over.
"""

import asyncio
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.collection.agent_zero import earlier, hooks
from rl_pipeline.collection.agent_zero.installing import install
from rl_pipeline.contracts import validate_trajectory
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.collection.recordings import NOWHERE, arrived
from rl_pipeline_tests.collection.test_agent_zero import in_turn, request

HOST = Path(__file__).with_name("agent_zero_earlier_host")
SECRET = "correct-horse-battery"

Chat = Callable[..., Any]


@pytest.fixture
def chat(
    tmp_path: Path, outbox_directory: Path, monkeypatch: pytest.MonkeyPatch, nats_server: NatsServer
) -> Iterator[Chat]:
    """Opens chats of an Agent Zero with our extensions, whose model gives these answers."""
    root = tmp_path / "a0"
    shutil.copytree(HOST, root)
    install(root, {"nats_url": nats_server.url, "outbox": str(outbox_directory)})
    monkeypatch.syspath_prepend(root)
    import agent

    yield lambda *answers: agent.AgentContext(in_turn(*answers))
    hooks.close(0)
    for name in [name for name in sys.modules if name == "agent" or name.split(".")[0] == "python"]:
        del sys.modules[name]


def sent(stream: JetStream) -> list[dict[str, Any]]:
    [recording] = hooks._recordings
    assert recording.outbox.wait_until_sent(120), recording.outbox.counts
    return arrived(stream)


def test_a_task_of_an_earlier_agent_zero_becomes_a_trajectory_turn_by_turn(chat: Chat, stream: JetStream) -> None:
    talk = chat(
        request("code", "Look first.", code=f"ls {SECRET}"), "this is no JSON", request("response", text="3 files.")
    )
    assert asyncio.run(talk.communicate("How many files are there?")) == "3 files."
    [told] = sent(stream)
    validate_trajectory(told)
    assert (told["session_id"], told["agent_id"]) == (talk.id, "agent-zero-main")
    assert told["task_context"] == {"instructions": "How many files are there?"}
    assert told["metadata"] == {"model": "base-model", "framework": "agent-zero"}
    ran, misread, answered = told["turns"]
    assert ran["thought_process"] == ["Look first."]
    assert ran["action"]["tool_args"] == {"code": "ls §§secret(TOKEN)"}
    assert ran["result"]["output"] == "ran {'code': 'ls §§secret(TOKEN)'}"
    assert (misread["result"]["success"], "misformatted" in misread["result"]["error"]) == (False, True)
    assert answered["observation"]["type"] == "system_message"
    assert SECRET not in json.dumps(told)


def test_a_subordinate_of_an_earlier_agent_zero_names_its_superior(chat: Chat, stream: JetStream) -> None:
    talk = chat(
        request("call_subordinate", profile="researcher", message="Find out."),
        request("response", text="Page 7."),
        request("response", text="It is on page 7."),
    )
    asyncio.run(talk.communicate("Where is it?"))
    told = {one["agent_id"]: one for one in sent(stream)}
    main, researcher = told["agent-zero-main"], told["agent-zero-researcher"]
    assert researcher["metadata"]["parent_trajectory_id"] == main["trajectory_id"]
    assert [turn["action"]["type"] for turn in main["turns"]] == ["subordinate_call", "response"]


def test_an_interruption_begins_the_monologue_over_and_not_the_trajectory(chat: Chat, stream: JetStream) -> None:
    talk = chat()
    answers = in_turn(request("code", code="ls"), request("response", text="Done."))

    def answer(agent: Any) -> str:
        if len(agent.history) == 2:  # the greeting and the task
            agent.intervention = "Take the other one."
        return answers(agent)

    talk.answers = answer
    asyncio.run(talk.communicate("Take this one."))
    [told] = sent(stream)
    assert [turn["observation"]["type"] for turn in told["turns"]] == ["user_message", "user_message"]
    assert told["turns"][1]["observation"]["content"] == {"user_intervention": "Take the other one."}


def test_what_ends_a_monologue_ends_its_trajectory_as_failed_or_abandoned(chat: Chat, stream: JetStream) -> None:
    with pytest.raises(Exception, match="boom"):
        asyncio.run(chat(request("explode", why="boom")).communicate("Go."))

    async def stop(talk: Any) -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(talk.communicate("Wait for ever."), 0.1)

    asyncio.run(stop(chat(request("hang"))))
    statuses = [(one["task_context"]["instructions"], one["task_context"]["task_status"]) for one in sent(stream)]
    assert statuses == [("Go.", "failed"), ("Wait for ever.", "abandoned")]


def test_a_task_that_was_stopped_without_a_word_is_abandoned_when_the_next_comes(
    chat: Chat, stream: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    talk = chat(request("hang"), request("response", text="Yes."))

    async def stop() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(talk.communicate("Wait for ever."), 0.1)

    monkeypatch.setitem(earlier.POINTS, "monologue_end", "")  # 0.9.x says it of no task that is dead already
    asyncio.run(stop())
    monkeypatch.undo()
    asyncio.run(talk.communicate("Are you there?"))
    stopped, answered = sent(stream)
    assert stopped["task_context"]["task_status"] == "abandoned"
    assert [turn["action"]["type"] for turn in stopped["turns"]] == ["tool_call"]
    assert answered["task_context"] == {"instructions": "Are you there?"}


def test_the_extensions_stand_where_0_9_looks_and_settings_stay(tmp_path: Path) -> None:
    root = tmp_path / "a0"
    shutil.copytree(HOST, root)
    extensions = install(root, {"nats_url": NOWHERE})
    install(root, {"gateway_url": "http://gateway:3000"})
    assert extensions == root / "python" / "extensions"
    assert {file.parent.name for file in extensions.rglob("_90_rl_pipeline.py")} == earlier.POINTS.keys()
    assert json.loads((root / "rl_pipeline.json").read_text()) == {
        "nats_url": NOWHERE,
        "gateway_url": "http://gateway:3000",
    }
    assert (root / "agents" / "rl-trainer" / "prompts" / "agent.system.main.role.md").exists()
    assert not (root / "usr").exists()


def test_an_agent_zero_that_does_not_tell_its_messages_is_refused(tmp_path: Path) -> None:
    shutil.copytree(HOST, tmp_path / "a0")
    (tmp_path / "a0" / "agent.py").write_text("class Agent: ...")
    with pytest.raises(PipelineError, match="hist_add_before"):
        install(tmp_path / "a0", {})
    assert not list((tmp_path / "a0").rglob("_90_rl_pipeline.py"))
