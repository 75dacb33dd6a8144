"""What decides a reward besides the facts: weights, normalisation and options, and the hashes that name them.

```toml
method = "z-score"        # or min-max, none
window = 1000             # earlier scores of the task type that a score is compared with
least_history = 30        # fewer than that: 0.5, and marked as a cold start
baseline = 200            # first trajectories of a task type, which set its standard of efficiency
gamma = 1.0               # discount of the shaped rewards
credit = "shapley"        # or difference: what the team would lose without the agent
constraints = ["safety_constraint"]  # terms that take the whole reward where they are broken; none if left out

[weights]                 # sum to 1; a term without a weight is not computed
task_completion = 0.40
efficiency = 0.20
code_quality = 0.15
user_feedback = 0.25

[options]                 # see `TermOptions`
stars = "literal"
```
"""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args

from rl_pipeline.errors import PipelineError
from rl_pipeline.rewards.baselines import LARGEST_BASELINE
from rl_pipeline.rewards.normalization import LONGEST_WINDOW, Method
from rl_pipeline.rewards.term import Source, Term, TermOptions, terms_named

DEFAULT_WEIGHTS = {"task_completion": 0.40, "efficiency": 0.20, "code_quality": 0.15, "user_feedback": 0.25}

CreditMethod = Literal["shapley", "difference"]

_NUMBERS = ("window", "least_history", "baseline", "gamma")


class InvalidConfiguration(PipelineError):
    """Rewards cannot be computed like that; the text says what to change."""


@dataclass(frozen=True)
class RewardConfiguration:
    """How signals become rewards. Equal hashes: equal rewards for equal signals."""

    weights: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_WEIGHTS))
    method: Method = "z-score"
    window: int = 1000
    least_history: int = 30
    baseline: int = 200
    gamma: float = 1.0
    credit: CreditMethod = "shapley"
    constraints: tuple[str, ...] = ()
    """Terms without a weight whose lowest score is a veto: the totals are then 0, whatever the others say."""
    options: TermOptions = field(default_factory=TermOptions)
    own_terms: tuple[Term, ...] = ()
    """Terms that the caller brings, before those that are found by name."""
    terms: tuple[Term, ...] = field(init=False, repr=False, compare=False)
    """The terms with a weight above 0, by name: the order in which they are added up."""
    vetoes: tuple[Term, ...] = field(init=False, repr=False, compare=False)
    """The terms that are constraints, by name."""

    def __post_init__(self) -> None:
        _check_weights(self.weights)
        if self.method not in get_args(Method):
            raise InvalidConfiguration(f"method: choose one of {', '.join(get_args(Method))}")
        _check_whole("least_history", self.least_history, 1, LONGEST_WINDOW)
        _check_whole("window", self.window, self.least_history, LONGEST_WINDOW)
        _check_whole("baseline", self.baseline, self.least_history, LARGEST_BASELINE)
        if not 0 <= self.gamma <= 1:
            raise InvalidConfiguration("gamma: choose a number from 0 to 1")
        if self.credit not in get_args(CreditMethod):
            raise InvalidConfiguration(f"credit: choose one of {', '.join(get_args(CreditMethod))}")
        own = {term.name: term for term in self.own_terms}
        weighted = {name for name, weight in self.weights.items() if weight > 0}
        found = {term.name: term for term in terms_named(weighted - own.keys())} | own
        object.__setattr__(self, "terms", tuple(found[name] for name in sorted(weighted)))
        constraints = set(self.constraints)
        if both := sorted(constraints & weighted):
            raise InvalidConfiguration(f"{both[0]} has a weight and is a constraint: choose one")
        known = {term.name: term for term in terms_named(constraints - own.keys())} | own
        object.__setattr__(self, "vetoes", tuple(known[name] for name in sorted(constraints)))

    @property
    def sources(self) -> dict[str, Source]:
        """Where the score of each term and constraint comes from."""
        return {term.name: term.source for term in (*self.terms, *self.vetoes)}

    @cached_property
    def scores_hash(self) -> str:
        """Names what decides the scores of single terms: a change of weights alone leaves it as it is."""
        return _digest(self._of_scores())

    @cached_property
    def hash(self) -> str:
        """Names all of it."""
        return _digest(self._content())

    def as_json(self) -> str:
        """All that the hash names, for people."""
        return _canonical(self._content())

    def _content(self) -> dict[str, object]:
        return {
            **self._of_scores(),
            "weights": {term.name: float(self.weights[term.name]) for term in self.terms},
            "method": self.method,
            "window": self.window,
            "gamma": float(self.gamma),
            "credit": self.credit,
        }

    def _of_scores(self) -> dict[str, object]:
        return {
            "terms": {term.name: term.version for term in self.terms},
            # The scanner decides what is measured, once, and not how it is scored.
            "options": {name: value for name, value in asdict(self.options).items() if name != "security_scanner"},
            "baseline": self.baseline,
            "least_history": self.least_history,
            # Named only where there are any: rewards without them keep their hash.
            **({"constraints": {term.name: term.version for term in self.vetoes}} if self.vetoes else {}),
        }


