"""Worlds behind AgentGym's HTTP servers: `POST /create`, `/reset`, `/step`, `GET /observation`.

Their fields differ from environment to environment; how, is data (`agentgym.toml`). An answer that says what is wrong
with an action ends the attempt. A server that does not answer in time, or no longer, is `WorldUnavailable`: an attempt
that was cut off says nothing about the policy, so it is not told as one that failed.
"""

import json
import re
import tomllib
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from importlib.resources import files
from random import Random
from time import monotonic
from typing import Any
from urllib.parse import urlencode, urlsplit

from rl_pipeline.environments.environment import InvalidTask, StepOutcome, Task, WorldUnavailable

PREFIX = "agentgym:"

_LONGEST_ANSWER = 16 * 2**20
_AWAY = {502, 503, 504}
"""What a proxy says in place of a server."""


@dataclass(frozen=True)
class Protocol:
    """What is special about one environment; the fields are told in `agentgym.toml`."""

    instructions: str
    max_turns: int
    environment: str = "id"
    created: str = "id"
    create: Mapping[str, Any] = field(default_factory=dict)
    item: str = "data_idx"
    reset: Mapping[str, Any] = field(default_factory=dict)
    shown: Sequence[str] = ("observation",)
    observation: str = "observation"
    score: str = "reward"
    done: str = "done"
    best: float = 1.0
    max_at_once: int = 64
    action: str = r"Action:\s*(.+)"

    def action_in(self, answer: str) -> str:
        """The action that a policy's answer ends with."""
        found = re.findall(self.action, answer, re.DOTALL) if self.action else ()
        return str(found[-1] if found else answer).strip()

    def first_observation(self, answer: Mapping[str, Any]) -> str:
        """What the answer to a reset shows; lists are named."""
        parts = ((name, answer[name]) for name in self.shown)
        return "\n".join(
            f"{name.replace('_', ' ').capitalize()}: {', '.join(map(str, part))}"
            if isinstance(part, list)
            else _text(part)
            for name, part in parts
        )


@cache
def protocols() -> Mapping[str, Protocol]:
    """The environments that are known, by name."""
    told = tomllib.loads(files(__package__).joinpath("agentgym.toml").read_text(encoding="utf-8"))
    return {name: Protocol(**fields) for name, fields in told.items()}


class _Refused(Exception):
    """The server has answered that it cannot be done."""


class _Server:
    """Speaks to one server; every call ends after `seconds`, by an answer or by `WorldUnavailable`."""

    def __init__(self, url: str, seconds: float) -> None:
        self._address = urlsplit(url.rstrip("/"))
        self._seconds = seconds

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._call("POST", path, json.dumps(body))

    def get(self, path: str, query: Mapping[str, Any]) -> Any:
        return self._call("GET", f"{path}?{urlencode(query)}", None)

    def _call(self, method: str, path: str, body: str | None) -> Any:
        kind = HTTPSConnection if self._address.scheme == "https" else HTTPConnection
        connection = kind(str(self._address.hostname), self._address.port, timeout=self._seconds)
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request(method, f"{self._address.path}{path}", body, headers)
            response = connection.getresponse()
            content = self._read(response)
            answer = json.loads(content) if response.status not in _AWAY else None
        except (OSError, HTTPException, ValueError) as broken:
            raise self._unavailable(path, f"{type(broken).__name__}: {broken}") from broken
        finally:
            connection.close()
        if response.status in _AWAY:
            raise self._unavailable(path, f"status {response.status}")
        if response.status != 200:
            raise _Refused(f"status {response.status}")
        if isinstance(answer, dict) and "error" in answer:
            raise _Refused(str(answer["error"])[:2000])
        return answer

    def _read(self, response: HTTPResponse) -> bytes:
        """All of the body; the socket's own limit is for each piece, and pieces may be many."""
        until, content = monotonic() + self._seconds, b""
        while piece := response.read1(2**16):
            content += piece
            if len(content) > _LONGEST_ANSWER or monotonic() > until:
                raise OSError("its answer is too long, or takes too long")
        return content

    def _unavailable(self, path: str, why: str) -> WorldUnavailable:
        place = f"{self._address.netloc}{self._address.path}{path.partition('?')[0]}"
        return WorldUnavailable(f"AgentGym's server at {place} gives no answer ({why}): see that it runs, try again")


