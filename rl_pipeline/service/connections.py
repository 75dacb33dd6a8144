"""The stores behind the service, reached when they are asked: it starts, and goes on, whichever of them is away."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

from rl_pipeline.stores.stream import Stream, StreamUnavailable
from rl_pipeline.stores.warehouse import Warehouse

# A connection that was just refused is not tried again by every request.
_PAUSE_SECONDS = 1.0


class ServiceStream(Stream, Protocol):
    """The stream, over a connection that can answer requests too."""

    def serve(self, subject: str, queue_group: str, answer: Callable[[bytes], Future[bytes]]) -> Callable[[], None]:
        """See `JetStream.serve`."""

    def close(self) -> None:
        """Close the connection."""


class Connections:
    """One connection to NATS and one to the warehouse, opened on demand and kept. Threads may share it.

    Both come back by themselves once they were open; until then each call tries again.
    """

    def __init__(self, open_stream: Callable[[], ServiceStream], open_warehouse: Callable[[], Warehouse]) -> None:
        self._open_stream = open_stream
        self._open_warehouse = open_warehouse
        self._stream: ServiceStream | None = None
        self._warehouse: Warehouse | None = None
        self._refused: tuple[float, StreamUnavailable] | None = None
        self._opening_stream = threading.Lock()
        self._opening_warehouse = threading.Lock()

    def stream(self) -> ServiceStream:
        """The stream. Raises `StreamUnavailable` and `StreamDenied`."""
        with self._opening_stream:
            if self._stream is None:
                if self._refused and time.monotonic() - self._refused[0] < _PAUSE_SECONDS:
                    raise self._refused[1]
                try:
                    self._stream = self._open_stream()
                except StreamUnavailable as away:
                    self._refused = time.monotonic(), away
                    raise
            return self._stream

    def warehouse(self) -> Warehouse:
        """The warehouse. Raises `WarehouseUnavailable`."""
        with self._opening_warehouse:
            if self._warehouse is None:
                self._warehouse = self._open_warehouse()
            return self._warehouse

    def close(self) -> None:
        """Close what is open."""
        if self._stream is not None:
            self._stream.close()
        if self._warehouse is not None:
            self._warehouse.close()
