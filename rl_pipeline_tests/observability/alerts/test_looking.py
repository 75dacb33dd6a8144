"""What the tables say that is an alert: at its boundary, and once for each episode."""

from collections.abc import Iterator
from datetime import timedelta

import pytest

from rl_pipeline.deployment.controller import Tick
from rl_pipeline.deployment.holds import note_hold
from rl_pipeline.deployment.judging import Judgement
from rl_pipeline.observability.alerts.looking import (
    collection_is_bad,
    failed_trainings,
    failed_validations,
    rollbacks,
    waiting_rollouts,
)
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.training.jobs.rows import write_attempt
from rl_pipeline_tests.deployment.states import started
from rl_pipeline_tests.observability.reports.stored_period import END, HOUR, store_audit, store_ledger, store_validation
from rl_pipeline_tests.training.job_tables import STREAM, emptied, migrated_database
from rl_pipeline_tests.training.job_values import NOW, an_attempt

MINUTE = timedelta(minutes=1)


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def warehouse(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(tables)


def ended(warehouse: ClickHouseWarehouse, outcome: str, minute: int, job: str = "job") -> None:
    attempt = an_attempt(minute, job_id=job, begun=True)
    code = "OOM" if outcome == "failed" else None
    write_attempt(warehouse, attempt.ended(outcome, NOW + minute * MINUTE, failure_code=code, message="no room"))  # type: ignore[arg-type]


def test_three_failures_in_a_row_are_one_alert_however_many_follow(warehouse: ClickHouseWarehouse) -> None:
    ended(warehouse, "completed", 1)
    for minute in (2, 3):
        ended(warehouse, "failed", minute)
    ended(warehouse, "cancelled", 4)
    assert failed_trainings(warehouse, 3, NOW) == []
    ended(warehouse, "failed", 5, "another")
    [alert] = failed_trainings(warehouse, 3, NOW)
    assert alert.text == "Training failed 3 times in a row (OOM, OOM, OOM), last job another: no room"
    assert alert.next_step == "rl-pipeline jobs another"
    ended(warehouse, "failed", 6)
    assert failed_trainings(warehouse, 3, NOW + HOUR)[0].alert_id == alert.alert_id


def test_a_success_ends_the_row_and_the_next_three_are_another_alert(warehouse: ClickHouseWarehouse) -> None:
    for minute in (1, 2, 3):
        ended(warehouse, "failed", minute)
    [first] = failed_trainings(warehouse, 3, NOW)
    ended(warehouse, "completed", 4)
    assert failed_trainings(warehouse, 3, NOW) == []
    for minute in (5, 6, 7):
        ended(warehouse, "failed", minute)
    assert failed_trainings(warehouse, 3, NOW)[0].alert_id != first.alert_id


def test_each_verdict_against_a_model_is_an_alert(warehouse: ClickHouseWarehouse) -> None:
    store_validation(warehouse, "good", "deploy", END)
    store_validation(warehouse, "bad", "refuse", END, "toxicity")
    store_validation(warehouse, "doubtful", "ask_a_person", END, "nothing was probed")
    store_validation(warehouse, "older", "refuse", END - HOUR)
    found = {alert.subject: alert for alert in failed_validations(warehouse, END - MINUTE, END)}
    assert {name: alert.severity for name, alert in found.items()} == {"bad": "critical", "doubtful": "warning"}
    assert "failed validation: toxicity. The old model stays in service." in found["bad"].text
    assert "rl-pipeline deployment approve" in found["doubtful"].next_step


def test_each_rollback_is_an_alert_that_says_why_and_who_serves(warehouse: ClickHouseWarehouse) -> None:
    back = {"serving": "v1", "model_id": "v2", "event": "rolled_back", "reason": "high_error_rate", "by": "watchdog"}
    store_audit(
        warehouse,
        {**back, "at": END - HOUR},
        {**back, "at": END},
        {"serving": "v1", "model_id": "v3", "event": "promoted", "at": END},
    )
    [alert] = rollbacks(warehouse, END - MINUTE, END)
    assert alert.text.startswith("URGENT: Model v2 rolled back at ")
    assert "by watchdog: high_error_rate. v1 serves." in alert.text


def test_a_rollout_that_waits_for_a_person_is_one_alert_for_each_step_and_reason(
    warehouse: ClickHouseWarehouse,
) -> None:
    tick = Tick(started(), Judgement("hold", "fails_only_alone", "it failed 3 times alone", {"mode": "full"}))
    for minute in range(3):
        note_hold(warehouse, tick, END + minute * MINUTE)
    [first] = waiting_rollouts(warehouse, END - MINUTE, END)
    assert (first.kind, first.subject, first.severity) == ("rollout_waits", "new", "warning")
    assert first.text == "The rollout of new waits for a person (fails_only_alone): it failed 3 times alone"
    assert [each.alert_id for each in waiting_rollouts(warehouse, END - HOUR, END + HOUR)] == [first.alert_id]
    assert waiting_rollouts(warehouse, END + MINUTE, END + HOUR) == [], "it is no news any more"
    tick.judgement = Judgement("hold", "sample_ratio", "look at the routing", {"mode": "full"})
    note_hold(warehouse, tick, END + HOUR)
    assert len(waiting_rollouts(warehouse, END - MINUTE, END)) == 2


def test_more_than_a_tenth_of_the_last_hour_is_bad_and_a_tenth_is_not(warehouse: ClickHouseWarehouse) -> None:
    store_ledger(
        warehouse, ("accepted", 18, END - MINUTE), ("refused", 2, END - MINUTE), ("refused", 99, END - 2 * HOUR)
    )
    assert collection_is_bad(warehouse, STREAM, END) is None
    store_ledger(warehouse, ("refused", 1, END - MINUTE), first=1000)
    assert collection_is_bad(warehouse, STREAM, END) == "14.3% of the 21 messages of the last hour were refused"


def test_of_a_few_messages_nothing_is_said(warehouse: ClickHouseWarehouse) -> None:
    store_ledger(warehouse, ("refused", 19, END - MINUTE))
    assert collection_is_bad(warehouse, STREAM, END) is None
