"""The Agent Zero plugin, in a host that loads and calls extensions as Agent Zero 1.x does.

The host in `agent_zero_host` is ours and small; of Agent Zero's `helpers/extension.py` and `agent.py` it keeps what a
plugin meets:

- `@extensible` functions have the points `_functions/<module>/<qualname>/start` and `end`, which are given one `data`
  with `args`, `kwargs`, `result` and `exception`. Only an `Exception` of the function is caught: a task that is
  cancelled never comes to its `end`.
- Of each `*.py` in `extensions/python/<point>/` of every plugin the last class is taken; of files with one name in
  several plugins only the first counts; they are called in order of their names.
- What an extension raises goes on into the agent, and a coroutine at a synchronous point is a `ValueError`.
- Secrets are masked in what enters the history, and unmasked in what a tool is given.
"""

import asyncio
import json
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rl_pipeline.cli import app
from rl_pipeline.collection.agent_zero import hooks
from rl_pipeline.collection.agent_zero.current_model import CurrentModel
from rl_pipeline.collection.agent_zero.installing import EVENTS, install
from rl_pipeline.collection.agent_zero.recording import AgentZeroRecording
from rl_pipeline.contracts import validate_trajectory
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.collection.recordings import NOWHERE, arrived
from rl_pipeline_tests.waiting import wait_until

HOST = Path(__file__).with_name("agent_zero_host")
FEEDBACK = "RL_FEEDBACK"
SECRET = "correct-horse-battery"


def request(tool_name: str, *thoughts: str, **tool_args: str) -> str:
    return json.dumps({"thoughts": list(thoughts), "tool_name": tool_name, "tool_args": tool_args})


def in_turn(*answers: str) -> Callable[[Any], str]:
    """A model that gives these answers, whoever asks."""
    left = iter(answers)
    return lambda _agent: next(left)


class Host:
    """An Agent Zero with the plugin in it."""

    def __init__(self, root: Path, config: dict[str, Any]) -> None:
        self.root = root
        self.plugin = install(root, config)
        import agent
        from helpers import api, extension

        self.agent, self.api, self.extension = agent, api, extension

    def chat(self, *answers: str, **options: Any) -> Any:
        context = self.agent.AgentContext(in_turn(*answers), **options)
        context.hanging = threading.Event()
        return context

    def rate(self, **opinion: Any) -> dict[str, Any]:
        answer: dict[str, Any] = asyncio.run(self.api.post("plugins/rl_pipeline/feedback", opinion))
        return answer

    def sent(self, stream: JetStream, name: str = "RL_TRAJECTORIES") -> list[dict[str, Any]]:
        """What has arrived when everything is sent."""
        [recording] = hooks._recordings
        assert recording.outbox.wait_until_sent(120), recording.outbox.counts
        return arrived(stream, name)


OpenHost = Callable[..., Host]


@pytest.fixture
def open_host(tmp_path: Path, outbox_directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenHost]:
    root = tmp_path / "a0"
    shutil.copytree(HOST, root)
    monkeypatch.syspath_prepend(root)

    def open_one(url: str = NOWHERE, **config: Any) -> Host:
        return Host(root, {"nats_url": url, "outbox": str(outbox_directory), **config})

    yield open_one
    hooks.close(0)
    for name in [name for name in sys.modules if name == "agent" or name.split(".")[0] == "helpers"]:
        del sys.modules[name]


