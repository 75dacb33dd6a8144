"""The memories behind the service: opened when the first is asked for, or a moment after the start, and kept level."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rl_pipeline.errors import PipelineError
from rl_pipeline.memory.consolidating import WINDOW_DAYS, Wording
from rl_pipeline.memory.embedding import Embedder, embedding_by, unembedded
from rl_pipeline.memory.query import Weights
from rl_pipeline.memory.recall import Recall
from rl_pipeline.memory.rows import RETENTION
from rl_pipeline.memory.system import IntegratedMemorySystem, carry_over
from rl_pipeline.memory.telling import MemoryTeller
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.service.connections import Connections
from rl_pipeline.stores.agent_memories import AgentMemories

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MemoryConfiguration:
    """What the memories of a service are made of."""

    open_memories: Callable[[], AgentMemories]
    weights: Weights = field(default_factory=Weights)
    open_embedder: Callable[[], Embedder | None] = lambda: None
    wording: Wording | None = None
    retention: timedelta = RETENTION
    window_days: int = WINDOW_DAYS


class MemoryDesk:
    """Opens the memories once. Threads may share it."""

    def __init__(
        self,
        configuration: MemoryConfiguration,
        connections: Connections,
        redactor: Callable[[], Redactor],
        clock: Callable[[], datetime],
    ) -> None:
        self._configuration = configuration
        self._connections = connections
        self._redactor = redactor
        self._clock = clock
        self._opening = threading.Lock()
        self._system: IntegratedMemorySystem | None = None

    def system(self) -> IntegratedMemorySystem:
        """The memories. Raises `MemoriesUnavailable`, and tries again when it is asked again."""
        with self._opening:
            if self._system is None:
                self._system = self._opened()
            return self._system

    def carry_over(self) -> None:
        """Bring what the store lacks from the warehouse; where either is away, that is left to the next start."""
        try:
            embedder = self._configuration.open_embedder()
            embed = embedding_by(embedder) if embedder else unembedded
            memories = self.system().recall.memories
            if missing := carry_over(self._connections.warehouse(), memories, embed):
                _log.info("%d memories were brought over from the warehouse", missing)
        except PipelineError as away:
            _log.warning("no memories were brought over from the warehouse: %s", away)

    def close(self) -> None:
        """Keep what waits, and end."""
        if self._system is not None:
            self._system.close()
            self._system.recall.memories.close()

    def _opened(self) -> IntegratedMemorySystem:
        configuration = self._configuration
        embedder = configuration.open_embedder()
        embed = embedding_by(embedder) if embedder else unembedded
        memories = configuration.open_memories()
        recall = Recall(memories, self._clock, weights=configuration.weights, embedder=embedder)
        recall.refresh()
        recall.keep_level()
        warehouse = self._connections.warehouse
        teller = MemoryTeller(
            warehouse, memories, self._redactor, self._clock, retention=configuration.retention, embed=embed
        )
        return IntegratedMemorySystem(
            warehouse,
            recall,
            teller,
            self._clock,
            wording=configuration.wording,
            embed=embed,
            retention=configuration.retention,
            window_days=configuration.window_days,
        )
