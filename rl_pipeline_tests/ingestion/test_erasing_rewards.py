"""With a user goes what was measured in their trajectories, scored, awarded and published, and what they said."""

import json
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.ingestion.erasure import POINTS
from rl_pipeline.ingestion.feedback import drain_feedback
from rl_pipeline.redaction.placeholders import placeholder
from rl_pipeline.redaction.policy import RedactionPolicy
from rl_pipeline.rewards.publishing import publish_rewards
from rl_pipeline.rewards.storing import write_rewards, write_scores, write_signals
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.migrate import migrate
from rl_pipeline_tests.fixtures.clickhouse import running_front
from rl_pipeline_tests.ingestion.erasing import ERIN, FAYE, FEEDBACK, RULES_OFF, Erasing
from rl_pipeline_tests.ingestion.ingesting import KEY, STREAM, Ingesting, document
from rl_pipeline_tests.rewards.stored_frames import CONFIGURATION, rewards, signals

SOURCES: Any = {"task_completion": "automated", "user_feedback": "human"}
NEW_POINTS = [point for point in POINTS if "reward" in point or "feedback" in point or point == "after_rows"]


class Killed(BaseException):
    """Stands for kill -9: nothing handles it."""


def score_all(erasing: Erasing) -> None:
    """Signals, scores, rewards and messages for everything stored."""
    rows = erasing.ingesting.stored()
    shared = [{name: row[name] for name in ("sequence", "trajectory_id", "stream_time")} for row in rows]
    owned = [
        one | {"user": row["user"], "session_id": row["session_id"]} for one, row in zip(shared, rows, strict=True)
    ]
    now = datetime.now(UTC)
    write_signals(erasing.warehouse, signals(*owned), now)
    awarded = rewards(*({**one, "session_id": row["session_id"]} for one, row in zip(shared, rows, strict=True)))
    write_scores(erasing.warehouse, STREAM, "terms", awarded)
    write_rewards(erasing.warehouse, STREAM, awarded, now)
    publish_rewards(
        erasing.stream,
        erasing.warehouse,
        stream=STREAM,
        reward_stream="RL_REWARDS",
        configuration=CONFIGURATION,
        sources=SOURCES,
    )


def say(erasing: Erasing, number: int, about: str, user: str | None, **fields: Any) -> None:
    given = {"feedback_id": f"feedback-{number}", "trajectory_id": about, "timestamp": "2026-01-01T00:00:00Z"}
    content = given | {"kind": "comment", "text": f"said by {user}"} | ({"user_id": user} if user else {}) | fields
    erasing.stream.publish(FEEDBACK, json.dumps(content).encode(), f"feedback-{number}")


def drain(erasing: Erasing) -> None:
    policy = RedactionPolicy(KEY, rules_off=RULES_OFF)
    drain_feedback(erasing.stream, erasing.warehouse, stream="RL_FEEDBACK", policy=policy)


@pytest.fixture
def scored(erasing: Erasing) -> Erasing:
    """Erin has 1 and 3, Faye 2. Feedback: 1 Erin of Faye's, 2 Faye of hers, 3 nobody of Erin's, 4 Erin, invalid."""
    erasing.ingesting.publish(document(1, user_id=ERIN), document(2, user_id=FAYE), document(3, user_id=ERIN))
    erasing.drain()
    erins, fayes, _ = (row["trajectory_id"] for row in erasing.ingesting.stored())
    score_all(erasing)
    say(erasing, 1, fayes, ERIN)
    say(erasing, 2, fayes, FAYE)
    say(erasing, 3, erins, None)
    say(erasing, 4, fayes, ERIN, kind="nonsense")
    drain(erasing)
    return erasing


def sequences(erasing: Erasing, table: str) -> list[int]:
    # Without FINAL: nothing may be left in rows that are no longer read.
    return erasing.warehouse.query(f"SELECT DISTINCT sequence FROM {table} ORDER BY sequence")["sequence"].to_list()


