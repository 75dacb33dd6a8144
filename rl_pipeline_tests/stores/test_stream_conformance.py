"""What the stream port promises, on a single server and on a cluster of three."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from rl_pipeline.errors import PipelineError
from rl_pipeline.stores import topology
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_publishing import GROUP_MESSAGES
from rl_pipeline.stores.jetstream_reading import READ_BYTES
from rl_pipeline.stores.stream import (
    MessageGone,
    OutgoingMessage,
    PublishIncomplete,
    PublishRefused,
    StoredMessage,
    StreamMissing,
)
from rl_pipeline.stores.topology import bootstrap
from rl_pipeline_tests.fixtures.nats import cluster_url, remove_all_streams
from rl_pipeline_tests.waiting import wait_until

TRAJECTORY = "agent.rl.trajectory.v1"
OUTCOME = "agent.rl.serving.outcome.v1"


@pytest.fixture(
    params=[
        pytest.param(1, id="single"),
        pytest.param(3, id="cluster"),
    ]
)
def replicas(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture
def stream(replicas: int, request: pytest.FixtureRequest) -> Iterator[JetStream]:
    """The conformance suite's own: as the shared fixture, on every kind of server."""
    server = "nats_server" if replicas == 1 else "nats_cluster"
    servers = request.getfixturevalue(server)
    with JetStream.connect(servers.url if replicas == 1 else cluster_url(servers)) as jetstream:
        remove_all_streams(jetstream)
        bootstrap(jetstream, replicas, [topology.TRAJECTORIES, topology.SERVING])
        yield jetstream


def publish(stream: JetStream, count: int, subject: str = TRAJECTORY, size: int = 10) -> None:
    stream.publish_many(OutgoingMessage(subject, b"x" * size, f"{subject}-{index}") for index in range(count))


def wait_for_pending(stream: JetStream, count: int) -> None:
    """Wait until the consumer knows of the messages: in a cluster it may live on a server that hears of them later."""
    wait_until(lambda: stream.request("CONSUMER.INFO.RL_SERVING.serving_outcomes")["num_pending"] == count)


def read_all(stream: JetStream, name: str = "RL_TRAJECTORIES", batch_size: int = 100) -> list[StoredMessage]:
    return [message for batch in stream.read(name, 1, 10**9, batch_size) for message in batch]


def test_a_message_published_twice_is_stored_once(stream: JetStream) -> None:
    first = stream.publish(TRAJECTORY, b"one", "id-1")
    again = stream.publish(TRAJECTORY, b"one", "id-1")
    other = stream.publish(TRAJECTORY, b"two", "id-2")
    assert (first.duplicate, again.duplicate, other.duplicate) == (False, True, False)
    assert (first.sequence, again.sequence, other.sequence) == (1, 1, 2)
    assert [message.data for message in read_all(stream)] == [b"one", b"two"]


def test_a_message_comes_back_as_it_was_published(stream: JetStream) -> None:
    stream.publish(TRAJECTORY, "säuberlich".encode(), "id-1", {"Publisher": "agent-7"})
    (message,) = read_all(stream)
    assert message.data.decode() == "säuberlich"
    assert (message.sequence, message.subject, message.message_id) == (1, TRAJECTORY, "id-1")
    assert message.headers == {"Publisher": "agent-7"}
    assert message.time.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - message.time) < timedelta(minutes=5)
    assert stream.get("RL_TRAJECTORIES", 1) == message


def test_a_subject_that_takes_one_message_takes_no_second_whatever_its_id(stream: JetStream) -> None:
    def once(data: bytes, message_id: str) -> OutgoingMessage:
        return OutgoingMessage(TRAJECTORY, data, message_id, once_per_subject=True)

    stream.publish(OUTCOME, b"elsewhere", "other")
    answers = stream.publish_many([once(b"first", "id-1"), once(b"second", "id-2"), once(b"again", "id-1")])
    assert [(answer.sequence, answer.duplicate) for answer in answers] == [(1, False), (1, True), (1, True)]
    (kept,) = read_all(stream)
    assert (kept.data, kept.headers) == (b"first", {})
    stream.erase("RL_TRAJECTORIES", 1)
    (answer,) = stream.publish_many([once(b"third", "id-3")])
    assert (answer.sequence, answer.duplicate) == (2, False)


def test_the_newest_message_of_a_subject_is_found(stream: JetStream) -> None:
    with pytest.raises(MessageGone, match=f"RL_TRAJECTORIES has no message on {TRAJECTORY}"):
        stream.last_on_subject("RL_TRAJECTORIES", TRAJECTORY)
    publish(stream, 3)
    assert stream.last_on_subject("RL_TRAJECTORIES", TRAJECTORY) == stream.get("RL_TRAJECTORIES", 3)
    stream.erase("RL_TRAJECTORIES", 3)
    assert stream.last_on_subject("RL_TRAJECTORIES", TRAJECTORY).sequence == 2


