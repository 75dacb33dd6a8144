"""Agent Zero's history events as trajectories: one to a monologue, main agent or subordinate.

Events are taken as they happen, because Agent Zero compresses its history while it works; and from the messages as its
history keeps them, where secrets are masked. The arguments that a tool is given, unmasked, are never looked at.

Every event is a method that takes the agent and the `data` of the extension point. Agent Zero's objects are known by
the few attributes that are read here, so they are `Any`.
"""

import threading
import time
from asyncio import CancelledError
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, get_args
from uuid import uuid4

from rl_pipeline.collection.agent_zero.current_model import CurrentModel
from rl_pipeline.collection.agent_zero.messages import delegates, said_by_user, text_of, tool_request, tool_result
from rl_pipeline.collection.outbox import Outbox
from rl_pipeline.collection.recording import OpenTrajectory
from rl_pipeline.collection.turns import OpenTurn, observation
from rl_pipeline.contracts import SubordinateProfile

REMEMBERED = "rl_pipeline_trajectories"
"""Under which a chat keeps, with its own data, which message belongs to which trajectory."""
LATEST = "latest"

_MOST_REMEMBERED = 500
_PROFILES = frozenset(get_args(SubordinateProfile))
_INTERRUPTED = "the user interrupted"


@dataclass(slots=True)
class _Work:
    """A monologue that is going on."""

    trajectory: OpenTrajectory
    turn: OpenTurn
    called: float | None = None
    """When the model was last called, by the clock of `CurrentModel`."""
    is_answered: bool = False
    """Whether the model has spoken in the turn; what came of it is then still open."""
    is_calling: bool = False


@dataclass(slots=True)
class _Task:
    """What one agent is at, or about to begin."""

    agent: Any
    seen: dict[str, Any]
    heard: float
    """When something last happened, by the monotonic clock."""
    instructions: str | None = None
    work: _Work | None = None