def assert_erin_is_gone(erasing: Erasing) -> None:
    for table in ("trajectories", "trajectory_signals", "reward_scores", "rewards"):
        assert sequences(erasing, table) == [2], table
    assert list(erasing.messages("RL_REWARDS")) == [2]
    said = erasing.warehouse.query("SELECT sequence, verdict, text FROM trajectory_feedback ORDER BY sequence")
    assert {row[:2] for row in said.iter_rows()} == {(1, "erased"), (2, "accepted"), (3, "erased"), (4, "erased")}
    assert [text for _, verdict, text in said.iter_rows() if verdict == "erased" and text] == []
    assert erasing.ingesting.letters() == []


def test_everything_that_was_made_of_the_users_data_is_erased_and_nothing_of_anybody_elses(scored: Erasing) -> None:
    assert sequences(scored, "rewards") == [1, 2, 3]
    assert [letter["sequence"] for letter in scored.ingesting.letters()] == [4]
    report = scored.erase()
    assert_erin_is_gone(scored)
    assert (report.trajectories, report.feedback, report.dead_letters) == (2, 2, 1)
    drain(scored)
    scored.erase()
    assert_erin_is_gone(scored)


@pytest.mark.parametrize("point", NEW_POINTS)
def test_an_erasure_that_is_killed_is_finished_by_the_next(scored: Erasing, point: str) -> None:
    def die(reached: str) -> None:
        if reached == point:
            raise Killed

    with pytest.raises(Killed):
        scored.erase(reached=die)
    drain(scored)
    scored.erase()
    assert_erin_is_gone(scored)


def test_feedback_that_was_not_drained_yet_is_erased_and_no_gap_is_left(erasing: Erasing) -> None:
    erasing.publish_feedback(FAYE, ERIN, None)
    erasing.erase()
    drain(erasing)
    found = erasing.warehouse.query("SELECT sequence, verdict FROM trajectory_feedback FINAL ORDER BY sequence")
    assert found.rows() == [(1, "accepted"), (2, "erased"), (3, "accepted")]


def test_what_was_measured_is_erased_though_its_trajectory_has_expired(erasing: Erasing) -> None:
    then = datetime.now(UTC) - timedelta(days=60)
    user = placeholder(KEY, "USER", ERIN.encode())
    measured = signals({"sequence": 1, "user": user, "stream_time": then}, {"sequence": 2, "stream_time": then})
    write_signals(erasing.warehouse, measured, then)
    write_scores(erasing.warehouse, STREAM, "terms", rewards({"sequence": 1}, {"sequence": 2}))
    write_rewards(erasing.warehouse, STREAM, rewards({"sequence": 1}, {"sequence": 2}), then)
    erasing.erase()
    for table in ("trajectory_signals", "reward_scores", "rewards"):
        assert sequences(erasing, table) == [2], table


def test_no_file_has_what_was_erased_any_more(stream: JetStream, tmp_path: Path) -> None:
    marks = {"ab" * 12, "cd" * 12}
    with running_front(tmp_path / "clickhouse") as front:
        warehouse = ClickHouseWarehouse.connect(front.url, "erasure")
        with closing(warehouse):
            migrate(warehouse)
            for table, column in (
                ("trajectory_signals", "session_id"),
                ("rewards", "session_id"),
                ("trajectory_feedback", "text"),
            ):
                warehouse.execute(f"ALTER TABLE {table} MODIFY COLUMN {column} String CODEC(NONE)")
            erasing = Erasing(Ingesting(stream, warehouse, tmp_path / "raw"), DiskObjects(tmp_path / "archive"))
            for user, mark in zip((ERIN, FAYE), sorted(marks), strict=True):
                erasing.ingesting.publish({**document(len(user), user_id=user), "session_id": mark})
            erasing.drain()
            score_all(erasing)
            erins, fayes = (row["trajectory_id"] for row in erasing.ingesting.stored())
            say(erasing, 1, fayes, ERIN, text="ab" * 12)
            say(erasing, 2, erins, FAYE, text="ab" * 12)
            say(erasing, 3, fayes, FAYE, text="cd" * 12)
            drain(erasing)
            erasing.erase()
            left = [path.read_bytes() for path in (tmp_path / "clickhouse").rglob("*.bin") if path.is_file()]
            assert not any(b"ab" * 12 in content for content in left)
            assert sum(b"cd" * 12 in content for content in left) >= 3
