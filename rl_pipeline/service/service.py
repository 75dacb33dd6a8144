"""All that the routes need, in one place: opened before the first request, closed after the last."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache

import aiohttp

from rl_pipeline.collection.publishing import OpenObjects
from rl_pipeline.contracts import Algorithm
from rl_pipeline.deployment.desk import Desk
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.rewards.integrator import RewardSignalIntegrator
from rl_pipeline.rewards.reported import StoredRewardSignals
from rl_pipeline.service.connections import Connections, ServiceStream
from rl_pipeline.service.dagster_api import DagsterApi
from rl_pipeline.service.following import Follower, TrainingNews
from rl_pipeline.service.health import (
    HealthDesk,
    dagster_check,
    gateway_check,
    mlflow_check,
    nats_check,
    objects_check,
    warehouse_check,
)
from rl_pipeline.service.keys import Keyring
from rl_pipeline.service.memory_desk import MemoryConfiguration, MemoryDesk
from rl_pipeline.service.publishing import PublishingDesk
from rl_pipeline.service.replies import QUEUE_GROUP, STATUS_QUERY, answer_query
from rl_pipeline.service.training_desk import TrainingDesk
from rl_pipeline.stores.objects import Objects
from rl_pipeline.stores.warehouse import Warehouse, WarehouseUnavailable

_SECONDS_BETWEEN_LOOKS_AT_KEYS = 2.0
_THREADS = 32


@dataclass(frozen=True)
class ServiceConfiguration:
    """What a service is made of. What opens a store may raise; it is called when the store is needed."""

    keyring: Keyring
    open_stream: Callable[[], ServiceStream]
    open_warehouse: Callable[[], Warehouse]
    open_desk: Callable[[], AbstractContextManager[Desk]]
    open_models: Callable[[], Objects]
    """The store of checkpoints."""
    open_raw_objects: OpenObjects
    """The store of trajectories that are too large for a message."""
    edge_redactor: Callable[[], Redactor | None]
    """Of what callers hand in; None publishes it as it is."""
    redactor: Callable[[], Redactor]
    """Of what is stored without passing ingest."""
    memory: MemoryConfiguration
    reward_weights: Mapping[str, float]
    dagster_url: str
    gateways: list[str]
    mlflow_uri: str
    trajectories: str
    """The stream that ingest reads."""
    training: str
    """The stream of requests and status."""
    streams: Sequence[str]
    """Those whose sizes Prometheus is told."""
    algorithm: Algorithm
    """Of a request that names none."""
    requests_per_second: float
    """Of each key that has no rate of its own."""
    version: str
    host: str = "127.0.0.1"
    port: int = 8100
    on_listening: Callable[[int], None] = field(default=lambda _: None)
    clock: Callable[[], datetime] = field(default=lambda: datetime.now(UTC))


@dataclass
class Service:
    """A running service."""

    configuration: ServiceConfiguration
    connections: Connections
    training: TrainingDesk
    publishing: PublishingDesk
    health: HealthDesk
    memories: MemoryDesk
    redactor: Callable[[], Redactor]
    """Of what is stored without passing ingest. Its rules take a second, once."""

    def now(self) -> datetime:
        """The time."""
        return self.configuration.clock()

    def integrator(self) -> RewardSignalIntegrator:
        """What scores reported tasks. Raises `WarehouseUnavailable`."""
        signals = StoredRewardSignals(self.connections.warehouse(), self.redactor())
        return RewardSignalIntegrator(signals, self.configuration.reward_weights, self.configuration.clock)


@contextlib.asynccontextmanager
async def opened(configuration: ServiceConfiguration) -> AsyncIterator[Service]:
    """The service for the length of the block; it starts whatever is away."""
    loop = asyncio.get_running_loop()
    # One for each core and four more, as Python has it, would be held by a few callers of a store that hangs.
    loop.set_default_executor(ThreadPoolExecutor(_THREADS, "service"))
    connections = Connections(configuration.open_stream, configuration.open_warehouse)
    news = TrainingNews()
    redactor = cache(configuration.redactor)
    memories = MemoryDesk(configuration.memory, connections, redactor, configuration.clock)
    # Nothing of the environment: a proxy for the internet is none for the servers beside us.
    async with aiohttp.ClientSession(trust_env=False) as http:
        dagster = DagsterApi(configuration.dagster_url, http)
        training = TrainingDesk(
            connections,
            news,
            dagster,
            algorithm=configuration.algorithm,
            trajectories=configuration.trajectories,
            clock=configuration.clock,
        )
        publishing = PublishingDesk(connections.stream, configuration.edge_redactor, configuration.open_raw_objects)
        checks = {
            "nats": nats_check(connections),
            "warehouse": warehouse_check(connections),
            "dagster": dagster_check(dagster),
            "gateway": gateway_check(http, configuration.gateways),
            "mlflow": mlflow_check(http, configuration.mlflow_uri),
            "objects": objects_check(configuration.open_models),
        }
        health = HealthDesk(checks, configuration.version, configuration.clock)

        def answer(data: bytes) -> Future[bytes]:
            return asyncio.run_coroutine_threadsafe(answer_query(training, data), loop)

        def answer_queries(stream: ServiceStream) -> None:
            stream.serve(STATUS_QUERY, QUEUE_GROUP, answer)

        follower = Follower(connections.stream, news, answer_queries)
        follower.start()
        # The first caller does not wait for what it takes to load the warehouse's client.
        reaching = loop.run_in_executor(None, _reach, connections)
        remembering = loop.run_in_executor(None, memories.carry_over)
        watching = loop.create_task(_watch_keys(configuration.keyring))
        try:
            yield Service(configuration, connections, training, publishing, health, memories, redactor)
        finally:
            watching.cancel()
            await reaching
            await remembering
            await asyncio.to_thread(follower.stop)
            training.close()
            publishing.close()
            await asyncio.to_thread(memories.close)
            await asyncio.to_thread(connections.close)


def _reach(connections: Connections) -> None:
    with contextlib.suppress(WarehouseUnavailable):
        connections.warehouse()


async def _watch_keys(keyring: Keyring) -> None:
    """Keys that were added, and those that were taken back, count within seconds."""
    while True:
        await asyncio.sleep(_SECONDS_BETWEEN_LOOKS_AT_KEYS)
        keyring.refresh()
