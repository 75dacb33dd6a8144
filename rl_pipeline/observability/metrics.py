"""The pipeline as Prometheus sees it: one collector that reads off the stores what is true.

Nothing is counted in this process. Counters come from the tables of jobs, attempts and the audit, which only grow, and
from `metric_counts`, which only grows where tables do not; so they go on through every restart, whichever process
answers, and count nothing twice. Several processes must be scraped under one address: each tells the whole.

A store that is away is told as such, and its last figures stand: a counter that is missing and comes back has not been
reset, and a scrape that fails would hide that everything else is well. Nor does a scrape wait for a store that is slow:
it has the last figures then, with their age.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from threading import Event, Lock, Thread
from typing import Generic, TypeVar

from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from rl_pipeline.errors import PipelineError
from rl_pipeline.observability.metric_counts import MetricCounts
from rl_pipeline.observability.metric_families import counted_families, gauge
from rl_pipeline.observability.metrics_live import ledger_families, machine_families, stream_families
from rl_pipeline.observability.metrics_models import model_families
from rl_pipeline.observability.metrics_training import training_families
from rl_pipeline.stores.stream import Stream, StreamUnavailable
from rl_pipeline.stores.warehouse import Warehouse, WarehouseUnavailable

FRESH_SECONDS = 5.0
"""Scrapes within so long have the same answer, whoever they are of. It must stay below the interval of the scrapes."""
PATIENCE_SECONDS = 5.0
"""So long a scrape waits for new figures. It must stay below the timeout of the scrapes."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass
class _Group:
    """Figures that come from one source, and the last that it gave."""

    source: str
    read: Callable[[], Iterable[Metric]]
    families: Sequence[Metric] = ()
    is_reachable: bool = True
    problem: str = ""


@dataclass(eq=False)
class PipelineCollector(Collector):
    """Give it to a `CollectorRegistry`. Safe from several threads."""

    open_warehouse: Callable[[], Warehouse]
    """Asked for until it succeeds, and then no more."""
    open_stream: Callable[[], Stream]
    """As the warehouse; with a patience of some seconds, or the loss of NATS is told late."""
    trajectory_stream: str
    training_stream: str
    streams: Sequence[str]
    """Those whose sizes are told."""
    fresh_seconds: float = FRESH_SECONDS
    patience_seconds: float = PATIENCE_SECONDS
    monotonic: Callable[[], float] = time.monotonic
    _lock: Lock = field(default_factory=Lock)
    _reading: Event | None = None
    _told: tuple[float, Sequence[Metric]] | None = None
    """The last figures, and when they were asked for."""

    def __post_init__(self) -> None:
        """Nothing is opened yet."""
        tables = _Once(self.open_warehouse)
        messages = _Once(self.open_stream)
        counts = _Once(lambda: MetricCounts(tables()))
        self._groups = (
            _Group("warehouse", lambda: counted_families(counts().totals())),
            _Group("warehouse", lambda: training_families(tables())),
            _Group("warehouse", lambda: model_families(tables(), self.trajectory_stream)),
            _Group("warehouse", lambda: ledger_families(tables())),
            _Group("nats", lambda: stream_families(messages(), self.streams, self.training_stream)),
        )

    def collect(self) -> Iterator[Metric]:
        """What Prometheus's client asks a collector."""
        self._begin_reading().wait(self.patience_seconds)
        told = self._told
        if told is not None:
            at, families = told
            yield from families
            yield gauge("agent_rl_metrics_age_seconds", "Of these figures.", (), {(): self.monotonic() - at})
        yield from machine_families()

    def _begin_reading(self) -> Event:
        """The reading that goes on, or the last one while that is fresh, or a new one."""
        with self._lock:
            is_over = self._reading is None or self._reading.is_set()
            is_fresh = self._told is not None and self.monotonic() - self._told[0] < self.fresh_seconds
            if self._reading is None or (is_over and not is_fresh):
                self._reading = Event()
                # Nobody waits for it at the end of the process: a store may be silent for minutes.
                Thread(target=self._read, args=(self._reading,), name="metrics", daemon=True).start()
            return self._reading

    def _read(self, done: Event) -> None:
        began = self.monotonic()
        try:
            silent: dict[str, str] = {}
            for group in self._groups:
                # A server that hangs takes its whole patience to say nothing: once a reading is enough.
                if group.source in silent:
                    group.is_reachable, group.problem = False, silent[group.source]
                elif not self._refresh(group):
                    silent[group.source] = group.problem
            away = {group.source for group in self._groups if not group.is_reachable}
            families = [family for group in self._groups for family in group.families]
            self._told = began, [*families, *self._standing(away, self.monotonic() - began)]
        finally:
            done.set()

    def _standing(self, away: AbstractSet[str], seconds: float) -> Iterator[Metric]:
        for source, name in (("nats", "NATS"), ("warehouse", "ClickHouse")):
            yield gauge(
                f"agent_rl_{source}_reachable",
                f"Whether {name} answers the service; while it does not, its figures are the last it gave.",
                (),
                {(): float(source not in away)},
            )
        yield gauge("agent_rl_metrics_read_seconds", "How long it took to read all of this.", (), {(): seconds})
        broken = sum(bool(group.problem) and group.is_reachable for group in self._groups)
        yield gauge("agent_rl_metrics_broken", "Sources whose figures cannot be read: see the log.", (), {(): broken})

    def _refresh(self, group: _Group) -> bool:
        """Read it anew, if that can be; whether there was an answer, of whatever kind."""
        before, is_answered = group.problem, True
        try:
            group.families = tuple(group.read())
        except PipelineError as away:
            group.is_reachable, group.problem = False, str(away)
            is_answered = not isinstance(away, WarehouseUnavailable | StreamUnavailable)
        except Exception as broken:  # noqa: BLE001  # one that cannot be read must not hide the others
            group.is_reachable, group.problem = True, type(broken).__name__
            if group.problem != before:
                _log.exception("figures of the %s cannot be read, and stay as they are", group.source)
            return True
        else:
            group.is_reachable, group.problem = True, ""
        if group.problem and group.problem != before:
            _log.warning("figures of the %s stay as they are: %s", group.source, group.problem)
        return is_answered


class _Once(Generic[T]):
    """Opens something when it is first asked for, and again until that succeeds."""

    def __init__(self, open_it: Callable[[], T]) -> None:
        self._open = open_it
        self._opened: T | None = None

    def __call__(self) -> T:
        if self._opened is None:
            self._opened = self._open()
        return self._opened
