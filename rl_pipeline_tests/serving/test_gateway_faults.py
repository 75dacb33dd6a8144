"""A gateway that is killed, and one whose NATS is: what it serves in between, and what it knows afterwards."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rl_pipeline.contracts.serving_outcome import ServingOutcome
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.embedded.nats_server import NatsServer, running_nats_server
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.stores.topology import bootstrap
from rl_pipeline_tests.serving import stub_backend
from rl_pipeline_tests.serving.load import put_load
from rl_pipeline_tests.serving.running_gateway import GatewayProcess, stored_as
from rl_pipeline_tests.serving.states import NEW, OLD, model_at, ramping, sessions_at, steady
from rl_pipeline_tests.serving.stub_backend import StubBackend, stub_backends
from rl_pipeline_tests.waiting import wait_until

IDLE = {"session_idle_seconds": 0.5, "drain_seconds": 1.0}


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A server of this test alone, to be killed."""
    with running_nats_server(tmp_path / "nats", sync_always=False) as server:
        with JetStream.connect(server.url) as jetstream:
            bootstrap(jetstream)
        yield server


@pytest.fixture
def backends() -> Iterator[tuple[StubBackend, StubBackend]]:
    with stub_backends(OLD, NEW) as (old, new):
        yield old, new


@pytest.fixture
def gateway(tmp_path: Path, nats: NatsServer) -> Iterator[GatewayProcess]:
    with GatewayProcess(tmp_path / "gateway", {"nats_url": nats.url, **IDLE}) as running:
        yield running


def record(nats: NatsServer, state: DesiredState) -> None:
    with JetStream.connect(nats.url) as jetstream:
        states = JetStreamDesiredStates(jetstream)
        stored = states.read()
        assert states.swap(state.encoded(), stored.revision if stored else 0)


def outcomes(nats: NatsServer) -> list[ServingOutcome]:
    with JetStream.connect(nats.url) as jetstream:
        batches = jetstream.read("RL_SERVING", 1, 10**9, 1000)
        return [ServingOutcome.model_validate_json(message.data) for batch in batches for message in batch]


def follows(gateway: GatewayProcess, generation: int) -> bool:
    standing = gateway.standing()
    return standing["generation"] == generation and not standing["not_ready"]


def test_a_gateway_that_was_killed_serves_the_right_split_before_nats_answers(
    gateway: GatewayProcess, nats: NatsServer, backends: tuple[StubBackend, StubBackend]
) -> None:
    old, new = (model_at(stub.name, stub.endpoint) for stub in backends)
    record(nats, ramping(4, old, new, 0.5))
    wait_until(lambda: follows(gateway, 4))
    before = {f"s-{number}": gateway.chat(f"s-{number}").model for number in range(100)}
    assert set(before.values()) == {OLD, NEW}
    nats.kill()
    gateway.kill()
    for stub in backends:
        stub.pause_of_probes = 0.2
    gateway.start()
    assert {session: gateway.chat(session).model for session in before} == before
    assert gateway.standing()["generation"] == 4
    assert not gateway.health()["nats"]["reachable"]
    nats.start()
    record(nats, ramping(5, old, new, 1.0))
    wait_until(lambda: follows(gateway, 5))
    assert gateway.chat("another").model == NEW


def test_without_nats_a_gateway_serves_obeys_a_fence_and_catches_up_later(
    gateway: GatewayProcess, nats: NatsServer, backends: tuple[StubBackend, StubBackend]
) -> None:
    old, new = (model_at(stub.name, stub.endpoint) for stub in backends)
    record(nats, ramping(4, old, new, 0.5))
    wait_until(lambda: follows(gateway, 4))
    session = next(sessions_at(0.5))
    assert gateway.chat(session).model == NEW
    nats.kill()
    wait_until(lambda: not gateway.health()["nats"]["reachable"])
    assert gateway.chat(session).model == NEW
    raised = gateway.call("PUT", "/admin/traffic", {"model_id": NEW, "traffic_percentage": 100})
    assert raised.status == 503
    assert raised.json["error"]["next_step"] == "try again once it is back"
    back = gateway.call("PUT", "/admin/traffic", {"model_id": OLD, "traffic_percentage": 100})
    assert (back.status, back.json["recorded"]) == (200, False)
    assert gateway.chat(session).model == OLD
    gateway.kill()
    gateway.start()
    assert gateway.chat(session).model == OLD, "the fence outlived the gateway"
    nats.start()
    record(nats, ramping(5, old, new, 1.0))
    wait_until(lambda: gateway.standing()["generation"] == 5)
    assert gateway.chat(session).model == OLD, "whatever the state says"
    record(nats, steady(6, old, retired=(NEW,)))
    wait_until(lambda: gateway.standing()["generation"] == 6)


