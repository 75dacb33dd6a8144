"""What is found out about a rollback, from the tables as they are."""

import json
import random
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rl_pipeline.deployment import phases
from rl_pipeline.deployment.audit import AuditRow, WarehouseAudit
from rl_pipeline.deployment.phases import Cause
from rl_pipeline.deployment.post_mortem import (
    FINDINGS,
    PATIENCE,
    SETTLING,
    PostMortem,
    context_bucket,
    hold_post_mortems,
    post_mortem,
)
from rl_pipeline.deployment.rollbacks import NoRollback
from rl_pipeline.deployment.state import DesiredState
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.redaction.session_names import stored_name
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline_tests.deployment.states import a_model, a_rollout, because, first_state
from rl_pipeline_tests.training.job_tables import emptied, migrated_database

START = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) - timedelta(days=1)
END = START + timedelta(hours=3)
KEY = RedactionKey("v1", b"a key of gateways, for tests alone")
ROLLOUT = a_rollout().model_copy(update={"started_at": START, "step_since": START})


@pytest.fixture(scope="module")
def tables(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    with migrated_database(clickhouse_url) as database:
        yield database


@pytest.fixture
def warehouse(tables: ClickHouseWarehouse) -> ClickHouseWarehouse:
    return emptied(tables)


def rolled_back(reason: str) -> tuple[DesiredState, DesiredState, DesiredState]:
    """The generations of a rollout that was taken back."""
    first = first_state()
    started = phases.start(first, a_model("new"), ROLLOUT, because(at=START), approved=True)
    return first, started, phases.roll_back(started, Cause(reason, "rollout-watchdog", END, {"combined": 31.5}))


def store_audit(warehouse: ClickHouseWarehouse, *states: DesiredState) -> None:
    WarehouseAudit(warehouse).add([AuditRow.of(each.encoded()) for each in states])


def roll_back(warehouse: ClickHouseWarehouse, reason: str) -> None:
    store_audit(warehouse, *rolled_back(reason))


class Sessions:
    """Sessions of both arms with their trajectories and rewards; how each went is up to the test."""

    def __init__(self) -> None:
        self.chance = random.Random(7)
        self.outcomes: list[dict[str, Any]] = []
        self.trajectories: list[dict[str, Any]] = []
        self.rewards: list[dict[str, Any]] = []

    def add(self, model: str, *, failure: str = "", **about: Any) -> None:
        number = len(self.outcomes)
        at = about.get("at", START + timedelta(seconds=15 * (number % 700)))
        session = f"session-{number}"
        self.outcomes.append(
            {
                "deployment_id": ROLLOUT.deployment_id,
                "session_id": stored_name(KEY, session),
                "generation": 2,
                "started_at": at,
                "stream_time": at,
                "sequence": number + 1,
                "model_id": model,
                "requests": 1,
                "failed_requests": int(bool(failure)),
                "failed": bool(failure),
                "failure": failure,
                "feedback": about.get("feedback", ""),
                "prompt_tokens": about.get("prompt_tokens"),
            }
        )
        self.trajectories.append(
            {
                "trajectory_id": f"trajectory-{number}",
                "session_id": session,
                "model_version": about.get("answered_by", model),
                "stream_time": at,
                "domain": about.get("domain", "code"),
                "agent_id": about.get("agent", "agent-zero"),
                "tools": about.get("tools", ["shell"]),
                "total_tokens": about.get("tokens", 500),
                "held": True,
            }
        )
        self.rewards.append(
            {
                "trajectory_id": f"trajectory-{number}",
                "stream": "RL_TRAJECTORIES",
                "configuration": "c1",
                "sequence": number + 1,
                "revision": 0,
                "session_id": session,
                "model_version": model,
                "stream_time": at,
                "raw_total": about.get("reward", 0.7),
                "scored_at": at,
            }
        )

    def store(self, warehouse: ClickHouseWarehouse) -> None:
        warehouse.insert("serving_outcomes", pl.DataFrame(self.outcomes, schema_overrides={"prompt_tokens": pl.UInt64}))
        warehouse.insert("trajectories", pl.DataFrame(self.trajectories))
        warehouse.insert("rewards", pl.DataFrame(self.rewards))
        since = START - timedelta(days=1)
        row = {"hash": "c1", "scores_hash": "s", "configuration": "{}", "first_used_at": since, "current_since": since}
        warehouse.insert("reward_configurations", pl.DataFrame([row]))


def test_scenario_4_out_of_memory_on_long_contexts_is_found_with_its_recommendation(
    warehouse: ClickHouseWarehouse, tmp_path: Path
) -> None:
    sessions = Sessions()
    for number in range(1200):
        model, is_long = ("new", "old")[number % 2], number % 5 == 0
        rate = 0.35 if model == "new" and is_long else 0.02
        failure = "upstream_broke_off" if sessions.chance.random() < rate else ""
        sessions.add(
            model,
            failure=failure,
            tokens=30_000 if is_long else 900,
            domain=sessions.chance.choice(["code", "research", "data"]),
            tools=sessions.chance.sample(["shell", "browser", "python"], 2),
        )
    sessions.store(warehouse)
    roll_back(warehouse, "high_error_rate")
    found = post_mortem(warehouse, ROLLOUT.deployment_id, session_keys=[KEY])
    assert found.worst is not None
    assert (found.worst.dimension, found.worst.value) == ("context length", "16K to 64K")
    assert found.worst.rate > 0.25
    assert found.worst.control_rate < 0.05
    assert found.worst.p_value < 0.001
    assert (found.cause, found.recommendation) == (
        FINDINGS["context length", "long"].cause,
        FINDINGS["context length", "long"].recommendation,
    )
    assert "out of memory" in found.cause
    assert "Retrain with gradient checkpointing enabled" in found.recommendation
    assert (found.overall.sessions, found.overall.control_sessions) == (600, 600)
    assert next(iter(found.failures)) == "upstream_broke_off"
    assert found.alert.startswith("URGENT: Model new rolled back due to high error rate (")
    assert (found.training_job_id, found.evidence) == ("job-of-new", {"combined": 31.5})
    for piece in ("# new was rolled back", "context length 16K to 64K", "Retrain with gradient", "| all sessions |"):
        assert piece in found.text


def test_a_failed_session_is_known_by_its_trajectory_though_the_model_in_service_has_answered(
    warehouse: ClickHouseWarehouse,
) -> None:
    sessions = Sessions()
    for number in range(800):
        model, domain = ("new", "old")[number % 2], ("code", "research", "data", "ops")[number // 2 % 4]
        is_bad = sessions.chance.random() < (0.3 if (model, domain) == ("new", "research") else 0.02)
        failure = "upstream_status" if is_bad else ""
        sessions.add(model, failure=failure, domain=domain, answered_by="old" if is_bad else model)
    sessions.store(warehouse)
    roll_back(warehouse, "high_error_rate")
    found = post_mortem(warehouse, ROLLOUT.deployment_id, session_keys=[KEY])
    assert found.worst is not None
    assert (found.worst.dimension, found.worst.value) == ("domain", "research")
    assert (found.overall.sessions, found.overall.control_sessions) == (400, 400)


def test_the_tool_that_the_candidate_misuses_is_found(warehouse: ClickHouseWarehouse) -> None:
    sessions = Sessions()
    for number in range(800):
        model, tools = ("new", "old")[number % 2], [("shell", "browser", "python")[number // 2 % 3]]
        rate = 0.3 if model == "new" and tools == ["browser"] else 0.02
        sessions.add(model, failure="upstream_status" if sessions.chance.random() < rate else "", tools=tools)
    sessions.store(warehouse)
    roll_back(warehouse, "high_error_rate")
    found = post_mortem(warehouse, ROLLOUT.deployment_id, session_keys=[KEY])
    assert found.worst is not None
    assert (found.worst.dimension, found.worst.value) == ("tool", "browser")
    assert found.cause == FINDINGS["tool", ""].cause


def test_failures_at_one_hour_point_away_from_the_model(warehouse: ClickHouseWarehouse) -> None:
    sessions = Sessions()
    for number in range(800):
        at = START + timedelta(minutes=number % 180)
        is_outage = number % 2 == 0 and 60 <= number % 180 < 120
        failure = "upstream_unreachable" if sessions.chance.random() < (0.3 if is_outage else 0.02) else ""
        sessions.add(("new", "old")[number % 2], failure=failure, at=at)
    sessions.store(warehouse)
    roll_back(warehouse, "high_error_rate")
    found = post_mortem(warehouse, ROLLOUT.deployment_id, session_keys=[KEY])
    assert found.worst is not None
    assert (found.worst.dimension, found.worst.value) == ("hour", f"{START:%Y-%m-%d} 01h")
    assert "before anything is trained again" in found.recommendation


def test_failures_of_every_kind_of_session_are_explained_by_how_they_failed(warehouse: ClickHouseWarehouse) -> None:
    sessions = Sessions()
    for number in range(800):
        is_bad = sessions.chance.random() < (0.25 if number % 2 == 0 else 0.02)
        sessions.add(("new", "old")[number % 2], failure="upstream_timeout" if is_bad else "")
    sessions.store(warehouse)
    roll_back(warehouse, "high_error_rate")
    found = post_mortem(warehouse, ROLLOUT.deployment_id, session_keys=[KEY])
    assert (found.worst, found.cause) == (None, FINDINGS["failure", "upstream_timeout"].cause)
    assert "It stands out in no single kind of session" in found.text


def test_a_drop_of_rewards_is_looked_for_in_rewards(warehouse: ClickHouseWarehouse) -> None:
    sessions = Sessions()
    for number in range(800):
        model, domain = ("new", "old")[number % 2], ("code", "research", "data", "ops")[number // 2 % 4]
        reward = sessions.chance.gauss(0.4 if (model, domain) == ("new", "research") else 0.7, 0.1)
        sessions.add(model, domain=domain, reward=reward)
    sessions.store(warehouse)
    roll_back(warehouse, "performance_degradation")
    found = post_mortem(warehouse, ROLLOUT.deployment_id, session_keys=[KEY])
    assert found.worst is not None
    assert (found.worst.dimension, found.worst.value) == ("domain", "research")
    assert "Balance the dataset by domain" in found.recommendation
    assert "earned less than half of the control's sessions" in found.text


@pytest.mark.parametrize("is_scored_again", [False, True], ids=["not scored again", "scored again"])
def test_rewards_are_those_that_the_rollout_was_judged_by_though_another_configuration_was_chosen_since(
    warehouse: ClickHouseWarehouse, *, is_scored_again: bool
) -> None:
    sessions = Sessions()
    for number in range(400):
        model = ("new", "old")[number % 2]
        sessions.add(model, reward=sessions.chance.gauss(0.4 if model == "new" else 0.7, 0.1))
    sessions.store(warehouse)
    later = END + timedelta(hours=1)
    chosen = {"hash": "c2", "scores_hash": "s", "configuration": "{}", "first_used_at": later, "current_since": later}
    warehouse.insert("reward_configurations", pl.DataFrame([chosen]))
    if is_scored_again:
        another = {"configuration": "c2", "raw_total": 0.5, "scored_at": later}
        warehouse.insert("rewards", pl.DataFrame([row | another for row in sessions.rewards]))
    roll_back(warehouse, "performance_degradation")
    found = post_mortem(warehouse, ROLLOUT.deployment_id, session_keys=[KEY])
    assert (found.without_reward, found.overall.sessions, found.overall.control_bad) == (0, 200, 100)
    assert found.overall.bad > 180


def test_bad_ratings_are_looked_for_among_the_rated(warehouse: ClickHouseWarehouse) -> None:
    sessions = Sessions()
    for number in range(1200):
        model, agent = ("new", "old")[number % 2], ("coder", "researcher", "writer")[number // 2 % 3]
        is_rated = sessions.chance.random() < 0.5
        is_bad = sessions.chance.random() < (0.6 if (model, agent) == ("new", "writer") else 0.1)
        sessions.add(model, agent=agent, feedback=("negative" if is_bad else "positive") if is_rated else "")
    sessions.store(warehouse)
    roll_back(warehouse, "user_dissatisfaction")
    found = post_mortem(warehouse, ROLLOUT.deployment_id, session_keys=[KEY])
    assert found.worst is not None
    assert (found.worst.dimension, found.worst.value) == ("agent", "writer")
    assert found.overall.sessions < 400


def test_without_any_session_there_is_a_report_all_the_same(warehouse: ClickHouseWarehouse) -> None:
    roll_back(warehouse, "somebody does not like it")
    found = post_mortem(warehouse, ROLLOUT.deployment_id, session_keys=[KEY])
    assert (found.overall.sessions, found.worst, found.slices) == (0, None, ())
    assert found.text


def test_what_was_not_rolled_back_has_no_post_mortem(warehouse: ClickHouseWarehouse) -> None:
    with pytest.raises(NoRollback, match="was not rolled back"):
        post_mortem(warehouse, "deployment-of-new", session_keys=[KEY])


def test_a_rollback_whose_beginning_the_audit_lost_is_looked_into_by_what_is_left(
    warehouse: ClickHouseWarehouse, tmp_path: Path
) -> None:
    sessions = Sessions()
    for number in range(40):
        model = ("new", "old")[number % 2]
        sessions.add(model, failure="upstream_timeout" if model == "new" else "")
    sessions.store(warehouse)
    store_audit(warehouse, rolled_back("high_error_rate")[-1])
    (held,) = hold(warehouse, tmp_path, END + PATIENCE)
    assert (held.model_id, held.control, held.reason) == ("new", "old", "high_error_rate")
    assert (held.overall.bad, held.overall.sessions, held.overall.control_sessions) == (20, 20, 20)
    assert held.failures == {"upstream_timeout": 20}
    assert "The audit has lost how this rollout began" in held.text
    assert hold(warehouse, tmp_path, END + PATIENCE) == [], "nobody looks into it twice"


def test_a_rollback_that_cannot_be_read_is_told_of_and_keeps_no_other_waiting(
    warehouse: ClickHouseWarehouse, tmp_path: Path
) -> None:
    store_audit(warehouse, *rolled_back("high_error_rate"))
    rows = warehouse.query("SELECT * FROM deployment_audit FINAL WHERE event = 'rolled_back'")
    forged = rows.with_columns(deployment_id=pl.lit("forged"), hash=pl.lit("forged"), state=pl.lit("{}"))
    warehouse.insert("deployment_audit", forged.with_columns(generation=pl.lit(1, pl.UInt64)))
    skipped: list[str] = []
    (held,) = hold(warehouse, tmp_path, END + PATIENCE, skipped=skipped.append)
    assert held.deployment_id == ROLLOUT.deployment_id
    (said,) = skipped
    assert "the deployment forged was not rolled back" in said


def hold(
    warehouse: ClickHouseWarehouse, path: Path, now: datetime, last_sequence: int = 0, **more: Any
) -> list[PostMortem]:
    asked = {"session_keys": [KEY], "last_sequence": lambda: last_sequence, **more}
    return hold_post_mortems(warehouse, DiskObjects(path), now, **asked)


def ingest(warehouse: ClickHouseWarehouse, sequences: range, at: datetime) -> None:
    """The ledger has these sequences of the stream."""
    rows = [
        {"stream": "RL_TRAJECTORIES", "sequence": number, "stream_time": at, "verdict": "accepted", "revision": 1}
        for number in sequences
    ]
    warehouse.insert("trajectory_ledger", pl.DataFrame(rows))


def test_a_rollback_is_looked_into_once_its_trajectories_are_ingested_and_scored(
    warehouse: ClickHouseWarehouse, tmp_path: Path
) -> None:
    sessions = Sessions()
    for model in ("new", "old", "new"):
        sessions.add(model)
    late = sessions.rewards.pop()
    sessions.store(warehouse)
    roll_back(warehouse, "high_error_rate")
    assert hold(warehouse, tmp_path, END + SETTLING, last_sequence=9) == [], "nothing is ingested yet"
    ingest(warehouse, range(1, 4), END)
    assert hold(warehouse, tmp_path, END + SETTLING, last_sequence=9) == [], "not up to the rollback"
    ingest(warehouse, range(4, 5), END + SETTLING)
    assert hold(warehouse, tmp_path, END + SETTLING, last_sequence=9) == [], "one is not scored"
    warehouse.insert("rewards", pl.DataFrame([late]))
    (held,) = hold(warehouse, tmp_path, END + SETTLING, last_sequence=9)
    assert (held.told, held.without_trajectory, held.without_reward) == (3, 0, 0)


def test_a_stream_in_which_nothing_waits_is_not_waited_for(warehouse: ClickHouseWarehouse, tmp_path: Path) -> None:
    roll_back(warehouse, "high_error_rate")
    ingest(warehouse, range(1, 4), START)
    assert hold(warehouse, tmp_path, END + SETTLING, last_sequence=4) == []
    assert len(hold(warehouse, tmp_path, END + SETTLING, last_sequence=3)) == 1


def test_patience_ends_and_the_report_says_what_was_missing(warehouse: ClickHouseWarehouse, tmp_path: Path) -> None:
    sessions = Sessions()
    for number in range(5):
        sessions.add(("new", "old")[number % 2])
    del sessions.trajectories[3:], sessions.rewards[1:]
    sessions.store(warehouse)
    roll_back(warehouse, "high_error_rate")
    before = END + PATIENCE - timedelta(seconds=1)
    assert hold(warehouse, tmp_path, before, last_sequence=9) == []
    (held,) = hold(warehouse, tmp_path, END + PATIENCE, last_sequence=9)
    assert (held.told, held.without_trajectory, held.without_reward) == (5, 2, 4)
    assert "Of 5 sessions, 2 had no trajectory by then" in held.text
    (row,) = warehouse.query("SELECT report FROM post_mortems FINAL").to_dicts()
    assert json.loads(row["report"])["without_trajectory"] == 2


def test_each_rollback_is_looked_into_once_and_kept(warehouse: ClickHouseWarehouse, tmp_path: Path) -> None:
    roll_back(warehouse, "high_error_rate")
    objects = DiskObjects(tmp_path)
    assert hold(warehouse, tmp_path, END) == []
    (held,) = hold(warehouse, tmp_path, END + SETTLING)
    assert hold(warehouse, tmp_path, END + SETTLING) == []
    assert objects.get("post-mortems/deployment-of-new.md").decode() == held.text
    assert held.url == objects.url("post-mortems/deployment-of-new.md")
    (row,) = warehouse.query("SELECT * FROM post_mortems FINAL").to_dicts()
    report = json.loads(row["report"])
    assert (report["cause"], report["url"], row["report_url"]) == (held.cause, held.url, held.url)


@pytest.mark.parametrize(
    ("tokens", "bucket"),
    [(1, "under 1K"), (999, "under 1K"), (1000, "1K to 4K"), (20_000, "16K to 64K"), (64_000, "over 64K")],
)
def test_contexts_come_in_buckets(tokens: int, bucket: str) -> None:
    assert context_bucket(tokens) == bucket
