"""The one call: a candidate against the model in service, over all suites, in a few looks."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from rl_pipeline.errors import PipelineError
from rl_pipeline.validation.answers import Answers
from rl_pipeline.validation.drawing import Drawing
from rl_pipeline.validation.inspect_runner import InspectTask
from rl_pipeline.validation.off_policy import OffPolicyEstimate
from rl_pipeline.validation.reward_hacking import ProbedItem, ProbeResult, probe_reward_hacking
from rl_pipeline.validation.statistics import combined, judge, spending
from rl_pipeline.validation.suite import BENCHMARKS, SAFETY, Item, Kind, Suite
from rl_pipeline.validation.verdict import (
    Against,
    Comparison,
    Improvement,
    SuiteResult,
    ValidationReport,
    comparison_of,
    improvement_of,
    report_on,
)

Tell = Callable[[str], None]
Rewards = Callable[[Sequence[Item], Sequence[str]], Sequence[float]]
"""What the answers to items earn, by the reward that the candidate was trained on."""
Key = tuple[str, Against]

_FAMILIES_OF_TESTS: tuple[tuple[Against, ...], ...] = (("control",), ("floor", "first side", "second side"))
"""Holm's procedure runs within each: an equal model is at stake in the first, an unfit one in the second."""


class InvalidValidation(PipelineError):
    """A validation that cannot be carried out as it was asked for."""


@dataclass(frozen=True)
class Budget:
    """How many items of a suite may be scored by the end of each look; more are drawn while a suite is open."""

    looks: tuple[int, ...] = (200, 400, 800)


def validate(
    candidate: Answers,
    control: Answers | None,
    suites: Sequence[Suite],
    *,
    budget: Budget = Budget(),  # noqa: B008 - frozen
    seed: int,
    required: Sequence[str] = (*BENCHMARKS, *SAFETY),
    rewards: Rewards | None = None,
    probed: Sequence[ProbedItem] = (),
    unprobed: str = "",
    accepts_unprobed: bool = False,
    off_policy: OffPolicyEstimate | None = None,
    tell: Tell = lambda _: None,
) -> ValidationReport:
    """Judge `candidate` against `control`, or against floors alone where nothing is in service yet.

    The same arguments give the same report, where the models honour seeds. The probe for a hacked reward goes by
    `rewards`, by `probed`, or by both. Where it is not made, though there is a model in service to compare with,
    `unprobed`, which says why, is for a person to decide on; who `accepts_unprobed` has decided beforehand, and the
    report notes it. Raises `ModelUnavailable` when a model does not answer.
    """
    if len({suite.name for suite in suites}) != len(suites):
        raise InvalidValidation("two suites have the same name: name each once")
    usable = [suite for suite in suites if control is not None or suite.kind != "regression"]
    if not usable:
        raise InvalidValidation("there is no suite to validate by: give some")
    drawings = [Drawing(suite, seed) for suite in usable]
    for drawing in drawings:
        there, needed = drawing.most(budget.looks[-1]), max(drawing.suite.minimum, 1)
        if there < needed:
            drawing.error = f"it has {there} items and needs {needed}"
    judged = _looks(drawings, candidate, control, budget, tell)
    results = [_result(drawing, judged) for drawing in drawings]
    probe, probe_error = _probe(drawings, rewards, probed)
    is_probed = probe is not None or probe_error is not None
    open_question = unprobed if control is not None and not is_probed else ""
    notes = [f"{suite.name} was left out: nothing is in service." for suite in suites if suite not in usable]
    if open_question and accepts_unprobed:
        notes.append(f"Accepted by this deployment beforehand: {open_question}.")
    report = report_on(
        results,
        missing=[name for name in required if name not in {suite.name for suite in suites}],
        improvement=_improvement(drawings),
        probe=probe,
        probe_error=probe_error,
        unprobed="" if accepts_unprobed else open_question,
        off_policy=off_policy,
        seed=seed,
        looks=budget.looks,
        notes=notes,
    )
    tell(f"decision: {report.decision}: {'; '.join(report.reasons)}")
    return report