def test_with_nats_the_traffic_is_changed_by_way_of_the_record(
    gateway: GatewayProcess, nats: NatsServer, backends: tuple[StubBackend, StubBackend]
) -> None:
    old, new = (model_at(stub.name, stub.endpoint) for stub in backends)
    record(nats, ramping(4, old, new, 0.1))
    wait_until(lambda: follows(gateway, 4) and gateway.health()["nats"]["reachable"])
    changed = gateway.call("PUT", "/admin/traffic", {"model_id": NEW, "traffic_percentage": 50})
    assert changed.json == {"model_id": NEW, "traffic_percentage": 50, "generation": 5, "recorded": True}
    with JetStream.connect(nats.url) as jetstream:
        stored = JetStreamDesiredStates(jetstream).read()
    assert stored is not None
    assert DesiredState.decoded(stored.data).weights == {OLD: 0.5, NEW: 0.5}
    assert gateway.standing()["fenced"] == {}


def test_a_lost_record_that_begins_again_is_not_followed(
    gateway: GatewayProcess, nats: NatsServer, backends: tuple[StubBackend, StubBackend]
) -> None:
    old, new = (model_at(stub.name, stub.endpoint) for stub in backends)
    record(nats, ramping(4, old, new, 0.5))
    wait_until(lambda: follows(gateway, 4))
    record(nats, steady(1, new))
    with JetStream.connect(nats.url) as jetstream:
        jetstream.publish("$KV.RL_DEPLOYMENT.state", b"{broken", "broken")
        wait_until(lambda: (gateway.health()["nats"]["problem"] or "").startswith("the desired state is none"))
    assert gateway.standing()["weights"] == {OLD: 0.5, NEW: 0.5}
    assert gateway.chat().status == 200


def test_what_a_full_disk_did_not_keep_is_kept_once_there_is_room(
    gateway: GatewayProcess, nats: NatsServer, backends: tuple[StubBackend, StubBackend]
) -> None:
    old, new = (model_at(stub.name, stub.endpoint) for stub in backends)
    full = [gateway.directory / f".{name}.json.unfinished" for name in ("state", "models")]
    for file in full:
        file.symlink_to("/dev/full")
    record(nats, ramping(4, old, new, 0.5))
    wait_until(lambda: gateway.health()["unkept"] == ["state.json"])
    registered = gateway.call("POST", "/admin/models", model_at("next").model_dump())
    assert registered.status == 507, registered.body
    assert "models.json could not be written (No space left on device)" in str(registered.json)
    for file in full:
        file.unlink()
    assert gateway.call("POST", "/admin/models", model_at("next").model_dump()).status == 201
    wait_until(lambda: gateway.health()["unkept"] == [])
    nats.kill()
    gateway.kill()
    gateway.start()
    assert gateway.standing()["generation"] == 4
    assert "next" in {each["model_id"] for each in gateway.call("GET", "/admin/models").json["models"]}


def test_each_session_is_told_once_through_kills_and_without_nats(
    gateway: GatewayProcess, nats: NatsServer, backends: tuple[StubBackend, StubBackend]
) -> None:
    old, new = backends
    record(nats, ramping(4, model_at(OLD, old.endpoint), model_at(NEW, new.endpoint), 0.5))
    wait_until(lambda: follows(gateway, 4))
    failing = [session for session, _ in zip(sessions_at(0.5), range(5), strict=False)]
    fine = [f"fine-{number}" for number in range(20)]
    for session in fine:
        gateway.chat(session)
        if session == fine[0]:  # before it is over
            gateway.call("POST", "/v1/feedback", {"session_id": session, "feedback": "negative"})
        gateway.chat(session)
    wait_until(lambda: sum(each.requests for each in outcomes(nats)) == 2 * len(fine))
    nats.kill()
    new.behaviour = stub_backend.answer_500
    for session in failing:
        assert gateway.chat(session).status == 200
    gateway.kill()
    gateway.start()
    nats.start()
    wait_until(lambda: sum(each.failed for each in outcomes(nats)) == len(failing))
    gateway.end()  # what is left is told at the end, and nothing is
    told = outcomes(nats)
    assert sorted(each.session_id for each in told if each.failed) == sorted(map(stored_as, failing))
    assert {each.model_id for each in told if each.failed} == {NEW}
    # On a slow machine two requests may be further apart than a session may be silent.
    assert sum(each.requests for each in told if not each.failed) == 2 * len(fine)
    assert len({(each.session_id, each.started_at) for each in told}) == len(told)
    assert {each.session_id for each in told if each.feedback == "negative"} == {stored_as(fine[0])}
    assert {each.generation for each in told} == {4}
    gateway.start()


