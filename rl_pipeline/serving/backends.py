"""The backends of the models that may have to answer: endpoints elsewhere, and children of this gateway."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rl_pipeline.deployment.state import ServedModel
from rl_pipeline.serving.breaker import Breaker
from rl_pipeline.serving.children import Child
from rl_pipeline.serving.configuration import LOOPBACK
from rl_pipeline.serving.upstream import (
    Address,
    EndpointInvalid,
    GatewayExhausted,
    Patience,
    StartingUpstream,
    Upstream,
    UpstreamFault,
)

PROBE_SECONDS = 0.5

_log = logging.getLogger(__name__)


class Backend:
    """One model's backend. `is_ready` from its first sign of life on: what fails after that is evidence against it."""

    def __init__(self, model: ServedModel, patience: Patience, on_ready: Callable[[], None]) -> None:
        self.model = model
        self.name_there = model.upstream_name or model.model_id
        self.breaker = Breaker()
        self.upstream: Upstream | None = None
        self.is_ready = False
        self.problem: str | None = None
        self.child: Child | None = None
        self.looked = asyncio.Event()
        """Set once it is known whether it is ready."""
        self._patience = patience
        self._on_ready = on_ready
        self._keeping: asyncio.Task[None] | None = None

    def begin(self, program: Sequence[str], fetch: Callable[[ServedModel], Path], logs: Path) -> None:
        """Look for the endpoint, or start the child."""
        if self.model.endpoint:
            keeping = self._find(self.model.endpoint)
        else:
            self.looked.set()
            # The model in service may be asked before it has started: nobody else may take its place for that.
            self.upstream = StartingUpstream(LOOPBACK, self._patience)
            self.child = Child(self.model, program, fetch, logs / f"{self.model.model_id}.log", self._listens)
            keeping = self.child.keep()
        self._keeping = asyncio.create_task(keeping, name=f"backend {self.model.model_id}")
        self._keeping.add_done_callback(_tell_of_crash)

    async def end(self) -> None:
        """Let go of it; requests that are on their way are still answered."""
        if self._keeping:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        if self.upstream:
            self.upstream.close()

    def _listens(self, port: int | None) -> None:
        if port is not None and isinstance(self.upstream, StartingUpstream):
            self.upstream.listens(port)
        else:
            if self.upstream:
                self.upstream.close()
            self.upstream = Upstream(Address(LOOPBACK, port), self._patience) if port else None
        if port:
            self._is_alive()

    async def _find(self, endpoint: str) -> None:
        try:
            self.upstream = Upstream(Address.parse(endpoint), self._patience)
        except EndpointInvalid as invalid:
            self.problem = str(invalid)
            self.looked.set()
            return
        while not self.is_ready:
            try:
                answer = await self.upstream.get("/v1/models")
                answer.cut()
                self.problem = None if answer.status < 500 else f"it answers with status {answer.status}"
            except (UpstreamFault, GatewayExhausted) as fault:
                self.problem = str(fault)
            if self.problem is None:
                self._is_alive()
            self.looked.set()
            await asyncio.sleep(PROBE_SECONDS)

    def _is_alive(self) -> None:
        self.breaker.succeeded()  # what failed before it was there says nothing about it now
        if not self.is_ready:
            self.is_ready = True
            self._on_ready()


def _tell_of_crash(keeping: asyncio.Task[None]) -> None:
    if not keeping.cancelled() and keeping.exception():
        _log.error("%s is kept up no longer", keeping.get_name(), exc_info=keeping.exception())


class Backends:
    """All of them, by model. `on_ready` is called when one is ready for its first session."""

    def __init__(
        self,
        patience: Patience,
        program: Sequence[str],
        fetch: Callable[[ServedModel], Path],
        logs: Path,
        on_ready: Callable[[], None],
    ) -> None:
        self.by_model: dict[str, Backend] = {}
        self._patience = patience
        self._program = program
        self._fetch = fetch
        self._logs = logs
        self._on_ready = on_ready
        self._ending: set[asyncio.Task[None]] = set()

    def serve(self, models: Mapping[str, ServedModel]) -> None:
        """Have a backend for each of the models, and none for any other."""
        for model_id, backend in list(self.by_model.items()):
            if models.get(model_id) != backend.model:
                del self.by_model[model_id]
                task = asyncio.create_task(backend.end())
                self._ending.add(task)
                task.add_done_callback(self._ending.discard)
        for model_id, model in models.items():
            if model_id not in self.by_model:
                self.by_model[model_id] = backend = Backend(model, self._patience, self._on_ready)
                backend.begin(self._program, self._fetch, self._logs)

    @property
    def not_ready(self) -> set[str]:
        """Models whose backends gave no sign of life yet."""
        return {model_id for model_id, backend in self.by_model.items() if not backend.is_ready}

    async def look(self, patience_seconds: float) -> None:
        """Return once it is known of each endpoint whether it is there."""
        looks = [asyncio.create_task(backend.looked.wait()) for backend in self.by_model.values()]
        if looks:
            _, unknown = await asyncio.wait(looks, timeout=patience_seconds)
            for look in unknown:
                look.cancel()

    def close_idle(self, now: float) -> None:
        """Close connections that nobody needed for a while."""
        for backend in self.by_model.values():
            if backend.upstream:
                backend.upstream.close_idle(now)

    async def end(self) -> None:
        """Let go of all of them; children are stopped."""
        self.serve({})
        await asyncio.gather(*self._ending)
