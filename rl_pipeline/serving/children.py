"""A model server as a child process of the gateway: started, watched, started again, and never left behind."""

import asyncio
import concurrent.futures
import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from rl_pipeline.deployment.state import ServedModel
from rl_pipeline.errors import PipelineError

FIRST_BACKOFF_SECONDS = 0.5
LONGEST_BACKOFF_SECONDS = 30.0
STEADY_SECONDS = 60.0
"""A child that served so long was well: its next death starts again at the first backoff."""
START_SECONDS = 1800.0
STOP_SECONDS = 15.0

_log = logging.getLogger(__name__)


class ChildFailed(PipelineError):
    """A model server ended, or did not begin to serve."""


class Child:
    """Keeps one model served on a port of its own. `on_port` hears the port, and None when nobody listens there."""

    def __init__(
        self,
        model: ServedModel,
        program: Sequence[str],
        fetch: Callable[[ServedModel], Path],
        log: Path,
        on_port: Callable[[int | None], None],
    ) -> None:
        self.problem: str | None = None
        self._model = model
        self._program = program
        self._fetch = fetch
        self._log = log
        self._on_port = on_port

    async def keep(self) -> None:
        """Until cancelled; then the child is stopped."""
        backoff = FIRST_BACKOFF_SECONDS
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            try:
                await self._serve(await self._fetched())
            except (PipelineError, OSError) as problem:
                self.problem = str(problem)
                self._on_port(None)
            if loop.time() - started > STEADY_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            _log.warning("%s is not served, next try in %.1f s: %s", self._model.model_id, backoff, self.problem)
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, LONGEST_BACKOFF_SECONDS)

    async def _fetched(self) -> Path:
        """Where the model's files are. Fetched by a thread that a stop does not wait for, however long it takes."""
        fetched: concurrent.futures.Future[Path] = concurrent.futures.Future()

        def fetch() -> None:
            fetched.set_running_or_notify_cancel()
            try:
                fetched.set_result(self._fetch(self._model))
            except BaseException as error:  # noqa: BLE001  # it is raised where the result is awaited
                fetched.set_exception(error)

        threading.Thread(target=fetch, name=f"fetch {self._model.model_id}", daemon=True).start()
        return await asyncio.wrap_future(fetched)

    async def _serve(self, directory: Path) -> None:
        """From a start to an end; always raises `ChildFailed`."""
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *self._program,
                *("--model", str(directory), "--name", self._model.model_id),
                # The child ends when this pipe does, however the gateway ends.
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._on_port(await self._port_of(process))
            self.problem = None
            code = await process.wait()
            raise ChildFailed(f"its model server ended with exit code {code}: see {self._log}")
        finally:
            self._on_port(None)
            await _end(process)

    async def _port_of(self, process: asyncio.subprocess.Process) -> int:
        if process.stdout is None:
            raise ChildFailed("its model server has no output: start it with a pipe")
        try:
            async with asyncio.timeout(START_SECONDS):
                words = (await process.stdout.readline()).split()
        except TimeoutError:
            raise ChildFailed(f"its model server did not begin to serve: see {self._log}") from None
        if len(words) != 2 or words[0] != b"ready":
            raise ChildFailed(f"its model server ended before it served: see {self._log}")
        return int(words[1])


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