def _looks(
    drawings: Sequence[Drawing], candidate: Answers, control: Answers | None, budget: Budget, tell: Tell
) -> dict[Key, Comparison]:
    """The last comparisons of every suite. Nothing more is drawn once the model is refused or everything is known."""
    judged: dict[Key, Comparison] = {}
    for size, alpha in zip(budget.looks, spending(budget.looks), strict=True):
        unfinished = [drawing for drawing in drawings if not judged or _is_open(_result(drawing, judged))]
        for drawing in unfinished:
            if drawing.error is None:
                drawing.draw(size, candidate, control)
        judged |= _judge([drawing for drawing in unfinished if drawing.error is None], drawings, alpha, control)
        for drawing in unfinished:
            tell(_progress(_result(drawing, judged)))
        if any(_result(drawing, judged).outcome == "FAIL" for drawing in drawings):
            break
    return judged


def _judge(
    looked_at: Sequence[Drawing], drawings: Sequence[Drawing], alpha: float, control: Answers | None
) -> dict[Key, Comparison]:
    """The comparisons of the suites that were looked at; those that ended before still count as tests."""
    kinds = {drawing.suite.name: drawing.suite.kind for drawing in looked_at}
    found = {(drawing.suite.name, name): one for drawing in looked_at for name, one in drawing.estimates().items()}
    judged: dict[Key, Comparison] = {}
    for family in _FAMILIES_OF_TESTS:
        within = {key: one for key, one in found.items() if key[1] in family}
        tests = sum(
            len(drawing.compared(with_control=control is not None).intersection(family)) for drawing in drawings
        )
        floors_of_safety = {key for key in within if key[1] == "floor" and kinds[key[0]] == "safety"}
        for (name, against), outcome in judge(within, alpha, tests=tests, strict=floors_of_safety).items():
            needed = _is_needed(kinds[name], against, control)
            judged[name, against] = comparison_of(against, found[name, against], outcome, alpha, needed=needed)
    return judged


def _is_needed(kind: Kind, against: Against, control: Answers | None) -> bool:
    """A model has to pass against the one in service; floors count for safety, and where there is no such model."""
    if against == "floor":
        return kind == "safety" or control is None
    return against != "control" or kind != "safety"


def _is_open(result: SuiteResult) -> bool:
    return result.outcome == "INCONCLUSIVE"


def _result(drawing: Drawing, judged: Mapping[Key, Comparison]) -> SuiteResult:
    suite = drawing.suite
    return SuiteResult(
        name=suite.name,
        kind=suite.kind,
        items=len(drawing.items),
        families=len({item.family for item in drawing.items}),
        mean=fmean(drawing.scores) if drawing.scores else None,
        control_mean=fmean(drawing.control_scores) if drawing.control_scores else None,
        floor=suite.floor,
        comparisons=tuple(one for (name, _), one in judged.items() if name == suite.name),
        error=drawing.error,
    )


def _improvement(drawings: Sequence[Drawing]) -> Improvement | None:
    benchmarks = [drawing for drawing in drawings if drawing.suite.kind == "benchmark"]
    if not benchmarks or any(not drawing.control_scores for drawing in benchmarks):
        return None
    control_mean = fmean(fmean(drawing.control_scores) for drawing in benchmarks)
    return improvement_of(combined([drawing.estimates()["control"] for drawing in benchmarks]), control_mean)


def _probe(
    drawings: Sequence[Drawing], rewards: Rewards | None, probed: Sequence[ProbedItem]
) -> tuple[ProbeResult | None, str | None]:
    """The probe's result, or why there is none."""
    items = list(probed)
    try:
        for drawing in drawings:
            if rewards is None or drawing.suite.kind != "benchmark" or not drawing.control_scores:
                continue
            if isinstance(drawing.suite.ask, InspectTask):
                continue  # what it gives is a score, and nothing that a reward could be computed of
            items += _probed(drawing, rewards)
        return probe_reward_hacking(items) if items else None, None
    except Exception as error:  # noqa: BLE001 - a reward that crashes must not let a model through
        return None, f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _probed(drawing: Drawing, rewards: Rewards) -> list[ProbedItem]:
    earned = rewards(drawing.items, drawing.answers)
    control_earned = rewards(drawing.items, drawing.control_answers)
    rows = zip(drawing.items, earned, control_earned, drawing.scores, drawing.control_scores, strict=True)
    return [ProbedItem(f"{drawing.suite.name} {item.family}", *figures) for item, *figures in rows]


def _progress(result: SuiteResult) -> str:
    if result.error is not None:
        return f"{result.name}: says nothing: {result.error}"
    differences = ", ".join(f"{one.difference:+.3f} against {one.against}" for one in result.comparisons)
    return f"{result.name}: {result.items} items, mean {result.mean:.3f}; {differences}; {result.outcome}"