def test_many_messages_are_acknowledged_in_their_order(stream: JetStream) -> None:
    count = 3 * GROUP_MESSAGES + 1
    published = stream.publish_many(
        OutgoingMessage(TRAJECTORY, str(index).encode(), f"id-{index}") for index in range(count)
    )
    assert [answer.sequence for answer in published] == list(range(1, count + 1))
    assert [message.data for message in read_all(stream)] == [str(index).encode() for index in range(count)]
    assert stream.publish_many([]) == []


def test_a_read_keeps_to_its_range_and_its_batch_size(stream: JetStream) -> None:
    publish(stream, 25)
    batches = [[message.sequence for message in batch] for batch in stream.read("RL_TRAJECTORIES", 4, 21, 8)]
    assert batches == [list(range(4, 12)), list(range(12, 20)), [20, 21]]
    assert list(stream.read("RL_TRAJECTORIES", 26, 99, 8)) == []
    assert list(stream.read("RL_TRAJECTORIES", 9, 8, 8)) == []
    assert [message.sequence for message in read_all(stream)] == list(range(1, 26))


def test_an_erased_message_is_a_gap_and_everything_around_it_is_read(stream: JetStream) -> None:
    publish(stream, 20)
    assert all(stream.erase("RL_TRAJECTORIES", sequence) for sequence in (1, 7, 8, 20))
    assert not stream.erase("RL_TRAJECTORIES", 7)
    assert not stream.erase("RL_TRAJECTORIES", 999)
    left = [sequence for sequence in range(2, 20) if sequence not in (7, 8)]
    assert [message.sequence for message in read_all(stream, batch_size=5)] == left
    assert [m.sequence for batch in stream.read("RL_TRAJECTORIES", 7, 8, 5) for m in batch] == []
    assert stream.gaps("RL_TRAJECTORIES", 1, 999) == [range(1, 2), range(7, 9), range(20, 21)]
    assert stream.gaps("RL_TRAJECTORIES", 8, 19) == [range(8, 9)]
    state = stream.state("RL_TRAJECTORIES")
    assert (state.first_sequence, state.last_sequence, state.messages) == (2, 20, 16)


def test_what_the_stream_no_longer_has_is_gone(stream: JetStream) -> None:
    publish(stream, 3)
    stream.erase("RL_TRAJECTORIES", 2)
    assert stream.get("RL_TRAJECTORIES", 3).sequence == 3
    for sequence in (2, 4):
        with pytest.raises(MessageGone, match=f"RL_TRAJECTORIES has no message {sequence}"):
            stream.get("RL_TRAJECTORIES", sequence)


def test_what_retention_overran_is_a_gap_of_its_exact_size(stream: JetStream) -> None:
    stream.request(
        "STREAM.CREATE.SMALL", {"name": "SMALL", "subjects": ["small"], "max_msgs": 10, "allow_direct": True}
    )
    publish(stream, 25, "small")
    assert [message.sequence for message in read_all(stream, "SMALL")] == list(range(16, 26))
    assert stream.gaps("SMALL", 1, 25) == [range(1, 16)]
    assert stream.gaps("SMALL", 11, 20) == [range(11, 16)]


def test_what_aged_out_is_a_gap(stream: JetStream) -> None:
    short = {
        "name": "SHORT",
        "subjects": ["short"],
        "max_age": 2 * 10**8,
        "duplicate_window": 10**8,
        "allow_direct": True,
    }
    stream.request("STREAM.CREATE.SHORT", short)
    publish(stream, 5, "short")
    wait_until(lambda: stream.state("SHORT").messages == 0)
    assert read_all(stream, "SHORT") == []
    assert stream.gaps("SHORT", 1, 9) == [range(1, 6)]
    state = stream.state("SHORT")
    assert (state.first_sequence, state.last_sequence, state.first_time, state.last_time) == (6, 5, None, None)


def test_the_state_of_a_stream_is_told(stream: JetStream) -> None:
    empty = stream.state("RL_TRAJECTORIES")
    assert (empty.first_sequence, empty.last_sequence, empty.messages, empty.bytes) == (1, 0, 0, 0)
    assert (empty.first_time, empty.last_time, empty.deleted) == (None, None, 0)
    publish(stream, 5, size=1000)
    stream.erase("RL_TRAJECTORIES", 3)
    state = stream.state("RL_TRAJECTORIES")
    assert (state.name, state.first_sequence, state.last_sequence) == ("RL_TRAJECTORIES", 1, 5)
    assert (state.messages, state.deleted, state.consumers) == (4, 1, 0)
    assert 4_000 < state.bytes < 8_000
    assert (state.first_time, state.last_time) == tuple(read_all(stream)[index].time for index in (0, -1))