class AgentGymWorld:
    """The world `agentgym:<environment>`. Its tasks are `{"item": number}`, of those that the server has."""

    def __init__(self, environment: str, url: str, items: tuple[int, int], timeout_seconds: float) -> None:
        """`items` are the first that counts and the first that no longer does."""
        self.protocol = protocols()[environment]
        self.server = _Server(url, timeout_seconds)
        self.name = f"{PREFIX}{environment}"
        self.instructions = self.protocol.instructions
        self.max_turns = self.protocol.max_turns
        self.max_at_once = self.protocol.max_at_once
        self._items = range(*items)
        self.idle: deque[Any] = deque()
        """Environments on the server that nobody acts in: it forgets none by itself, so they are used again."""

    def tasks(self, count: int, *, seed: int, tiers: Sequence[int] = ()) -> list[Task]:
        """`count` of the server's tasks, each as often as any other, give or take one; all are of the first tier."""
        if tiers and 1 not in tiers:
            return []
        randomness = Random(f"agentgym tasks {seed}")  # noqa: S311 - to repeat it is the point
        chosen: list[int] = []
        while len(chosen) < count:
            chosen += randomness.sample(self._items, min(count - len(chosen), len(self._items)))
        return [self._task(item) for item in chosen]

    def task(self, setup: Mapping[str, Any]) -> Task:
        """The task that `setup` describes."""
        item = setup.get("item")
        if type(item) is not int or item not in self._items:
            raise InvalidTask(
                f'no task of the world "{self.name}": give {{"item": from {self._items[0]} to {self._items[-1]}}}'
            )
        return self._task(item)

    def open(self, task: Task) -> "AgentGymEnvironment":
        """An attempt at `task`."""
        return AgentGymEnvironment(self, task)

    def _task(self, item: int) -> Task:
        return Task(f"{self.name}-{item}", 1, {"item": item})


class AgentGymEnvironment:
    """One attempt, on the server."""

    def __init__(self, world: AgentGymWorld, task: Task) -> None:
        self._world, self._protocol, self._server = world, world.protocol, world.server
        self.reset(task)
        weakref.finalize(self, world.idle.append, self._environment)

    def reset(self, task: Task) -> str:
        """Start over with `task`, in an environment that is idle, or in a new one."""
        self._score, self._outcome = 0.0, None
        item = task.setup["item"]
        try:
            try:
                self._environment = self._named()
                self._observation = self._started(item)
            except _Refused:
                # One that was there before the server was started again.
                self._environment = self._created()
                self._observation = self._started(item)
        except (_Refused, LookupError, TypeError, ValueError) as wrong:
            raise WorldUnavailable(
                f"{self._world.name} does not begin its task {item} ({type(wrong).__name__}: {wrong}): see that the "
                "server is of this environment, and has this task"
            ) from wrong
        return self._observation

    def observe(self) -> str:
        """The last observation."""
        return self._observation

    def step(self, action: str) -> StepOutcome:
        """Act on the server. What it refuses ends the attempt."""
        if self._outcome is not None:
            return self._outcome._replace(reward=0.0, accepted=False)
        told = {self._protocol.environment: self._environment, "action": self._protocol.action_in(action)}
        try:
            answer = self._server.post("/step", told)
            self._observation = _text(answer[self._protocol.observation])
            score = float(answer[self._protocol.score]) / self._protocol.best
            done = bool(answer[self._protocol.done])
        except (_Refused, LookupError, TypeError, ValueError) as wrong:
            self._observation = f"The environment has ended: {wrong}"
            self._outcome = StepOutcome(self._observation, 0.0, done=True, accepted=False)
            return self._outcome
        # The last score is that of the whole attempt: so what is told for each action sums up to it.
        outcome = StepOutcome(self._observation, score - self._score, done, success=done and score >= 1)
        self._score = score
        self._outcome = outcome if done else None
        return outcome

    _environment: Any = None
    _outcome: StepOutcome | None
    """Of the action that ended the attempt."""

    def _named(self) -> Any:
        if self._environment is not None:
            return self._environment
        try:
            return self._world.idle.popleft()
        except IndexError:
            return self._created()

    def _created(self) -> Any:
        answer = self._server.post("/create", self._protocol.create)
        return answer[self._protocol.created] if self._protocol.created else answer

    def _started(self, item: int) -> str:
        named = {self._protocol.environment: self._environment}
        answer = self._server.post("/reset", {**self._protocol.reset, self._protocol.item: item, **named})
        if self._protocol.shown:
            return self._protocol.first_observation(answer)
        return _text(self._server.get("/observation", named))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