@pytest.fixture
def gateway() -> Iterator[tuple[str, list[str]]]:
    """A gateway's list of models, and the list to change."""
    models = ["agent-zero-rl-v2.3"]

    class Listing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps({"object": "list", "data": [{"id": model} for model in models]}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Listing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", models
        server.shutdown()
        thread.join()


def test_a_task_becomes_a_trajectory_turn_by_turn(
    open_host: OpenHost, stream: JetStream, nats_server: NatsServer
) -> None:
    host = open_host(nats_server.url)
    chat = host.chat(
        request("code", "Look first.", code="ls"),
        "this is no JSON",
        request("response", "Done.", text="There are 3 files."),
    )
    assert chat.communicate("How many files are there?").result() == "There are 3 files."
    [sent] = host.sent(stream)
    validate_trajectory(sent)
    assert (sent["session_id"], sent["agent_id"]) == (chat.id, "agent-zero-main")
    assert sent["task_context"] == {"instructions": "How many files are there?"}
    assert sent["metadata"] == {"model": "chat-model", "framework": "agent-zero"}
    ran, misread, answered = sent["turns"]
    assert ran["observation"] == {"type": "user_message", "content": "How many files are there?"}
    assert ran["thought_process"] == ["Look first."]
    assert (ran["action"]["tool_name"], ran["action"]["tool_args"]) == ("code", {"code": "ls"})
    assert ran["result"]["output"] == "ran {'code': 'ls'}"
    assert misread["observation"] == {"type": "tool_result", "content": "ran {'code': 'ls'}"}
    assert misread["action"] == {"type": "response", "raw_response": "this is no JSON"}
    assert (misread["result"]["success"], "misformatted" in misread["result"]["error"]) == (False, True)
    assert answered["observation"]["type"] == "system_message"
    assert json.loads(answered["action"]["raw_response"])["tool_args"] == {"text": "There are 3 files."}
    assert "Hello" not in json.dumps(sent), "the greeting of a new chat is nobody's answer"


def test_a_task_of_600_kb_goes_to_the_store_that_the_settings_name(
    open_host: OpenHost, stream: JetStream, nats_server: NatsServer, tmp_path: Path
) -> None:
    host = open_host(nats_server.url, trajectory_storage_path=str(tmp_path / "storage"))
    host.chat(request("code", code="ls " * 200_000), request("response", text="Done.")).communicate("Go.").result()
    [sent] = host.sent(stream)
    whole = json.loads(DiskObjects(tmp_path / "storage" / "raw").get(sent["claim_check"]["key"]))
    assert len(whole["turns"][0]["action"]["tool_args"]["code"]) == 600_000


def test_a_secret_is_never_recorded_although_the_tool_was_given_it(
    open_host: OpenHost, stream: JetStream, nats_server: NatsServer
) -> None:
    host = open_host(nats_server.url)
    chat = host.chat(request("code", code="login §§secret(TOKEN)"), request("response", text="Logged in."))
    chat.communicate("Log in.").result()
    assert chat.agent0.unmasked[0] == {"code": f"login {SECRET}"}, "the test could not fail"
    [sent] = host.sent(stream)
    assert sent["turns"][0]["action"]["tool_args"] == {"code": "login §§secret(TOKEN)"}
    assert SECRET not in json.dumps(sent)


def test_a_subordinate_names_its_superiors_trajectory(
    open_host: OpenHost, stream: JetStream, nats_server: NatsServer
) -> None:
    host = open_host(nats_server.url)
    chat = host.chat(
        request("call_subordinate", profile="researcher", message="Find out."),
        request("call_subordinate", profile="cook", message="Look into the book."),
        request("response", text="Page 7."),
        request("response", text="It is on page 7."),
        request("response", text="Page 7 has it."),
    )
    chat.communicate("Where is it?").result()
    sent = {trajectory["agent_id"]: trajectory for trajectory in host.sent(stream)}
    main, researcher, cook = (sent[f"agent-zero-{name}"] for name in ("main", "researcher", "cook"))
    assert (researcher["subordinate_profile"], cook.get("subordinate_profile")) == ("researcher", None)
    assert cook["metadata"]["profile"] == "cook", "the contract knows four profiles; others are told in words"
    assert researcher["metadata"]["parent_trajectory_id"] == main["trajectory_id"]
    assert cook["metadata"]["parent_trajectory_id"] == researcher["trajectory_id"]
    assert {main["session_id"], researcher["session_id"], cook["session_id"]} == {chat.id}
    called, answered = main["turns"]
    assert called["action"]["type"] == "subordinate_call"
    assert called["result"]["output"] == "It is on page 7."
    assert answered["observation"] == {"type": "subordinate_response", "content": "It is on page 7."}


@pytest.mark.parametrize("stop", ["kill_process", "remove"])
def test_a_task_that_is_killed_is_sent_as_abandoned(
    open_host: OpenHost, stream: JetStream, nats_server: NatsServer, stop: str
) -> None:
    host = open_host(nats_server.url)
    chat = host.chat(request("code", code="ls"), request("hang"))
    chat.communicate("Wait for ever.")
    assert chat.hanging.wait(60)
    if stop == "remove":
        host.agent.AgentContext.remove(chat.id)
    else:
        chat.kill_process()
    [sent] = host.sent(stream)
    assert sent["task_context"]["task_status"] == "abandoned"
    assert [turn["action"]["tool_name"] for turn in sent["turns"]] == ["code", "hang"]


def test_a_task_that_fails_is_sent_as_failed_and_the_error_goes_on_its_way(
    open_host: OpenHost, stream: JetStream, nats_server: NatsServer
) -> None:
    host = open_host(nats_server.url)
    with pytest.raises(RuntimeError, match="boom"):
        host.chat(request("explode", why="boom")).communicate("Go.").result()
    [sent] = host.sent(stream)
    assert (sent["task_context"]["task_status"], sent["task_context"]["error"]) == ("failed", "RuntimeError")
    assert sent["turns"][0]["result"]["success"] is False


def test_what_stands_still_in_a_chat_that_does_not_run_is_given_up(
    open_host: OpenHost, open_outbox: Any, stream: JetStream, nats_server: NatsServer
) -> None:
    host = open_host(nats_server.url)
    now = [0.0]
    recording = AgentZeroRecording(
        open_outbox(nats_server.url), CurrentModel(None), idle_seconds=600, clock=lambda: now[0]
    )
    agent = host.chat().agent0
    recording.user_said(agent, {"result": host.agent.Message(False, {"user_message": "Go."})})
    recording.monologue_began(agent, {})
    recording.agent_said(agent, {"result": host.agent.Message(True, request("code", code="ls"))})
    now[0] = 599
    recording.minute_passed(None, {})
    assert recording.outbox.counts.finished == 0
    now[0] = 601
    recording.minute_passed(None, {})
    assert recording.outbox.wait_until_sent(120)
    [sent] = arrived(stream)
    assert sent["task_context"]["task_status"] == "abandoned"


def test_a_word_in_between_ends_the_turn_and_belongs_to_the_task(
    open_host: OpenHost, stream: JetStream, nats_server: NatsServer
) -> None:
    host = open_host(nats_server.url)

    def answer(agent: Any) -> str:
        if len(agent.history) == 2:  # the greeting and the task
            agent.hist_add_ai_response("I am going to")
            agent.hist_add_user_message("Stop, take the other one.", intervention=True)
        return request("response", text="Done.")

    chat = host.chat()
    chat.answers = answer
    chat.communicate("Take this one.").result()
    [sent] = host.sent(stream)
    interrupted, done = sent["turns"]
    assert interrupted["result"]["error"] == "the user interrupted"
    assert done["observation"] == {"type": "user_message", "content": "Stop, take the other one."}
    assert sent["task_context"]["instructions"] == "Take this one."


def test_the_model_in_service_is_read_from_the_gateway(
    open_host: OpenHost, stream: JetStream, nats_server: NatsServer, gateway: tuple[str, list[str]]
) -> None:
    url, models = gateway
    host = open_host(nats_server.url, gateway_url=url)
    chat = host.chat(request("response", text="Yes."))
    [recording] = hooks._recordings
    wait_until(recording._model.version, "the gateway's answer")
    chat.communicate("Are you there?").result()
    [sent] = host.sent(stream)
    assert sent["metadata"]["model_version"] == sent["turns"][0]["sampling"]["model_version"] == "agent-zero-rl-v2.3"
    models.append("agent-zero-rl-v2.4")
    both = CurrentModel(url)
    both.refresh()
    wait_until(lambda: both._answers, "the gateway's answer")
    assert both.version() is None, "while two share the traffic nobody here knows which one answers"


def test_a_turn_has_the_model_that_was_in_service_when_it_was_called(
    open_host: OpenHost, stream: JetStream, nats_server: NatsServer, gateway: tuple[str, list[str]]
) -> None:
    url, models = gateway
    host = open_host(nats_server.url, gateway_url=url)
    chat = host.chat()
    [recording] = hooks._recordings
    model, later = recording._model, [0.0]
    model._clock = lambda: time.monotonic() + later[0]

    def answer_after_a_switch(*answers: str) -> Callable[[Any], str]:
        left = iter(answers)

        def answer(_agent: Any) -> str:
            wait_until(lambda: model.version() == models[0], "what the gateway says of now")
            models[0] += "+"
            later[0] += 31.0
            return next(left)

        return answer

    chat.answers = answer_after_a_switch(
        request("code", code="ls"), request("response", text="3."), request("response", text="Yes.")
    )
    for said in ("How many?", "Sure?"):
        chat.communicate(said).result()
    many, sure = host.sent(stream)
    version = "agent-zero-rl-v2.3"
    assert [turn["sampling"]["model_version"] for turn in many["turns"]] == [version, f"{version}+"]
    assert "model_version" not in many["metadata"], "its turns do not agree"
    assert sure["metadata"]["model_version"] == f"{version}++", "the one before is no longer in service"


def test_an_answer_of_the_gateway_from_too_long_ago_is_none(gateway: tuple[str, list[str]]) -> None:
    url, models = gateway
    now = [0.0]
    model = CurrentModel(url, clock=lambda: now[0])
    model.refresh()
    version = wait_until(model.version, "the gateway's answer")
    now[0] = 31.0
    assert (model.version(), model.version(at=30.0)) == (None, version)
    models[0] = "agent-zero-rl-v2.4"
    model.refresh()
    wait_until(model.version, "the gateway's next answer")
    assert model.version(at=30.0) == version, "what was called before the switch was answered by the one before"


def test_a_gateway_that_is_away_holds_up_nothing(
    open_host: OpenHost, stream: JetStream, nats_server: NatsServer
) -> None:
    with socket.socket() as silent:  # takes connections and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        host = open_host(nats_server.url, gateway_url=f"http://127.0.0.1:{silent.getsockname()[1]}")
        host.chat(request("response", text="Yes.")).communicate("Are you there?").result()
        [sent] = host.sent(stream)
    assert "model_version" not in sent["metadata"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"kind": "thumbs_up"}, {"kind": "thumbs_up"}),
        ({"kind": "stars", "rating": 4}, {"kind": "stars", "rating": 4}),
        (
            {"kind": "comment", "text": "Mail ada@example.org the key ghp_q1W2e3R4t5Y6u7I8o9P0a1S2d3F4g5H6j7K8"},
            {"kind": "comment"},
        ),
    ],
)
def test_thumbs_and_stars_reach_the_feedback_of_their_trajectory(
    open_host: OpenHost, stream: JetStream, nats_server: NatsServer, given: dict[str, Any], kept: dict[str, Any]
) -> None:
    host = open_host(nats_server.url)
    chat = host.chat(request("response", text="One."), request("response", text="Two."))
    chat.communicate("First.").result()
    first_answer = chat.agent0.history[-1]
    chat.communicate("Second.").result()
    rated = host.rate(context=chat.id, message_id=first_answer.id, is_last=False, **given)
    assert rated["ok"], rated
    by_task = {sent["task_context"]["instructions"]: sent for sent in host.sent(stream)}
    assert rated["trajectory_id"] == by_task["First."]["trajectory_id"]
    [feedback] = host.sent(stream, FEEDBACK)
    assert feedback.items() >= {**kept, "trajectory_id": rated["trajectory_id"], "session_id": chat.id}.items()
    assert feedback["metadata"] == {"channel": "webui"}
    assert "ghp_" not in json.dumps(feedback)
    assert "example.org" not in json.dumps(feedback)


