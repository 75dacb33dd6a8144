"""Outcomes on their way to the stream, with crashes and without NATS."""

import os
import threading
from pathlib import Path

import pytest

from rl_pipeline.contracts.serving_outcome import ServingOutcome
from rl_pipeline.embedded.nats_server import running_nats_server
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.redaction.session_names import stored_names
from rl_pipeline.serving import outbox as outbox_module
from rl_pipeline.serving.configuration import Nats
from rl_pipeline.serving.outbox import Outbox, OutcomePublisher, numbers
from rl_pipeline.serving.remembering import Memory
from rl_pipeline.serving.routing import routing_of
from rl_pipeline.serving.sessions import Session
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.jetstream_desired_state import JetStreamDesiredStates
from rl_pipeline.stores.stream import StreamUnavailable
from rl_pipeline.stores.topology import bootstrap
from rl_pipeline_tests.serving.states import OLD, model_at, steady
from rl_pipeline_tests.waiting import wait_until

KEY = RedactionKey("v1", b"a key of gateways, for tests alone")
ROUTING = routing_of(steady(3, model_at(OLD)), OLD, (), ())


def sessions(first: int, count: int) -> list[Session]:
    memory = Memory(60)
    begun = [f"session-{number}" for number in range(first, first + count)]
    return [Session(each, OLD, ROUTING, memory.begin(OLD, ROUTING, 1e9), 1e9) for each in begun]


def told(jetstream: JetStream) -> list[str]:
    """The names of the sessions that were told of, found again by the key."""
    messages = [message for batch in jetstream.read("RL_SERVING", 1, 10**9, 1000) for message in batch]
    names = stored_names([KEY], [f"session-{number}" for number in range(1000)])
    return [names[ServingOutcome.model_validate_json(message.data).session_id] for message in messages]


def nats_of(jetstream: JetStream) -> Nats:
    return Nats(jetstream, JetStreamDesiredStates(jetstream), lambda: None)


def publish(outbox: Outbox, jetstream: JetStream) -> None:
    publisher = OutcomePublisher(outbox, lambda: nats_of(jetstream))
    publisher.start()
    publisher.stop(60)


def test_every_outcome_arrives_once_and_leaves_the_disk(tmp_path: Path, stream: JetStream) -> None:
    outbox = Outbox(tmp_path, "gateway-1", KEY)
    for first in range(0, 500, 50):
        outbox.tell(sessions(first, 50))
    publish(outbox, stream)
    assert told(stream) == [f"session-{number}" for number in range(500)]
    outbox.close()
    publish(Outbox(tmp_path, "gateway-1", KEY), stream)
    assert stream.state("RL_SERVING").messages == 500
    assert len(numbers(tmp_path)) == 1


def test_what_was_published_and_not_noted_is_stored_once(tmp_path: Path, stream: JetStream) -> None:
    outbox = Outbox(tmp_path, "gateway-1", KEY)
    outbox.tell(sessions(0, 20))
    publish(outbox, stream)
    (tmp_path / "published").unlink()
    publish(outbox, stream)
    assert stream.state("RL_SERVING").messages == 20


def test_what_had_begun_when_the_process_was_killed_is_told_by_the_next_and_what_was_told_counts_once(
    tmp_path: Path, stream: JetStream
) -> None:
    killed = Outbox(tmp_path, "gateway-1", KEY)
    killed.remember(sessions(0, 5), 1e9)
    failed = sessions(3, 1)
    failed[0].failed_requests, failed[0].failure = 1, "upstream_status"
    killed.tell(failed)
    with (tmp_path / "begun").open("ab") as file:
        file.write(b"cut short")
    publish(Outbox(tmp_path, "gateway-1", KEY), stream)
    assert told(stream) == [f"session-{number}" for number in (3, 0, 1, 2, 4)]
    first = next(iter(stream.read("RL_SERVING", 1, 1, 1)))[0]
    assert ServingOutcome.model_validate_json(first.data).failed, "the failure stays what it was"
    publish(Outbox(tmp_path, "gateway-1", KEY), stream)
    assert stream.state("RL_SERVING").messages == 5


def test_what_has_begun_is_remembered_for_minutes_and_not_after_a_regular_end(
    tmp_path: Path, stream: JetStream
) -> None:
    outbox = Outbox(tmp_path, "gateway-1", KEY)
    for number in range(4):
        outbox.remember(sessions(number, 1), 1e9 + number * outbox_module.BEGUN_SECONDS)
    publish(Outbox(tmp_path, "gateway-1", KEY), stream)
    assert told(stream) == ["session-2", "session-3"]
    outbox.remember(sessions(7, 1), 2e9)
    outbox.close()
    publish(Outbox(tmp_path, "gateway-1", KEY), stream)
    assert stream.state("RL_SERVING").messages == 2


def test_a_line_that_a_crash_cut_short_is_left_out(tmp_path: Path, stream: JetStream) -> None:
    outbox = Outbox(tmp_path, "gateway-1", KEY)
    outbox.tell(sessions(0, 2))
    (file,) = tmp_path.glob("*.lines")
    file.write_bytes(file.read_bytes()[:-10])
    outbox.close()
    after = Outbox(tmp_path, "gateway-1", KEY)
    after.tell(sessions(5, 1))
    publish(after, stream)
    assert told(stream) == ["session-0", "session-5"]


