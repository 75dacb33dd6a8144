"""A trajectory while it is being recorded, and where in it a thread or task is."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from rl_pipeline.collection.harmless import harmless
from rl_pipeline.collection.outbox import Outbox
from rl_pipeline.collection.outbox.counts import Counting
from rl_pipeline.collection.plain_values import plain
from rl_pipeline.collection.turns import ObservationKind, OpenTurn, observation
from rl_pipeline.contracts import TaskStatus


def current_trajectory() -> "OpenTrajectory | None":
    """The trajectory whose block is open here, in this thread or task."""
    here = place.get()
    return here.trajectory if here else None


class OpenTrajectory:
    """A trajectory that is being recorded. Nothing that is called here raises or waits."""

    def __init__(self, outbox: Outbox, begin: dict[str, Any], *, opt_out: bool) -> None:
        self.trajectory_id: str = begin["trajectory_id"]
        """Feedback names it."""
        self.session_id: str = begin["session_id"]
        self._outbox = outbox
        self._clock = steady_clock()
        self._task_context: dict[str, Any] = plain(begin["task_context"])
        self._metadata: dict[str, Any] = plain(begin["metadata"])
        self._seen = observation(self._task_context.get("instructions", ""), "user_message")
        self._recording = False
        if opt_out:
            self.counting.add("opted_out")
        else:
            self._begin(begin)

    @property
    def counting(self) -> Counting:
        """Where faults are counted."""
        return self._outbox.counting

    def turn(
        self, content: Any = None, *, kind: ObservationKind = "user_message", context: Any = None
    ) -> AbstractContextManager[OpenTurn]:
        """One turn, in a block: what the agent was shown, then what it does inside. An exception is its failure.

        Without `content` the agent saw what the last turn brought, or else its instructions.
        """
        return self.open_turn(None if content is None else observation(content, kind, context))

    @contextlib.contextmanager
    def open_turn(self, seen: dict[str, Any] | None) -> Iterator[OpenTurn]:
        """As `turn`, for an observation that is made already; for the tools."""
        turn = OpenTurn(self._seen if seen is None else seen, self._clock, self.counting)
        try:
            with Place(self, turn).entered():
                yield turn
        except BaseException as error:
            if not turn.is_settled:
                turn.fail(error)
            raise
        finally:
            self._keep(turn)

    def respond(self, raw_response: str, **drawn: Any) -> None:
        """A turn in which the agent only answers; `drawn` is what `OpenTurn.answer` takes."""
        with self.turn() as turn:
            turn.answer(raw_response, **drawn)

    @harmless
    def add_turn(self, turn: Mapping[str, Any], *, ended: datetime | None = None) -> None:
        """A whole turn as the contract has it, from whoever has it whole; numbers are given in order of beginning."""
        content = plain(turn)
        moment = ended or self._clock()
        content.setdefault("timestamp", moment.isoformat())
        self._write({**content, "end_timestamp": moment.isoformat()})

    @harmless
    def add_task_context(self, /, **fields: Any) -> None:
        """What became known of the task: `domain`, `task_type`, `subtasks`, `complexity_score` …"""
        self._task_context |= {name: plain(value) for name, value in fields.items()}

    @harmless
    def add_metadata(self, /, **fields: Any) -> None:
        """What became known of the making: `temperature`, `total_cost_usd`, `test_results` …"""
        self._metadata |= {name: plain(value) for name, value in fields.items()}

    @harmless
    def end(self, status: TaskStatus, *, completion_percentage: float | None = None) -> None:
        """How the task ended; the block's end records it. An exception that leaves the block says otherwise."""
        self._task_context["task_status"] = status
        if completion_percentage is not None:
            self._task_context["completion_percentage"] = float(completion_percentage)

    @harmless
    def opt_out(self) -> None:
        """The user refuses: what was recorded is removed, and nothing more is."""
        self._forget("opted_out")

    @harmless
    def discard(self) -> None:
        """It tells nothing of the agent, such as a task that a fault elsewhere cut off: removed like what a user
        refuses."""
        self._forget("discarded")

    def finish(self, error: BaseException | None = None) -> "Future[None] | None":
        """For `Recorder`: the block has ended; the future ends when the trajectory is on the disk."""
        if not self._recording:
            return None
        self._recording = False
        if error is not None:
            # Cancelled, interrupted, told to exit: the task was not failed at but given up.
            self.end("failed" if isinstance(error, Exception) else "abandoned")
            self.add_task_context(error=type(error).__name__)
        content = {
            "end_timestamp": self._clock().isoformat(),
            "task_context": self._task_context,
            "metadata": self._metadata,
        }
        return self._outbox.write(self.trajectory_id, "end", content)

    @harmless
    def _begin(self, begin: dict[str, Any]) -> None:
        begin = {"start_timestamp": self._clock().isoformat(), **plain(begin)}
        self._outbox.write(self.trajectory_id, "begin", begin)
        self._recording = True
        self.counting.add("begun")

    @harmless
    def _keep(self, turn: OpenTurn) -> None:
        turn.claim()  # what still runs and calls a tool has a turn of its own
        content = turn.content()
        result = content["result"]
        brought = result.get("output") or result.get("error")
        if brought:
            self._seen = {"type": "tool_result", "content": brought}
        self._write(content)

    def _forget(self, kind: str) -> None:
        if self._recording:
            self._recording = False
            self._outbox.forget(self.trajectory_id)
            self.counting.add(kind)

    def _write(self, turn: dict[str, Any]) -> None:
        if self._recording:
            self._outbox.write(self.trajectory_id, "turn", turn)


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a recording this thread or task is."""

    trajectory: OpenTrajectory
    turn: OpenTurn | None = None
    in_tool: bool = False

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """Be there for the length of a block."""
        token = place.set(self)
        try:
            yield
        finally:
            # Where a generator carried the block into another context there is nothing to undo.
            with contextlib.suppress(ValueError):
                place.reset(token)


place: ContextVar[Place | None] = ContextVar("rl_pipeline_place", default=None)


def steady_clock() -> Callable[[], datetime]:
    """The time of day, which does not run backwards within a trajectory."""
    began, at = datetime.now(UTC), time.perf_counter()
    return lambda: began + timedelta(seconds=time.perf_counter() - at)
