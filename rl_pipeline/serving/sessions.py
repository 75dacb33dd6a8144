"""Sessions while they last: which model each is with, and what came of it so far.

A session is told once: when it first fails, when it is over, or when the window in which it began is closed. Should
anything come of it after that, its first failure or its first rating, it is told again, as a session that began then.

Failures are told before successes, so a gateway that is killed would leave its failures and not its successes. That a
session of a rollout has begun is therefore remembered outside of the process (`remember`) by the next sweep.

A session that has failed at a split is evidence of nothing until the next one, with whichever model (`FailedSessions`):
it came to that model by chance, but that it fails again says more about its caller.
"""

import os
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, Literal

from rl_pipeline.redaction.session_names import plain_name
from rl_pipeline.serving.failed_sessions import FailedSessions
from rl_pipeline.serving.figures import FiguresByModel
from rl_pipeline.serving.remembering import Count, Memory
from rl_pipeline.serving.routing import Routing
from rl_pipeline.serving.upstream import Failure

LONGEST_SECONDS = 3600.0
"""After so long a session counts as over, and what follows as another one."""
MOST_SESSIONS = 100_000
"""Those that were silent for longest are told early when there are more."""

Feedback = Literal["positive", "negative"]


def session_id_of(named: object) -> str:
    """How the gateway calls the session that a caller names, to that caller and to backends; a new one where it names
    none. What is stored of it has another name: `Outbox`."""
    if not isinstance(named, str) or not named:
        return f"session-{os.urandom(12).hex()}"
    return plain_name(named)


class Session:
    """One session, with one model."""

    __slots__ = (
        "answer_seconds",
        "answers",
        "began",
        "completion_tokens",
        "count",
        "deployment_id",
        "draw",
        "failed_requests",
        "failure",
        "feedback",
        "generation",
        "in_flight",
        "is_rated",
        "is_told",
        "last",
        "model_id",
        "prompt_tokens",
        "requests",
        "session_id",
        "started",
        "step",
    )

    def __init__(self, session_id: str, model_id: str, routing: Routing, count: Count, now: float) -> None:
        self.session_id = session_id
        self.model_id = model_id
        self.generation = routing.generation
        self.deployment_id = routing.deployment_id
        self.step = routing.step
        self.draw = routing.salt
        self.began = self.last = now
        self.in_flight = 0
        self.failure: Failure | None = None
        self.is_rated = False
        self._begin_record(count, now)

    def begin_again(self, routing: Routing, memory: Memory, now: float) -> None:
        """What comes now is told as a session that begins now. Under another share it is evidence of nothing: that is
        not how the session came to its model."""
        if (routing.deployment_id, routing.step) == (self.deployment_id, self.step):
            count = memory.begin(self.model_id, routing, now)
        else:
            count = memory.apart(self.model_id, now)
            self.deployment_id = self.step = None
        self._begin_record(count, now)

    def _begin_record(self, count: Count, now: float) -> None:
        self.count = count
        self.started = now
        self.requests = self.in_flight
        self.failed_requests = self.answers = 0
        self.answer_seconds = 0.0
        self.feedback: Feedback | None = None
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self.is_told = False

    def answered(self, seconds: float, usage: object) -> None:
        """A request was answered after so many seconds."""
        self.answers += 1
        self.answer_seconds += seconds
        if isinstance(usage, dict):
            self.prompt_tokens = _added(self.prompt_tokens, usage.get("prompt_tokens"))
            self.completion_tokens = _added(self.completion_tokens, usage.get("completion_tokens"))

    def message_id(self, stored_as: str, gateway: str) -> str:
        """The same for every copy of this outcome, and another for what comes of the same session later or elsewhere.

        `stored_as` is what stands for the session's id wherever something is stored.
        """
        return f"{stored_as}/{gateway}/{self.generation}/{self.model_id}/{int(self.started * 1000)}"

    def outcome(self, stored_as: str, gateway: str) -> dict[str, Any]:
        """As `agent.rl.serving.outcome.v1` tells it."""
        told: dict[str, Any] = {
            "session_id": stored_as,
            "model_id": self.model_id,
            "generation": self.generation,
            "gateway": gateway,
            "started_at": datetime.fromtimestamp(self.started, UTC),
            "ended_at": datetime.fromtimestamp(self.last, UTC),
            "requests": self.requests,
            "failed_requests": self.failed_requests,
            "failed": self.failed_requests > 0,
            "failure": self.failure,
            "feedback": self.feedback,
            "latency_ms": round(1000 * self.answer_seconds / self.answers, 3) if self.answers else None,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "deployment_id": self.deployment_id,
            "step": self.step,
        }
        return {name: value for name, value in told.items() if value is not None}


