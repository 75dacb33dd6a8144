"""What every adapter of the desired state must do, on a real server: one value, swapped by one at a time."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rl_pipeline.embedded.nats_server import NatsServer, running_nats_server
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.stores.stream import PublishRefused, StreamMissing, StreamUnavailable
from rl_pipeline.stores.topology import BUCKETS, DEPLOYMENT, bootstrap
from rl_pipeline_tests.waiting import wait_until


@pytest.fixture
def states(stream: JetStream) -> JetStreamDesiredStates:
    return JetStreamDesiredStates(stream)


@pytest.fixture
def others(nats_server: NatsServer, states: JetStreamDesiredStates) -> Iterator[JetStreamDesiredStates]:
    """The same value over another connection, as another process sees it."""
    with JetStream.connect(nats_server.url) as connection:
        yield JetStreamDesiredStates(connection)


def swapped(states: JetStreamDesiredStates, data: bytes, expected: int) -> int:
    revision = states.swap(data, expected)
    assert revision is not None
    return revision


def test_there_is_no_value_before_the_first_swap(states: JetStreamDesiredStates) -> None:
    assert states.read() is None
    assert states.history() == []


def test_what_one_swaps_in_the_other_reads(states: JetStreamDesiredStates, others: JetStreamDesiredStates) -> None:
    revision = swapped(states, b"one", 0)
    found = others.read()
    assert found is not None
    assert (found.data, found.revision) == (b"one", revision)
    assert swapped(others, b"two", revision) > revision


def test_a_swap_of_what_is_no_longer_the_newest_changes_nothing(
    states: JetStreamDesiredStates, others: JetStreamDesiredStates
) -> None:
    first = swapped(states, b"one", 0)
    second = swapped(others, b"two", first)
    assert states.swap(b"late", first) is None
    assert states.swap(b"as if there was none", 0) is None
    found = states.read()
    assert found is not None
    assert (found.data, found.revision) == (b"two", second)


def test_of_many_that_swap_at_once_one_wins(nats_server: NatsServer, states: JetStreamDesiredStates) -> None:
    first = swapped(states, b"first", 0)
    barrier = threading.Barrier(8)

    def swap(number: int) -> int | None:
        with JetStream.connect(nats_server.url) as connection:
            barrier.wait()
            return JetStreamDesiredStates(connection).swap(f"of {number}".encode(), first)

    with ThreadPoolExecutor(8) as threads:
        revisions = list(threads.map(swap, range(8)))
    (won,) = [number for number, revision in enumerate(revisions) if revision is not None]
    found = states.read()
    assert found is not None
    assert (found.data, found.revision) == (f"of {won}".encode(), revisions[won])


def test_a_swap_whose_answer_was_lost_finds_itself(
    states: JetStreamDesiredStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = swapped(states, b"one", 0)
    publish = states._jetstream.publish

    def twice(subject: str, data: bytes, message_id: str, headers: dict[str, str]) -> object:
        publish(subject, data, message_id, headers)
        return publish(subject, data, message_id, headers)

    monkeypatch.setattr(states._jetstream, "publish", twice)
    second = swapped(states, b"two", first)
    monkeypatch.undo()
    assert states.swap(b"two", first) == second
    assert [value.data for value in states.history()] == [b"one", b"two"]


def test_a_swap_finds_itself_although_the_server_forgot_its_id(
    states: JetStreamDesiredStates, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = swapped(states, b"one", 0)
    publish = states._jetstream.publish

    def stored_and_refused(subject: str, data: bytes, message_id: str, headers: dict[str, str]) -> object:
        publish(subject, data, message_id, headers)
        raise PublishRefused("wrong last sequence")

    monkeypatch.setattr(states._jetstream, "publish", stored_and_refused)
    second = swapped(states, b"two", first)
    monkeypatch.undo()
    assert states.swap(b"three", second) is not None


def test_the_last_64_values_are_kept_oldest_first(states: JetStreamDesiredStates) -> None:
    revision = 0
    for number in range(70):
        revision = swapped(states, f"value {number}".encode(), revision)
    history = states.history()
    assert [value.data for value in history] == [f"value {number}".encode() for number in range(6, 70)]
    assert history[-1] == states.read()
    assert sorted(value.revision for value in history) == [value.revision for value in history]


def test_a_bucket_that_was_lost_and_made_again_goes_on_with_higher_revisions(
    stream: JetStream, states: JetStreamDesiredStates
) -> None:
    first = swapped(states, b"one", 0)
    stream.request(f"STREAM.DELETE.{DEPLOYMENT.name}")
    with pytest.raises(StreamMissing, match="rl-pipeline streams bootstrap"):
        states.read()
    assert bootstrap(stream).created == (DEPLOYMENT.name,)
    assert bootstrap(stream).drift == ()
    assert states.read() is None
    again = swapped(states, b"one again", 0)
    assert again > first
    assert states.swap(b"by one who read the former", first) is None


def test_every_bucket_is_made_so(stream: JetStream) -> None:
    for spec in BUCKETS:
        found = stream.request(f"STREAM.INFO.{spec.name}")["config"]
        assert (found["max_msgs_per_subject"], found["first_seq"] > 10**12) == (spec.history, True)


def test_a_server_that_is_away_is_said_to_be(tmp_path: Path) -> None:
    with (
        running_nats_server(tmp_path, sync_always=False) as server,
        JetStream.connect(server.url, patience_seconds=0.2) as stream,
    ):
        bootstrap(stream)
        states = JetStreamDesiredStates(stream)
        revision = swapped(states, b"one", 0)
        server.stop()
        for call in (states.read, states.history, lambda: states.swap(b"two", revision)):
            with pytest.raises(StreamUnavailable):
                call()
        server.start()
        wait_until(lambda: answers(states))
        assert swapped(states, b"two", revision) > revision


def answers(states: JetStreamDesiredStates) -> bool:
    try:
        return states.read() is not None
    except StreamUnavailable:
        return False
