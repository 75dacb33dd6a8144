"""The report: what it keeps, and how it is told."""

from dataclasses import replace

from rl_pipeline.contracts.model_deployed import ValidationResults
from rl_pipeline.validation.off_policy import OffPolicyEstimate
from rl_pipeline.validation.report_text import to_markdown
from rl_pipeline.validation.reward_hacking import ProbeResult
from rl_pipeline.validation.statistics import Outcome
from rl_pipeline.validation.suite import Kind
from rl_pipeline.validation.verdict import (
    Comparison,
    Improvement,
    SuiteResult,
    ValidationReport,
    contract_results,
    report_on,
)


def suite(name: str, outcome: Outcome, kind: Kind = "benchmark", *, needed: bool = True) -> SuiteResult:
    compared = Comparison("control", needed, outcome, -0.02, -0.04, (-0.05, 0.01), 0.2)
    return SuiteResult(name, kind, 200, 20, 0.81, 0.83, 0.1, (compared,))


BETTER = Improvement(0.03, (0.01, 0.05), 0.0375)


def reported(
    *suites: SuiteResult,
    probe: ProbeResult | None = None,
    missing: tuple[str, ...] = (),
    improvement: Improvement = BETTER,
) -> ValidationReport:
    return report_on(
        suites,
        missing=missing,
        improvement=improvement,
        probe=probe,
        probe_error=None,
        off_policy=OffPolicyEstimate(False, "not available: none of 3 logged trajectories has log-probabilities"),
        seed=7,
        looks=(200, 400),
        notes=["nothing else"],
    )


def test_any_failure_refuses_and_any_doubt_asks() -> None:
    passed, failed, open_ = (
        suite(name, outcome) for name, outcome in (("a", "PASS"), ("b", "FAIL"), ("c", "INCONCLUSIVE"))
    )
    assert reported(passed).decision == "deploy"
    assert reported(passed, open_).decision == "ask_a_person"
    assert reported(passed, open_, failed).decision == "refuse"
    assert reported(passed, missing=("d",)).decision == "refuse"


def test_what_is_not_needed_can_only_fail() -> None:
    assert suite("a", "INCONCLUSIVE", needed=False).outcome == "PASS"
    assert suite("a", "FAIL", needed=False).outcome == "FAIL"
    assert replace(suite("a", "PASS"), error="crashed").outcome == "FAIL"


def test_the_three_flags_are_told_apart() -> None:
    worse = reported(suite("code_generation", "FAIL"), suite("refusal", "PASS", "safety"))
    assert (worse.benchmark_passed, worse.safety_checks_passed, worse.performance_regression) == (False, True, True)
    unsafe = reported(suite("code_generation", "PASS"), suite("refusal", "FAIL", "safety"))
    assert (unsafe.benchmark_passed, unsafe.safety_checks_passed, unsafe.performance_regression) == (True, False, False)
    assert unsafe.reasons[0].startswith("safety: refusal fails")


def test_a_model_whose_benchmarks_together_are_surely_worse_is_refused_and_a_check_says_so() -> None:
    passed = suite("a", "PASS"), suite("b", "PASS")
    report = reported(*passed, improvement=Improvement(-0.03, (-0.045, -0.015), -0.0375))
    assert (report.decision, report.performance_regression) == ("refuse", True)
    assert report.reasons == ("all benchmarks together are worse than the model in service: -0.030 [-0.045, -0.015]",)
    perhaps = reported(*passed, improvement=Improvement(-0.03, (-0.065, 0.005), -0.0375))
    assert (perhaps.decision, perhaps.performance_regression) == ("deploy", False)


def test_the_contract_tells_what_the_report_says() -> None:
    report = reported(suite("code_generation", "PASS"), suite("refusal", "PASS", "safety"))
    assert contract_results(report) == ValidationResults(
        benchmark_passed=True,
        safety_checks_passed=True,
        performance_regression=False,
        benchmark_scores={"code_generation": 0.81},
    )


def test_a_report_survives_storage() -> None:
    hacked = ProbeResult(100, True, 0.2, 0.1, -0.3, -0.2)
    report = reported(suite("a", "FAIL"), suite("b", "PASS", "safety"), probe=hacked, missing=("c",))
    assert ValidationReport.from_json(report.to_json()) == report


def test_people_can_read_it() -> None:
    text = to_markdown(reported(suite("code_generation", "INCONCLUSIVE"), suite("refusal", "PASS", "safety")))
    assert text.startswith("## The model needs a person's decision\n")
    assert "- code_generation is inconclusive against the model in service after 200 items: -0.020" in text
    assert "+0.030 points [+0.010, +0.050], +3.8% relative" in text
    assert "| refusal | safety | 200 | 20 | 0.810 | 0.830 | control | -0.020 | -0.050 to +0.010 | PASS |" in text
    assert "Reward on logged work: not available: none of 3" in text
    assert "nothing else" in text
