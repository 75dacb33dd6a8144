"""NATS is killed while models are rolled out and taken back, and once even its bucket is gone, on the real things."""

import shutil
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

import pytest

from rl_pipeline.deployment.audit import verify_audit
from rl_pipeline.deployment.record import read
from rl_pipeline.embedded.nats_server import NatsServer, running_nats_server
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.stores.topology import DEPLOYMENT, bootstrap
from rl_pipeline_tests.deployment.kept_place import KeptPlace
from rl_pipeline_tests.deployment.release_place import FIRST, ReleasePlace, opened_place
from rl_pipeline_tests.serving import stub_backend
from rl_pipeline_tests.waiting import wait_until


@pytest.fixture
def nats(tmp_path: Path) -> Iterator[NatsServer]:
    """A server of this test alone; it syncs every message before it acknowledges."""
    with running_nats_server(tmp_path / "nats") as server:
        yield server


@pytest.fixture
def messages(nats: NatsServer) -> Iterator[JetStream]:
    with JetStream.connect(nats.url, connect_seconds=1, patience_seconds=1) as jetstream:
        bootstrap(jetstream)
        yield jetstream


@pytest.fixture
def kept(
    nats: NatsServer, messages: JetStream, warehouse: ClickHouseWarehouse, clickhouse_url: str, tmp_path: Path
) -> KeptPlace:
    return KeptPlace(messages, warehouse, nats.url, clickhouse_url, tmp_path / "gateway.json")


@pytest.fixture
def watched(
    nats: NatsServer, messages: JetStream, warehouse: ClickHouseWarehouse, clickhouse_url: str, tmp_path: Path
) -> Iterator[ReleasePlace]:
    """A real gateway, and a watchdog beside it."""
    with opened_place(nats.url, messages, warehouse, clickhouse_url, tmp_path) as place, place.watchdog():
        yield place


@pytest.mark.soak
def test_rollouts_go_on_where_they_were_however_often_nats_is_killed(
    kept: KeptPlace,
    nats: NatsServer,
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    kills, chance = soak_count(3, 50), Random(20260302)
    now = datetime.now(UTC)

    def tick() -> bool:
        """Whether anything was left to do; what fails is done by a later look."""
        nonlocal now
        now += timedelta(seconds=1)
        try:
            found = kept.controller().tick(now)
        except PipelineError:
            return True
        return bool(found.changes or found.pending)

    cut_short = 0
    for _ in range(kills):
        kept.release()
        killing = threading.Timer(chance.uniform(0, 0.5), nats.kill)
        killing.start()
        while killing.is_alive():
            tick()
        cut_short += tick()
        nats.start()
    wait_until(lambda: not tick(), "the end of all rollouts")
    assert cut_short == kills, "nothing is done without NATS"
    record_property("kill -9 of NATS", kills)
    record_property("generations", kept.check())


def lose_nothing(_nats: NatsServer, _messages: JetStream) -> None:
    """NATS comes back as it was."""


def lose_the_bucket(_nats: NatsServer, messages: JetStream) -> None:
    """NATS comes back without the desired state."""
    messages.request(f"STREAM.DELETE.{DEPLOYMENT.name}")
    bootstrap(messages)


def lose_everything(nats: NatsServer, messages: JetStream) -> None:
    """NATS comes back on an empty disk."""
    nats.kill()
    shutil.rmtree(nats.configuration.parent / "jetstream")
    nats.start()
    bootstrap(messages)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lose", [lose_nothing, lose_the_bucket, lose_everything])
def test_a_bad_model_is_out_while_nats_is_dead_and_the_record_is_repaired_afterwards(
    lose: Callable[[NatsServer, JetStream], None],
    watched: ReleasePlace,
    nats: NatsServer,
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    runs = soak_count(1, 3)
    for number in range(1, runs + 1):
        take_out_without_nats(watched, nats, f"job-{number}")
        nats.start()
        lose(nats, watched.messages)
        wait_until(lambda: is_settled(watched), "the record", seconds=200)
        assert watched.state().retired == tuple(f"agent-zero-rl-v{each}" for each in range(1, number + 1))
        wait_until(lambda: is_audited(watched), "the audit")
        assert watched.ask_many(10) == {FIRST: 10}
    record_property("rollbacks with NATS dead", runs)


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lose", [lose_nothing, lose_the_bucket])
def test_a_model_that_fails_in_its_bake_is_out_while_nats_is_dead_and_the_record_is_repaired_afterwards(
    lose: Callable[[NatsServer, JetStream], None],
    watched: ReleasePlace,
    nats: NatsServer,
) -> None:
    model = bake(watched)
    nats.kill()
    fail_until_it_is_out(watched, model)
    nats.start()
    lose(nats, watched.messages)
    wait_until(lambda: is_settled(watched), "the record", seconds=200)
    assert watched.state().retired == (model,)
    wait_until(lambda: is_audited(watched), "the audit")
    assert watched.ask_many(10) == {FIRST: 10}


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_model_that_fails_in_its_bake_is_out_though_an_old_copy_of_the_record_is_there_and_dagster_is_dead(
    watched: ReleasePlace,
) -> None:
    states = JetStreamDesiredStates(watched.messages)
    old_copy = states.read()
    model = bake(watched)
    present = states.read()
    assert old_copy is not None
    assert present is not None
    states.swap(old_copy.data, present.revision)
    fail_until_it_is_out(watched, model)
    wait_until(lambda: is_settled(watched), "the record", seconds=200)
    assert watched.state().retired == (model,)
    wait_until(lambda: is_audited(watched), "the audit")
    assert watched.ask_many(10) == {FIRST: 10}


def bake(place: ReleasePlace) -> str:
    """A model that has all of the traffic, which the watchdog knows."""
    place.new.behaviour = stub_backend.answer
    model = place.let_in("job-1", bake_seconds=3600).model.model_id
    place.commands().promote("in a hurry", model_id=model)
    wait_until(place.follows, "the bake at the gateway")
    assert place.ask_many(10) == {model: 10}
    place.look()
    wait_until(lambda: place.has_watched(model, "baking"), "the watchdog's knowledge of the bake")
    return model


def take_out_without_nats(place: ReleasePlace, nats: NatsServer, job: str) -> None:
    """A bad model whose traffic ends while NATS is dead."""
    place.new.behaviour = stub_backend.answer
    model = place.let_in(job).model.model_id
    wait_until(lambda: place.has_watched(model), "the watchdog's knowledge of the rollout")
    nats.kill()
    fail_until_it_is_out(place, model)


def fail_until_it_is_out(place: ReleasePlace, model: str) -> None:
    """A model whose traffic ends because it fails."""
    place.new.behaviour = stub_backend.answer_500

    def is_out() -> bool:
        place.ask_many(10)
        return model not in place.gateway.standing()["weights"]

    wait_until(is_out, "the end of its traffic", seconds=200)
    assert place.ask_many(20) == {FIRST: 20}


def is_audited(place: ReleasePlace) -> bool:
    """Whether the chain is whole; its last row is written by a look after the record."""
    place.look()
    return verify_audit(place.tables, read(JetStreamDesiredStates(place.messages))).holds


def is_settled(place: ReleasePlace) -> bool:
    """Whether the controller finds nothing more to do after a lost or late record."""
    try:
        result = place.look()
    except PipelineError:
        return False
    state = place.state()
    return state.phase == "steady" and not result.asset_events and place.follows()
