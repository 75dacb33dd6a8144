"""An agent that attempts tasks: it asks the gateway what to do, does it in the world, and records both.

Each attempt is a session of its own at the gateway, so all of it is answered by one model, and what came of it speaks
for that model. The agent knows nothing of models: who answered stands in the answer.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from random import Random
from typing import Any
from uuid import UUID

import aiohttp

from rl_pipeline.agents.opinions import Opinion, OpinionRule, feedback
from rl_pipeline.collection import Outbox, Recorder
from rl_pipeline.collection.recording import OpenTrajectory
from rl_pipeline.collection.turns import ObservationKind
from rl_pipeline.contracts import Feedback
from rl_pipeline.environments.environment import Environment, Task, World
from rl_pipeline.environments.playing import Message, opening
from rl_pipeline.environments.recording import task_context
from rl_pipeline.errors import PipelineError

_ANSWER_SECONDS = 60.0
_RATED: Mapping[Opinion, str] = {"thumbs_up": "positive", "thumbs_down": "negative"}


class GatewayFailed(PipelineError):
    """The gateway gave no answer to work with."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of one attempt."""

    task: Task
    trajectory_id: str
    success: bool
    turns: int
    model_version: str | None
    """Of the model that answered; None where nobody did."""
    seconds: float
    feedback: Feedback | None = None
    error: str | None = None
    """Why there was no answer, where there was none."""


@dataclass(slots=True)
class Player:
    """One agent. Its attempts follow each other; for many at once there is `play_all`."""

    world: World
    gateway: str
    """Address of the gateway."""
    outbox: Outbox
    http: aiohttp.ClientSession
    agent_id: str
    model: str
    """What the agent calls its model, whoever answers in its name."""
    temperature: float = 1.0
    max_tokens: int = 16
    opinions: OpinionRule = field(default_factory=OpinionRule)
    evaluation: bool = False
    """Attempts to measure with: not recorded, and nobody has an opinion of them."""

    async def attempt(self, task: Task, randomness: Random) -> Attempt:
        """From the first observation to the end; that the gateway fails ends it, and is told in the result.

        Ids, answers and the user's opinion are drawn by `randomness`: the same gives the same attempt with the same
        model, where the server heeds the seed of a request.
        """
        session_id = f"{self.agent_id}-{randomness.getrandbits(64):016x}"
        environment = self.world.open(task)
        recorder = Recorder(
            self.outbox,
            agent_id=self.agent_id,
            model=self.model,
            session_id=session_id,
            trajectory_id=str(UUID(int=randomness.getrandbits(128), version=4)),
            task_context=task_context(self.world, task, opening(self.world, environment.observe())),
            metadata={"temperature": self.temperature, "framework": "rl-pipeline-agents"},
            opt_out=self.evaluation,
        )
        started = time.perf_counter()
        async with recorder as trajectory:
            episode = _Episode(task, opening(self.world, environment.observe()), randomness)
            try:
                await self._play(environment, episode, trajectory, session_id)
            except GatewayFailed as failed:
                episode.error = str(failed)
            trajectory.end("success" if episode.success else "failed")
            opinion = None
            if not self.evaluation and not episode.error:
                opinion = self.opinions.opinion(episode.success, randomness)
            if opinion:
                await self._rate(session_id, opinion)
        return Attempt(
            task,
            trajectory.trajectory_id,
            episode.success,
            episode.turns,
            episode.model_version,
            time.perf_counter() - started,
            feedback(opinion, trajectory.trajectory_id, session_id, datetime.now(UTC), randomness) if opinion else None,
            episode.error,
        )

    async def _play(
        self, environment: Environment, episode: "_Episode", trajectory: OpenTrajectory, session_id: str
    ) -> None:
        for _ in range(self.world.max_turns):
            last = episode.messages[-1]
            kind: ObservationKind = "user_message" if last["role"] == "user" else "tool_result"
            with trajectory.turn(last["content"], kind=kind) as turn:
                answer = await self._ask(episode, session_id)
                said = _said(answer)
                episode.model_version = answer.get("model")
                turn.answer(said, model_version=episode.model_version, **_drawn(answer))
                turn.call(self.world.name, {"command": said.strip()})
                # A world may be a server far away.
                outcome = await asyncio.to_thread(environment.step, said)
                if outcome.accepted:
                    turn.succeed(outcome.observation)
                else:
                    turn.fail(outcome.observation, outcome.observation)
            episode.turns += 1
            episode.messages.append({"role": "assistant", "content": said})
            episode.messages.append({"role": "tool", "content": outcome.observation})
            if outcome.done:
                episode.success = outcome.success
                return

    async def _ask(self, episode: "_Episode", session_id: str) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages": episode.messages,
            "temperature": self.temperature,
            "seed": episode.randomness.getrandbits(31),
            "max_tokens": self.max_tokens,
            "logprobs": True,
            "return_token_ids": True,
        }
        address = f"{self.gateway}/v1/chat/completions"
        patience = aiohttp.ClientTimeout(total=_ANSWER_SECONDS)
        try:
            async with self.http.post(
                address, json=body, headers={"X-Session-Id": session_id}, timeout=patience
            ) as answer:
                content = await answer.json(content_type=None)
                if answer.status != 200:
                    raise GatewayFailed(f"the gateway answered {answer.status}: {str(content)[:200]}")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise GatewayFailed(f"the gateway gave no answer ({type(error).__name__}: {error})") from None
        if not isinstance(content, dict):
            raise GatewayFailed("the gateway's answer is no object")
        return content

    async def _rate(self, session_id: str, opinion: Opinion) -> None:
        """While the session is open, so that a rollout hears of it at once; lost, it still goes by the stream."""
        body = {"session_id": session_id, "feedback": _RATED[opinion]}
        try:
            async with self.http.post(f"{self.gateway}/v1/feedback", json=body) as answer:
                await answer.read()
        except (aiohttp.ClientError, TimeoutError):
            return


