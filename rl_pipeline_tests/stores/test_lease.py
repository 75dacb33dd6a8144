"""What every adapter of leases must do, on a real server: one holder at a time, and an end that comes by itself."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rl_pipeline.embedded.nats_server import NatsServer, running_nats_server
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_lease import JetStreamLeases
from rl_pipeline.stores.lease import KeptLease, Lease, LeaseHeld, LeaseLost, keep
from rl_pipeline.stores.stream import PublishRefused, StreamMissing, StreamUnavailable
from rl_pipeline.stores.topology import LEASES, bootstrap
from rl_pipeline_tests.waiting import wait_until

LONG = 600


@pytest.fixture
def leases(stream: JetStream) -> JetStreamLeases:
    return JetStreamLeases(stream)


@pytest.fixture
def others(nats_server: NatsServer, leases: JetStreamLeases) -> Iterator[JetStreamLeases]:
    """The same leases over another connection, as another process sees them."""
    with JetStream.connect(nats_server.url) as connection:
        yield JetStreamLeases(connection)


def acquired(leases: JetStreamLeases, owner: str, seconds: int = LONG) -> Lease:
    lease = leases.acquire("training", owner, seconds)
    assert lease is not None
    return lease


def test_one_owner_holds_a_lease_and_the_other_learns_who_it_is(
    leases: JetStreamLeases, others: JetStreamLeases
) -> None:
    assert leases.holder("training") is None
    acquired(leases, "one")
    assert others.acquire("training", "two", LONG) is None
    assert others.holder("training") == "one"
    assert others.acquire("another", "two", LONG) is not None


def test_an_owner_that_restarts_goes_on_at_once_and_its_former_self_has_lost(
    leases: JetStreamLeases, others: JetStreamLeases
) -> None:
    before = acquired(leases, "one")
    after = acquired(others, "one")
    assert after.revision > before.revision
    with pytest.raises(LeaseLost, match="one no longer holds the lease training: stop"):
        leases.renew(before)
    assert others.renew(after).owner == "one"


def test_a_released_lease_is_free_and_releasing_again_frees_nobody_else_s(
    leases: JetStreamLeases, others: JetStreamLeases
) -> None:
    lease = acquired(leases, "one")
    leases.release(lease)
    leases.release(lease)
    assert leases.holder("training") is None
    acquired(others, "two")
    leases.release(lease)
    assert others.holder("training") == "two"


def test_a_lease_ends_by_itself_unless_it_is_renewed(leases: JetStreamLeases, others: JetStreamLeases) -> None:
    forgotten = acquired(leases, "one", seconds=1)
    renewed = [others.acquire("renewed", "two", 1)]

    def has_ended() -> bool:
        assert renewed[-1] is not None
        renewed.append(others.renew(renewed[-1]))
        return leases.holder("training") is None

    wait_until(has_ended)
    with pytest.raises(LeaseLost):
        leases.renew(forgotten)
    acquired(others, "two")


def test_of_many_that_ask_at_once_one_gets_it(nats_server: NatsServer, leases: JetStreamLeases) -> None:
    barrier = threading.Barrier(8)

    def ask(number: int) -> bool:
        with JetStream.connect(nats_server.url) as connection:
            barrier.wait()
            return JetStreamLeases(connection).acquire("training", f"owner-{number}", LONG) is not None

    with ThreadPoolExecutor(8) as threads:
        got = list(threads.map(ask, range(8)))
    assert sum(got) == 1
    assert leases.holder("training") == f"owner-{got.index(True)}"


def test_a_write_whose_answer_was_lost_counts(leases: JetStreamLeases, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = acquired(leases, "one")
    publish = leases._jetstream.publish

    def twice(subject: str, data: bytes, message_id: str, headers: dict[str, str]) -> object:
        publish(subject, data, message_id, headers)
        return publish(subject, data, message_id, headers)

    monkeypatch.setattr(leases._jetstream, "publish", twice)
    renewed = leases.renew(lease)
    monkeypatch.undo()
    assert leases.renew(renewed).owner == "one"


def test_seconds_that_the_server_does_not_take_are_refused(leases: JetStreamLeases) -> None:
    with pytest.raises(PublishRefused, match="TTL"):
        leases.acquire("training", "one", 0)


def test_a_bucket_that_is_missing_says_what_to_run(stream: JetStream, leases: JetStreamLeases) -> None:
    stream.request(f"STREAM.DELETE.{LEASES.name}")
    with pytest.raises(StreamMissing, match="rl-pipeline streams bootstrap"):
        leases.acquire("training", "one", LONG)


def test_a_kept_lease_is_renewed_and_released(leases: JetStreamLeases, others: JetStreamLeases) -> None:
    with keep(leases, "training", "one", 1) as kept:
        began = others._read("training").revision
        wait_until(lambda: others._read("training").revision >= began + 4)
        kept.confirm()
        assert not kept.lost.is_set()
        with pytest.raises(LeaseHeld, match="one holds the lease training"), keep(others, "training", "two", LONG):
            pass
    assert others.holder("training") is None


def test_whoever_waits_gets_a_lease_that_ends(leases: JetStreamLeases, others: JetStreamLeases) -> None:
    acquired(leases, "one", seconds=1)
    with keep(others, "training", "two", LONG, patience_seconds=60):
        assert leases.holder("training") == "two"


def test_a_lease_that_somebody_else_has_got_is_lost(leases: JetStreamLeases, others: JetStreamLeases) -> None:
    def taken_over() -> bool:
        others.release(Lease("training", "one", LONG, others._read("training").revision))
        return others.acquire("training", "two", LONG) is not None

    with keep(leases, "training", "one", 1) as kept:
        wait_until(taken_over)
        wait_until(kept.lost.is_set)
        with pytest.raises(LeaseLost):
            kept.confirm()
    assert others.holder("training") == "two"


def test_a_lease_that_ran_out_unnoticed_is_taken_again(leases: JetStreamLeases, others: JetStreamLeases) -> None:
    with keep(leases, "training", "one", LONG) as kept:
        others.release(Lease("training", "one", LONG, others._read("training").revision))
        kept.confirm()
        assert others.holder("training") == "one"


def test_a_lease_outlives_a_restart_of_the_server(tmp_path: Path) -> None:
    with (
        running_nats_server(tmp_path, sync_always=False) as server,
        JetStream.connect(server.url, patience_seconds=0.2) as stream,
    ):
        bootstrap(stream)
        leases = JetStreamLeases(stream)
        with keep(leases, "training", "one", 1) as kept:
            server.stop()
            with pytest.raises(StreamUnavailable):
                kept.confirm()
            server.start()
            wait_until(lambda: is_confirmed(kept))
            assert not kept.lost.is_set()
            assert leases.holder("training") == "one"


def is_confirmed(kept: KeptLease) -> bool:
    try:
        kept.confirm()
    except (StreamUnavailable, StreamMissing):
        return False
    return True


@pytest.mark.parametrize("taken", [False, True], ids=["nobody has taken it", "somebody else has it"])
def test_a_lease_whose_bucket_is_lost_is_renewed_once_the_bucket_is_back_unless_somebody_else_has_it(
    stream: JetStream, leases: JetStreamLeases, others: JetStreamLeases, caplog: pytest.LogCaptureFixture, taken: bool
) -> None:
    with keep(leases, "training", "one", 1) as kept:
        stream.request(f"STREAM.DELETE.{LEASES.name}")
        wait_until(lambda: "could not be renewed" in caplog.text)
        bootstrap(stream)
        if taken and others.acquire("training", "two", LONG):
            wait_until(kept.lost.is_set)
        else:
            wait_until(lambda: others.holder("training") == "one")
            assert not kept.lost.is_set()


def test_who_leaves_while_the_bucket_is_lost_has_done_what_was_to_be_done(
    stream: JetStream, leases: JetStreamLeases
) -> None:
    with keep(leases, "training", "one", LONG):
        stream.request(f"STREAM.DELETE.{LEASES.name}")