def test_the_outbox_is_bounded_and_counts_what_it_drops(
    tmp_path: Path, stream: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "FILE_BYTES", 5000)
    monkeypatch.setattr(outbox_module, "MOST_FILES", 3)
    outbox = Outbox(tmp_path, "gateway-1", KEY)
    for number in range(100):
        outbox.tell(sessions(number, 1))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 3 * 5000
    kept = 100 - outbox.dropped
    assert 0 < kept < 100
    publish(outbox, stream)
    assert told(stream) == [f"session-{number}" for number in range(kept)]
    outbox.tell(sessions(200, 1))
    publish(outbox, stream)
    assert told(stream)[-1] == "session-200", "there is room again"


def test_a_full_disk_disturbs_nobody_and_tears_no_line(
    tmp_path: Path, stream: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "000000000001.lines").symlink_to("/dev/full")
    with monkeypatch.context() as patch:
        patch.setattr(outbox_module, "numbers", lambda _: [])
        outbox = Outbox(tmp_path, "gateway-1", KEY)
    outbox.tell(sessions(0, 3))
    assert outbox.dropped == 3
    outbox.tell(sessions(3, 1))
    assert outbox.problem is None
    publish(outbox, stream)
    assert told(stream) == ["session-3"]


def test_a_disk_that_has_no_room_for_a_note_ends_no_publishing(tmp_path: Path, stream: JetStream) -> None:
    outbox = Outbox(tmp_path, "gateway-1", KEY)
    (tmp_path / "published.unfinished").symlink_to("/dev/full")
    publisher = OutcomePublisher(outbox, lambda: nats_of(stream))
    publisher.start()
    try:
        outbox.tell(sessions(0, 3))
        wait_until(lambda: "No space left" in (publisher.problem or ""))
        outbox.tell(sessions(3, 2))
        wait_until(lambda: stream.state("RL_SERVING").messages == 5, "what can be published is")
        (tmp_path / "published.unfinished").unlink()
        wait_until(lambda: publisher.problem is None)
        assert (tmp_path / "published").exists()
    finally:
        publisher.stop(60)
    assert told(stream) == [f"session-{number}" for number in range(5)]


def test_an_outbox_that_cannot_have_a_next_file_counts_what_it_drops_and_goes_on_later(
    tmp_path: Path, stream: JetStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox_module, "FILE_BYTES", 5000)
    outbox = Outbox(tmp_path, "gateway-1", KEY)
    (tmp_path / "000000000002.lines").symlink_to(tmp_path / "gone" / "file")  # cannot be opened
    told_of = 0
    while outbox.problem is None:
        outbox.tell(sessions(told_of, 1))
        told_of += 1
    outbox.tell(sessions(900, 1))
    assert outbox.dropped == 2
    assert outbox.problem == "the outbox cannot be written (No such file or directory): free the disk"
    (tmp_path / "000000000002.lines").unlink()
    ours = [os.open(os.devnull, os.O_RDONLY) for _ in range(3)]
    outbox.tell(sessions(901, 1))
    for each in ours:
        os.close(each)  # nobody else has closed it
    assert outbox.problem is None
    publish(outbox, stream)
    assert told(stream) == [*(f"session-{number}" for number in range(told_of - 1)), "session-901"]


def test_outcomes_wait_until_nats_is_back(tmp_path: Path) -> None:
    with running_nats_server(tmp_path / "nats", sync_always=False) as server:
        with JetStream.connect(server.url) as jetstream:
            bootstrap(jetstream)
        outbox = Outbox(tmp_path / "outbox", "gateway-1", KEY)

        def connected() -> Nats:
            return nats_of(JetStream.connect(server.url, connect_seconds=1, patience_seconds=1))

        server.kill()
        publisher = OutcomePublisher(outbox, connected)
        publisher.start()
        try:
            outbox.tell(sessions(0, 10))
            wait_until(lambda: publisher.problem)
            server.start()
            with JetStream.connect(server.url) as jetstream:
                wait_until(lambda: jetstream.state("RL_SERVING").messages == 10)
            wait_until(lambda: publisher.problem is None)
            server.kill()
            outbox.tell(sessions(10, 10))
            wait_until(lambda: publisher.problem)
            server.start()
            with JetStream.connect(server.url) as jetstream:
                wait_until(lambda: jetstream.state("RL_SERVING").messages == 20)
        finally:
            publisher.stop(60)


def test_telling_never_waits_for_nats(tmp_path: Path) -> None:
    is_asked, is_over = threading.Event(), threading.Event()

    def slow() -> Nats:
        is_asked.set()
        is_over.wait()
        raise StreamUnavailable("it takes for ever: wait")

    outbox = Outbox(tmp_path, "gateway-1", KEY)
    publisher = OutcomePublisher(outbox, slow)
    publisher.start()
    outbox.tell(sessions(0, 10))
    is_asked.wait()
    outbox.tell(sessions(10, 1000))
    assert len((tmp_path / "000000000001.lines").read_bytes().splitlines()) == 1010
    is_over.set()
    publisher.stop(60)
