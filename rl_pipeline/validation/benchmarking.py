"""The benchmarks alone, for whoever wants scores without a verdict: the `run_benchmarks` of the rl-trainer's tools."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from rl_pipeline.errors import PipelineError
from rl_pipeline.validation.answers import Answers
from rl_pipeline.validation.drawing import Drawing
from rl_pipeline.validation.suite import Suite, UnknownSuite, canonical

_TWO_SIDED = 0.025


class BenchmarkFailed(PipelineError):
    """A benchmark that gave no score."""


@dataclass(frozen=True)
class BenchmarkScore:
    """The mean of one benchmark."""

    score: float
    interval: tuple[float, float]
    """95 %."""
    items: int


def run_benchmarks(
    answers: Answers,
    tasks: Sequence[str] = ("code_gen", "data_analysis", "research"),
    *,
    suites: Sequence[Suite],
    items: int = 200,
    seed: int = 0,
) -> dict[str, BenchmarkScore]:
    """The scores of the named benchmarks by their full names, each from up to `items` items.

    Raises `UnknownSuite` for a name that `suites` does not have, and `BenchmarkFailed` when one gives no score: what
    is missing is never left out quietly.
    """
    known = {suite.name: suite for suite in suites if suite.kind == "benchmark"}
    scores = {}
    for name in dict.fromkeys(map(canonical, tasks)):
        if name not in known:
            raise UnknownSuite(
                f"the benchmark {name} is not among the suites: give {', '.join(sorted(known)) or 'some'}"
            )
        drawing = Drawing(known[name], seed)
        drawing.draw(items, answers, None)
        if drawing.error is not None or len(drawing.scores) < min(items, drawing.suite.minimum):
            raise BenchmarkFailed(f"{name} gave no score: {drawing.error or 'it has too few items'}")
        above = drawing.estimates()["floor"]
        low, high = (drawing.suite.floor + bound for bound in (above.lower(_TWO_SIDED), above.upper(_TWO_SIDED)))
        scores[name] = BenchmarkScore(fmean(drawing.scores), (max(low, 0.0), min(high, 1.0)), len(drawing.scores))
    return scores