class Sessions:
    """All sessions that are going on. `tell` is called with those that there is something to tell of, `remember` with
    those of rollouts that have begun since the last sweep and were not told yet."""

    def __init__(
        self,
        tell: Callable[[Sequence[Session]], None],
        remember: Callable[[Sequence[Session], float], None],
        figures: FiguresByModel,
        memory: Memory,
        failed: FailedSessions,
        *,
        idle_seconds: float,
    ) -> None:
        self._failed = failed
        self._tell = tell
        self._remember = remember
        self._begun: list[Session] = []
        self._figures = figures
        self._memory = memory
        self._idle = idle_seconds
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        """The one that was silent for longest comes first."""
        self._observed: deque[tuple[float, Session]] = deque()
        """Those whose windows are open, with the times when these close, in their order."""

    def __len__(self) -> int:
        return len(self._sessions)

    def enter(self, session_id: str, routing: Routing, now: float) -> Session:
        """The session of a request that begins now, with the model that is to answer it."""
        session = self._sessions.get(session_id)
        if session is not None:
            if session.model_id in routing.keeps and now - session.began < LONGEST_SECONDS:
                self._sessions.move_to_end(session_id)
            else:
                self._end([session])
                session = None
        if session is None:
            session = self._begin(session_id, routing, now)
        session.last = now
        session.requests += 1
        session.in_flight += 1
        return session

    def leave(self, session: Session, now: float) -> None:
        """A request of the session is over, however it ended."""
        session.in_flight -= 1
        session.last = now
        if self._sessions.get(session.session_id) is session:
            self._sessions.move_to_end(session.session_id)

    def fail(self, session: Session, failure: Failure, routing: Routing, now: float) -> None:
        """A request of the session failed: told at once the first time, and counted once."""
        session.last = now
        if session.failure is None:
            self._note(session, routing, now)
            session.failure = failure
            session.count.errors += 1
            if session.deployment_id is not None:
                self._failed.add(session.draw, session.session_id)
            self._figures.of(session.model_id).failed_sessions += 1
        session.failed_requests += 1
        self._end([session])

    def rate(self, session_id: str, feedback: Feedback, routing: Routing, now: float) -> bool:
        """Attach what the user thought; False for a session that is over or has failed. The first word counts."""
        session = self._sessions.get(session_id)
        if session is None or session.failure is not None:
            return False
        if not session.is_rated:
            is_late = self._note(session, routing, now)
            session.is_rated, session.feedback = True, feedback
            session.count.add_rating(is_negative=feedback == "negative")
            self._figures.of(session.model_id).negative_feedback += feedback == "negative"
            if is_late:
                self._end([session])
        return True

    def sweep(self, now: float) -> None:
        """Tell what is over, and of what goes on that whose window is closed."""
        ended = []
        while self._observed and self._observed[0][0] <= now:
            ended.append(self._observed.popleft()[1])
        for _ in range(len(self._sessions)):
            session = next(iter(self._sessions.values()))
            if now - session.last < self._idle and len(self._sessions) <= MOST_SESSIONS:
                break
            if session.in_flight and now - session.last >= self._idle:
                session.last = now
                self._sessions.move_to_end(session.session_id)
                continue
            ended.append(session)
            del self._sessions[session.session_id]
        self._end(ended)
        begun, self._begun = [session for session in self._begun if not session.is_told], []
        if begun:
            self._remember(begun, now)

    def end_all(self) -> None:
        """Tell all that is left: the gateway stops."""
        ended = list(self._sessions.values())
        self._sessions.clear()
        self._observed.clear()
        self._end(ended)

    def _begin(self, session_id: str, routing: Routing, now: float) -> Session:
        model_id = routing.choose(session_id)
        if routing.deployment_id is not None:
            self._failed.turn_to(routing.salt)
        if routing.deployment_id is not None and self._failed.has(session_id):
            routing = replace(routing, deployment_id=None, step=None)
            count = self._memory.apart(model_id, now)
        else:
            count = self._memory.begin(model_id, routing, now)
        session = Session(session_id, model_id, routing, count, now)
        self._sessions[session_id] = session
        self._sessions.move_to_end(session_id)
        self._observed.append((session.count.closes, session))
        self._figures.of(model_id).sessions += 1
        if session.deployment_id is not None:
            self._begun.append(session)
        return session

    def _note(self, session: Session, routing: Routing, now: float) -> bool:
        """Be ready to note what comes of a session now; whether it comes late."""
        is_late = session.is_told or session.count.is_over(now)
        if is_late:
            self._end([session])
            session.begin_again(routing, self._memory, now)
        return is_late

    def _end(self, sessions: Sequence[Session]) -> None:
        untold = []
        for session in sessions:
            if not session.is_told:
                session.is_told = True
                untold.append(session)
        if untold:
            self._tell(untold)


def _added(so_far: int | None, more: object) -> int | None:
    if isinstance(more, int) and 0 <= more < 2**31:
        return (so_far or 0) + more
    return so_far