def test_an_unknown_message_is_taken_for_the_last_answer_only_if_it_is_that(open_host: OpenHost) -> None:
    host = open_host()
    chat = host.chat(request("response", text="One."))
    chat.communicate("First.").result()
    last = host.rate(context=chat.id, message_id="of an older version", is_last=True, kind="thumbs_down")
    assert last["ok"], last
    assert host.rate(context=chat.id, message_id="?", is_last=False, kind="thumbs_down")["ok"] is False
    assert host.rate(context="?", kind="thumbs_down") == {"ok": False, "error": "no such chat"}
    assert "rating" in host.rate(context=chat.id, is_last=True, kind="stars")["error"]


def test_feedback_waits_on_the_disk_while_the_server_is_away(
    open_host: OpenHost, outbox_directory: Path, stream: JetStream, nats_server: NatsServer
) -> None:
    host = open_host(NOWHERE)
    chat = host.chat(request("response", text="One."))
    chat.communicate("First.").result()
    assert host.rate(context=chat.id, is_last=True, kind="thumbs_up")["ok"]
    hooks.close(0)
    open_host(nats_server.url)
    host.chat()  # the next process with the same outbox
    [trajectory], [feedback] = host.sent(stream), host.sent(stream, FEEDBACK)
    assert feedback["trajectory_id"] == trajectory["trajectory_id"]