class AgentZeroRecording:
    """The trajectories of all agents of a process; its methods may be called from any thread, and only enqueue."""

    def __init__(
        self,
        outbox: Outbox,
        model: CurrentModel,
        *,
        agent_id: str = "agent-zero",
        idle_seconds: float = 600.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.outbox = outbox
        self._model = model
        self._agent_id = agent_id
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._tasks: dict[int, _Task] = {}
        self._lock = threading.RLock()

    def agent_began(self, _agent: Any, _data: Any) -> None:
        """An agent was made: time to ask which model it will talk to."""
        self._model.refresh()

    def user_said(self, agent: Any, data: Any) -> None:
        """A task, or a word in between."""
        self._model.refresh()
        content = _content(data)
        if content is None:
            return
        said = said_by_user(content)
        with self._lock:
            if work := self._work_of(agent):
                self._keep(work, error=_INTERRUPTED)
            self._see(agent, observation(said, "user_message"), text_of(said))

    def task_given(self, agent: Any, data: Any) -> None:
        """As `user_said`, of a user who is known not to interrupt: what the agent was at has been stopped."""
        self._abandon(lambda task: task.agent is agent and task.work is not None)
        self.user_said(agent, data)

    def monologue_began(self, agent: Any, _data: Any) -> None:
        """From here on the agent works."""
        with self._lock:
            task = self._tasks.get(id(agent))
            if task is None:  # a chat that was loaded in the middle of its work
                task = self._see(agent, observation("", "system_message"), None)
            if task.work is None:
                self._begin(task)

    def model_chosen(self, agent: Any, data: Any) -> None:
        """What Agent Zero calls the model that is about to answer."""
        self._model.refresh()
        name = getattr(data.get("result"), "model_name", None)
        with self._lock:
            if work := self._work_of(agent):
                work.called = self._model.now()
                if isinstance(name, str) and name:
                    work.trajectory.add_metadata(model=name)

    def agent_said(self, agent: Any, data: Any) -> None:
        """The model's answer: thoughts and one tool."""
        content = _content(data)
        with self._lock:
            work = self._work_of(agent)
            if content is None or work is None:
                return  # such as the greeting of a new chat
            self._keep(work)
            answer = text_of(content)
            request = tool_request(answer)
            work.turn.answer(answer, model_version=self._model.version(work.called))
            work.turn.think(*request.thoughts)
            work.is_answered = True
            if request.tool_name and request.tool_name != "response":
                _call(work, request.tool_name, request.tool_args)
            self._tasks[id(agent)].heard = self._clock()
            if not _superior(agent):
                _remember(agent.context, getattr(data.get("result"), "id", None), work.trajectory.trajectory_id)

    def tool_returned(self, agent: Any, data: Any) -> None:
        """What a tool or a subordinate brought, as the history keeps it."""
        content = _content(data)
        if content is None:
            return
        name, output = tool_result(content)
        with self._lock:
            if work := self._work_of(agent):
                if name and work.is_answered and not work.is_calling:
                    _call(work, name)  # the request was no plain JSON: at least its name is known now
                self._keep(work, output=output)
            self._see(agent, observation(output, "subordinate_response" if delegates(name) else "tool_result"), None)

    def warned(self, agent: Any, data: Any) -> None:
        """Agent Zero's own word to the agent: no such tool, no readable request, the same answer again."""
        content = _content(data)
        with self._lock:
            if content is not None and (work := self._work_of(agent)):
                self._keep(work, error=text_of(content))
                self._see(agent, observation(content, "system_message"), None)

    def monologue_ended(self, agent: Any, data: Any) -> None:
        """The task is over. Whether it succeeded, Agent Zero does not know."""
        with self._lock:
            task = self._tasks.pop(id(agent), None)
            if task is not None and task.work is not None:
                self._finish(task.work, data.get("exception"))

    def monologue_left(self, agent: Any, data: Any) -> None:
        """As `monologue_ended`, where that is also said of a monologue that begins over; it has no answer then."""
        with self._lock:
            work = self._work_of(agent)
            if data.get("exception") is not None or (work and work.is_answered):
                self.monologue_ended(agent, data)

    def context_killed(self, _agent: Any, data: Any) -> None:
        """The user stopped, reset or nudged a chat: its monologues never come to their end."""
        [context, *_] = data["args"]
        self._abandon(lambda task: task.agent.context is context)

    def context_removed(self, _agent: Any, data: Any) -> None:
        """The user removed a chat."""
        context_id = data["args"][0] if data["args"] else data["kwargs"].get("id")
        self._abandon(lambda task: task.agent.context.id == context_id)

    def minute_passed(self, _agent: Any, _data: Any) -> None:
        """Agent Zero's clock: what stands still, in a chat that does not run, was given up."""
        before = self._clock() - self._idle_seconds
        self._abandon(lambda task: task.heard < before and not task.agent.context.is_running())

    def trajectory_of(self, context: Any, message_id: str | None, *, is_last: bool) -> str | None:
        """The trajectory in which a message of a chat was said. Versions of Agent Zero whose log and history do not
        share ids know it of the last one only."""
        known = context.get_data(REMEMBERED) or {}
        found = known.get(message_id) if message_id else None
        return found or (known.get(LATEST) if is_last else None)

    def _work_of(self, agent: Any) -> _Work | None:
        task = self._tasks.get(id(agent))
        return task.work if task else None

    def _see(self, agent: Any, seen: dict[str, Any], instructions: str | None) -> _Task:
        """What the agent is shown next."""
        task = self._tasks.setdefault(id(agent), _Task(agent, seen, self._clock()))
        task.seen, task.heard = seen, self._clock()
        if task.work is None:
            task.instructions = instructions or task.instructions
        else:
            task.work.turn = self._new_turn(seen)
        return task

    def _begin(self, task: _Task) -> None:
        agent = task.agent
        superior = _superior(agent)
        parent = self._work_of(superior) if superior else None
        profile = getattr(agent.config, "profile", None) or None
        name = getattr(getattr(agent.config, "chat_model", None), "name", None)
        metadata = {
            "model": name or self._model.version() or "unknown",
            "framework": "agent-zero",
            "profile": profile,
            "parent_trajectory_id": parent.trajectory.trajectory_id if parent else None,
        }
        begin: dict[str, Any] = {
            "trajectory_id": str(uuid4()),
            "session_id": str(agent.context.id),
            "agent_id": f"{self._agent_id}-{(profile or agent.agent_name) if superior else 'main'}",
            "task_context": {"instructions": task.instructions} if task.instructions else {},
            "metadata": {field: value for field, value in metadata.items() if value is not None},
        }
        if superior and profile in _PROFILES:
            begin["subordinate_profile"] = profile
        trajectory = OpenTrajectory(self.outbox, begin, opt_out=False)
        task.work = _Work(trajectory, self._new_turn(task.seen))

    def _new_turn(self, seen: dict[str, Any]) -> OpenTurn:
        return OpenTurn(seen, lambda: datetime.now(UTC), self.outbox.counting)

    def _keep(self, work: _Work, *, output: Any = None, error: str | None = None) -> None:
        """The turn, if the model has spoken in it, has come to its end."""
        if not work.is_answered:
            return
        if error is None:
            work.turn.succeed(output)
        else:
            work.turn.fail(error)
        work.trajectory.add_turn(work.turn.content())
        work.turn = self._new_turn(work.turn.seen)
        work.is_answered = work.is_calling = False

    def _finish(self, work: _Work, error: BaseException | None) -> None:
        self._keep(work, error=type(error).__name__ if error else None)
        # Agent Zero reports what stopped the agent as an error that has been dealt with.
        cause = next((given for given in getattr(error, "args", ()) if isinstance(given, CancelledError)), error)
        work.trajectory.finish(cause)

    def _abandon(self, is_over: Callable[[_Task], bool]) -> None:
        with self._lock:
            for task in [task for task in self._tasks.values() if is_over(task)]:
                del self._tasks[id(task.agent)]
                if task.work is not None:
                    self._finish(task.work, CancelledError())


def _call(work: _Work, tool_name: str, tool_args: dict[str, Any] | None = None) -> None:
    work.turn.call(tool_name, tool_args, kind="subordinate_call" if delegates(tool_name) else "tool_call")
    work.is_calling = True


def _content(data: Any) -> Any:
    """Of a message, what entered the history; None when none did."""
    return getattr(data.get("result"), "content", None)


def _superior(agent: Any) -> Any:
    return agent.data.get("_superior")


def _remember(context: Any, message_id: Any, trajectory_id: str) -> None:
    known = dict(context.get_data(REMEMBERED) or {})
    known[LATEST] = trajectory_id
    if isinstance(message_id, str) and message_id:
        known[message_id] = trajectory_id
    for oldest in list(known)[: max(0, len(known) - _MOST_REMEMBERED)]:
        if oldest != LATEST:
            del known[oldest]
    context.set_data(REMEMBERED, known)
