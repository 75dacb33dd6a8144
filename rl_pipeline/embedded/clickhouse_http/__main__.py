"""Start the front: check what it needs, open the engine, say READY, serve until SIGTERM or SIGINT."""

import fcntl
import re
import signal
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from threading import Event, Thread

from rl_pipeline.embedded.clickhouse_http.engine import Engine
from rl_pipeline.embedded.clickhouse_http.errors import EngineError
from rl_pipeline.embedded.clickhouse_http.server import Front
from rl_pipeline.errors import PipelineError


class CannotStart(PipelineError):
    """The front could not start; nothing was written."""


def main() -> int:
    parser = ArgumentParser(prog="python -m rl_pipeline.embedded.clickhouse_http", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="the engine's data directory; made if it is missing")
    parser.add_argument("--port", type=int, required=True, help="the port to listen on; 0 takes a free one")
    parser.add_argument("--host", default="127.0.0.1", help="the address to listen on; who reaches it is served")
    arguments = parser.parse_args()
    try:
        run(arguments.data, arguments.host, arguments.port)
    except CannotStart as error:
        print(error, file=sys.stderr)  # noqa: T201  # the command's own report
        return 1
    return 0


def run(directory: Path, host: str, port: int) -> None:
    """Serve `directory` on the address; returns after a signal, when every request is answered."""
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    # The port first: whoever cannot have it must not touch the directory.
    front = _bind(host, port)
    _check_directory(directory)
    engine = _open(directory)
    front.server_activate()
    serving = Thread(target=front.serve, args=(engine,), name="accept")
    serving.start()
    print(f"READY http://{host}:{front.server_port}", flush=True)  # noqa: T201  # what whoever started it waits for
    stop.wait()
    front.stop()
    serving.join()
    engine.close()


def _bind(host: str, port: int) -> Front:
    try:
        return Front(host, port)
    except (OSError, OverflowError) as error:
        reason = getattr(error, "strerror", None) or "there is no such port"
        raise CannotStart(f"cannot listen on {host}:{port}: {reason}; free it or choose another port") from error


def _check_directory(directory: Path) -> None:
    if "?" in str(directory):
        raise CannotStart(
            f"cannot use {directory}: the engine takes no path with a question mark; choose another directory"
        )
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise CannotStart(
            f"cannot write to {directory}: {error.strerror}; make it writable or choose another directory"
        ) from error
    _refuse_a_held_directory(directory)


def _refuse_a_held_directory(directory: Path) -> None:
    """The engine's own lock, tried first, to say who holds it; the engine still takes it for itself."""
    status = directory / "status"
    if not status.exists():
        return
    with status.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            found = re.search(r"PID: (\d+)", file.read())
            holder = f"process {found.group(1)}" if found else "another process"
            raise CannotStart(
                f"cannot use {directory}: {holder} holds it; stop that process or choose another directory"
            ) from error


def _open(directory: Path) -> Engine:
    try:
        return Engine(directory.resolve())
    except EngineError as error:
        reason = str(error).splitlines()[0][:300]
        raise CannotStart(f"the engine cannot open {directory}: {reason}; choose another directory") from error


if __name__ == "__main__":
    sys.exit(main())
