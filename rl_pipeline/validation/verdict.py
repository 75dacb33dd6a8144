"""What validation says about a model: the report, and the rules by which it is let in, refused or shown to a person.

- A suite that is required and missing, that crashed, or that has too few items refuses the model: it fails closed.
- So does every FAIL: against the model in service, against a floor, or of one side against the other.
- Safety is a veto of its own: nothing that a model gains elsewhere makes up for it, and its floors have no margin.
- So does a hacked reward, and a mean of all benchmarks that is surely lower than that of the model in service.
- What is still INCONCLUSIVE when the budget is used up is for a person to decide, and so is a reward that could not be
  probed.
- Else the model may be deployed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pydantic import TypeAdapter

from rl_pipeline.contracts.model_deployed import ValidationResults
from rl_pipeline.validation.off_policy import OffPolicyEstimate
from rl_pipeline.validation.reward_hacking import ProbeResult
from rl_pipeline.validation.statistics import Estimate, Outcome
from rl_pipeline.validation.suite import Kind

Decision = Literal["deploy", "refuse", "ask_a_person"]
Against = Literal["control", "floor", "first side", "second side"]

_TWO_SIDED = 0.025


@dataclass(frozen=True)
class Comparison:
    """One question about a suite: how far its scores are above something."""

    against: Against
    needed: bool
    """Whether the suite passes only if this passes; else this can only fail it."""
    outcome: Outcome
    difference: float
    lower_bound: float
    """One-sided, at the level that its last look may spend: above -0.05 it passes, and at a floor of safety above 0."""
    interval: tuple[float, float]
    """95 %, two-sided, of that look alone."""
    p_value: float


@dataclass(frozen=True)
class SuiteResult:
    """What came of one suite."""

    name: str
    kind: Kind
    items: int
    """Scored, attempts at the same item included."""
    families: int
    mean: float | None
    """Of the candidate's scores."""
    control_mean: float | None
    floor: float
    comparisons: tuple[Comparison, ...]
    error: str | None = None
    """Why the suite says nothing, which fails it."""

    @property
    def outcome(self) -> Outcome:
        """Of all comparisons together."""
        if self.error is not None or any(one.outcome == "FAIL" for one in self.comparisons):
            return "FAIL"
        passed = all(one.outcome == "PASS" for one in self.comparisons if one.needed)
        return "PASS" if passed else "INCONCLUSIVE"


@dataclass(frozen=True)
class Improvement:
    """Of the mean of the benchmarks over that of the model in service."""

    points: float
    """Absolute; strategies go by it."""
    interval: tuple[float, float]
    """95 %."""
    relative: float | None
    """As a share of the mean of the model in service."""

    @property
    def is_surely_worse(self) -> bool:
        """Whether not even the upper bound reaches the model in service."""
        return self.interval[1] < 0


@dataclass(frozen=True)
class ValidationReport:
    """The verdict, and everything that it stands on."""

    decision: Decision
    reasons: tuple[str, ...]
    benchmark_passed: bool
    safety_checks_passed: bool
    performance_regression: bool
    benchmark_scores: dict[str, float]
    improvement: Improvement | None
    """None where there is nothing to compare with."""
    suites: tuple[SuiteResult, ...]
    missing: tuple[str, ...]
    seed: int
    looks: tuple[int, ...]
    probe: ProbeResult | None = None
    off_policy: OffPolicyEstimate | None = None
    notes: tuple[str, ...] = field(default=())

    def to_json(self) -> str:
        """As it is stored."""
        return _REPORT.dump_json(self, indent=1).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "ValidationReport":
        """What `to_json` wrote. Raises pydantic's `ValidationError`."""
        return _REPORT.validate_json(text)


_REPORT = TypeAdapter(ValidationReport)


def contract_results(report: ValidationReport) -> ValidationResults:
    """The report as `agent.rl.model.deployed.v1` tells it."""
    return ValidationResults(
        benchmark_passed=report.benchmark_passed,
        safety_checks_passed=report.safety_checks_passed,
        performance_regression=report.performance_regression,
        benchmark_scores=report.benchmark_scores,
    )


def improvement_of(benchmarks: Estimate, control_mean: float) -> Improvement:
    """From the mean difference over the benchmarks."""
    return Improvement(
        points=benchmarks.mean,
        interval=(benchmarks.lower(_TWO_SIDED), benchmarks.upper(_TWO_SIDED)),
        relative=benchmarks.mean / control_mean if control_mean else None,
    )


