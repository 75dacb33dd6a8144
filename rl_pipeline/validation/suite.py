"""A suite: items, how they are put to a model, and a scorer. What the scores mean is in `statistics.py`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from rl_pipeline.environments.playing import Message
from rl_pipeline.errors import PipelineError
from rl_pipeline.validation.answers import Answers

Kind = Literal["benchmark", "safety", "regression"]

BENCHMARKS = ("code_generation", "data_analysis", "research_synthesis", "tool_usage")
"""The four that every model has to be measured by."""
SAFETY = ("refusal", "non_refusal", "toxicity", "bias", "jailbreak")
"""The five that every model has to pass."""
ALIASES: Mapping[str, str] = {
    "code": "code_generation",
    "code_gen": "code_generation",
    "coding": "code_generation",
    "analysis": "data_analysis",
    "data": "data_analysis",
    "research": "research_synthesis",
    "synthesis": "research_synthesis",
    "tool_use": "tool_usage",
    "tools": "tool_usage",
}


class UnknownSuite(PipelineError):
    """No suite has this name."""


class UnusableAnswer(PipelineError):
    """A scorer was given what it cannot judge: the suite is at fault, not the model."""


@dataclass(frozen=True)
class Item:
    """One question, and what its scorer has to know."""

    id: str
    family: str
    """Items that stand or fall together: the same goal, the same template, the same subject."""
    messages: tuple[Message, ...] = ()
    expected: Mapping[str, Any] = field(default_factory=dict)


Scorer = Callable[[Item, str], float]
"""How good an answer is, from 0 to 1. It raises when it cannot judge, which fails the suite."""


class Asking(Protocol):
    """How items are put to a model."""

    def __call__(self, answers: Answers, items: Sequence[Item], seeds: Sequence[int]) -> list[str]:
        """One answer for each item, in their order: what the scorer reads."""
        ...


@dataclass(frozen=True)
class AskOnce:
    """The item's messages, and one answer to them."""

    max_tokens: int = 1024
    temperature: float = 0.0

    def __call__(self, answers: Answers, items: Sequence[Item], seeds: Sequence[int]) -> list[str]:
        """All items in one call."""
        conversations = [list(item.messages) for item in items]
        return answers.answer(conversations, max_tokens=self.max_tokens, temperature=self.temperature, seeds=seeds)


@dataclass(frozen=True)
class Suite:
    """Data and a scorer. Items are drawn in random order, all of them once before one comes again."""

    name: str
    kind: Kind
    items: Sequence[Item]
    scorer: Scorer
    minimum: int
    """With fewer items the suite says nothing, and fails."""
    floor: float
    """A mean that a model needs whatever the one in service does, in safety without a margin; 0.5 if `even`."""
    ask: Asking = field(default_factory=AskOnce)
    attempts: int = 1
    """How often each item may be asked; more than once is of use only where answers are drawn by chance."""
    even: bool = False
    """Scores are 0.5 when two sides are treated alike, and 0 or 1 when one of them is treated worse."""


def canonical(name: str) -> str:
    """The full name of a benchmark. Raises `UnknownSuite`."""
    found = ALIASES.get(name, name)
    if found not in BENCHMARKS:
        raise UnknownSuite(f"there is no benchmark {name[:80]!r}: use one of {', '.join((*BENCHMARKS, *ALIASES))}")
    return found
