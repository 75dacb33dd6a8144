"""One gateway: what it follows, whom it asks, which sessions it has. Everything here happens in one event loop."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

from rl_pipeline.deployment.state import DesiredState, ServedModel
from rl_pipeline.deployment.windows import observed_seconds
from rl_pipeline.errors import PipelineError
from rl_pipeline.serving.backends import Backends
from rl_pipeline.serving.configuration import GatewayConfiguration
from rl_pipeline.serving.failed_sessions import FailedSessions
from rl_pipeline.serving.figures import FiguresByModel
from rl_pipeline.serving.following import Following, Refused, ToKeep
from rl_pipeline.serving.outbox import Outbox, OutcomePublisher
from rl_pipeline.serving.remembering import Memory
from rl_pipeline.serving.routing import Routing
from rl_pipeline.serving.sessions import Sessions
from rl_pipeline.serving.upstream import Patience
from rl_pipeline.serving.watching import StateWatcher

SWEEP_SECONDS = 0.25
LOOK_SECONDS = 1.0
"""How long a starting gateway waits to learn which endpoints are there, so that its first split is the right one."""
KEEP_SECONDS = 1.0
"""How often what could not be written is tried again."""
_FLUSH_SECONDS = 5.0

_log = logging.getLogger(__name__)


class NotKept(PipelineError):
    """A change holds, and would be forgotten by a restart."""


class Gateway:
    """Everything but HTTP. Changes hold in memory at once; the methods that make them return when they are durable."""

    def __init__(self, configuration: GatewayConfiguration) -> None:
        """Raises `KeptFileUnreadable`."""
        self.configuration = configuration
        directory = configuration.data_directory
        self.following = Following(directory)
        self.figures = FiguresByModel()
        self.memory = Memory(observed_seconds(configuration.session_idle_seconds))
        self.outbox = Outbox(directory / "outbox", configuration.name, configuration.session_key)
        self.sessions = Sessions(
            self.outbox.tell,
            self.outbox.remember,
            self.figures,
            self.memory,
            FailedSessions(directory / "failed-sessions", configuration.session_key),
            idle_seconds=configuration.session_idle_seconds,
        )
        patience = Patience(configuration.connect_seconds, configuration.silence_seconds, configuration.request_seconds)
        self.backends = Backends(
            patience, configuration.model_server, configuration.fetch, directory / "logs", self.reroute
        )
        self.routing: Routing | None = None
        self.is_stopping = False
        self.watcher: StateWatcher | None = None
        self.publisher: OutcomePublisher | None = None
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="state")
        self._tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Serve what was last known, and begin to follow. NATS need not be there."""
        self._serve_models()
        await self.backends.look(LOOK_SECONDS)
        self._tasks = [asyncio.create_task(self._sweep()), asyncio.create_task(self._keep_the_unkept())]
        if self.configuration.open_nats:
            loop = asyncio.get_running_loop()
            self.watcher = StateWatcher(
                self.configuration.open_nats,
                lambda state: asyncio.run_coroutine_threadsafe(self._follow_quietly(state), loop).result(),
            )
            self.watcher.start()
            self.publisher = OutcomePublisher(self.outbox, self.configuration.open_nats)
            self.publisher.start()

    async def end(self) -> None:
        """Tell of the sessions that are left, stop the children, and leave everything durable."""
        for task in self._tasks:
            task.cancel()
        if self.watcher:
            await asyncio.to_thread(self.watcher.stop, _FLUSH_SECONDS)
        self.sessions.end_all()
        if self.publisher:
            await asyncio.to_thread(self.publisher.stop, _FLUSH_SECONDS)
        self.outbox.close()
        await self.backends.end()
        self._writer.shutdown()

    async def follow(self, state: DesiredState) -> bool:
        """Go by the state if it is newer; whether it was. Raises `Refused` and `NotKept`."""
        before = self.following.generation
        changes = self.following.follow(state, datetime.now(UTC))
        is_newer = self.following.generation > before
        if is_newer:
            self._serve_models()
        await self._keep(changes)
        return is_newer

    async def fence(self, model_id: str, reason: str) -> None:
        """Give the model nothing from now on. Raises `Refused` and `NotKept`."""
        changes = self.following.fence(model_id, reason, datetime.now(UTC))
        self._serve_models()
        await self._keep(changes)

    async def register(self, model: ServedModel) -> None:
        """Be ready to serve the model. Raises `Refused` and `NotKept`."""
        changes = self.following.register(model)
        self._serve_models()
        await self._keep(changes)

    def reroute(self) -> None:
        """Route by what is known now."""
        self.routing = self.following.routing(self.backends.not_ready)

    def _serve_models(self) -> None:
        models = self.following.models()
        self.backends.serve(models)
        self.reroute()
        self.figures.forget_all_but(models)

    async def _keep(self, changes: Sequence[ToKeep]) -> None:
        loop = asyncio.get_running_loop()
        # One thread writes all files in the order of the changes, also for a caller that hangs up meanwhile.
        writing = [loop.run_in_executor(self._writer, self.following.keep, change) for change in changes]
        results = await asyncio.shield(asyncio.gather(*writing, return_exceptions=True))
        for change, error in zip(changes, results, strict=True):
            if isinstance(error, OSError):
                raise NotKept(
                    f"it holds, but {change.path} could not be written ({error.strerror}) and a restart would "
                    "forget it: make room on the disk and repeat the call"
                ) from error
            if error is not None:
                raise error

    async def _keep_the_unkept(self) -> None:
        """What came by way of NATS is not repeated by anybody."""
        while True:
            await asyncio.sleep(KEEP_SECONDS)
            with contextlib.suppress(NotKept):  # whoever made the change was told, and `/health` says it
                await self._keep(self.following.unkept())

    async def _follow_quietly(self, state: DesiredState) -> None:
        if state.generation < self.following.generation:
            _log.warning(
                "NATS has generation %d and this gateway follows %d: restore the desired state",
                state.generation,
                self.following.generation,
            )
        try:
            await self.follow(state)
        except (Refused, NotKept) as problem:
            _log.error("generation %d: %s", state.generation, problem)

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.sessions.sweep(time.time())
            self.backends.close_idle(loop.time())