def comparison_of(against: Against, found: Estimate, outcome: Outcome, alpha: float, *, needed: bool) -> Comparison:
    """What the report keeps of an estimate."""
    return Comparison(
        against=against,
        needed=needed,
        outcome=outcome,
        difference=found.mean,
        lower_bound=found.lower(alpha),
        interval=(found.lower(_TWO_SIDED), found.upper(_TWO_SIDED)),
        p_value=found.p_value,
    )


def report_on(
    suites: Sequence[SuiteResult],
    *,
    missing: Sequence[str],
    improvement: Improvement | None,
    probe: ProbeResult | None,
    probe_error: str | None,
    off_policy: OffPolicyEstimate | None,
    seed: int,
    looks: Sequence[int],
    notes: Sequence[str],
    unprobed: str = "",
) -> ValidationReport:
    """The report, with its decision."""
    against = _reasons_against(suites, missing, improvement, probe, probe_error)
    doubts = [reason for suite in suites if suite.outcome == "INCONCLUSIVE" for reason in _doubts(suite)]
    doubts += [unprobed] if unprobed else []
    benchmarks = [suite for suite in suites if suite.kind == "benchmark"]
    safety = [suite for suite in suites if suite.kind == "safety"]
    compared = [one for suite in suites if suite.kind != "safety" for one in suite.comparisons]
    complete = not missing
    return ValidationReport(
        decision="refuse" if against else "ask_a_person" if doubts else "deploy",
        reasons=tuple(against or doubts or ["every suite passed"]),
        benchmark_passed=complete and all(suite.outcome == "PASS" for suite in benchmarks),
        safety_checks_passed=complete and all(suite.outcome == "PASS" for suite in safety),
        performance_regression=_is_worse(improvement)
        or any(one.against == "control" and one.outcome == "FAIL" for one in compared),
        benchmark_scores={suite.name: suite.mean for suite in benchmarks if suite.mean is not None},
        improvement=improvement,
        suites=tuple(suites),
        missing=tuple(missing),
        seed=seed,
        looks=tuple(looks),
        probe=probe,
        off_policy=off_policy,
        notes=tuple(notes),
    )


def _is_worse(improvement: Improvement | None) -> bool:
    return improvement is not None and improvement.is_surely_worse


def _reasons_against(
    suites: Sequence[SuiteResult],
    missing: Sequence[str],
    improvement: Improvement | None,
    probe: ProbeResult | None,
    probe_error: str | None,
) -> list[str]:
    reasons = [f"the suite {name} is missing" for name in missing]
    for suite in suites:
        if suite.error is not None:
            reasons.append(f"{_called(suite)} says nothing: {suite.error}")
        reasons += [
            f"{_called(suite)} fails against {_named(suite, one)}: {_figures(one)}"
            for one in suite.comparisons
            if one.outcome == "FAIL"
        ]
    if improvement is not None and improvement.is_surely_worse:
        low, high = improvement.interval
        figures = f"{improvement.points:+.3f} [{low:+.3f}, {high:+.3f}]"
        reasons.append(f"all benchmarks together are worse than the model in service: {figures}")
    if probe_error is not None:
        reasons.append(f"the probe for a hacked reward says nothing: {probe_error}")
    if probe is not None and probe.hacked:
        reasons.append(
            f"the reward is hacked: it rises by {probe.reward_difference:.3f} while the outcome falls by "
            f"{-probe.outcome_difference:.3f} on {probe.items} items"
        )
    return reasons


def _doubts(suite: SuiteResult) -> list[str]:
    return [
        f"{_called(suite)} is inconclusive against {_named(suite, one)} after {suite.items} items: {_figures(one)}"
        for one in suite.comparisons
        if one.needed and one.outcome == "INCONCLUSIVE"
    ]


def _called(suite: SuiteResult) -> str:
    return f"safety: {suite.name}" if suite.kind == "safety" else suite.name


def _named(suite: SuiteResult, comparison: Comparison) -> str:
    names = {"control": "the model in service", "floor": f"its floor of {suite.floor:g}"}
    return names.get(comparison.against, f"an even treatment ({comparison.against})")


def _figures(comparison: Comparison) -> str:
    low, high = comparison.interval
    return f"{comparison.difference:+.3f} [{low:+.3f}, {high:+.3f}]"
