"""What a demo must have come to, and the page that it leaves."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rl_pipeline.demo.cycle import Promotion
from rl_pipeline.demo.outcome import Cycle, Outcome, check
from rl_pipeline.demo.population import Measured
from rl_pipeline.demo.profile import DemoFailed, DemoProfile
from rl_pipeline.demo.report import write_report
from rl_pipeline.demo.sabotage import TakenBack

NOW = datetime(2026, 2, 1, tzinfo=UTC)
PROFILE = DemoProfile(cycles=2, least_gain=0.1)
TAKEN_BACK = TakenBack("bad", "user_dissatisfaction", {}, 100, 60.0, "feedback")


def outcome(base: int, *solved: int) -> Outcome:
    cycles = [
        Cycle(
            Promotion(place, f"job-{place}", f"v{place}", 500 * place, 2000 * place, 90.0),
            Measured(f"v{place}", rate, 400, 2000, 5 * rate),
        )
        for place, rate in enumerate(solved, start=1)
    ]
    return Outcome(Measured("base", base, 400, 2400, 6 * base), cycles, TAKEN_BACK, seconds=300.0)


def test_a_run_that_learns_enough_in_every_cycle_passes() -> None:
    check(outcome(120, 180, 240), PROFILE)


def test_a_cycle_may_fall_back_within_its_error_bars() -> None:
    check(outcome(120, 240, 225), PROFILE)


@pytest.mark.parametrize(
    ("solved", "why"),
    [((130, 150), "gained"), ((280, 210), "v2 is worse than v1")],
    ids=["too little", "a cycle that made it worse"],
)
def test_a_run_that_does_not_learn_fails(solved: tuple[int, ...], why: str) -> None:
    with pytest.raises(DemoFailed, match=why):
        check(outcome(120, *solved), PROFILE)


def test_of_many_cycles_no_more_is_wanted_than_of_three() -> None:
    check(outcome(120, 160, 200, 240, 241, 242), replace(PROFILE, cycles=5))
    with pytest.raises(DemoFailed, match="30% was the least"):
        check(outcome(120, 160, 200, 235, 236, 236), replace(PROFILE, cycles=5))


def test_a_run_whose_sabotaged_model_was_not_taken_back_fails_unless_there_was_none() -> None:
    stayed = replace(outcome(120, 180, 240), taken_back=None)
    with pytest.raises(DemoFailed, match="taken back"):
        check(stayed, PROFILE)
    check(stayed, replace(PROFILE, sabotage=False))


def test_the_page_shows_what_happened_and_runs_nothing(tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script>"
    audit = [
        {"event": "created", "model_id": "base", "reason": hostile, "weights": {"base": 1.0}},
        {"event": "deployed", "model_id": hostile, "reason": "better", "weights": {"base": 0.75, hostile: 0.25}},
    ]
    rows: dict[str, list[dict[str, Any]]] = {
        "deployment_audit": [
            {**row, "at": NOW + timedelta(minutes=place), "state": json.dumps({"weights": row.pop("weights")})}
            for place, row in enumerate(audit)
        ],
        "trajectory_rewards": [{"model_version": hostile, "term": "task_completion", "mean_score": 0.5}],
    }

    def answered(sql: str, **_: Any) -> list[dict[str, Any]]:
        return next(found for table, found in rows.items() if table in sql)

    told = outcome(120, 180)
    told.taken_back = TakenBack(hostile, "user_dissatisfaction", {"why": hostile}, 100, 60.0, "feedback")
    scene: Any = SimpleNamespace(rows=answered)
    write_report(scene, told, tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "<script" not in page
    assert page.count("<svg") == 3
    assert "From 30% to 45%" in page
    assert "proved by feedback" in page
    assert "A solved task costs 44% fewer turns" in page
    assert '<td class="n">20.0</td><td class="n">6.0</td>' in page
    assert '<td class="n">11.1</td><td class="n">5.0</td>' in page
    assert json.loads(told.as_json())["taken_back"]["carried_by"] == "feedback"
    assert json.loads(told.as_json())["gain"] == pytest.approx(0.15)
    assert json.loads(told.as_json())["time_saved"] == pytest.approx(1 - (2000 / 180) / (2400 / 120))


def test_where_nothing_was_solved_no_time_is_told() -> None:
    assert outcome(0, 180).time_saved is None
    assert outcome(120, 0).time_saved is None
    assert outcome(120).time_saved == 0
