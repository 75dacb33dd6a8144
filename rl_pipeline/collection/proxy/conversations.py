"""From requests and answers to trajectories: which requests belong to one session, and what is new in each."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import uuid4

from rl_pipeline.collection.formats.chat import exchanges_of_messages, read_call
from rl_pipeline.collection.formats.exchanges import Exchange, turns_of
from rl_pipeline.collection.formats.values import JsonObject, as_list, as_object, as_text, plain_text
from rl_pipeline.collection.outbox import Outbox
from rl_pipeline.collection.proxy.answers import Answer
from rl_pipeline.collection.recording import OpenTrajectory


@dataclass(frozen=True)
class Asked:
    """A request for an answer."""

    session_name: str | None
    """As the caller names its session; None where the conversation has to tell."""
    messages: list[JsonObject]
    at: datetime
    model: str = "unknown"
    user: str | None = None
    temperature: float | None = None


@dataclass(eq=False)
class Session:
    """A conversation that goes on, and its trajectory."""

    trajectory: OpenTrajectory
    name: str | None
    heard: float
    """When something last happened, by the monotonic clock."""
    chain: str = ""
    """Stands for all messages that are known, the last answer included."""
    length: int = 0
    found_by: str = ""
    """The conversation with which its caller will come again; as `chain`, unless it did not hear the last answer."""
    in_flight: int = 0
    failed_requests: int = 0
    told: Exchange | None = None
    """The last exchange that is recorded: what it brought is what the next one sees."""
    waiting: tuple[JsonObject, Exchange] | None = None
    """An answer that calls tools: what they return comes with the next request."""
    cut_off: Answer | None = None
    """An answer whose caller hung up: if it goes on with what it got, that was the answer."""
    completion_ids: list[str] = field(default_factory=list)

    def new_messages(self, asked: Asked, chains: Sequence[str]) -> list[JsonObject]:
        """What of a request was not there before. A caller that names its session may rewrite the conversation."""
        if self.length < len(chains) and chains[self.length] == self.chain:
            return asked.messages[self.length :]
        answered = [place for place, message in enumerate(asked.messages) if message.get("role") == "assistant"]
        return asked.messages[answered[-1] + 1 if answered else 0 :]

    def take(self, asked: Asked, answer: Answer, ended: datetime) -> None:
        """Record a request and its answer. Raises `NotOfFormat`."""
        chains = chains_of([*asked.messages, answer.message])
        new = self.new_messages(asked, chains[:-1])
        before = [self.waiting[0]] if self.waiting else []
        exchanges, _ = exchanges_of_messages([*before, *new, answer.message])
        if self.waiting:
            self.waiting[1].returned = exchanges[0].returned
            exchanges[0] = self.waiting[1]
        for exchange in exchanges[len(before) : -1]:
            self._mark_unseen(exchange, asked)
        exchanges[-1].turn = _turn(asked, answer.sampling, answer.usage)
        self.chain, self.length, self.waiting, self.cut_off = chains[-1], len(chains) - 1, None, None
        if exchanges[-1].calls:
            self.waiting = answer.message, exchanges.pop()
        self._record(exchanges, ended)

    def close(self, ended: datetime) -> None:
        """Record what still waits; nobody comes any more."""
        if self.waiting:
            self._record([self.waiting[1]], ended)
            self.waiting = None

    def _mark_unseen(self, exchange: Exchange, asked: Asked) -> None:
        """An answer that came some other way is no answer of the model, unless its caller hung up in the middle."""
        cut_off, self.cut_off = self.cut_off, None
        said = plain_text(cut_off.message.get("content") or "") if cut_off else ""
        if cut_off and exchange.text and said.startswith(exchange.text):
            model = {name: value for name, value in cut_off.sampling.items() if name == "model_version"}
            exchange.turn = {**_turn(asked, model, {}), "is_cut_off": True}
        else:
            exchange.turn = {"timestamp": asked.at.isoformat(), "is_copied_context": True}

    def _record(self, exchanges: list[Exchange], ended: datetime) -> None:
        if not exchanges:
            return
        known = [self.told] if self.told else []
        for turn in turns_of([*known, *exchanges])[len(turns_of(known)) :]:
            self.trajectory.add_turn(turn, ended=ended)
        self.told = exchanges[-1]


class Sessions:
    """The sessions that are open, by the names and by the conversations of their callers."""

    def __init__(self, outbox: Outbox, agent_id: str) -> None:
        self._outbox = outbox
        self._agent_id = agent_id
        self.open: dict[Session, None] = {}
        """The one that was silent for longest comes first."""
        self._by_name: dict[str, Session] = {}
        self._by_chain: dict[str, list[Session]] = {}
        self._by_completion: dict[str, Session] = {}

    def of(self, asked: Asked) -> Session | None:
        """The session to which a request belongs: that of its name, or the one of which it knows the most."""
        if asked.session_name is not None:
            return self._by_name.get(asked.session_name)
        found = (self._by_chain.get(chain) for chain in reversed(chains_of(asked.messages)[1:]))
        return next((sessions[0] for sessions in found if sessions), None)

    def named(self, session_name: str | None, completion_id: str | None) -> Session | None:
        """The session that a caller means."""
        return self._by_name.get(session_name or "") or self._by_completion.get(completion_id or "")

    def take(self, asked: Asked, answer: Answer, ended: datetime, now: float) -> None:
        """Record a request and its answer, in the session to which it belongs, or a new one."""
        session = self.of(asked) or self._begin(asked, now)
        self._forget_chain(session)
        if answer.is_whole:
            session.take(asked, answer, ended)
            session.found_by = session.chain
        else:
            session.cut_off = answer
            session.found_by = chains_of(asked.messages)[-1]
        self._by_chain.setdefault(session.found_by, []).append(session)
        if answer.completion_id:
            session.completion_ids.append(answer.completion_id)
            self._by_completion[answer.completion_id] = session
        self.touch(session, now)

    def touch(self, session: Session, now: float) -> None:
        """Something happened in a session."""
        session.heard = now
        if self.open.pop(session, True) is None:
            self.open[session] = None

    def remove(self, session: Session) -> None:
        """The session is over."""
        del self.open[session]
        self._forget_chain(session)
        if session.name is not None:
            self._by_name.pop(session.name, None)
        for completion_id in session.completion_ids:
            self._by_completion.pop(completion_id, None)

    def _forget_chain(self, session: Session) -> None:
        others = [other for other in self._by_chain.pop(session.found_by, []) if other is not session]
        if others:
            self._by_chain[session.found_by] = others

    def _begin(self, asked: Asked, now: float) -> Session:
        request = next((message for message in asked.messages if message.get("role") == "user"), {})
        task = {"instructions": plain_text(request.get("content") or "") or None, "user_id": asked.user}
        metadata = {"model": asked.model, "temperature": asked.temperature, "framework": "record-proxy"}
        begin = {
            "trajectory_id": str(uuid4()),
            "session_id": asked.session_name or str(uuid4()),
            "agent_id": self._agent_id,
            "start_timestamp": asked.at.isoformat(),
            "task_context": {name: value for name, value in task.items() if value is not None},
            "metadata": {name: value for name, value in metadata.items() if value is not None},
        }
        session = Session(OpenTrajectory(self._outbox, begin, opt_out=False), asked.session_name, now)
        self.open[session] = None
        if asked.session_name is not None:
            self._by_name[asked.session_name] = session
        return session


def chains_of(messages: Sequence[JsonObject]) -> list[str]:
    """For none, one, two … of the messages, what stands for them. What callers leave out, add or write otherwise when
    they send an answer back makes no difference."""
    chains = [""]
    for message in messages:
        told = json.dumps([chains[-1], _essence(message)], ensure_ascii=True, sort_keys=True)
        chains.append(hashlib.sha256(told.encode()).hexdigest())
    return chains


def _essence(message: JsonObject) -> list[Any]:
    """What of a message is the same whenever it is sent: clients strip texts, or send them in parts."""
    content = message.get("content")
    return [
        message.get("role"),
        plain_text(content).strip(),
        [part for part in as_list(content) if isinstance(part, dict) and "text" not in part],
        message.get("tool_call_id"),
        [_called(as_object(call)) for call in as_list(message.get("tool_calls"))],
    ]


def _called(call: JsonObject) -> list[Any]:
    """A call with its arguments as they mean: clients parse them and write them anew."""
    function = as_object(call.get("function"))
    arguments = read_call(function).arguments
    unread = as_text(function.get("arguments")).strip()
    return [call.get("id"), function.get("name"), unread if arguments is None else arguments]


def _turn(asked: Asked, sampling: JsonObject, usage: JsonObject) -> JsonObject:
    more = {"sampling": sampling, "usage": usage}
    return {"timestamp": asked.at.isoformat(), **{name: value for name, value in more.items() if value}}
