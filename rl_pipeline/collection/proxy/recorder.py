"""The thread that makes trajectories of what passes; the proxy only hands over, and never waits for it."""

import json
import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from rl_pipeline.collection.formats.values import as_list, as_name, as_number, as_object
from rl_pipeline.collection.outbox import Outbox
from rl_pipeline.collection.proxy.answers import read_answer
from rl_pipeline.collection.proxy.conversations import Asked, Session, Sessions
from rl_pipeline.contracts import Feedback
from rl_pipeline.contracts.feedback import FeedbackSignal
from rl_pipeline.contracts.registry import validated
from rl_pipeline.errors import PipelineError
from rl_pipeline.redaction.session_names import plain_name

_MOST_WAITING = 1000
_MOST_SESSIONS = 10_000
_MOST_ENDED = 10_000
_LOOK_SECONDS = 1.0


class UnknownSession(PipelineError):
    """No such session is open, or was."""


@dataclass
class Passing:
    """A request on its way through the proxy."""

    session_name: str | None
    body: bytes
    at: datetime
    asked: Asked | None = None
    session: Session | None = None
    """The session that must not end meanwhile."""


@dataclass(frozen=True)
class Ended:
    """How a session ended, as its caller says."""

    session_name: str | None
    completion_id: str | None
    task_context: dict[str, Any]
    feedback: FeedbackSignal | None


class ProxyRecorder:
    """Records sessions until they are silent for `idle_seconds`, or somebody says that they are over."""

    def __init__(
        self, outbox: Outbox, agent_id: str, idle_seconds: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._outbox = outbox
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._sessions = Sessions(outbox, agent_id)
        self._ended: OrderedDict[str, tuple[str, str]] = OrderedDict()
        """Of sessions that are over, by name and by answer: the ids of trajectory and session."""
        self._orders: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="proxy records", daemon=True)
        self._thread.start()

    def began(self, session_name: str | None, body: bytes) -> Passing | None:
        """A request came. None when too many wait already: it passes, and is not recorded."""
        if self._orders.qsize() >= _MOST_WAITING:
            self._outbox.counting.add("dropped", "more passes than can be recorded")
            return None
        passing = Passing(_plain(session_name), body, datetime.now(UTC))
        self._orders.put(lambda: self._begin(passing))
        return passing

    def answered(self, passing: Passing, answer: bytes, *, is_stream: bool) -> None:
        """It was answered, as far as its caller listened."""
        ended = datetime.now(UTC)
        self._orders.put(lambda: self._answer(passing, answer, ended, is_stream=is_stream))

    def failed(self, passing: Passing) -> None:
        """It was not."""
        self._orders.put(lambda: self._fail(passing))

    def end(self, ended: Ended) -> "Future[str]":
        """A session is over, as its caller says; the future has its trajectory's id, or raises `UnknownSession`."""
        outcome: Future[str] = Future()

        def obey() -> None:
            try:
                outcome.set_result(self._end_as_told(ended))
            except Exception as error:  # noqa: BLE001 - for whoever waits
                outcome.set_exception(error)

        self._orders.put(obey)
        return outcome

    def close(self) -> None:
        """End all sessions: their callers find a new trajectory when they come again."""
        self._orders.put(None)
        self._thread.join()
        for session in list(self._sessions.open):
            self._finish(session)

    def _run(self) -> None:
        looked = self._clock()
        while True:
            try:
                order = self._orders.get(timeout=_LOOK_SECONDS)
                if order is None:
                    return
                order()
            except queue.Empty:
                pass
            except Exception as error:  # noqa: BLE001 - the next request must be recorded all the same
                self._outbox.counting.failed("recording what passed", error)
            if self._clock() - looked >= _LOOK_SECONDS:
                looked = self._clock()
                self._end_idle()

    def _begin(self, passing: Passing) -> None:
        passing.asked = _read(passing)
        passing.session = self._sessions.of(passing.asked)
        if passing.session:
            passing.session.in_flight += 1

    def _answer(self, passing: Passing, answer: bytes, ended: datetime, *, is_stream: bool) -> None:
        self._release(passing)
        read = read_answer(answer, is_stream=is_stream)
        if read is None:
            self._count_failure(passing.session)
        elif passing.asked is not None:
            self._sessions.take(passing.asked, read, ended, self._clock())

    def _fail(self, passing: Passing) -> None:
        self._release(passing)
        self._count_failure(passing.session)

    def _release(self, passing: Passing) -> None:
        if passing.session:
            passing.session.in_flight -= 1
            self._sessions.touch(passing.session, self._clock())

    def _count_failure(self, session: Session | None) -> None:
        if session:
            session.failed_requests += 1
            session.trajectory.add_metadata(failed_requests=session.failed_requests)

    def _end_idle(self) -> None:
        too_many = len(self._sessions.open) - _MOST_SESSIONS
        for place, session in enumerate(list(self._sessions.open)):
            if place >= too_many and self._clock() - session.heard < self._idle_seconds:
                return
            if not session.in_flight:
                self._finish(session)

    def _end_as_told(self, ended: Ended) -> str:
        session = self._sessions.named(_plain(ended.session_name), ended.completion_id)
        if session is None:
            return self._rate_later(ended)
        session.trajectory.add_task_context(**ended.task_context)
        if ended.feedback is not None:
            session.trajectory.add_metadata(feedback=[ended.feedback.model_dump(mode="json", exclude_none=True)])
        self._finish(session)
        return session.trajectory.trajectory_id

    def _rate_later(self, ended: Ended) -> str:
        """Of a session that is over, only what somebody thinks of it can still be told."""
        names = (_plain(ended.session_name), ended.completion_id)
        known = next((self._ended[name] for name in names if name and name in self._ended), None)
        if known is None:
            raise UnknownSession(
                "no such session: name one that is open by session_id, or by the id of its last answer"
            )
        trajectory_id, session_id = known
        if ended.feedback is not None:
            opinion = ended.feedback.model_dump(include={"kind", "rating", "text"}, exclude_none=True)
            message = {
                "feedback_id": f"record-proxy-{uuid4()}",
                "trajectory_id": trajectory_id,
                "session_id": session_id,
                "timestamp": datetime.now(UTC),
                **opinion,
            }
            self._outbox.post(validated(Feedback, message))
        return trajectory_id

    def _finish(self, session: Session) -> None:
        session.close(datetime.now(UTC))
        self._sessions.remove(session)
        session.trajectory.finish()
        for name in (session.name, *session.completion_ids[-1:]):
            if name:
                self._ended[name] = (session.trajectory.trajectory_id, session.trajectory.session_id)
        while len(self._ended) > _MOST_ENDED:
            self._ended.popitem(last=False)


def _plain(session_name: str | None) -> str | None:
    return plain_name(session_name) if session_name else None


def _read(passing: Passing) -> Asked:
    request = as_object(json.loads(passing.body))
    messages = [message for message in as_list(request.get("messages")) if isinstance(message, dict)]
    temperature = as_number(request.get("temperature"))
    return Asked(
        passing.session_name,
        messages,
        passing.at,
        model=as_name(request.get("model")) or "unknown",
        user=as_name(request.get("user")),
        temperature=temperature if temperature is not None and 0 <= temperature <= 2 else None,
    )
