"""A real gateway in front of real servers: who answers which session."""

from collections import Counter

from rl_pipeline_tests.serving.gateway_world import World, numbers
from rl_pipeline_tests.serving.states import model_at, ramping, steady
from rl_pipeline_tests.serving.stub_backend import stub_backends
from rl_pipeline_tests.waiting import wait_until


def test_the_split_counts_by_session_and_a_session_stays(world: World) -> None:
    world.ramp(0.25)
    first = {f"s-{number}": world.gateway.chat(f"s-{number}").model for number in range(400)}
    share = Counter(first.values())[world.new.name] / 400
    assert 0.17 < share < 0.33
    world.ramp(0.5)
    for session, model in first.items():
        assert world.gateway.chat(session).model == model, "a running session does not move by a ramp"


def test_a_fence_moves_running_sessions_at_once_and_for_good(world: World) -> None:
    world.ramp(1.0)
    session = world.session_of_candidate()
    assert world.gateway.chat(session).model == world.new.name
    fenced = world.gateway.call("POST", "/admin/fence", {"model_id": world.new.name, "reason": "errors"})
    assert (fenced.status, fenced.json["weights"]) == (200, {world.old.name: 1.0})
    assert fenced.json["fenced"][world.new.name] == "errors"
    assert world.gateway.chat(session).model == world.old.name
    world.generation = next(numbers)
    world.gateway.follow(ramping(world.generation, world.control, world.candidate, 1.0))
    assert world.gateway.chat(session).model == world.old.name
    assert world.gateway.standing()["weights"] == {world.old.name: 1.0}


def test_the_model_in_service_is_not_fenced(world: World) -> None:
    refused = world.gateway.call("POST", "/admin/fence", {"model_id": world.old.name, "reason": "a mistake"})
    assert refused.status == 409
    assert refused.json["error"]["next_step"]
    assert world.gateway.chat().status == 200


def test_an_older_state_changes_nothing(world: World) -> None:
    world.ramp(0.5)
    answer = world.gateway.follow(steady(world.generation - 1, world.control))
    assert not answer["applied"]
    assert answer["generation"] == world.generation
    assert answer["weights"][world.new.name] == 0.5


def test_a_candidate_that_is_not_there_yet_gets_nothing_until_it_is(world: World) -> None:
    with stub_backends(f"late-{world.generation}") as (late,):
        late.stop()
        candidate = model_at(late.name, late.endpoint)
        world.gateway.follow(ramping(next(numbers), world.control, candidate, 1.0))
        assert world.gateway.standing()["not_ready"] == [late.name]
        assert {world.gateway.chat(f"s-{number}").model for number in range(20)} == {world.old.name}
        assert world.metrics(late.name)["failed_sessions"] == 0
        late.start()
        wait_until(lambda: world.gateway.chat().model == late.name)


def test_feedback_reaches_its_session(world: World) -> None:
    world.gateway.chat(f"rated-{world.generation}")
    given = {"session_id": f"rated-{world.generation}", "feedback": "negative"}
    assert world.gateway.call("POST", "/v1/feedback", given).status == 200
    assert world.metrics(world.old.name)["negative_feedback"] == 1
    assert world.gateway.call("POST", "/v1/feedback", {**given, "session_id": "nobody"}).status == 404
    assert world.gateway.call("POST", "/v1/feedback", {**given, "feedback": "meh"}).status == 400