def read_configuration(path: Path | None, weights: Mapping[str, float]) -> RewardConfiguration:
    """The configuration of a TOML file, or the default without one; `weights` count where the file gives none.

    Raises `InvalidConfiguration`, `InvalidOptions` and `TermError`, with the file's name before what is wrong.
    """
    if path is None:
        return RewardConfiguration(weights)
    found = _read(path)
    try:
        _check_names("", found, {"method", "credit", "constraints", "weights", "options", *_NUMBERS})
        options = _table(found, "options")
        _check_names("options.", options, {option.name for option in fields(TermOptions)})
        for name in _NUMBERS:
            _check_number(name, found.get(name, 0))
        for name in ("error_weight", "token_penalty_cap"):
            _check_number(f"options.{name}", options.get(name, 0))
        chosen: dict[str, Any] = {name: found[name] for name in ("method", "credit", *_NUMBERS) if name in found}
        chosen["constraints"] = _names(found, "constraints")
        return RewardConfiguration(_table(found, "weights") or weights, options=TermOptions(**options), **chosen)
    except PipelineError as wrong:
        raise type(wrong)(f"{path}: {wrong}") from None


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as refused:
        raise InvalidConfiguration(f"{path}: {refused.strerror}: name a reward configuration that exists") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as broken:
        raise InvalidConfiguration(f"{path} is no TOML ({broken}): correct it") from None


def _table(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = found.get(name, {})
    if not isinstance(table, dict):
        raise InvalidConfiguration(f"{name} must be a table: write [{name}] on a line of its own")
    return table


def _names(found: Mapping[str, Any], name: str) -> tuple[str, ...]:
    listed = found.get(name, [])
    if not isinstance(listed, list) or not all(isinstance(each, str) for each in listed):
        raise InvalidConfiguration(f'{name} must be a list of terms: write {name} = ["safety_constraint"]')
    return tuple(listed)


def _check_names(prefix: str, found: Mapping[str, object], known: set[str]) -> None:
    if unknown := sorted(found.keys() - known):
        raise InvalidConfiguration(f"{prefix}{unknown[0]} is no setting: choose from {', '.join(sorted(known))}")


def _check_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidConfiguration(f"{name} must be a number")


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise InvalidConfiguration(f"{name}: choose a whole number from {least} to {most:,}")


def _check_weights(weights: Mapping[str, float]) -> None:
    for name, weight in weights.items():
        _check_number(f"the weight of {name}", weight)
        if not 0 <= weight <= 1:
            raise InvalidConfiguration(f"the weight of {name} is {weight:g}: choose a number from 0 to 1")
    if abs(sum(weights.values()) - 1) > 1e-9:
        raise InvalidConfiguration(f"the weights sum to {sum(weights.values()):g}: make them sum to 1")


def _digest(content: Mapping[str, object]) -> str:
    return hashlib.sha256(_canonical(content).encode()).hexdigest()[:16]


def _canonical(content: Mapping[str, object]) -> str:
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
