"""A real gateway in front of real servers: what it answers, and what it refuses."""

import json
import socket

import pytest

from rl_pipeline_tests.serving.gateway_world import World, numbers
from rl_pipeline_tests.serving.states import steady
from rl_pipeline_tests.waiting import wait_until


def test_an_answer_says_who_gave_it(world: World) -> None:
    reply = world.gateway.chat("my-session", temperature=0.5)
    assert reply.status == 200
    assert reply.json["choices"][0]["message"]["content"] == f"I am {world.old.name}"
    assert reply.json["model"] == reply.model == world.old.name
    assert reply.json["id"].startswith(f"chatcmpl-{world.generation}-{world.old.name}-")
    assert reply.headers["x-session-id"] == "my-session"
    assert world.old.bodies[-1]["model"] == world.old.name, "the backend is asked for its own model"
    assert world.old.bodies[-1]["temperature"] == 0.5


def test_a_backend_is_asked_for_the_model_under_its_own_name(world: World) -> None:
    named = world.control.model_copy(update={"model_id": f"{world.old.name}-b", "upstream_name": "qwen/32b"})
    world.gateway.follow(steady(next(numbers), named))
    wait_until(lambda: world.gateway.chat().status == 200)
    assert world.old.bodies[-1]["model"] == "qwen/32b"
    assert world.gateway.chat().json["model"] == named.model_id


def test_a_stream_is_renamed_and_passed_on_event_by_event(world: World) -> None:
    world.old.pause = 0.3
    request = b'{"messages": [], "stream": true}'
    with socket.create_connection(("127.0.0.1", world.gateway.port)) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(request)}\r\n\r\n"
        connection.sendall(head.encode() + request)
        pieces: list[bytes] = []
        while not pieces or b"[DONE]" not in pieces[-1]:
            pieces.append(connection.recv(65536))
    assert len([piece for piece in pieces if b"data: {" in piece]) == 3, "nothing was collected on the way"
    told = [json.loads(line[6:]) for line in b"".join(pieces).splitlines() if line.startswith(b"data: {")]
    assert "".join(each["choices"][0]["delta"]["content"] for each in told) == f"I am {world.old.name}"
    assert len({each["id"] for each in told}) == 1
    assert {each["model"] for each in told} == {world.old.name}


def test_models_lists_who_may_answer(world: World) -> None:
    world.ramp(0.25)
    listed = world.gateway.call("GET", "/v1/models").json
    assert {model["id"] for model in listed["data"]} == {world.old.name, world.new.name}


def test_the_user_of_the_body_is_the_session_where_no_header_names_one(world: World) -> None:
    assert world.gateway.chat(user="user-7").headers["x-session-id"] == "user-7"
    made_up = world.gateway.chat().headers["x-session-id"]
    assert made_up != world.gateway.chat().headers["x-session-id"]


@pytest.mark.parametrize("user", ["a\r\nSet-Cookie: stolen=1", "Jörg Müller", "x" * 5000, "a\u0000b"])
def test_no_session_id_gets_into_a_header_as_it_likes(world: World, user: str) -> None:
    reply = world.gateway.chat(user=user)
    assert reply.status == 200
    assert "set-cookie" not in reply.headers
    assert reply.headers["x-session-id"].startswith("session-")
    assert world.gateway.chat(user=user).headers["x-session-id"] == reply.headers["x-session-id"]
    assert "Set-Cookie" not in world.old.headers[-1]


def test_headers_of_one_connection_do_not_reach_the_other(world: World) -> None:
    given = {
        "Connection": "keep-alive, X-Mine",
        "X-Mine": "1",
        "Keep-Alive": "timeout=5",
        "TE": "trailers",
        "Proxy-Authorization": "Basic secret",
        "Cookie": "a=b",
        "Authorization": "Bearer upstream-key",
        "X-Request-Id": "request-1",
    }
    world.gateway.call("POST", "/v1/chat/completions", {"messages": []}, given)
    passed = {name.lower(): value for name, value in world.old.headers[-1].items()}
    assert passed["authorization"] == "Bearer upstream-key"
    assert passed["x-request-id"] == "request-1"
    assert not passed.keys() & {"x-mine", "te", "keep-alive", "proxy-authorization", "cookie", "connection"}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"[]", 400),
        (b'{"messages": "hello"}', 400),
        (b"", 400),
        (b"\xff\xfe", 400),
        (b'{"messages": [' + b" " * 2**20 + b"]}", 413),
    ],
)
def test_what_is_no_request_is_refused_in_the_words_of_openai(world: World, body: bytes, status: int) -> None:
    reply = world.gateway.call("POST", "/v1/chat/completions", body)
    assert reply.status == status
    assert reply.json["error"]["type"] == "invalid_request_error"
    assert reply.json["error"]["message"]
    assert world.old.requests == 0


def test_unknown_paths_are_answered_in_json(world: World) -> None:
    assert world.gateway.call("GET", "/v1/chat/completions").json["error"]["type"] == "invalid_request_error"
    assert world.gateway.call("GET", "/nothing").json["error"]["next_step"]
