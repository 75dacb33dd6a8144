"""The demo's agents: they play through the gateway, record what they do, and their users say what they think."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import sqrt
from threading import Event
from time import monotonic

import aiohttp

from rl_pipeline.agents import Attempt, OpinionRule, Player, play_all
from rl_pipeline.collection import Outbox
from rl_pipeline.collection.publishing import outgoing_message
from rl_pipeline.demo.profile import DemoFailed, DemoProfile
from rl_pipeline.demo.scene import Scene
from rl_pipeline.demo.telling import attempts_in_words
from rl_pipeline.environments.environment import Task, World
from rl_pipeline.training.small_model.held_out import held_out_tasks

_SENDING_SECONDS = 60.0
_PLAYING_SECONDS = 300.0
_LOOK_SECONDS = 0.2
_ROUND = 64
_ROUND_SECONDS = 5.0
_TALKATIVE = OpinionRule(one_in=2)
"""More of these users speak than of others: a demo has minutes."""
_TASKS = "SELECT DISTINCT task_id FROM trajectories FINAL"
_MODEL = "demo-policy"
"""What the agents call their model; who answers in its name stands in the answer."""


@dataclass(frozen=True, slots=True)
class Measured:
    """How often a model reaches its goal on tasks that nobody learns from, and how long it takes to."""

    model: str
    successes: int
    attempts: int
    turns: int = 0
    """Of all attempts."""
    turns_of_solved: int = 0
    seconds: float = 0.0
    """Of all attempts, each by itself; they share the machine."""

    @property
    def rate(self) -> float:
        """Of success."""
        return self.successes / self.attempts

    @property
    def error(self) -> float:
        """Standard error of the rate."""
        return sqrt(self.rate * (1 - self.rate) / self.attempts)

    @property
    def turns_to_solve(self) -> float | None:
        """Turns for each task that is solved, counting those of the attempts that were in vain; None if none is."""
        return self.turns / self.successes if self.successes else None


@dataclass(slots=True)
class Population:
    """Agents that attempt one task after another; the same seed gives the same tasks, and the same luck with them."""

    scene: Scene
    profile: DemoProfile
    outbox: Outbox
    world: World
    attempts: list[Attempt] = field(default_factory=list)
    """All that were recorded."""
    _rounds: int = 0
    _measures: int = 0
    _told: int = 0

    def play(self, count: int, meanwhile: str = "") -> list[Attempt]:
        """So many attempts; they are on their way through the pipeline when this returns, and their users' opinions
        wait for `tell_opinions`. `meanwhile` is what else there is to show."""
        self._rounds += 1
        tasks = self.tasks(count, seed=self.profile.seed * 1_000_003 + self._rounds)
        made = self._all(tasks, f"round {self._rounds}", meanwhile, evaluation=False)
        if not self.outbox.wait_until_sent(_SENDING_SECONDS):
            raise DemoFailed(f"the stream has not taken all trajectories: {self.outbox.counts}")
        self.attempts += made
        return made

    def tasks(self, count: int, *, seed: int, tiers: Sequence[int] = ()) -> list[Task]:
        """So many tasks to learn from: none of them is held out."""
        held_out = {task.id for task in self._held_out()}
        chosen: list[Task] = []
        drawn = count
        while len(chosen) < count:
            drawn *= 2
            chosen = [task for task in self.world.tasks(drawn, seed=seed, tiers=tiers) if task.id not in held_out]
        return chosen[:count]

    def check_held_out(self) -> None:
        """Raises `DemoFailed` where anybody could have learnt from a task that models are measured on."""
        stored = {row["task_id"] for row in self.scene.rows(_TASKS)}
        both = sorted(stored & {task.id for task in self._held_out()})
        if both:
            raise DemoFailed(f"{len(both)} held-out tasks were learnt from, {both[0]} among them: no figure counts")

    def play_on(self, meanwhile: str = "") -> list[Attempt]:
        """A round of attempts, and a rest until its time is over: users come at their rate while a rollout goes on, and
        leave some of the cores to it."""
        over = monotonic() + _ROUND_SECONDS
        made = self.play(_ROUND, meanwhile)
        self.scene.until(lambda: monotonic() > over, "the rest did not end")
        return made

    def tell_opinions(self) -> None:
        """Publish what users thought of the attempts since the last time: together, because a run scores them."""
        said = [outgoing_message(one.feedback) for one in self.attempts[self._told :] if one.feedback]
        self.scene.stream.publish_many(said)
        self._told = len(self.attempts)

    def measure(self, model: str | None = None) -> Measured:
        """The model in service, which should be `model`, through the gateway, on the held-out tasks.

        Nothing of it is recorded.
        """
        self._measures += 1
        made = self._all(self._held_out(), f"measure {self._measures}", evaluation=True)
        models = sorted({str(one.model_version) for one in made})
        if len(models) > 1:
            raise DemoFailed(f"more than one model answered while one should serve: {', '.join(models)}")
        if model is not None and models != [model]:
            raise DemoFailed(f"{models[0]} answers in place of {model}")
        measured = measured_by(models[0], made)
        took = "" if measured.turns_to_solve is None else f", with {measured.turns_to_solve:.1f} turns for each solved"
        self.scene.say(
            f"{measured.model} solves {measured.rate:.1%} ± {measured.error:.1%} of {measured.attempts} tasks that "
            f"nobody learns from{took}."
        )
        return measured

    def _held_out(self) -> list[Task]:
        return held_out_tasks(self.world, self.profile.measured)

    def _all(self, tasks: Sequence[Task], occasion: str, meanwhile: str = "", *, evaluation: bool) -> list[Attempt]:
        began, given_up, ended = monotonic(), Event(), deque[Attempt]()

        def over() -> bool:
            words = attempts_in_words(len(ended), len(tasks), monotonic() - began)
            self.scene.progress("; ".join(filter(None, [words, meanwhile])))
            return playing.done()

        with ThreadPoolExecutor(1, "agents") as thread:
            playing = thread.submit(asyncio.run, self._at_once(tasks, occasion, evaluation, ended.append, given_up))
            try:
                self.scene.until(over, "the agents did not come to an end", _PLAYING_SECONDS)
            finally:
                given_up.set()
                self.scene.progress("")
        made = playing.result()
        failed = [one.error for one in made if one.error]
        if failed and (evaluation or len(failed) > len(made) / 2):
            raise DemoFailed(f"{len(failed)} of {len(made)} attempts got no answer: {failed[0]}")
        return made

    async def _at_once(
        self,
        tasks: Sequence[Task],
        occasion: str,
        evaluation: bool,
        ended: Callable[[Attempt], None],
        given_up: Event,
    ) -> list[Attempt]:
        """Cancelled when it is given up: the attempts under way are abandoned, as their records say."""
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            players = [self._player(number, http, evaluation) for number in range(self.profile.agents)]
            seed = f"{self.profile.seed} {occasion}"
            playing = asyncio.create_task(play_all(players, tasks, seed=seed, ended=ended))
            while not playing.done():
                if given_up.is_set():
                    playing.cancel()
                await asyncio.wait({playing}, timeout=_LOOK_SECONDS)
            return await playing

    def _player(self, number: int, http: aiohttp.ClientSession, evaluation: bool) -> Player:
        return Player(
            self.world,
            self.scene.stack.addresses.gateway,
            self.outbox,
            http,
            agent_id=f"{self.world.name}-agent-{number}",
            model=_MODEL,
            opinions=_TALKATIVE,
            evaluation=evaluation,
            publishes_opinions=False,  # `tell_opinions` does
        )


def measured_by(model: str, attempts: Sequence[Attempt]) -> Measured:
    """What the attempts of a model come to."""
    solved = [one for one in attempts if one.success]
    turns, turns_of_solved = (sum(one.turns for one in made) for made in (attempts, solved))
    seconds = sum(one.seconds for one in attempts)
    return Measured(model, len(solved), len(attempts), turns, turns_of_solved, round(seconds, 3))


@contextmanager
def population_of(scene: Scene, profile: DemoProfile) -> Iterator[Population]:
    """The agents, whose outbox lies in the demo's home."""
    settings = scene.settings
    outbox = Outbox(
        settings.rl_pipeline_home / "outbox",
        settings.nats_url,
        user=settings.nats_user,
        password=settings.nats_password.get_secret_value() if settings.nats_password else None,
    )
    try:
        yield Population(scene, profile, outbox, profile.open_world())
    finally:
        outbox.close()
