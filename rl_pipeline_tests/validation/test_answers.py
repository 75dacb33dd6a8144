"""The port to models, over real HTTP on this machine."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from rl_pipeline.environments.playing import Message
from rl_pipeline.validation.answers import ChatEndpoint, ModelUnavailable
from rl_pipeline.validation.scorers.tool_calls import right_calls
from rl_pipeline.validation.suite import Item

Reply = tuple[int, dict[str, str], Any]


class Server:
    """A server of chat completions whose replies a test decides."""

    def __init__(self, reply: Callable[[dict[str, Any]], Reply]) -> None:
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        requests, headers, paths = self.requests, self.headers, self.paths

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                requests.append(request)
                headers.append(dict(self.headers))
                paths.append(self.path)
                status, more, content = reply(request)
                body = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in {**more, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/v1"


@contextmanager
def serving(reply: Callable[[dict[str, Any]], Reply]) -> Iterator[Server]:
    made = Server(reply)
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield made
    finally:
        made.server.shutdown()
        made.server.server_close()
        thread.join()


def said(text: str | None, **more: Any) -> Reply:
    return 200, {}, {"choices": [{"message": {"role": "assistant", "content": text, **more}}]}


def ask(endpoint: ChatEndpoint, *contents: str) -> list[str]:
    conversations: list[list[Message]] = [[{"role": "user", "content": content}] for content in contents]
    return endpoint.answer(conversations, max_tokens=9, temperature=0.5, seeds=list(range(len(contents))))


def echo(request: dict[str, Any]) -> Reply:
    return said(f"{request['messages'][-1]['content']} {request['seed']}")


def test_answers_come_in_the_order_of_the_conversations_each_with_its_seed() -> None:
    with serving(echo) as server:
        given = ask(ChatEndpoint(server.url, "small", token="secret", at_once=7), *map(str, range(50)))
    assert given == [f"{number} {number}" for number in range(50)]
    assert {(one["model"], one["max_tokens"], one["temperature"]) for one in server.requests} == {("small", 9, 0.5)}
    assert set(server.paths) == {"/v1/chat/completions"}
    assert {headers["Authorization"] for headers in server.headers} == {"Bearer secret"}


def test_no_conversations_are_no_requests() -> None:
    assert ask(ChatEndpoint("http://127.0.0.1:1/v1", "small")) == []


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_server_that_is_busy_is_asked_again_after_pauses_that_double(status: int) -> None:
    pauses: list[float] = []
    with serving(lambda request: echo(request) if len(server.requests) > 2 else (status, {}, b"busy")) as server:
        given = ask(ChatEndpoint(server.url, "small", pause_seconds=0.5, sleep=pauses.append), "hello")
    assert given == ["hello 0"]
    assert pauses == [0.5, 1.0]


def test_the_server_says_how_long_to_wait_within_bounds() -> None:
    pauses: list[float] = []
    with (
        serving(
            lambda _: (429, {"Retry-After": "7"} if len(server.requests) == 1 else {"Retry-After": "99999"}, b"")
        ) as server,
        pytest.raises(ModelUnavailable, match=r"does not answer after 3 attempts \(status 429"),
    ):
        ask(ChatEndpoint(server.url, "small", attempts=3, sleep=pauses.append), "hello")
    assert pauses == [7.0, 30.0]
    assert len(server.requests) == 3


def test_a_request_that_is_refused_is_not_repeated() -> None:
    refused = pytest.raises(ModelUnavailable, match="status 400, 'no such model'")
    with serving(lambda _: (400, {}, b"no such model")) as server, refused:
        ask(ChatEndpoint(server.url, "small"), "hello")
    assert len(server.requests) == 1


@pytest.mark.parametrize("content", [b"<html>", {"choices": []}, ["x"], {"choices": [{"message": None}]}])
def test_an_answer_that_is_no_chat_completion_is_no_answer(content: Any) -> None:
    with serving(lambda _: (200, {}, content)) as server, pytest.raises(ModelUnavailable, match="no chat completion"):
        ask(ChatEndpoint(server.url, "small"), "hello")


def test_a_server_that_is_gone_is_unavailable() -> None:
    with serving(echo) as server:
        pass
    with pytest.raises(
        ModelUnavailable, match=r"does not answer after 2 attempts \(ConnectionRefusedError\): is it running"
    ):
        ask(ChatEndpoint(server.url, "small", attempts=2, sleep=lambda _: None), "hello", "again")


@pytest.mark.parametrize("url", ["", "localhost:80", "ftp://127.0.0.1/v1"])
def test_what_is_no_address_is_said_to_be_none(url: str) -> None:
    with pytest.raises(ModelUnavailable, match="is no address"):
        ask(ChatEndpoint(url, "small"), "hello")


def test_thoughts_are_no_part_of_an_answer_and_calls_follow_as_json() -> None:
    calls = [{"function": {"name": "add", "arguments": '{"a": 1}'}}]
    replies = [said("<think>\nhm\n</think>\n\nyes"), said(None, tool_calls=calls), said(None)]
    with serving(lambda _: replies[len(server.requests) - 1]) as server:
        endpoint = ChatEndpoint(server.url, "small", at_once=1)
        assert ask(endpoint, "a", "b", "c") == ["yes", '[{"name": "add", "arguments": {"a": 1}}]', ""]


@pytest.mark.parametrize("written", ['{"a": 1', "", "a=1", "[" * 100_000], ids=["cut off", "empty", "no JSON", "deep"])
def test_arguments_that_are_no_json_are_an_answer_and_a_wrong_one(written: str) -> None:
    calls = [{"function": {"name": "add", "arguments": written}}]
    with serving(lambda _: said("so", tool_calls=calls)) as server:
        [answer] = ask(ChatEndpoint(server.url, "small"), "add 1")
    assert answer == f"so\n{json.dumps([{'name': 'add', 'arguments': written}])}"
    assert right_calls(Item("add", "add", expected={"calls": [{"add": {"a": [1]}}]}), answer) == 0.0


def test_the_user_speaks_for_tools_where_the_server_knows_none() -> None:
    conversation: list[Message] = [{"role": "user", "content": "go"}, {"role": "tool", "content": "gone"}]
    with serving(echo) as server:
        for knows_tools in (True, False):
            endpoint = ChatEndpoint(server.url, "small", knows_tools=knows_tools, extra={"top_k": 1})
            endpoint.answer([conversation], max_tokens=1, temperature=0, seeds=[1])
    assert [one["messages"][1]["role"] for one in server.requests] == ["tool", "user"]
    assert server.requests[0]["top_k"] == 1


def test_the_token_is_not_shown() -> None:
    assert "secret" not in repr(ChatEndpoint("http://127.0.0.1/v1", "small", token="secret"))
