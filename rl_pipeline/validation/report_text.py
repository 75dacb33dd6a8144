"""The report of a validation as Markdown, for people."""

from rl_pipeline.validation.statistics import MARGIN
from rl_pipeline.validation.verdict import SuiteResult, ValidationReport

_DECISIONS = {
    "deploy": "may be deployed",
    "refuse": "is refused",
    "ask_a_person": "needs a person's decision",
}

_MARGINS = (
    f"A difference passes when it is surely above -{MARGIN:g}, and fails when it is -{MARGIN:g} or less and surely "
    "below 0. The floors of safety have no margin: surely above passes, surely below fails."
)


def to_markdown(report: ValidationReport) -> str:
    """The verdict first, then the suites, then what stands beside them."""
    lines = [f"## The model {_DECISIONS[report.decision]}", "", *(f"- {reason}" for reason in report.reasons), ""]
    lines += [
        f"benchmarks passed: {_yes(report.benchmark_passed)}; "
        f"safety checks passed: {_yes(report.safety_checks_passed)}; "
        f"worse than the model in service: {_yes(report.performance_regression)}",
        "",
        _improvement(report),
        "",
        "| suite | kind | items | families | candidate | in service | against | difference | 95 % | outcome |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for suite in report.suites:
        lines += _rows(suite)
    lines += ["", _MARGINS, "", _probe(report), "", reward_on_logged_work(report)]
    lines += [f"\n{note}" for note in report.notes]
    looks = ", ".join(map(str, report.looks))
    lines += ["", f"Looks at {looks} items at most, seed {report.seed}."]
    return "\n".join(lines) + "\n"


def _rows(suite: SuiteResult) -> list[str]:
    first = f"| {suite.name} | {suite.kind} | {suite.items} | {suite.families} | {_number(suite.mean)} "
    first += f"| {_number(suite.control_mean)} |"
    if suite.error is not None:
        return [f"{first} | | | FAIL: {suite.error.replace('|', '/')} |"]
    rows = []
    for one in suite.comparisons:
        against = f"floor {suite.floor:g}" if one.against == "floor" else one.against
        low, high = one.interval
        rows.append(f"{first} {against} | {one.difference:+.3f} | {low:+.3f} to {high:+.3f} | {one.outcome} |")
    return rows


def _improvement(report: ValidationReport) -> str:
    found = report.improvement
    if found is None:
        return "Improvement: none to tell, there is no model to compare with."
    low, high = found.interval
    relative = f", {found.relative:+.1%} relative" if found.relative is not None else ""
    return f"Improvement of the benchmarks' mean: {found.points:+.3f} points [{low:+.3f}, {high:+.3f}]{relative}."


def _probe(report: ValidationReport) -> str:
    found = report.probe
    if found is None:
        return "Reward hacking: not probed."
    return (
        f"Reward hacking: {'found' if found.hacked else 'not found'} on {found.items} items; reward "
        f"{found.reward_difference:+.3f} (lower bound {found.reward_lower_bound:+.3f}), outcome "
        f"{found.outcome_difference:+.3f} (upper bound {found.outcome_upper_bound:+.3f})."
    )


def reward_on_logged_work(report: ValidationReport) -> str:
    """What the off-policy estimate says, in one line."""
    found = report.off_policy
    if found is None or not found.available or found.interval is None:
        return f"Reward on logged work: {found.reason if found else 'not estimated'}."
    low, high = found.interval
    weak = f" ({found.reason})" if found.reason else ""
    return (
        f"Reward on logged work, which decides nothing: {found.doubly_robust:.3f} [{low:.3f}, {high:.3f}] doubly "
        f"robust, {found.self_normalised:.3f} self-normalised, {found.logged_mean:.3f} as logged; "
        f"{found.effective_sample_size:.0f} of {found.trajectories} trajectories count{weak}."
    )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def _yes(value: bool) -> str:
    return "yes" if value else "no"
