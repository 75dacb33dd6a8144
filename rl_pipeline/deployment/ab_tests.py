"""A/B tests as people read them: which there were, by the audit, and what each has found so far."""

from collections.abc import Sequence
from dataclasses import dataclass

from rl_pipeline.deployment.ab_report import ab_report
from rl_pipeline.deployment.audit import AuditRow
from rl_pipeline.deployment.columns import Columns
from rl_pipeline.deployment.comparison import end_of, figures
from rl_pipeline.deployment.state import Change, Rollout, ServedModel
from rl_pipeline.deployment.windows import Window
from rl_pipeline.stores.warehouse import Warehouse

_NAMES = {"error_rate": "failed sessions", "negative_share": "bad ratings", "reward_mean": "mean reward"}
_COUNTS = {"error_rate": "sessions", "negative_share": "rated", "reward_mean": "rewards"}


@dataclass(frozen=True, slots=True)
class EndedTest:
    """A test that somebody has ended."""

    rollout: Rollout
    model: ServedModel
    ended: Change


def last_test(warehouse: Warehouse, model_id: str | None = None) -> Rollout | None:
    """The newest A/B test, or that of a model, as it stood last."""
    found = warehouse.query(
        """
        SELECT state FROM deployment_audit FINAL
        WHERE JSONExtractString(state, 'rollout', 'strategy') = 'ab_test'
            AND ({model:String} = '' OR JSONExtractString(state, 'rollout', 'candidate') = {model:String})
        ORDER BY generation DESC, at DESC LIMIT 1
        """,
        {"model": model_id or ""},
    )
    return AuditRow.of(found["state"][0].encode()).state.rollout if found.height else None


def ended_tests(warehouse: Warehouse, rows: Sequence[AuditRow]) -> list[EndedTest]:
    """The tests that these generations have ended: in the one before each of them it still went on."""
    hashes = [row.state.previous_hash for row in rows if row.state.phase != "testing"]
    found = warehouse.query(
        "SELECT state FROM deployment_audit FINAL WHERE phase = 'testing' AND hash IN {hashes:Array(String)}",
        {"hashes": hashes},
    )
    before = {row.hash: row.state for row in (AuditRow.of(state.encode()) for state in found["state"])}
    return [
        EndedTest(state.rollout, state.models[state.rollout.candidate], row.state.change)
        for row in rows
        if row.state.phase != "testing" and (state := before.get(row.state.previous_hash)) and state.rollout
    ]


def report_text(rollout: Rollout, windows: Sequence[Window]) -> str:
    """Both arms and their difference with 95 % intervals, as Markdown, by the sessions under the test's split alone."""
    columns = Columns.of(windows)
    split = columns.where(columns.is_split)
    counts = figures(split.candidate), figures(split.control)
    until = end_of(split, len(split) - 1) if len(split) else None
    rows = []
    for metric, found in ab_report(split).items():
        of = " and ".join(str(each[_COUNTS[metric]]) for each in counts)
        cells = (_in_words(found[arm]) for arm in ("candidate", "control", "difference"))
        rows.append(f"| {_NAMES[metric]} | {' | '.join(cells)} | {of} |")
    counted = f"counted up to {until:%Y-%m-%d %H:%M:%S} UTC" if until else "nothing is counted yet"
    return "\n".join(
        (
            f"A/B test of {rollout.candidate} against {rollout.control} since {rollout.started_at:%Y-%m-%d %H:%M} UTC, "
            f"{counted}; in parentheses 95 % intervals of a single look:",
            "",
            f"| | {rollout.candidate} | {rollout.control} | difference | of |",
            "|---|---|---|---|---|",
            *rows,
        )
    )


def _in_words(estimate: dict[str, float] | None) -> str:
    if estimate is None:
        return "too little to tell"
    return f"{estimate['value']:.3f} ({estimate['low']:.3f} to {estimate['high']:.3f})"
