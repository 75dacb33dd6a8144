"""Which loopback ports the embedded servers take."""

import contextlib
import fcntl
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from rl_pipeline.errors import PipelineError

LOOPBACK = "127.0.0.1"


class PortOccupied(PipelineError):
    """A port that was asked for belongs to somebody else."""


def is_free(port: int) -> bool:
    """Whether a server could listen on the loopback port now."""
    with socket.socket() as probe:
        # As servers do: a port that only lingers after a closed connection counts as free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def listens(pid: int, port: int) -> bool:
    """Whether it is this process, or a child of it, that listens on the port."""
    try:
        process = psutil.Process(pid)
        family = [process, *process.children(recursive=True)]
        sockets = [connection for member in family for connection in member.net_connections("tcp")]
    except psutil.NoSuchProcess:
        return False
    return any(each.status == psutil.CONN_LISTEN and each.laddr.port == port for each in sockets)


@contextlib.contextmanager
def one_stack_starts_at_a_time() -> Iterator[None]:
    """From the choice of a port to the moment when a server listens on it, no other stack of this user may choose."""
    lock = Path(tempfile.gettempdir()) / f"rl-pipeline-{os.getuid()}.lock"
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def choose_port(setting: str, configured: int | None, usual: int) -> int:
    """The configured port, or else the usual one if it is free, or else any free one.

    Raises `PortOccupied` when the configured port is taken: whoever names a port wants that one.
    """
    if configured is None:
        return usual if is_free(usual) else free_port()
    if not is_free(configured):
        raise PortOccupied(
            f"{setting}={configured} is occupied: stop what listens there, or set {setting} to another port"
        )
    return configured
