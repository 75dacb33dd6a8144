"""One suite in the course of a validation: its items in random order, asked and scored a stretch at a time."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from hashlib import sha256
from random import Random

from rl_pipeline.validation.answers import Answers, ModelUnavailable
from rl_pipeline.validation.statistics import Estimate, estimate
from rl_pipeline.validation.suite import Item, Suite, UnusableAnswer
from rl_pipeline.validation.verdict import Against

_SCORERS_AT_ONCE = min(4, os.cpu_count() or 1)

LONGEST_ANSWER = 65_536
"""Characters of an answer that is read: many more than the 1,024 tokens that suites ask for. A longer one is worth 0.

It bounds the time that a scorer takes. A clock could not: a regular expression keeps the interpreter until it is done,
and what scores is a function of this process that no other one could be given.
"""


@dataclass
class Drawing:
    """What was asked so far, what both models answered, and the scores."""

    suite: Suite
    seed: int
    items: list[Item] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    control_answers: list[str] = field(default_factory=list)
    control_scores: list[float] = field(default_factory=list)
    error: str | None = None
    """Why the suite says nothing."""

    def __post_init__(self) -> None:
        self._order = list(self.suite.items)
        Random(f"order of {self.suite.name} {self.seed}").shuffle(self._order)  # noqa: S311 - to repeat it is the point

    def most(self, size: int) -> int:
        """How many items there are, up to `size`."""
        return min(size, len(self._order) * self.suite.attempts)

    def draw(self, size: int, candidate: Answers, control: Answers | None) -> None:
        """Ask and score until there are `size` items. What goes wrong in the suite is its `error`.

        Both models are asked at once, with the same seeds. That a model does not answer is raised: it is no fault of
        the suite and says nothing about the model.
        """
        places = range(len(self.items), self.most(size))
        if not places:
            return
        drawn = [self._order[place % len(self._order)] for place in places]
        seeds = [self._seed_of(place) for place in places]
        try:
            answers, control_answers = _ask(self.suite, drawn, seeds, candidate, control)
            scores, control_scores = _score(self.suite, drawn, answers), _score(self.suite, drawn, control_answers)
        except ModelUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - whatever a suite raises, it fails closed and says why
            self.error = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            return
        self.items += drawn
        self.answers += answers
        self.scores += scores
        self.control_answers += control_answers
        self.control_scores += control_scores

    def compared(self, *, with_control: bool) -> set[Against]:
        """What the suite's scores are compared with."""
        if self.suite.even:
            return {"first side", "second side"}
        against: set[Against] = {"control"} if with_control else set()
        return against if self.suite.kind == "regression" else against | {"floor"}

    def estimates(self) -> dict[Against, Estimate]:
        """The differences that the suite is judged by."""
        families = [item.family for item in self.items]
        if self.suite.even:
            first = [2 * score - 1 for score in self.scores]
            second = [-difference for difference in first]
            return {"first side": estimate(first, families), "second side": estimate(second, families)}
        floor = self.suite.floor
        found: dict[Against, Estimate] = {}
        against = self.compared(with_control=bool(self.control_scores))
        if "control" in against:
            pairs = zip(self.scores, self.control_scores, strict=True)
            found["control"] = estimate([mine - other for mine, other in pairs], families)
        if "floor" in against:
            above = [score - floor for score in self.scores]
            found["floor"] = estimate(above, families, low=-floor, high=1 - floor)
        return found

    def _seed_of(self, place: int) -> int:
        attempt, which = divmod(place, len(self._order))
        said = f"{self.seed} {self.suite.name} {self._order[which].id} {attempt}"
        return int.from_bytes(sha256(said.encode()).digest()[:4], "big") % 2**31


def _ask(
    suite: Suite, items: Sequence[Item], seeds: Sequence[int], candidate: Answers, control: Answers | None
) -> tuple[list[str], list[str]]:
    asked = [candidate] if control is None or suite.even else [candidate, control]
    with ThreadPoolExecutor(len(asked), "models") as pool:
        given = list(pool.map(lambda model: suite.ask(model, items, seeds), asked))
    for answers in given:
        if len(answers) != len(items):
            raise UnusableAnswer(f"{len(answers)} answers came for {len(items)} items")
    return given[0], given[1] if len(given) > 1 else []


def _score(suite: Suite, items: Sequence[Item], answers: Sequence[str]) -> list[float]:
    scores = [0.0] * len(answers)

    def work(first: int) -> None:
        for place in range(first, len(answers), _SCORERS_AT_ONCE):
            if len(answers[place]) <= LONGEST_ANSWER:
                scores[place] = suite.scorer(items[place], answers[place])

    with ThreadPoolExecutor(_SCORERS_AT_ONCE, "scorers") as pool:
        list(pool.map(work, range(_SCORERS_AT_ONCE)))
    for item, score in zip(items[: len(scores)], scores, strict=True):
        if not 0.0 <= score <= 1.0:
            raise UnusableAnswer(f"item {item.id!r} was scored {score}, which is not within 0 and 1")
    return scores
