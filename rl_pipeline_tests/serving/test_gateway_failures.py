"""A real gateway in front of servers that fail: what its callers notice, and whom it is counted against."""

import json
import socket

import pytest

from rl_pipeline.serving.breaker import FAILURES_TO_OPEN
from rl_pipeline_tests.serving import stub_backend
from rl_pipeline_tests.serving.gateway_world import World
from rl_pipeline_tests.serving.running_gateway import Reply
from rl_pipeline_tests.waiting import wait_until


def events(reply: Reply) -> list[dict[str, object]]:
    return [json.loads(line[6:]) for line in reply.body.splitlines() if line.startswith(b"data: {")]


def test_a_candidate_that_fails_costs_its_session_and_not_the_caller(world: World) -> None:
    world.ramp(1.0)
    for number, behaviour in enumerate([stub_backend.answer_500, stub_backend.hang_up, stub_backend.answer_404]):
        world.new.behaviour = behaviour
        reply = world.gateway.chat(f"failing-{number}-{world.generation}")
        assert (reply.status, reply.model) == (200, world.old.name)
        assert reply.json["id"].startswith(f"chatcmpl-{world.generation}-{world.old.name}-")
    assert world.metrics(world.new.name)["failed_sessions"] == 3
    assert world.metrics(world.old.name)["failed_sessions"] == 0


def test_a_candidate_that_keeps_failing_is_left_alone_and_still_charged(world: World) -> None:
    world.ramp(1.0)
    world.new.behaviour = stub_backend.answer_500
    count = FAILURES_TO_OPEN + 15
    replies = [world.gateway.chat(f"s-{number}-{world.generation}") for number in range(count)]
    assert {(reply.status, reply.model) for reply in replies} == {(200, world.old.name)}
    assert world.new.requests == FAILURES_TO_OPEN
    assert world.metrics(world.new.name)["failed_sessions"] == count
    assert world.gateway.health()["backends"][world.new.name]["breaker"] == "open"


@pytest.mark.parametrize(
    ("behaviour", "status", "code"),
    [
        (stub_backend.say_nothing, 504, "upstream_timeout"),
        (stub_backend.hang_up, 502, "upstream_broke_off"),
        (stub_backend.answer_rubbish, 502, "upstream_broke_off"),
    ],
)
def test_a_failure_of_the_model_in_service_is_told(
    world: World, behaviour: stub_backend.Behaviour, status: int, code: str
) -> None:
    world.old.behaviour = behaviour
    reply = world.gateway.chat()
    assert (reply.status, reply.json["error"]["code"]) == (status, code)
    assert world.metrics(world.old.name)["failed_sessions"] == 1


def test_a_backends_own_words_about_its_failure_are_passed_on(world: World) -> None:
    world.old.behaviour = stub_backend.answer_500
    reply = world.gateway.chat()
    assert (reply.status, reply.json["error"]["message"]) == (500, "broken")


def test_a_backend_that_is_gone_is_unreachable(world: World) -> None:
    world.old.stop()
    reply = world.gateway.chat()
    assert (reply.status, reply.json["error"]["code"]) == (503, "upstream_unreachable")
    assert reply.headers["retry-after"] == "1"
    world.old.start()
    assert world.gateway.chat().status == 200


def test_a_request_that_is_at_fault_itself_is_no_failure_of_the_model(world: World) -> None:
    world.ramp(1.0)
    world.old.behaviour = world.new.behaviour = stub_backend.answer_400
    reply = world.gateway.chat()
    assert (reply.status, reply.model, reply.json["error"]["message"]) == (400, world.new.name, "no such role")
    for stub in (world.new, world.old):
        metrics = world.metrics(stub.name)
        assert (stub.requests, metrics["requests"], metrics["errors"], metrics["failed_sessions"]) == (1, 1, 0, 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 401, 403, 413, 422, 429])
def test_a_candidate_that_refuses_what_the_model_in_service_answers_is_charged(
    world: World, status: int, stream: bool
) -> None:
    world.ramp(1.0)
    world.new.behaviour = stub_backend.refuse(status)
    count = FAILURES_TO_OPEN + 1
    for number in range(count):
        reply = world.gateway.chat(f"refused-{number}-{world.generation}", stream=stream)
        assert (reply.status, reply.model) == (200, world.old.name)
    metrics = world.metrics(world.new.name)
    assert (metrics["requests"], metrics["errors"], metrics["failed_sessions"]) == (count, count, count)
    assert world.metrics(world.old.name)["errors"] == 0
    assert world.gateway.health()["backends"][world.new.name]["breaker"] == "closed", "it answers, if badly"


def test_a_candidate_that_refuses_while_nobody_else_can_tell_is_not_charged(world: World) -> None:
    world.ramp(1.0)
    world.new.behaviour = stub_backend.answer_400
    world.old.behaviour = stub_backend.answer_500
    reply = world.gateway.chat()
    assert (reply.status, reply.model) == (400, world.new.name)
    assert world.metrics(world.new.name)["failed_sessions"] == 0
    assert world.metrics(world.old.name)["errors"] == 1


def test_a_candidate_is_charged_though_the_answer_that_took_its_place_breaks_off(world: World) -> None:
    world.ramp(1.0)
    world.new.behaviour = stub_backend.answer_400
    world.old.behaviour = stub_backend.break_off
    reply = world.gateway.chat(stream=True)
    assert events(reply)[-1]["error"]["code"] == "upstream_broke_off"  # type: ignore[index]
    assert world.metrics(world.new.name)["failed_sessions"] == 1


