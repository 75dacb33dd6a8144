"""What a term is, the options terms read, and how terms are found by name and held to their range.

A term is built in or comes from an installed package, as an entry point of the group `rl_pipeline.reward_terms` whose
name is the term's and whose value is a callable without arguments that returns the term. Only the terms asked for are
loaded, so a broken package harms no one who gives its term no weight.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from math import isfinite
from typing import Literal, Protocol, get_args, runtime_checkable

import numpy as np
import polars as pl

from rl_pipeline.errors import PipelineError

Source = Literal["automated", "human", "linter", "test_results", "benchmark"]
Stars = Literal["literal", "centred"]
SecurityScanner = Literal["ruff", "bandit"]

ENTRY_POINTS = "rl_pipeline.reward_terms"

NEUTRAL = "neutral: "
"""How the evidence of a score begins that stands for knowing nothing. Such a score lends no confidence."""

_BUILT_IN = {
    "answer_quality": "AnswerQuality",
    "code_quality": "CodeQuality",
    "coordination": "Coordination",
    "efficiency": "Efficiency",
    "safety_constraint": "SafetyConstraint",
    "task_completion": "TaskCompletion",
    "tool_execution": "ToolExecution",
    "user_feedback": "UserFeedback",
    "voting": "Voting",
}


class TermError(PipelineError):
    """A term that cannot be found or used; the text names it and says what to do."""


class InvalidOptions(PipelineError):
    """Options no term can work with; the text names the one."""


@dataclass(frozen=True)
class TermOptions:
    """What a deployment decides about how terms score."""

    stars: Stars = "literal"
    """`literal`: rating / 5, so one star is 0.2; `centred`: (rating - 1) / 4, so three stars are neutral."""
    error_weight: float = 0.1
    """What a success loses when every one of its calls failed, 0 to 0.5; 0 ignores failed calls."""
    token_penalty_cap: float = -1.0
    """The most that tokens can cost in coordination, -1 to 0."""
    security_scanner: SecurityScanner = "ruff"
    """Which scanner looks for security findings in code."""

    def __post_init__(self) -> None:
        if self.stars not in get_args(Stars):
            raise InvalidOptions("stars: choose literal or centred")
        if self.security_scanner not in get_args(SecurityScanner):
            raise InvalidOptions("security_scanner: choose ruff or bandit")
        if not 0.0 <= self.error_weight <= 0.5:
            raise InvalidOptions("error_weight: choose a number from 0 to 0.5")
        if not -1.0 <= self.token_penalty_cap <= 0.0:
            raise InvalidOptions("token_penalty_cap: choose a number from -1 to 0")


@runtime_checkable
class Term(Protocol):
    """One reason for a reward: a pure function from the facts of trajectories to scores."""

    name: str
    low: float
    high: float
    source: Source
    version: int
    """Raised when the formula changes: part of the configuration's hash, so old and new scores are never mixed."""

    def score(self, batch: pl.DataFrame, options: TermOptions) -> pl.DataFrame:
        """`score` (Float64: null where the term does not apply, else within [low, high]) and `evidence` (String).

        Row by row as in `batch`; a row's result never depends on the other rows. Evidence is for people, and begins
        with `NEUTRAL` where the score stands for knowing nothing.
        """
        ...


def terms_named(names: Iterable[str]) -> tuple[Term, ...]:
    """The terms of these names, in the order of their names; raises `TermError`."""
    known = _known()
    wanted = sorted(set(names))
    if unknown := [name for name in wanted if name not in known]:
        raise TermError(
            f"there is no reward term {', '.join(map(repr, unknown))}: choose from {', '.join(sorted(known))}, "
            f"or install the package that has it as an entry point of {ENTRY_POINTS}"
        )
    return tuple(_load(known[name]) for name in wanted)


def score_of(term: Term, batch: pl.DataFrame, options: TermOptions) -> pl.DataFrame:
    """The columns `score` and `evidence` of a term, held to what a term promises; raises `TermError`."""
    scored = term.score(batch, options)
    if not {"score", "evidence"} <= set(scored.columns) or scored.height != batch.height:
        raise TermError(
            f"the reward term {term.name!r} must return the columns score and evidence with a row for each of the "
            f"{batch.height} trajectories: correct its function"
        )
    score, evidence = scored["score"], scored["evidence"]
    if not (score.dtype == pl.Float64 and evidence.dtype == pl.String):
        raise TermError(
            f"the reward term {term.name!r} returned score and evidence as {score.dtype} and {evidence.dtype}: "
            "make them Float64 and String"
        )
    # In numpy, where null is NaN: for one trajectory, asking Polars takes longer than everything else.
    values = score.to_numpy()
    unknown = np.isnan(values)
    outside = values[(values < term.low) | (values > term.high)]
    if outside.size or unknown.sum() > score.null_count():
        gave = outside[0] if outside.size else np.nan
        raise TermError(
            f"the reward term {term.name!r} gave {gave}, outside its range [{term.low}, {term.high}]: "
            "correct its function or its range"
        )
    return scored


def _known() -> Mapping[str, EntryPoint]:
    """Where each term is loaded from. Names clash without any of them being loaded."""
    known = {
        name: EntryPoint(name=name, value=f"{__package__}.terms.{name}:{attribute}", group=ENTRY_POINTS)
        for name, attribute in _BUILT_IN.items()
    }
    for found in sorted(entry_points(group=ENTRY_POINTS), key=lambda found: (found.name, found.value)):
        known_before = known.setdefault(found.name, found)
        if known_before.value != found.value:
            raise TermError(
                f"two reward terms are called {found.name!r} ({known_before.value} and {found.value}): "
                "rename one of the entry points, or uninstall its package"
            )
    return known


def _load(found: EntryPoint) -> Term:
    try:
        term = found.load()()
    except Exception as error:
        raise TermError(
            f"the reward term {found.name!r} ({found.value}) cannot be loaded ({type(error).__name__}): "
            "repair or uninstall its package, or give it no weight"
        ) from error
    if not isinstance(term, Term) or term.name != found.name or term.source not in get_args(Source):
        raise TermError(
            f"{found.value} is no reward term: it must return an object with the name {found.name!r}, low, high, "
            f"a source ({', '.join(get_args(Source))}), a version and score()"
        )
    if not (isfinite(term.high - term.low) and term.low < term.high):
        raise TermError(f"the reward term {term.name!r} has no range: give it a low below its high, both finite")
    return term
