"""Several nodes: how a process on another one learns its addresses, and how a signal reaches it.

Neither variables nor signals get there through DeepSpeed's runner, which dies of some signals and cuts others short.
The attempt's directory does, which all nodes share: the launching process keeps `Orders` in it, and every process of
the program runs as `python -m rl_pipeline.training.launching.nodes <orders> <launch> [-m] <program …>`, sends itself
the signals that it reads there, and kills itself when its launch is over or has fallen silent. So nothing is left on a
node, even when the launching machine is gone.
"""

import json
import os
import runpy
import signal
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

ORDERS_FILE = "orders.json"
BEAT_SECONDS = 10.0
LOOK_SECONDS = 1.0
# A shared disk may be away for a while, and the launching machine slow.
SILENCE_SECONDS = 300.0
# Where the program tells how it goes, and as whom. They may hold passwords, so they are not on a command line.
_NATS = ("NATS_URL", "NATS_USER", "NATS_PASSWORD", "NATS_CREDENTIALS_FILE")
_MLFLOW = "MLFLOW_"


class Orders:
    """What the launching process wants of the processes on all nodes; a beating heart as long as it lives."""

    def __init__(
        self, directory: Path, environment: Mapping[str, str], silence_seconds: float = SILENCE_SECONDS
    ) -> None:
        self.launch = uuid.uuid4().hex
        self.path = directory.absolute() / ORDERS_FILE
        self._content: dict[str, Any] = {
            "launch": self.launch,
            "signal": None,
            "silence_seconds": silence_seconds,
            "addresses": {
                name: value for name, value in environment.items() if name in _NATS or name.startswith(_MLFLOW)
            },
        }
        self._writing = threading.Lock()
        self._over = threading.Event()

    def command(self, program: Sequence[str]) -> list[str]:
        """What follows `python` to run the program under these orders."""
        return ["-m", __name__, str(self.path), self.launch, *program]

    def send(self, number: signal.Signals) -> None:
        """Have every process of the program send itself the signal."""
        self._content["signal"] = number.name
        self._write()

    @contextmanager
    def beating(self) -> Iterator[None]:
        """Tell the other nodes that this one is there, until the block ends; after that they need not go on."""
        self._write()
        heart = threading.Thread(target=self._beat, name="orders", daemon=True)
        heart.start()
        try:
            yield
        finally:
            self._over.set()
            heart.join()
            with suppress(OSError):  # silence says the same
                self.send(signal.SIGKILL)

    def _beat(self) -> None:
        while not self._over.wait(BEAT_SECONDS):
            with suppress(OSError):  # the shared disk is away
                self._write()

    def _write(self) -> None:
        with self._writing:
            self._content["written"] = time.time_ns()
            unfinished = self.path.with_suffix(".new")
            unfinished.unlink(missing_ok=True)
            with os.fdopen(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(json.dumps(self._content))
            unfinished.replace(self.path)


def obey(path: Path, launch: str, silence_seconds: float) -> None:
    """Follow the orders, until the process is told to die of them or nobody gives any more."""
    last, heard_at, obeyed = None, time.monotonic(), None
    while time.monotonic() - heard_at < silence_seconds:
        time.sleep(LOOK_SECONDS)
        orders = _read(path)
        if orders is None or orders == last:
            continue
        last, heard_at = orders, time.monotonic()
        if orders["launch"] != launch:
            break
        if orders["signal"] not in {None, obeyed}:
            obeyed = orders["signal"]
            os.kill(os.getpid(), signal.Signals[obeyed])
    os.kill(os.getpid(), signal.SIGKILL)


def _read(path: Path) -> dict[str, Any] | None:
    """None while the shared disk is away."""
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content


def main() -> None:
    """Run the program in this process, which obeys from now on."""
    path, launch, *program = sys.argv[1:]
    orders = json.loads(Path(path).read_bytes())
    os.environ.update(orders["addresses"])
    watching = (Path(path), launch, orders["silence_seconds"])
    threading.Thread(target=obey, args=watching, name="obeys", daemon=True).start()
    if program[0] == "-m":
        sys.argv = program[1:]
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = program
        runpy.run_path(program[0], run_name="__main__")


if __name__ == "__main__":
    main()
