"""What the stream port does when servers are absent, die, come back, or deny."""

import logging
import multiprocessing
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rl_pipeline.embedded.nats_server import NatsServer, running_nats_server
from rl_pipeline.embedded.ports import LOOPBACK, free_port
from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.stream import OutgoingMessage, PublishIncomplete, StreamDenied, StreamUnavailable
from rl_pipeline.stores.topology import TRAJECTORIES, bootstrap
from rl_pipeline_tests.fixtures.nats import cluster_url, remove_all_streams
from rl_pipeline_tests.waiting import wait_until

TRAJECTORY = "agent.rl.trajectory.v1"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server of the test's own, to be killed; it syncs every message before it acknowledges."""
    with running_nats_server(tmp_path) as server:
        yield server


def messages(count: int, before: Callable[[int], None] = lambda _: None) -> Iterator[OutgoingMessage]:
    for index in range(count):
        before(index)
        yield OutgoingMessage(TRAJECTORY, f"message {index}".encode(), f"id-{index}")


def stored_ids(stream: JetStream) -> Counter[str | None]:
    return Counter(message.message_id for batch in stream.read("RL_TRAJECTORIES", 1, 10**9, 500) for message in batch)


def test_no_server_is_one_line_that_says_what_to_do_and_quiet(caplog: pytest.LogCaptureFixture) -> None:
    port = free_port()
    with caplog.at_level(logging.INFO), pytest.raises(StreamUnavailable) as refusal:
        JetStream.connect(f"nats://{LOOPBACK}:{port}")
    text = str(refusal.value)
    assert text == (
        f"NATS does not answer at nats://127.0.0.1:{port} (connection refused): "
        "start it with `rl-pipeline up`, or set NATS_URL"
    )
    assert caplog.records == []


def test_a_host_that_says_nothing_is_given_up() -> None:
    with socket.create_server((LOOPBACK, 0)) as silent, pytest.raises(StreamUnavailable, match="rl-pipeline up"):
        JetStream.connect(f"nats://{LOOPBACK}:{silent.getsockname()[1]}", connect_seconds=0.3)


def test_one_living_server_of_several_is_enough(nats_server: NatsServer) -> None:
    with JetStream.connect(f"nats://{LOOPBACK}:{free_port()},{nats_server.url}") as stream:
        assert stream.server_name == nats_server.server_name