def test_an_agent_goes_on_whatever_happens_to_the_recorder(
    open_host: OpenHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = open_host(gateway_url="no address")  # for which the recorder cannot be made
    assert host.chat(request("response", text="Yes.")).communicate("Are you there?").result() == "Yes."
    monkeypatch.setitem(sys.modules, "rl_pipeline.collection.agent_zero.hooks", None)  # as if it were not installed
    chat = host.chat(request("response", text="Yes."))
    assert chat.communicate("Are you there?").result() == "Yes."
    assert "not installed" in host.rate(context=chat.id, kind="thumbs_up")["error"]
    broken = host.plugin / "extensions/python/_functions/agent/Agent/monologue/start/_91_broken.py"
    broken.write_text(
        "from helpers.extension import Extension\nclass Broken(Extension):\n    def execute(self, **_): 1 / 0\n"
    )
    with pytest.raises(ZeroDivisionError):  # else the test above could not fail
        host.chat(request("response", text="Yes.")).communicate("Are you there?").result()


def test_the_install_command_writes_the_layout_and_keeps_settings(tmp_path: Path) -> None:
    root = tmp_path / "a0"
    shutil.copytree(HOST, root)
    for options in (["--nats-url", "nats://here:4222"], ["--gateway-url", "http://gateway:3000"]):
        told = CliRunner().invoke(app, ["agent-zero", "install", str(root), *options])
        assert told.exit_code == 0, told.output
    plugin = root / "usr" / "plugins" / "rl_pipeline"
    assert json.loads((plugin / "config.json").read_text()) == {
        "nats_url": "nats://here:4222",
        "gateway_url": "http://gateway:3000",
    }
    points = {str(file.parent.relative_to(plugin / "extensions/python")) for file in plugin.rglob("_90_rl_pipeline.py")}
    assert points == EVENTS.keys()
    assert all(hasattr(AgentZeroRecording, event) for event in EVENTS.values())
    assert "name: rl_pipeline\n" in (plugin / "plugin.yaml").read_text()
    assert not list(plugin.rglob("*.txt"))


def test_nothing_is_written_where_no_agent_zero_is(tmp_path: Path) -> None:
    (tmp_path / "agent.py").touch()
    with pytest.raises(PipelineError, match=r"no Agent Zero 0\.9\.x or 1\.x is there"):
        install(tmp_path, {})
    assert not (tmp_path / "usr").exists()


def test_the_profile_of_the_trainer_may_refuse(open_host: OpenHost) -> None:
    profile = open_host().plugin / "agents" / "rl-trainer"
    role = (profile / "prompts" / "agent.system.main.role.md").read_text()
    assert "RL Training Coordinator" in role
    assert "without refusal" not in role
    assert "Refusal behavior on harmful requests" in role, "what validation looks for stays"
    assert (profile / "agent.yaml").exists()


def test_an_event_that_no_recording_knows_raises_nothing(open_host: OpenHost) -> None:
    host = open_host()
    hooks.tell("no_such_event", None, None, lambda _name: {"outbox": str(host.root / "outbox"), "nats_url": NOWHERE})