def test_a_gateway_that_was_killed_leaves_its_successes_beside_its_failures(
    tmp_path: Path, nats: NatsServer, backends: tuple[StubBackend, StubBackend]
) -> None:
    old, new = backends
    with GatewayProcess(tmp_path / "gateway", {"nats_url": nats.url, "session_idle_seconds": 60}) as gateway:
        record(nats, ramping(4, model_at(OLD, old.endpoint), model_at(NEW, new.endpoint), 0.5))
        wait_until(lambda: follows(gateway, 4))
        fine = [f"fine-{number}" for number in range(20)]
        for session in fine:
            gateway.chat(session)
        new.behaviour = stub_backend.answer_500
        failing = [session for session, _ in zip(sessions_at(0.5), range(5), strict=False)]
        for session in failing:
            gateway.chat(session)
        begun = gateway.directory / "outbox" / "begun"
        wait_until(lambda: begun.exists() and begun.read_bytes().count(b"\n") >= len(fine))
        gateway.kill()
        gateway.start()
        wait_until(lambda: len(outcomes(nats)) == len(fine) + len(failing))
    told = outcomes(nats)
    assert len(told) == len(fine) + len(failing)
    assert {each.session_id for each in told if each.failed} == set(map(stored_as, failing))
    assert {each.session_id for each in told if not each.failed} == set(map(stored_as, fine))


@pytest.mark.soak
def test_sustained_load_through_a_rollout_meets_no_error(
    tmp_path: Path,
    backends: tuple[StubBackend, StubBackend],
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    count = soak_count(2_000, 100_000)
    old, new = (model_at(stub.name, stub.endpoint) for stub in backends)
    with GatewayProcess(tmp_path / "gateway", IDLE) as gateway:
        gateway.follow(ramping(1, old, new, 0.1))
        wait_until(lambda: follows(gateway, 1))

        def roll_out() -> None:
            for step, share in enumerate((0.25, 0.5, 1.0), start=1):
                gateway.follow(ramping(step + 1, old, new, share, step=step))
            gateway.call("POST", "/admin/fence", {"model_id": NEW, "reason": "a test"})
            gateway.follow(steady(9, old, retired=(NEW,)))

        rolling = threading.Timer(0.3, roll_out)
        rolling.start()
        load = asyncio.run(
            put_load(
                gateway.port, 16, lambda connection, request: f"s-{connection}-{request // 5}", lambda n: n >= count
            )
        )
        rolling.join()
    assert load.errors == []
    assert load.answers == count
    assert set(load.by_model) == {OLD, NEW}
    record_property("requests", count)


@pytest.mark.soak
def test_no_kill_lets_a_fenced_model_back_or_a_generation_slip(
    tmp_path: Path,
    backends: tuple[StubBackend, StubBackend],
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    """Kill -9 at random moments, while states and fences come in; whatever was confirmed holds afterwards."""
    kills, chance = soak_count(4, 50), random.Random(6)
    control = model_at(OLD, backends[0].endpoint)
    gateway = GatewayProcess(tmp_path / "gateway").start()
    gateway.follow(steady(1, control))
    followed, fenced = 1, []
    try:
        for number in range(kills):
            candidate = model_at(f"{NEW}-{number}", backends[1].endpoint)
            process = gateway.process
            assert process is not None
            killing = threading.Timer(chance.uniform(0.0, 0.1), process.kill)
            killing.start()
            try:
                for _ in range(100):
                    gateway.follow(ramping(followed + 1, control, candidate, 0.5))
                    followed += 1
                    reason = {"model_id": candidate.model_id, "reason": "a test"}
                    if chance.random() < 0.5 and gateway.call("POST", "/admin/fence", reason).status == 200:
                        fenced.append(candidate.model_id)
            except OSError:
                pass
            killing.join()
            gateway.end()
            gateway.start()
            standing = gateway.standing()
            assert standing["generation"] in (followed, followed + 1)
            assert set(fenced) <= set(standing["fenced"])
            assert not set(fenced) & set(standing["weights"])
            followed = standing["generation"]
            gateway.follow(ramping(followed + 1, control, candidate, 1.0))
            followed += 1
            if candidate.model_id in standing["fenced"]:
                assert {gateway.chat(f"s-{each}").model for each in range(10)} == {OLD}
    finally:
        gateway.end()
    record_property("kills", kills)
    record_property("fences", len(set(fenced)))
