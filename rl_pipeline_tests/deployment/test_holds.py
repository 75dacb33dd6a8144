"""Rollouts that wait for a person: noted when that begins and when it ends, whatever else a look finds."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rl_pipeline.deployment.controller import Tick
from rl_pipeline.deployment.holds import FOR_A_PERSON, STALLED_AFTER, Hold, hold_of, note_hold
from rl_pipeline.deployment.judging import Judgement, Verdict
from rl_pipeline.deployment.state import RampStep
from rl_pipeline.observability.reports.activity import read_standing
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline_tests.deployment.states import NOW, first_state, started
from rl_pipeline_tests.observability.reports.stored_period import store_audit
from rl_pipeline_tests.training.job_tables import emptied, migrated_database

LATELY = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=5)
MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def warehouse(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(tables)


def after(reason: str, verdict: Verdict = "hold", mode: str = "full", **evidence: Any) -> Tick:
    return Tick(started(), Judgement(verdict, reason, f"because of {reason}", {"mode": mode, **evidence}))


def stored(warehouse: ClickHouseWarehouse) -> list[tuple[str, datetime, datetime | None]]:
    found = warehouse.query("SELECT reason, since, ended_at FROM rollout_holds FINAL ORDER BY since, reason")
    return list(found.iter_rows())


@pytest.mark.parametrize("reason", sorted(FOR_A_PERSON))
def test_what_only_a_person_ends_is_told_when_it_begins_and_not_again(
    warehouse: ClickHouseWarehouse, reason: str
) -> None:
    hold = Hold("deployment-of-new", 0, reason, "new", f"because of {reason}")
    assert note_hold(warehouse, after(reason), LATELY) == hold
    assert note_hold(warehouse, after(reason), LATELY + MINUTE) is None
    assert stored(warehouse) == [(reason, LATELY, None)]


@pytest.mark.parametrize(
    "tick",
    [
        after("ab_test"),
        after("time_and_samples", "advance"),
        after("high_error_rate", "roll_back"),
        after("high_error_rate", "recheck"),
        Tick(first_state()),
    ],
)
def test_what_goes_on_by_itself_waits_for_nobody_and_ends_what_did(warehouse: ClickHouseWarehouse, tick: Tick) -> None:
    note_hold(warehouse, after("sample_ratio"), LATELY)
    assert note_hold(warehouse, tick, LATELY + MINUTE) is None
    assert stored(warehouse) == [("sample_ratio", LATELY, LATELY + MINUTE)]


@pytest.mark.parametrize("tick", [Tick(), after("watching", mode="watchdog"), after("no_evidence", mode="")])
def test_a_look_without_all_of_the_evidence_changes_nothing(warehouse: ClickHouseWarehouse, tick: Tick) -> None:
    note_hold(warehouse, after("worse_within_limits"), LATELY)
    assert note_hold(warehouse, tick, LATELY + MINUTE) is None
    assert stored(warehouse) == [("worse_within_limits", LATELY, None)]


def test_what_comes_and_goes_at_one_step_is_one_hold(warehouse: ClickHouseWarehouse) -> None:
    note_hold(warehouse, after("sample_ratio"), LATELY)
    note_hold(warehouse, after("ab_test"), LATELY + MINUTE)
    assert note_hold(warehouse, after("sample_ratio"), LATELY + 2 * MINUTE) is None
    assert stored(warehouse) == [("sample_ratio", LATELY, None)]


def test_another_reason_is_another_hold_and_ends_the_one_before(warehouse: ClickHouseWarehouse) -> None:
    note_hold(warehouse, after("sample_ratio"), LATELY)
    assert note_hold(warehouse, after("worse_within_limits"), LATELY + MINUTE) is not None
    assert stored(warehouse) == [
        ("sample_ratio", LATELY, LATELY + MINUTE),
        ("worse_within_limits", LATELY + MINUTE, None),
    ]


def test_who_waits_for_sessions_a_day_longer_than_its_step_takes_has_stalled() -> None:
    steps = (RampStep(share=0.1, min_seconds=3600, min_samples=50),)
    tick = Tick(started(steps=steps), after("waiting", step={"min_seconds": 3600}).judgement)
    stalled_at = NOW + timedelta(hours=1) + STALLED_AFTER
    assert hold_of(tick, stalled_at - MINUTE) is None
    found = hold_of(tick, stalled_at)
    assert found is not None
    assert found.reason == "stalled"


def test_reports_know_who_is_waited_for_at_the_end_of_their_period(warehouse: ClickHouseWarehouse) -> None:
    store_audit(warehouse, {"at": LATELY - MINUTE, "serving": "old", "event": "deployed"})
    note_hold(warehouse, after("sample_ratio"), LATELY)
    note_hold(warehouse, after("ab_test"), LATELY + 2 * MINUTE)
    standings = [read_standing(warehouse, LATELY + minutes * MINUTE) for minutes in (0.5, 3)]
    assert [(each.waits_for, each.waits_since) for each in standings if each] == [
        ("new (sample_ratio): because of sample_ratio", LATELY),
        ("", None),
    ]
