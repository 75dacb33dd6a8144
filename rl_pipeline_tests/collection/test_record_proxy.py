"""The recording proxy changes nothing that passes, and what passed arrives as trajectories."""

import asyncio
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from rl_pipeline.collection import Outbox
from rl_pipeline.collection.proxy.answers import read_answer
from rl_pipeline.collection.proxy.conversations import chains_of
from rl_pipeline.collection.proxy.recorder import ProxyRecorder
from rl_pipeline.collection.proxy.server import RecordingProxy, run_proxy
from rl_pipeline.contracts import validate_trajectory
from rl_pipeline.embedded.nats_server import NatsServer
from rl_pipeline.redaction.passage import encoded
from rl_pipeline.redaction.placeholders import placeholder
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.collection.recordings import SECRET, OpenOutbox, arrived, sent_by
from rl_pipeline_tests.collection.stub_model import StubModel, called, event, running_stub, said
from rl_pipeline_tests.waiting import wait_until

USER = {"role": "user", "content": "What is 6 * 7?"}
CALL = called("calculate", '{"expression": "6 * 7"}', "call_1")
CALLING = said(None, message={"tool_calls": [CALL]}, choice={"finish_reason": "tool_calls"})


class Clock:
    """The recorder's clock, which only the test moves."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class Caller:
    """An agent that talks to its model through the proxy."""

    outbox: Outbox
    clock: Clock

    def __init__(self, url: str) -> None:
        self.url = url

    def post(self, path: str, content: Any, **headers: str) -> tuple[int, Any]:
        body = json.dumps(content).encode()
        request = Request(f"{self.url}{path}", body, {"Content-Type": "application/json", **headers})
        try:
            with urlopen(request, timeout=120) as answer:
                raw = answer.read()
                return answer.status, json.loads(raw) if answer.headers["Content-Length"] else raw
        except HTTPError as refused:
            return refused.code, json.loads(refused.read())

    def ask(self, *messages: dict[str, Any], session: str | None = None, **fields: Any) -> tuple[int, Any]:
        headers = {"X-Session-Id": session} if session else {}
        return self.post("/v1/chat/completions", {"model": "m", "messages": list(messages), **fields}, **headers)

    def end(self, **told: Any) -> str:
        status, content = self.post("/record/end", told)
        assert status == 200, content
        return str(content["trajectory_id"])


@pytest.fixture
def stub() -> Iterator[StubModel]:
    with running_stub() as model:
        yield model


@pytest.fixture
def caller(stub: StubModel, open_outbox: OpenOutbox, nats_server: NatsServer) -> Iterator[Caller]:
    outbox, clock = open_outbox(nats_server.url), Clock()
    recorder = ProxyRecorder(outbox, "agent-1", 300, clock=clock)
    listening, ports = threading.Event(), []
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def heard(port: int) -> None:
        ports.append(port)
        listening.set()

    proxy = RecordingProxy(f"{stub.url}/v1", recorder)
    running = run_proxy(proxy, "127.0.0.1", 0, until=stop.wait(), on_listening=heard)
    thread = threading.Thread(target=loop.run_until_complete, args=(running,))
    thread.start()
    assert listening.wait(60)
    calling = Caller(f"http://127.0.0.1:{ports[0]}")
    calling.outbox, calling.clock = outbox, clock
    yield calling
    loop.call_soon_threadsafe(stop.set)
    thread.join(60)
    loop.close()
    recorder.close()


def test_a_conversation_with_tools_becomes_one_trajectory(caller: Caller, stub: StubModel, stream: JetStream) -> None:
    system = {"role": "system", "content": "You calculate."}
    usage = {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25}
    logprobs = {"content": [{"token": "42", "logprob": -0.25}]}
    stub.answers = [
        {**CALLING, "usage": usage},
        said("42", usage=usage, choice={"logprobs": logprobs, "token_ids": [7]}),
    ]
    status, first = caller.ask(system, USER, temperature=0.5, user="ada")
    assert (status, first) == (200, {**CALLING, "usage": usage})
    # As clients send it back: without the fields that they do not know, and with those that they always write.
    returned = {"role": "tool", "tool_call_id": "call_1", "content": "42"}
    caller.ask(system, USER, {"role": "assistant", "content": "", "tool_calls": [CALL]}, returned)
    trajectory_id = caller.end(completion_id="chatcmpl-42", status="success", feedback={"kind": "stars", "rating": 5})
    [sent] = sent_by(caller.outbox, stream)
    validate_trajectory(sent)
    assert (sent["trajectory_id"], sent["agent_id"]) == (trajectory_id, "agent-1")
    assert sent["task_context"] == {"instructions": "What is 6 * 7?", "user_id": "ada", "task_status": "success"}
    assert sent["metadata"].items() >= {"model": "m", "model_version": "v7", "total_tokens": 50}.items()
    assert sent["metadata"]["feedback"] == [{"kind": "stars", "rating": 5}]
    calculated, answered = sent["turns"]
    assert calculated["shown_before"] == [system]
    assert calculated["observation"] == {"type": "user_message", "content": "What is 6 * 7?"}
    assert calculated["action"]["tool_args"] == {"expression": "6 * 7"}
    assert (calculated["result"]["output"], calculated["usage"]["completion_tokens"]) == ("42", 5)
    assert answered["observation"] == {"type": "tool_result", "content": "42"}
    assert answered["action"]["raw_response"] == "42"
    assert answered["sampling"] == {"model_version": "v7", "logprobs": [-0.25], "completion_token_ids": [7]}


def test_a_stream_passes_unchanged_and_is_recorded_whole(caller: Caller, stub: StubModel, stream: JetStream) -> None:
    cut_call = [called("calculate", '{"expression":', "call_1"), {"function": {"arguments": ' "6 * 7"}'}}]
    stub.answers = [
        {
            "events": [
                event(delta={"role": "assistant", "content": ""}),
                event(delta={"reasoning_content": "Multi"}),
                event(delta={"reasoning_content": "ply."}),
                event(delta={"content": "I calc"}),
                event(delta={"content": "ulate."}),
                *(event(delta={"tool_calls": [{"index": 0, **part}]}) for part in cut_call),
                event(delta={}, finish_reason="tool_calls", logprobs={"content": [{"logprob": -0.5}]}),
                {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}},
            ]
        }
    ]
    events = [f"data: {json.dumps(told)}\n\n" for told in stub.answers[0]["events"]]
    _, raw = caller.ask(USER, stream=True, session="session-1")
    assert raw.decode() == "".join([*events, "data: [DONE]\n\n"])
    caller.end(session_id="session-1")
    [sent] = sent_by(caller.outbox, stream)
    [turn] = sent["turns"]
    assert (sent["session_id"], turn["thought_process"]) == ("session-1", ["Multiply."])
    assert turn["action"]["raw_response"] == "I calculate."
    assert turn["action"]["tool_args"] == {"expression": "6 * 7"}
    assert turn["sampling"] == {"model_version": "v7", "logprobs": [-0.5]}
    assert turn["usage"] == {"prompt_tokens": 9, "completion_tokens": 4}


def test_conversations_that_begin_alike_stay_apart_and_names_hold_them_together(
    caller: Caller, stub: StubModel, stream: JetStream
) -> None:
    stub.answers = [said(text) for text in ("one", "two", "one more", "two more", "named", "named again")]
    one, two = ({"role": "assistant", "content": text} for text in ("one", "two"))
    go_on = {"role": "user", "content": "Go on."}
    for messages in ([USER], [USER], [USER, one, go_on], [USER, two, go_on]):
        caller.ask(*messages)
    caller.ask(USER, session="session-1")
    caller.ask({"role": "user", "content": "Summary: 42."}, go_on, session="session-1")  # the history was compressed
    for last in ("one more", "two more", "named again"):
        caller.end(completion_id=f"chatcmpl-{last}")
    sent = sent_by(caller.outbox, stream)
    said_by = {tuple(turn["action"]["raw_response"] for turn in trajectory["turns"]) for trajectory in sent}
    assert said_by == {("one", "one more"), ("two", "two more"), ("named", "named again")}


def written_anew(message: dict[str, Any]) -> dict[str, Any]:
    """As clients do that parse arguments, and sort them."""
    calls = json.loads(json.dumps(message.get("tool_calls", [])))
    for call in calls:
        call["function"]["arguments"] = json.dumps(json.loads(call["function"]["arguments"]), sort_keys=True, indent=1)
    return {**message, "tool_calls": calls}


def stripped(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": message["content"].strip()}


def in_parts(message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "content": [{"type": "text", "text": message["content"], "cache_control": {}}]}


@pytest.mark.parametrize("sends_back", [written_anew, stripped, in_parts])
def test_a_client_that_writes_an_answer_otherwise_goes_on_with_its_session(
    caller: Caller, stub: StubModel, stream: JetStream, sends_back: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    calling = {"tool_calls": [called("search", '{"q":"moons","at":"Mars"}', "call_1")]}
    stub.answers = [said("\nLet me look. ", message=calling), said("Two.\n"), said("Yes.")]
    looked, two = ({"role": "assistant", "content": text} for text in ("\nLet me look. ", "Two.\n"))
    found = {"role": "tool", "tool_call_id": "call_1", "content": "two\n"}
    history = [USER, sends_back(looked | calling), sends_back(found), sends_back(two), sends_back(USER)]
    for length in (1, 3, 5):
        caller.ask(*history[:length])
    caller.end(completion_id="chatcmpl-Yes.")
    [sent] = sent_by(caller.outbox, stream)
    assert [turn["action"]["raw_response"] for turn in sent["turns"]] == ["\nLet me look. ", "Two.\n", "Yes."]
    assert not any(turn.get("is_copied_context") for turn in sent["turns"])


def test_conversations_about_other_pictures_or_other_arguments_stay_apart() -> None:
    one, other = ({"type": "image_url", "image_url": {"url": f"https://example.org/{name}"}} for name in "ab")
    pictures = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]} for part in (one, other)]
    calls = [{"role": "assistant", "tool_calls": [called("f", text, "c")]} for text in ('{"a":1}', '{"a":2}', "{", "[")]
    assert len({chains_of([message])[-1] for message in [*pictures, *calls]}) == 6


def test_an_answer_from_elsewhere_is_context_and_not_an_answer(
    caller: Caller, stub: StubModel, stream: JetStream
) -> None:
    stub.answers = [said("Yes.")]
    caller.ask(USER, {"role": "assistant", "content": "42"}, {"role": "user", "content": "Sure?"})
    caller.end(completion_id="chatcmpl-Yes.")
    [sent] = sent_by(caller.outbox, stream)
    copied, answered = sent["turns"]
    assert (copied["is_copied_context"], copied["action"]["raw_response"]) == (True, "42")
    assert "is_copied_context" not in answered
    assert answered["observation"]["content"] == "Sure?"


def test_an_error_of_the_upstream_passes_and_is_only_counted(
    caller: Caller, stub: StubModel, stream: JetStream
) -> None:
    refusal = {"error": {"message": "slow down", "type": "rate_limit"}}
    stub.answers = [said("One."), {"status": 429, **refusal}, said("Two.")]
    caller.ask(USER, session="s")
    again = [USER, {"role": "assistant", "content": "One."}, {"role": "user", "content": "And?"}]
    assert caller.ask(*again, session="s") == (429, refusal)
    assert caller.ask(*again, session="s")[0] == 200
    caller.end(session_id="s")
    [sent] = sent_by(caller.outbox, stream)
    assert [turn["action"]["raw_response"] for turn in sent["turns"]] == ["One.", "Two."]
    assert sent["metadata"]["failed_requests"] == 1


def test_an_upstream_that_is_away_is_said_in_the_words_of_the_api(caller: Caller, stub: StubModel) -> None:
    stub.close()
    status, told = caller.ask(USER)
    assert (status, told["error"]["type"]) == (502, "record_proxy_error")


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_caller_that_hangs_up_is_recorded_by_what_it_does_next(
    caller: Caller, stub: StubModel, stream: JetStream, goes_on: bool
) -> None:
    stub.answers = [{"events": [event(delta={"content": "It is 42, and"})], "hold": True}, said("Done.")]
    connection = http.client.HTTPConnection(caller.url.removeprefix("http://"), timeout=60)
    connection.request("POST", "/v1/chat/completions", json.dumps({"messages": [USER], "stream": True}))
    answer = connection.getresponse()
    assert b"It is 42" in answer.readline()
    answer.close()
    connection.close()
    heard = [{"role": "assistant", "content": "It is 42"}, {"role": "user", "content": "Thanks."}] if goes_on else []
    wait_until(lambda: caller.outbox.counts.begun == 1, "the answer that was cut off")
    caller.ask(USER, *heard)
    caller.end(completion_id="chatcmpl-Done.")
    [sent] = sent_by(caller.outbox, stream)
    told = [(turn["action"]["raw_response"], turn.get("is_cut_off", False)) for turn in sent["turns"]]
    assert told == ([("It is 42", True)] if goes_on else []) + [("Done.", False)]
    assert not any(turn.get("is_copied_context") for turn in sent["turns"])


def test_a_stream_that_breaks_off_breaks_off_for_the_caller_too(caller: Caller, stub: StubModel) -> None:
    stub.answers = [{"events": [event(delta={"content": "It is"})], "hold": True}]
    stub.released.set()
    with pytest.raises(http.client.IncompleteRead):
        caller.ask(USER, stream=True)


def test_a_session_ends_when_it_is_silent_and_can_be_rated_later(
    caller: Caller, stub: StubModel, stream: JetStream
) -> None:
    stub.answers = [said("One."), said("Two.")]
    for number, (session, then) in enumerate([("early", 200), ("late", 301)], start=1):
        caller.ask(USER, session=session)
        wait_until(lambda: caller.outbox.counts.begun == number, "the session")  # noqa: B023
        caller.clock.now = then
    wait_until(lambda: caller.outbox.counts.finished == 1, "the end of the silent session")
    [sent] = sent_by(caller.outbox, stream)
    assert (sent["session_id"], sent["task_context"].get("task_status")) == ("early", None)
    assert caller.end(session_id="early", feedback={"kind": "thumbs_down"}) == sent["trajectory_id"]
    assert caller.outbox.wait_until_sent(120)
    [feedback] = arrived(stream, "RL_FEEDBACK")
    assert (feedback["trajectory_id"], feedback["kind"]) == (sent["trajectory_id"], "thumbs_down")
    assert caller.post("/record/end", {"session_id": "nobody"})[0] == 404
    status, told = caller.post("/record/end", {"session_id": "late", "status": "splendid"})
    assert (status, "success, partial, failed, abandoned" in told["error"]["message"]) == (400, True)


def test_everything_else_passes_and_is_not_recorded(caller: Caller, stub: StubModel) -> None:
    with urlopen(f"{caller.url}/v1/models?limit=1", timeout=60) as answer:
        assert json.loads(answer.read())["path"] == "/v1/models?limit=1"
    stub.answers = [said("x")]
    caller.post("/v1/embeddings", {"input": "x"}, Authorization="Bearer key")
    assert stub.headers[0]["authorization"] == "Bearer key"
    assert caller.outbox.counts.begun == 0


def test_no_secret_that_passes_is_recorded(
    caller: Caller, stub: StubModel, stream: JetStream, outbox_directory: Path
) -> None:
    stub.answers = [said(f"Your key is {SECRET}.")]
    _, answer = caller.ask({"role": "user", "content": f"My key is {SECRET}."}, session="s")
    assert SECRET in answer["choices"][0]["message"]["content"], "what passes is not changed"
    caller.end(session_id="s")
    [sent] = sent_by(caller.outbox, stream)
    assert SECRET not in json.dumps(sent)


def test_what_passes_faster_than_it_can_be_recorded_passes_unrecorded(open_outbox: OpenOutbox) -> None:
    outbox, busy = open_outbox(), threading.Event()
    recorder = ProxyRecorder(outbox, "agent-1", 300)
    recorder._orders.put(lambda: bool(busy.wait(60)) and None)
    passing = [recorder.began(None, b"{}") for _ in range(1100)]
    assert passing[0] is not None
    assert passing[-1] is None
    assert outbox.counts.dropped > 0
    busy.set()
    recorder.close()


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"choices": [1]}', b'{"choices": [{"delta": 3}]}', b"data: {"])
def test_what_cannot_be_read_is_no_answer(body: bytes) -> None:
    for is_stream in (True, False):
        answer = read_answer(body, is_stream=is_stream)
        assert answer is None or not answer.message.get("content")


def test_a_proxy_that_is_killed_leaves_its_sessions_to_the_next_redacted_under_the_agents_key(
    stub: StubModel, outbox_directory: Path, open_outbox: OpenOutbox, stream: JetStream, nats_server: NatsServer
) -> None:
    stub.answers = [said("One."), CALLING]
    key, asked = "v1:a-key-of-the-edge-that-protects-nothing", {"role": "user", "content": f"Is it {SECRET}?"}
    settings = {"NATS_URL": nats_server.url, "RL_PIPELINE_HOME": str(outbox_directory.parent)}
    environment = os.environ | settings | {"EDGE_REDACTION_KEY": key}
    program = "from rl_pipeline.cli import main; main()"
    options = [stub.url, "--port", "0", "--outbox", str(outbox_directory)]
    command = [sys.executable, "-c", program, "record-proxy", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            assert process.stdout is not None
            listening = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
            assert listening
            asking = Caller(listening[0])
            asking.ask(asked, session="s")
            asking.ask(asked, {"role": "assistant", "content": "One."}, USER, session="s")
            journal = wait_until(lambda: [*outbox_directory.glob("*.jsonl")], "the journal")[0]
            wait_until(lambda: b'"One."' in journal.read_bytes(), "the first turn on the disk")
        finally:
            process.send_signal(signal.SIGKILL)
    [sent] = sent_by(open_outbox(nats_server.url), stream)
    validate_trajectory(sent)
    kept = placeholder(RedactionKey.parse(key), "API_KEY", encoded(SECRET))
    assert sent["task_context"]["instructions"] == f"Is it {kept}?"
    assert sent["start_timestamp"] <= sent["turns"][0]["timestamp"] <= sent["end_timestamp"]
    assert sent["task_context"]["task_status"] == "abandoned"
    assert [turn["action"]["raw_response"] for turn in sent["turns"]] == ["One."]