def test_a_backlog_of_large_messages_comes_in_bounded_batches(stream: JetStream) -> None:
    size = 900_000
    publish(stream, 40, size=size)
    batches = [[len(message.data) for message in batch] for batch in stream.read("RL_TRAJECTORIES", 1, 40, 1000)]
    assert sum(map(len, batches)) == 40
    assert max(map(sum, batches)) <= READ_BYTES + size


@pytest.mark.soak
def test_a_read_sees_everything_that_was_acknowledged(
    stream: JetStream, soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    # Some ten seconds after a stream was made, its followers begin to answer, and are behind now and then.
    count = soak_count(100, 20_000)
    for sequence in range(1, count + 1):
        stream.publish(TRAJECTORY, b"x", f"id-{sequence}")
        assert stream.get("RL_TRAJECTORIES", sequence).message_id == f"id-{sequence}"
    record_property("messages read as soon as acknowledged", count)


def test_a_read_is_complete_although_replies_are_dropped_on_the_way(
    stream: JetStream, caplog: pytest.LogCaptureFixture
) -> None:
    publish(stream, 500, size=10)
    # nats-py drops what comes faster than it is taken.
    for subscription in stream._connection._client._subs.values():
        subscription._pending_bytes_limit = 1000
    with caplog.at_level(logging.DEBUG):
        assert [message.sequence for message in read_all(stream, batch_size=500)] == list(range(1, 501))
    assert any("slow consumer" in record.getMessage() for record in caplog.records), "nothing was dropped"


def test_a_read_leaves_nothing_on_the_server(stream: JetStream) -> None:
    publish(stream, 50)
    reading = stream.read("RL_TRAJECTORIES", 1, 50, 10)
    next(reading)
    assert stream.state("RL_TRAJECTORIES").consumers == 0


@pytest.mark.parametrize(
    "headers",
    [
        {"Status": "503"},
        {"Status": "404", "Description": "No Messages"},
        {"Nats-Sequence": "77", "Nats-Subject": "other", "Nats-Last-Sequence": "5", "Nats-Time-Stamp": "never"},
    ],
    ids=["no-responder", "no-messages", "sequence"],
)
def test_headers_that_imitate_the_server_deceive_no_reader(stream: JetStream, headers: dict[str, str]) -> None:
    for number in range(3):
        stream.publish(OUTCOME, b"", f"id-{number}", headers)
    stored = read_all(stream, "RL_SERVING")
    assert [(message.sequence, message.subject, message.data) for message in stored] == [
        (sequence, OUTCOME, b"") for sequence in (1, 2, 3)
    ]
    wait_for_pending(stream, 3)
    deliveries = stream.fetch("RL_SERVING", "serving_outcomes", 10, 0)
    assert [delivery.message.sequence for delivery in deliveries] == [1, 2, 3]


def test_a_consumer_hands_out_what_is_pending_and_nothing_after_it_was_acknowledged(stream: JetStream) -> None:
    publish(stream, 7, OUTCOME)
    wait_for_pending(stream, 7)
    first = stream.fetch("RL_SERVING", "serving_outcomes", 5, 0)
    rest = stream.fetch("RL_SERVING", "serving_outcomes", 5, 0)
    assert [[d.message.sequence for d in batch] for batch in (first, rest)] == [[1, 2, 3, 4, 5], [6, 7]]
    assert {delivery.attempt for delivery in first} == {1}
    assert [delivery.message for delivery in first] == read_all(stream, "RL_SERVING")[:5]
    stream.acknowledge(first)
    for delivery in rest:
        delivery.ack()
        delivery.ack()
    consumer = stream.request("CONSUMER.INFO.RL_SERVING.serving_outcomes")
    assert (consumer["num_ack_pending"], consumer["num_pending"]) == (0, 0)
    assert stream.fetch("RL_SERVING", "serving_outcomes", 5, 0.05) == []


def test_a_message_that_was_not_done_comes_again_and_a_hopeless_one_does_not(stream: JetStream) -> None:
    publish(stream, 3, OUTCOME)
    wait_for_pending(stream, 3)
    done, again, hopeless = stream.fetch("RL_SERVING", "serving_outcomes", 3, 0)
    done.ack()
    hopeless.term()
    again.nak(delay_seconds=0.3)
    assert stream.fetch("RL_SERVING", "serving_outcomes", 3, 0) == []
    (second,) = stream.fetch("RL_SERVING", "serving_outcomes", 3, 10)
    assert (second.message, second.attempt) == (again.message, 2)
    second.nak()
    (third,) = stream.fetch("RL_SERVING", "serving_outcomes", 3, 10)
    assert (third.message, third.attempt) == (again.message, 3)


def test_a_fetch_waits_for_the_first_message(stream: JetStream) -> None:
    with ThreadPoolExecutor() as thread:
        waiting = thread.submit(stream.fetch, "RL_SERVING", "serving_outcomes", 5, 60)
        wait_until(lambda: stream.request("CONSUMER.INFO.RL_SERVING.serving_outcomes")["num_waiting"] == 1)
        stream.publish(OUTCOME, b"late", "id-1")
        (delivery,) = waiting.result()
    assert delivery.message.data == b"late"


def test_an_unknown_stream_consumer_or_subject_says_what_to_do(stream: JetStream) -> None:
    attempts: list[tuple[Callable[[], object], str]] = [
        (lambda: stream.state("NONE"), "the stream NONE does not exist"),
        (lambda: stream.gaps("NONE", 1, 9), "the stream NONE does not exist"),
        (lambda: stream.get("NONE", 1), "the stream NONE does not exist"),
        (lambda: stream.erase("NONE", 1), "the stream NONE does not exist"),
        (lambda: stream.fetch("NONE", "serving_outcomes", 1, 0), "the stream NONE does not exist"),
        (lambda: stream.fetch("RL_SERVING", "none", 1, 0), "the consumer none of the stream RL_SERVING does not"),
        (lambda: stream.publish("agent.rl.unknown.v1", b"", "id"), "takes agent.rl.unknown.v1"),
    ]
    for attempt, text in attempts:
        with pytest.raises(StreamMissing, match=text) as refusal:
            attempt()
        assert "rl-pipeline streams bootstrap" in str(refusal.value)


def test_a_stream_that_forbids_direct_reads_says_how_to_allow_them(stream: JetStream) -> None:
    stream.request("STREAM.CREATE.CLOSED", {"name": "CLOSED", "subjects": ["closed"]})
    stream.publish("closed", b"", "id")
    with pytest.raises(PipelineError, match="nats stream edit CLOSED --allow-direct"):
        list(stream.read("CLOSED", 1, 1, 1))


def test_an_oversize_message_names_the_limit_and_the_connection_lives_on(stream: JetStream) -> None:
    megabyte = 2**20
    # The headers count too: with them, the last one is too large.
    for size in (2 * megabyte, megabyte + 1, megabyte - 5):
        with pytest.raises(PublishRefused, match=r"1048576 .* claim check"):
            stream.publish(TRAJECTORY, b"x" * size, "id-1")
    stream.request("STREAM.CREATE.TINY", {"name": "TINY", "subjects": ["tiny"], "max_msg_size": 100})
    with pytest.raises(PublishRefused, match=r"200 bytes are more than max_msg_size of the stream TINY.* claim check"):
        stream.publish("tiny", b"x" * 200, "id-2")
    assert stream.publish(TRAJECTORY, b"x" * (megabyte - 200), "id-1").sequence == 1


@pytest.mark.parametrize(("subject", "message_id"), [("", "id"), ("two words", "id"), ("a\r\nPUB b 0", "id")])
def test_a_subject_that_is_none_is_refused(stream: JetStream, subject: str, message_id: str) -> None:
    with pytest.raises(PublishRefused, match="cannot be sent"):
        stream.publish(subject, b"", message_id)


@pytest.mark.parametrize("message_id", ["", " padded", "two\nlines"])
def test_a_message_id_that_would_arrive_changed_is_refused(stream: JetStream, message_id: str) -> None:
    with pytest.raises(PublishRefused, match="message id"):
        stream.publish(TRAJECTORY, b"", message_id)


def test_the_refused_messages_of_a_batch_are_named_and_the_others_are_stored(stream: JetStream) -> None:
    good = [OutgoingMessage(TRAJECTORY, b"x", f"good-{index}") for index in range(300)]
    large = OutgoingMessage(TRAJECTORY, b"x" * 2**21, "large")
    lost = OutgoingMessage("agent.rl.unknown.v1", b"x", "lost")
    with pytest.raises(PublishIncomplete, match="2 of 302 messages were not acknowledged") as incomplete:
        stream.publish_many([*good[:150], large, lost, *good[150:]])
    assert {name: type(error) for name, error in incomplete.value.failures.items()} == {
        "large": PublishRefused,
        "lost": StreamMissing,
    }
    assert sorted(message.message_id or "" for message in read_all(stream)) == sorted(m.message_id for m in good)
