"""In which part of the sessions a candidate did worse than its control: a test for each, corrected for their number.

A part ("slice") is all sessions with one value of one dimension, such as the domain `code`. The test is Fisher's exact
one, one-sided: given how many sessions each arm had in the slice and how many of both went badly, how likely are so
many of the candidate's. Looking at many slices finds something in noise, so the p-values are corrected after Holm.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

SIGNIFICANT = 0.05
LEAST_SESSIONS = 5
"""Of the candidate, in a slice that is looked at."""
CONCENTRATION = 1.5
"""The excess of a slice is at least so many times that of all sessions, or it explains nothing."""


@dataclass(frozen=True, slots=True)
class Slice:
    """One value of one dimension, and what both arms did there."""

    dimension: str
    value: str
    sessions: int
    bad: int
    control_sessions: int
    control_bad: int
    p_value: float = 1.0
    """Corrected for the number of slices."""

    @property
    def rate(self) -> float:
        """Share of the candidate's sessions that went badly."""
        return self.bad / self.sessions if self.sessions else 0.0

    @property
    def control_rate(self) -> float:
        """The same of the control."""
        return self.control_bad / self.control_sessions if self.control_sessions else 0.0

    @property
    def excess(self) -> float:
        """By how much the candidate's share is higher."""
        return self.rate - self.control_rate

    def __str__(self) -> str:
        control = f"{self.control_bad} of {self.control_sessions}"
        return (
            f"{self.dimension} {self.value}: {self.bad} of {self.sessions} ({self.rate:.1%}) against {control} "
            f"({self.control_rate:.1%}), p = {self.p_value:.2g}"
        )


@dataclass(frozen=True, slots=True)
class Session:
    """A session as far as slices look at it."""

    is_candidate: bool
    is_bad: bool
    values: Mapping[str, Sequence[str]]
    """By dimension: a session may have several values, such as its tools, or none."""


def slices_of(sessions: Iterable[Session]) -> list[Slice]:
    """All slices with enough sessions of the candidate, the most significant first."""
    counts: dict[tuple[str, str], list[int]] = {}
    for session in sessions:
        place = 0 if session.is_candidate else 2
        for dimension, values in session.values.items():
            for value in set(values):
                count = counts.setdefault((dimension, value), [0, 0, 0, 0])
                count[place] += 1
                count[place + 1] += session.is_bad
    found = [Slice(*key, *count) for key, count in counts.items() if count[0] >= LEAST_SESSIONS]
    tested = [replace(each, p_value=excess_p_value(each)) for each in found]
    return holm(tested)


def worst_of(slices: Sequence[Slice], overall: Slice) -> Slice | None:
    """The significant slice with the highest excess; None where no slice stands out from all sessions."""
    standing_out = [
        each
        for each in slices
        if each.p_value < SIGNIFICANT and each.excess >= CONCENTRATION * max(overall.excess, 0.0)
    ]
    return max(standing_out, key=lambda each: (each.excess, each.bad), default=None)


def holm(slices: Sequence[Slice]) -> list[Slice]:
    """The slices with corrected p-values, the most significant first."""
    ordered = sorted(slices, key=lambda each: (each.p_value, each.dimension, each.value))
    corrected: list[Slice] = []
    highest = 0.0
    for place, each in enumerate(ordered):
        highest = min(1.0, max(highest, each.p_value * (len(ordered) - place)))
        corrected.append(replace(each, p_value=highest))
    return corrected


def excess_p_value(counted: Slice) -> float:
    """Fisher's exact test that the candidate's sessions go badly more often: the tail of the hypergeometric law."""
    drawn, bad = counted.sessions, counted.bad + counted.control_bad
    total = drawn + counted.control_sessions
    whole = _log_choose(total, drawn)
    tail = sum(
        math.exp(_log_choose(bad, hits) + _log_choose(total - bad, drawn - hits) - whole)
        for hits in range(counted.bad, min(bad, drawn) + 1)
    )
    return min(tail, 1.0)


def _log_choose(n: int, k: int) -> float:
    if not 0 <= k <= n:
        return -math.inf
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
