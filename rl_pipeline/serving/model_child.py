"""Model servers as child processes for the length of a block, for whoever asks models outside the gateway."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from rl_pipeline.serving.children import STOP_SECONDS, ChildFailed
from rl_pipeline.serving.configuration import LOOPBACK


@contextmanager
def served_model(directory: Path, name: str, log: Path) -> Iterator[str]:
    """Serve the model in `directory`, and give the address of its API (`http://…/v1`). Raises `ChildFailed`."""
    with loading_model(directory, name, log) as address:
        yield address()


@contextmanager
def loading_model(directory: Path, name: str, log: Path) -> Iterator[Callable[[], str]]:
    """Start to serve the model, which takes seconds in which others can start as well.

    What is given waits until the model serves, and says at which address. It raises `ChildFailed`.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "rl_pipeline.serving.model_server", "--model", str(directory), "--name", name]
    with log.open("ab") as written:
        # The child ends when its input does, however this process ends.
        child = subprocess.Popen(  # noqa: S603 - the program is our own
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=written, start_new_session=True
        )

    @cache
    def address() -> str:
        words = child.stdout.readline().split() if child.stdout else []
        if len(words) != 2 or words[0] != b"ready":
            raise ChildFailed(f"the model server of {name} ended before it served: see {log}")
        return f"http://{LOOPBACK}:{int(words[1])}/v1"

    try:
        yield address
    finally:
        child.terminate()
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        for pipe in (child.stdin, child.stdout):
            if pipe:
                pipe.close()