@pytest.mark.parametrize("url", ["nats://", "nats://host:port", "http://127.0.0.1:1"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(StreamUnavailable, match="NATS_URL"):
        JetStream.connect(url, connect_seconds=0.3)


def test_no_error_shows_a_password_of_the_address() -> None:
    with pytest.raises(StreamUnavailable) as refusal:
        JetStream.connect(f"nats://somebody:verysecret@{LOOPBACK}:{free_port()}")
    assert "verysecret" not in str(refusal.value)


def test_a_credentials_file_that_is_none_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StreamDenied, match="NATS_CREDENTIALS_FILE"):
        JetStream.connect("nats://127.0.0.1:1", credentials_file=tmp_path / "absent.creds")


def test_a_server_without_jetstream_says_so(tmp_path: Path) -> None:
    with running_nats_server(tmp_path) as server:
        plain = re.sub(r"jetstream \{.*\}", "", server.configuration.read_text(), flags=re.DOTALL)
        server.stop()
        server.configuration.write_text(plain)
        binary = Path(sys.executable).with_name("nats-server")
        with subprocess.Popen([binary, "--config", server.configuration], stderr=subprocess.DEVNULL) as process:
            wait_until(lambda: socket.socket().connect_ex((LOOPBACK, server.port)) == 0)
            with JetStream.connect(server.url) as stream, pytest.raises(StreamUnavailable, match="without JetStream"):
                stream.state("RL_TRAJECTORIES")
            process.terminate()


def test_a_closed_connection_says_so(nats_server: NatsServer) -> None:
    stream = JetStream.connect(nats_server.url)
    stream.close()
    stream.close()
    with pytest.raises(StreamUnavailable, match="is closed: open a new one"):
        stream.state("RL_TRAJECTORIES")


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_is_told_to_open_its_own(stream: JetStream) -> None:
    fork = multiprocessing.get_context("fork")
    texts = fork.SimpleQueue()

    def use_it() -> None:
        try:
            stream.state("RL_TRAJECTORIES")
        except PipelineError as error:
            texts.put(str(error))
        stream.close()

    child = fork.Process(target=use_it)
    child.start()
    child.join()
    assert "another process's: open a new one in this process" in texts.get()
    assert stream.state("RL_TRAJECTORIES").messages == 0


def test_a_read_goes_on_after_the_server_was_killed_and_came_back(server: NatsServer) -> None:
    with JetStream.connect(server.url) as stream:
        bootstrap(stream)
        stream.publish_many(messages(300))
        sequences: list[int] = []
        for number, batch in enumerate(stream.read("RL_TRAJECTORIES", 1, 300, 50)):
            sequences += [message.sequence for message in batch]
            if number == 1:
                server.kill()
                server.start()
        assert sequences == list(range(1, 301))


@pytest.mark.soak
def test_every_acknowledged_message_is_stored_once_although_the_server_is_killed(
    server: NatsServer, soak_count: Callable[[int, int], int], record_property: Callable[[str, object], None]
) -> None:
    kills = soak_count(2, 50)
    between = 300

    def kill_now_and_then(index: int) -> None:
        # Off the groups' boundaries, so that messages are in flight.
        if index % between == between - 70:
            server.kill()
            server.start()

    with JetStream.connect(server.url) as stream:
        bootstrap(stream)
        published = stream.publish_many(messages(kills * between, kill_now_and_then))
        assert stored_ids(stream) == Counter({f"id-{index}": 1 for index in range(kills * between)})
        assert len({answer.sequence for answer in published}) == kills * between
    record_property("kill -9 of the server", kills)
    record_property("messages", kills * between)


@pytest.mark.soak
def test_every_acknowledged_message_is_stored_once_although_leaders_are_killed(
    nats_cluster: list[NatsServer],
    soak_count: Callable[[int, int], int],
    record_property: Callable[[str, object], None],
) -> None:
    kills = soak_count(1, 20)
    between = 400
    with JetStream.connect(cluster_url(nats_cluster)) as stream, JetStream.connect(nats_cluster[0].url) as observer:
        remove_all_streams(stream)
        bootstrap(stream, 3, [TRAJECTORIES])

        def kill_leader_now_and_then(index: int) -> None:
            if index % between == between - 70:
                name = observer.request("STREAM.INFO.RL_TRAJECTORIES")["cluster"]["leader"]
                leader = next(member for member in nats_cluster if member.server_name == name)
                leader.kill()
                leader.start()

        stream.publish_many(messages(kills * between, kill_leader_now_and_then))
        assert stored_ids(stream) == Counter({f"id-{index}": 1 for index in range(kills * between)})
    record_property("kill -9 of leaders", kills)
    record_property("messages", kills * between)


def test_a_server_that_stays_away_ends_every_call_with_what_to_do(server: NatsServer) -> None:
    with JetStream.connect(server.url, patience_seconds=0.2) as stream:
        bootstrap(stream)
        server.kill()
        calls: list[Callable[[], object]] = [
            lambda: stream.publish(TRAJECTORY, b"", "id"),
            lambda: stream.state("RL_TRAJECTORIES"),
        ]
        for call in calls:
            with pytest.raises(StreamUnavailable, match=r"gave no answer .* try again"):
                call()


def test_messages_that_nobody_acknowledged_are_named(server: NatsServer) -> None:
    def kill_at_500(index: int) -> None:
        if index == 500:
            server.kill()

    with JetStream.connect(server.url, patience_seconds=0.2) as stream:
        bootstrap(stream)
        with pytest.raises(PublishIncomplete, match="of 600 messages were not acknowledged") as incomplete:
            stream.publish_many(messages(600, kill_at_500))
    failures = incomplete.value.failures
    assert {type(failure) for failure in failures.values()} == {StreamUnavailable}
    assert {f"id-{index}" for index in range(500, 600)} <= failures.keys() < {f"id-{index}" for index in range(600)}
    server.start()
    with JetStream.connect(server.url) as stream:
        stream.publish_many(message for message in messages(600) if message.message_id in failures)
        assert stored_ids(stream) == Counter({f"id-{index}": 1 for index in range(600)})
