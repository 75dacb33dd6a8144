"""The tasks of reasoning-gym behind the port: one question, one answer, scored by the family's own scorer.

A task is a number and the family's configuration, from which reasoning-gym makes its question, always the same one. To
be asked the same is the same task, whatever the number: so no question is on both sides of a split by tasks.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from random import Random
from typing import Any

from rl_pipeline.environments.environment import InvalidTask, InvalidWorld, StepOutcome, Task

PREFIX = "reasoning-gym:"

_EVALUATES = "its scorer runs what the model answers as code"
_VARIES = "its questions or answers differ from process to process"
UNUSABLE: Mapping[str, str] = {
    "binary_matrix": _EVALUATES,
    "codeio": _VARIES,
    "composite": "it is made of other families: name those",
    "countdown": _EVALUATES,
    "intermediate_integration": _EVALUATES,
    "isomorphic_strings": _VARIES,
    "list_functions": _VARIES,
    "n_queens": _EVALUATES,
    "polynomial_multiplication": _EVALUATES,
    "puzzle24": _EVALUATES,
    "ransom_note": _VARIES,
    "simple_integration": _EVALUATES,
    "spiral_matrix": _EVALUATES,
    "string_insertion": _EVALUATES,
    "word_ladder": _VARIES,
}
"""Families of reasoning-gym 0.1.25 that are not offered, and why."""

# Some families seed numpy, which takes no more.
_NUMBERS = 2**32
_MARKED_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_KEPT_QUESTIONS = 10_000


class ReasoningGymWorld:
    """The world `reasoning-gym:<family>`. Its tasks are `{"number": which, "config": that of the world}`."""

    instructions = "Answer with nothing but the answer, or put it between <answer> and </answer>."
    max_turns = 1
    max_at_once = 256

    def __init__(self, family: str, config: Mapping[str, Any]) -> None:
        """What `config` leaves out is as reasoning-gym has it. Raises `InvalidWorld` for a family of `UNUSABLE`."""
        if family in UNUSABLE:
            raise InvalidWorld(f"the family {family} of reasoning-gym is not offered, because {UNUSABLE[family]}")
        self.name = f"{PREFIX}{family}"
        self._family = family
        self._config = dict(config)
        self._item = lru_cache(_KEPT_QUESTIONS)(self._generated)

    def tasks(self, count: int, *, seed: int, tiers: Sequence[int] = ()) -> list[Task]:
        """`count` tasks, all of the first tier: how hard they are is a matter of the configuration."""
        if tiers and 1 not in tiers:
            return []
        randomness = Random(f"reasoning-gym tasks {seed}")  # noqa: S311 - to repeat it is the point
        return [self._task(randomness.randrange(_NUMBERS)) for _ in range(count)]

    def task(self, setup: Mapping[str, Any]) -> Task:
        """The task that `setup` describes; one of another configuration is none of this world."""
        number = setup.get("number")
        if type(number) is not int or not 0 <= number < _NUMBERS or setup.get("config") != self._config:
            raise InvalidTask(
                f'no task of the world "{self.name}": give {{"number": from 0 to {_NUMBERS - 1}, "config": the '
                "configuration of the world}"
            )
        return self._task(number)

    def open(self, task: Task) -> "ReasoningGymEnvironment":
        """An attempt at `task`."""
        return ReasoningGymEnvironment(self, task)

    def question(self, task: Task) -> str:
        """What is asked."""
        return str(self._item(task.setup["number"])[1]["question"])

    def answer(self, task: Task) -> str:
        """A right answer. No environment tells it."""
        return str(self._item(task.setup["number"])[1]["answer"])

    def score(self, task: Task, answer: str) -> float:
        """What the family's scorer gives for `answer`, from 0 to 1."""
        dataset, item = self._item(task.setup["number"])
        marked = _MARKED_ANSWER.findall(answer)
        try:
            score = float(dataset.score_answer((marked[-1] if marked else answer).strip(), item))
        except Exception:  # noqa: BLE001  some scorers break at text that they do not expect: it is not the answer
            return 0.0
        return min(1.0, max(0.0, score))

    def _task(self, number: int) -> Task:
        question = str(self._item(number)[1]["question"])
        digest = hashlib.sha256(question.encode()).hexdigest()[:16]
        return Task(f"{self.name}-{digest}", 1, {"number": number, "config": self._config})

    def _generated(self, number: int) -> tuple[Any, dict[str, Any]]:
        """The dataset of this one question, which scores its answers too, and the question."""
        try:
            from reasoning_gym.factory import create_dataset  # it takes a second or two to import
        except ModuleNotFoundError:
            raise InvalidWorld(f"{self.name} needs reasoning-gym: pip install 'rl-pipeline[environments]'") from None
        try:
            dataset = create_dataset(self._family, **{**self._config, "seed": number, "size": 1})
            return dataset, dataset[0]
        except (AssertionError, TypeError, ValueError) as wrong:
            raise InvalidWorld(
                f"{self.name} cannot be set up with {self._config} ({wrong}): correct the file of worlds"
            ) from wrong


class ReasoningGymEnvironment:
    """One attempt: the first answer ends it."""

    def __init__(self, world: ReasoningGymWorld, task: Task) -> None:
        self._world = world
        self.reset(task)

    def reset(self, task: Task) -> str:
        """Start over with `task`."""
        self._task = task
        self._scored: float | None = None
        self._observation = self._world.question(task)
        return self._observation

    def observe(self) -> str:
        """The last observation."""
        return self._observation

    def step(self, action: str) -> StepOutcome:
        """Score the answer. The right answer is not told."""
        if self._scored is not None:
            return StepOutcome(self._observation, 0.0, done=True, accepted=False, success=self._scored >= 1)
        self._scored = self._world.score(self._task, action)
        self._observation = f"Score: {self._scored:g}"
        return StepOutcome(self._observation, self._scored, done=True, success=self._scored >= 1)