def test_a_request_that_is_refused_after_the_candidate_failed_is_told_so(world: World) -> None:
    world.ramp(1.0)
    world.new.behaviour = stub_backend.answer_500
    world.old.behaviour = stub_backend.answer_400
    reply = world.gateway.chat()
    assert (reply.status, reply.model) == (400, world.old.name)
    metrics = world.metrics(world.old.name)
    assert (metrics["requests"], metrics["errors"]) == (1, 0)


@pytest.mark.parametrize("status", [401, 403, 413, 422, 429])
def test_a_caller_whose_key_or_quota_is_at_fault_costs_neither_the_models_nor_other_callers(
    world: World, status: int
) -> None:
    world.ramp(1.0)
    world.old.behaviour = world.new.behaviour = stub_backend.refuse(status)
    for number in range(FAILURES_TO_OPEN + 1):
        reply = world.gateway.chat(f"refused-{number}-{world.generation}")
        assert (reply.status, reply.model, reply.json["error"]["message"]) == (status, world.new.name, "not you")
        assert reply.headers["retry-after"] == "7"
    world.old.behaviour = world.new.behaviour = stub_backend.answer
    other = world.gateway.chat(f"somebody-else-{world.generation}")
    assert (other.status, other.model) == (200, world.new.name)
    assert world.gateway.health()["backends"][world.new.name]["breaker"] == "closed"
    metrics = world.metrics(world.new.name)
    assert (metrics["errors"], metrics["failed_sessions"], metrics["error_rate"]) == (0, 0, 0)


def test_a_backend_that_says_when_to_come_again_is_heard(world: World) -> None:
    world.old.behaviour = stub_backend.answer_503
    reply = world.gateway.chat()
    assert (reply.status, reply.headers["retry-after"]) == (503, "7")
    assert world.metrics(world.old.name)["errors"] == 1


def test_a_body_that_is_nested_too_deeply_is_refused_and_charged_to_nobody(world: World) -> None:
    deep = b'{"messages":[{"role":"user","content":' + b"[" * 300 + b"]" * 300 + b"}]}"
    reply = world.gateway.call("POST", "/v1/chat/completions", deep)
    assert (reply.status, reply.json["error"]["type"]) == (400, "invalid_request_error")
    assert world.old.requests == 0
    assert world.metrics(world.old.name)["requests"] == 0


@pytest.mark.parametrize("behaviour", [stub_backend.break_off, stub_backend.end_early, stub_backend.fail_within])
def test_a_stream_that_breaks_off_says_so_and_counts(world: World, behaviour: stub_backend.Behaviour) -> None:
    world.ramp(1.0)
    world.new.behaviour = behaviour
    reply = world.gateway.chat(stream=True)
    assert reply.status == 200
    assert events(reply)[0]["model"] == world.new.name
    assert events(reply)[-1]["error"]["code"] == "upstream_broke_off"  # type: ignore[index]
    assert not reply.body.endswith(b"[DONE]\n\n")
    assert world.metrics(world.new.name)["failed_sessions"] == 1


def test_a_stream_that_breaks_off_before_its_first_event_is_taken_over(world: World) -> None:
    world.ramp(1.0)
    world.new.behaviour = stub_backend.hang_up
    reply = world.gateway.chat(stream=True)
    assert {event["model"] for event in events(reply)} == {world.old.name}
    assert b"[DONE]" in reply.body


def hang_up_once(world: World, stub: stub_backend.StubBackend, waited: float = 0.0, *, stream: bool = False) -> None:
    """Ask, and leave once the backend has the request and that long has passed."""
    request = json.dumps({"messages": [], "stream": stream}).encode()
    before = stub.hung_up_on
    with socket.create_connection(("127.0.0.1", world.gateway.port)) as connection:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(request)}\r\n\r\n"
        asked = stub.requests
        connection.sendall(head.encode() + request)
        wait_until(lambda: stub.requests > asked)
        connection.settimeout(waited or None)
        if waited:
            with pytest.raises(TimeoutError):
                connection.recv(1)
    wait_until(lambda: stub.hung_up_on > before, "the backend heard that nobody listens any more")


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_that_hangs_up_soon_or_within_a_stream_is_no_failure_and_stops_the_backend(
    world: World, stream: bool
) -> None:
    world.old.behaviour, world.old.pause = (stub_backend.answer if stream else stub_backend.say_nothing), 0.2
    hang_up_once(world, world.old, stream=stream)
    wait_until(lambda: world.metrics(world.old.name)["requests"] == 1)
    assert world.metrics(world.old.name)["failed_sessions"] == 0


@pytest.mark.parametrize("stream", [False, True])
def test_a_candidate_that_hangs_until_its_callers_are_tired_of_it_is_charged_and_left_alone(
    world: World, stream: bool
) -> None:
    world.ramp(1.0)
    world.new.behaviour = stub_backend.say_nothing
    for _ in range(FAILURES_TO_OPEN):
        hang_up_once(world, world.new, 0.7, stream=stream)
    wait_until(lambda: world.metrics(world.new.name)["failed_sessions"] == FAILURES_TO_OPEN)
    assert world.metrics(world.new.name)["errors"] == FAILURES_TO_OPEN
    assert world.gateway.health()["backends"][world.new.name]["breaker"] == "open"
    assert world.gateway.chat().model == world.old.name
