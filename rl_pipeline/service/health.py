"""How everything behind the service is, asked and not assumed: what answers, how fast, what to do about the rest."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

import aiohttp

from rl_pipeline.errors import PipelineError
from rl_pipeline.service.answers import ComponentAnswer, HealthAnswer
from rl_pipeline.service.connections import Connections
from rl_pipeline.service.dagster_api import SENSOR, DagsterApi
from rl_pipeline.stores.objects import Objects
from rl_pipeline.training.jobs.refusals import TRAINING_STREAM

# Somebody who asks every second does not make the servers answer every second.
_FRESH_SECONDS = 2.0
_PATIENCE_SECONDS = 8.0
_TIMEOUT = aiohttp.ClientTimeout(total=3)
NEEDED = "warehouse"
"""Without it no question can be answered; without the others some cannot, or answers come later."""

Check = Callable[[], Awaitable[str]]
"""Says how a component is, or raises a `PipelineError` that says what to do."""


class ComponentAway(PipelineError):
    """A component does not answer, or says that it is not well."""


class ComponentPoorly(PipelineError):
    """A component answers, and cannot do all that is expected of it."""


class HealthDesk:
    """Asks all components at once, for whoever asks within two seconds."""

    def __init__(self, checks: Mapping[str, Check], version: str, clock: Callable[[], datetime]) -> None:
        self._checks = checks
        self._version = version
        self._clock = clock
        self._known: tuple[float, HealthAnswer] | None = None
        self._asking = asyncio.Lock()

    async def health(self) -> HealthAnswer:
        """How everything is. Never raises."""
        async with self._asking:
            if self._known is None or time.monotonic() - self._known[0] > _FRESH_SECONDS:
                found = await asyncio.gather(*(_checked(check) for check in self._checks.values()))
                components = dict(zip(self._checks, found, strict=True))
                self._known = time.monotonic(), self._summed_up(components)
            return self._known[1]

    def _summed_up(self, components: dict[str, ComponentAnswer]) -> HealthAnswer:
        poorly = any(component.status != "ok" for component in components.values())
        lost = components[NEEDED].status == "away"
        return HealthAnswer(
            status="unavailable" if lost else "degraded" if poorly else "ok",
            version=self._version,
            checked_at=self._clock(),
            components=components,
        )


async def _checked(check: Check) -> ComponentAnswer:
    began = time.perf_counter()
    try:
        detail = await asyncio.wait_for(check(), _PATIENCE_SECONDS)
    except PipelineError as trouble:
        what, _, next_step = str(trouble).rpartition(": ")
        status = "degraded" if isinstance(trouble, ComponentPoorly) else "away"
        return ComponentAnswer(
            status=status, latency_ms=None, detail=what or next_step, next_step=next_step if what else ""
        )
    except TimeoutError:
        detail = f"no answer within {_PATIENCE_SECONDS:g} s"
        return ComponentAnswer(status="away", latency_ms=None, detail=detail, next_step="see its log, and its load")
    except Exception as unexpected:  # noqa: BLE001  # what one component does must not hide how the others are
        detail = f"it cannot be asked: {type(unexpected).__name__}"
        return ComponentAnswer(status="away", latency_ms=None, detail=detail, next_step="see its log, and its address")
    latency = round(1000 * (time.perf_counter() - began), 1)
    return ComponentAnswer(status="ok", latency_ms=latency, detail=detail, next_step="")


def nats_check(connections: Connections) -> Check:
    """NATS answers, and has the streams."""

    def ask() -> str:
        state = connections.stream().state(TRAINING_STREAM)
        return f"{state.messages} messages in {TRAINING_STREAM}"

    return lambda: asyncio.to_thread(ask)


def warehouse_check(connections: Connections) -> Check:
    """ClickHouse answers, and has the tables."""

    def ask() -> str:
        count = connections.warehouse().query("SELECT count() AS jobs FROM training_jobs FINAL")["jobs"][0]
        return f"{count} training jobs"

    return lambda: asyncio.to_thread(ask)


def objects_check(open_objects: Callable[[], Objects]) -> Check:
    """The store of checkpoints answers."""

    def ask() -> str:
        next(iter(open_objects().list("health/")), None)
        return "it lists its objects"

    return lambda: asyncio.to_thread(ask)


def dagster_check(dagster: DagsterApi) -> Check:
    """Dagster answers, its daemons run, and so does the sensor that takes requests in."""

    async def ask() -> str:
        health = await dagster.health()
        if health.daemons_down:
            raise ComponentPoorly(f"Dagster's {', '.join(health.daemons_down)} is down: start `dagster-daemon run`")
        if not health.sensor_runs:
            why = "is switched off" if health.sensor_runs is False else "is in no code location that loads"
            raise ComponentPoorly(f"the sensor {SENSOR} {why}, so no training starts: switch it on in Dagster's UI")
        return f"its daemons and {SENSOR} run"

    return ask


def gateway_check(http: aiohttp.ClientSession, addresses: list[str]) -> Check:
    """Every gateway answers, and is well."""

    async def ask() -> str:
        states = await asyncio.gather(*(_answer(http, f"{address}/health", "the gateway") for address in addresses))
        for address, (status, told) in zip(addresses, states, strict=True):
            if status >= 500 or told.get("status") not in (None, "ok"):
                raise ComponentPoorly(
                    f"the gateway at {address} is {told.get('status') or status}: see GET /health there"
                )
        if not addresses:
            raise ComponentAway("there is no gateway to ask: set TENSORZERO_BASE_URL")
        return f"{len(addresses)} answer" if len(addresses) > 1 else "it answers"

    return ask


def mlflow_check(http: aiohttp.ClientSession, uri: str) -> Check:
    """MLflow answers, where it is a server."""

    async def ask() -> str:
        if not uri.startswith(("http://", "https://")):
            return "trainings are tracked without a server"
        status, _ = await _answer(http, f"{uri.rstrip('/')}/health", "MLflow")
        if status != 200:
            raise ComponentPoorly(f"MLflow answers with {status}: see its log")
        return "it answers"

    return ask


async def _answer(http: aiohttp.ClientSession, url: str, name: str) -> tuple[int, dict[str, object]]:
    try:
        async with http.get(url, timeout=_TIMEOUT) as answer:
            text = await answer.read()
            told = await answer.json(content_type=None) if text[:1] == b"{" else {}
            return answer.status, told
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as away:
        raise ComponentAway(f"{name} does not answer at {url} ({type(away).__name__}): start it") from away