async def play_all(
    players: Iterable[Player], tasks: Iterable[Task], *, seed: object, ended: Callable[[Attempt], None] = lambda _: None
) -> list[Attempt]:
    """All tasks, each attempted once by whichever player is free; in the order in which the attempts ended.

    What an attempt draws depends on the seed and on the place of its task, not on who was free. `ended` is called with
    each as it ends.
    """
    waiting, attempts = iter(enumerate(tasks)), []

    async def work(player: Player) -> None:
        for place, task in waiting:
            luck = Random(f"{seed} {place}")  # noqa: S311 - to repeat it is the point
            attempts.append(await player.attempt(task, luck))
            ended(attempts[-1])

    async with asyncio.TaskGroup() as group:
        for player in players:
            group.create_task(work(player))
    return attempts


@dataclass(slots=True)
class _Episode:
    """An attempt while it goes on."""

    task: Task
    messages: list[Message]
    randomness: Random
    turns: int = 0
    success: bool = False
    model_version: str | None = None
    error: str | None = None


def _said(answer: Mapping[str, Any]) -> str:
    try:
        return str(answer["choices"][0]["message"]["content"] or "")
    except (LookupError, TypeError):
        raise GatewayFailed("the gateway's answer has no choice with a message") from None


def _drawn(answer: Mapping[str, Any]) -> dict[str, Any]:
    """How the answer was drawn, as far as the server tells: any server tells the counts, few the tokens."""
    choice, usage = answer["choices"][0], answer.get("usage") or {}
    drawn = {name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")}
    token_ids, prompt = choice.get("token_ids"), answer.get("prompt_token_ids")
    if token_ids and prompt:
        told = (choice.get("logprobs") or {}).get("content") or []
        drawn |= {"prompt_token_ids": prompt, "completion_token_ids": token_ids}
        if len(told) == len(token_ids):
            drawn["logprobs"] = [token["logprob"] for token in told]
    return drawn
