"""`LightningStore`: where traces are kept, by MassGen's name for it."""

import asyncio
import threading
from concurrent.futures import Future
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from rl_pipeline.collection.massgen.config import StoreConfig
from rl_pipeline.collection.massgen.local import LocalTraces
from rl_pipeline.collection.massgen.remote import RemoteTraces
from rl_pipeline.collection.massgen.spans import Span, Trace
from rl_pipeline.collection.outbox import Outbox
from rl_pipeline.collection.outbox.counts import Counting
from rl_pipeline.collection.raw_objects import raw_objects
from rl_pipeline.contracts import Feedback
from rl_pipeline.errors import PipelineError

_outboxes: WeakValueDictionary[tuple[Path, str, str | None], Outbox] = WeakValueDictionary()
_opening = threading.Lock()


class TracesAreElsewhere(PipelineError):
    """A remote store only sends: what it has sent is in the stream, and soon in the warehouse."""


class LightningStore:
    """Keeps traces as files by date and agent, or sends them to the stream."""

    def __init__(self, config: StoreConfig) -> None:
        self.config = config
        self._traces: LocalTraces | RemoteTraces
        if config.type == "remote":
            self._traces = RemoteTraces(config.outbox or _shared_outbox(config))
        else:
            self._traces = LocalTraces(Path(config.path))
        self._counting = Counting()

    @property
    def counting(self) -> Counting:
        """Where faults are counted."""
        return self._traces.outbox.counting if isinstance(self._traces, RemoteTraces) else self._counting

    def begin(self, trace: Trace) -> None:
        """A trace has begun."""
        self._traces.begin(trace)

    def add(self, trace: Trace, span: Span) -> None:
        """A trace has a span more."""
        self._traces.add(trace, span)

    def finish(self, trace: Trace) -> "Future[None]":
        """A trace has ended; the future ends when it is kept."""
        return self._traces.finish(trace)

    def forget(self, trace: Trace) -> None:
        """A trace that has not ended is not to be kept."""
        self._traces.forget(trace)

    async def save_trace(self, trace: Trace) -> bool:
        """Keep a whole trace; whether it could be done."""
        self.begin(trace)
        for span in trace.spans:
            self.add(trace, span)
        try:
            await asyncio.wrap_future(self.finish(trace))
        except OSError:
            return False
        return True

    def give_feedback(self, feedback: Feedback) -> None:
        """Keep what a person thought of a trace."""
        self._traces.give_feedback(feedback)

    def load_trace(self, trace_id: str) -> Trace | None:
        """The trace, if it is here. Raises `TracesAreElsewhere`."""
        local = self._local()
        found = local.index()["traces"].get(trace_id)
        return local.read(found["file"]) if found else None

    def query(
        self,
        *,
        agent_id: str | None = None,
        day: date | None = None,
        status: str | None = None,
        min_reward: float | None = None,
        limit: int | None = None,
    ) -> list[Trace]:
        """The traces that are as asked, newest first; `day` is the UTC day of their start. Raises `TracesAreElsewhere`.

        Of what is not asked for, only the index is read.
        """
        local = self._local()
        wanted = [
            one
            for one in local.index()["traces"].values()
            if agent_id in (None, one["agent_id"])
            and day in (None, datetime.fromtimestamp(one["start_time"], UTC).date())
            and status in (None, one["status"])
            and (min_reward is None or (one["total_reward"] or 0.0) >= min_reward)
        ]
        newest = sorted(wanted, key=lambda one: float(one["start_time"]), reverse=True)
        return [local.read(one["file"]) for one in newest[:limit]]

    def statistics(self) -> dict[str, Any]:
        """How many traces there are, of whom, and what they were worth together. Raises `TracesAreElsewhere`."""
        index = self._local().index()
        return {
            "total_traces": len(index["traces"]),
            "total_agents": len(index["agents"]),
            "total_reward": sum(one["total_reward"] or 0.0 for one in index["traces"].values()),
            "agents": {agent: len(ids) for agent, ids in index["agents"].items()},
        }

    def _local(self) -> LocalTraces:
        if isinstance(self._traces, RemoteTraces):
            raise TracesAreElsewhere("this store sends its traces to the stream: look for them in the warehouse")
        return self._traces


def _shared_outbox(config: StoreConfig) -> Outbox:
    """One for all agents of a process that send from the same directory to the same server and store."""
    directory, url = Path(config.path).absolute() / "outbox", f"nats://{config.host}:{config.port}"
    storage = config.trajectory_storage_path
    with _opening:
        outbox = _outboxes.get((directory, url, storage))
        if outbox is None:
            open_objects = raw_objects(storage, config.s3_endpoint_url).open if storage else None
            outbox = _outboxes[directory, url, storage] = Outbox(directory, url, open_objects=open_objects)
        return outbox
