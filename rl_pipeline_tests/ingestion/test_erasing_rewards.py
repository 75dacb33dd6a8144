"""With a user goes what was measured in their trajectories, scored, awarded and published, and what they said."""

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rl_pipeline.ingestion.erasure import POINTS
from rl_pipeline.ingestion.feedback import drain_feedback
from rl_pipeline.redaction.placeholders import placeholder
from rl_pipeline.redaction.policy import RedactionPolicy
from rl_pipeline.redaction.redactor import Redactor
from rl_pipeline.rewards.integrator import RewardSignal
from rl_pipeline.rewards.publishing import publish_rewards
from rl_pipeline.rewards.reported import StoredRewardSignals
from rl_pipeline.rewards.revisions import revisions
from rl_pipeline.rewards.storing import feedback_on, read_signals, write_rewards, write_scores, write_signals
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


def score_all(erasing: Erasing, reached: Callable[[str], None] = lambda _: None) -> None:
    """Signals, scores, rewards and messages for everything stored."""
    rows = erasing.ingesting.stored()
    shared = [{name: row[name] for name in ("sequence", "trajectory_id", "stream_time")} for row in rows]
    owned = [
        one | {"user": row["user"], "session_id": row["session_id"]} for one, row in zip(shared, rows, strict=True)
    ]
    now = datetime.now(UTC)
    known = set(erasing.warehouse.query("SELECT sequence FROM rewards")["sequence"])
    write_signals(erasing.warehouse, signals(*owned), now)
    awarded = rewards(*({**one, "session_id": row["session_id"]} for one, row in zip(shared, rows, strict=True)))
    awarded = awarded.filter(~pl.col("sequence").is_in(known))
    write_scores(erasing.warehouse, STREAM, "terms", awarded)
    write_rewards(erasing.warehouse, STREAM, awarded, now)
    publish_rewards(
        erasing.stream,
        erasing.warehouse,
        stream=STREAM,
        reward_stream="RL_REWARDS",
        configuration=CONFIGURATION,
        sources=SOURCES,
        reached=reached,
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
    """Erin has 1 and 3, Faye 2 and 4. Feedback: 1 Erin of 2, 2 Faye of 2, 3 nobody of 1, 4 Erin of 2, but invalid."""
    erasing.ingesting.publish(*(document(seed, user_id=user) for seed, user in enumerate((ERIN, FAYE) * 2, start=1)))
    erasing.drain()
    erins, fayes, _, _ = (row["trajectory_id"] for row in erasing.ingesting.stored())
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
    for table in ("trajectories", "trajectory_signals"):
        assert sequences(erasing, table) == [2, 4], table
    # The reward of 2 was computed with what Erin said of it, and has to be computed again.
    for table in ("reward_scores", "rewards"):
        assert sequences(erasing, table) == [4], table
    assert list(erasing.messages("RL_REWARDS")) == [4]
    said = erasing.warehouse.query("SELECT sequence, verdict, text FROM trajectory_feedback ORDER BY sequence")
    assert {row[:2] for row in said.iter_rows()} == {(1, "erased"), (2, "accepted"), (3, "erased"), (4, "erased")}
    assert [text for _, verdict, text in said.iter_rows() if verdict == "erased" and text] == []
    about = erasing.warehouse.query("SELECT sequence, trajectory_id FROM trajectory_feedback FINAL ORDER BY sequence")
    assert [sequence for sequence, trajectory in about.iter_rows() if trajectory] == [1, 2]
    assert erasing.ingesting.letters() == []


def test_everything_that_was_made_of_the_users_data_is_erased_and_nothing_of_anybody_elses(scored: Erasing) -> None:
    assert sequences(scored, "rewards") == [1, 2, 3, 4]
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


def test_what_an_erased_person_said_is_still_counted_but_nobody_knows_what_or_who(scored: Erasing) -> None:
    [before] = said_at(scored, 1)
    scored.erase()
    for after in said_at(scored, 1):
        assert (after["verdict"], after["feedback_id"]) == ("erased", "erased-1")
        assert (after["trajectory_id"], after["heard_at"]) == (before["trajectory_id"], before["heard_at"])
        kept = [after[name] for name in ("kind", "rating", "text", "user", "turn_id", "channel", "sha256", "given_at")]
        assert kept == ["", 0, "", "", 0, "", "", None]
    # With the trajectory even that goes.
    scored.erase(FAYE)
    assert {row["trajectory_id"] for row in said_at(scored, 1)} == {""}


def said_at(erasing: Erasing, sequence: int) -> list[dict[str, Any]]:
    sql = "SELECT * FROM trajectory_feedback WHERE sequence = {sequence:UInt64}"
    return erasing.warehouse.query(sql, {"sequence": sequence}).to_dicts()


def test_a_reward_that_lost_an_opinion_is_published_anew_under_its_old_id(scored: Erasing) -> None:
    old = {json.loads(data)["trajectory_id"]: json.loads(data) for data in scored.messages("RL_REWARDS").values()}
    scored.erase()
    score_all(scored)
    messages = {sequence: json.loads(data) for sequence, data in scored.messages("RL_REWARDS").items()}
    assert list(messages) == [4, 5], "the stream still knows its id, and takes it all the same"
    before = old[messages[5]["trajectory_id"]]
    assert messages[5]["reward_id"] == before["reward_id"]
    assert messages[5]["timestamp"] > before["timestamp"]
    found = scored.warehouse.query("SELECT sequence, published_sequence FROM rewards FINAL ORDER BY sequence")
    assert found.rows() == [(2, 5), (4, 4)]


def test_the_opinions_after_an_erased_one_keep_their_numbers(scored: Erasing) -> None:
    def told() -> list[tuple[int, list[str]]]:
        facts = read_signals(scored.warehouse, STREAM, 2, 2).drop("content_hash")
        facts = facts.with_columns(pl.lit([], pl.List(pl.String)).alias(name) for name in ("feedback_kinds",))
        found = revisions(facts, feedback_on(scored.warehouse, STREAM, 2, 2))
        return list(found.select("revision", "feedback_kinds").iter_rows())

    assert told() == [(0, []), (1, ["comment"]), (2, ["comment", "comment"])]
    scored.erase()
    [fayes] = {row["trajectory_id"] for row in said_at(scored, 2)}
    say(scored, 5, fayes, None, kind="thumbs_up")
    drain(scored)
    numbers, kinds = zip(*told(), strict=True)
    assert numbers == (0, 1, 2, 3), "the next one has a number of its own"
    assert [[kind for kind in some if kind] for some in kinds] == [[], [], ["comment"], ["comment", "thumbs_up"]]


@pytest.mark.parametrize("point", ["before_publishing", "after_publishing"])
def test_a_reward_that_nobody_came_to_mark_is_withdrawn_with_its_user(erasing: Erasing, point: str) -> None:
    def die(reached: str) -> None:
        if reached == point:
            raise Killed

    erasing.ingesting.publish(document(1, user_id=ERIN), document(2, user_id=FAYE))
    erasing.drain()
    with pytest.raises(Killed):
        score_all(erasing, reached=die)
    erasing.erase()
    score_all(erasing)
    fayes = [row["trajectory_id"] for row in erasing.ingesting.stored()]
    assert [json.loads(data)["trajectory_id"] for data in erasing.messages("RL_REWARDS").values()] == fayes


@pytest.mark.parametrize("point", ["before_publishing", "after_publishing"])
def test_a_reward_that_is_published_while_its_user_is_erased_goes_with_the_next_erasure(
    erasing: Erasing, point: str
) -> None:
    def erase(reached: str) -> None:
        if reached == point:
            erasing.erase()

    erasing.ingesting.publish(document(1, user_id=ERIN), document(2, user_id=FAYE))
    erasing.stream.publish("agent.rl.reward.v1", b'{"by": "somebody else"}', "theirs")
    erasing.drain()
    score_all(erasing, reached=erase)
    assert sequences(erasing, "rewards") == [2]
    erasing.erase("anybody")
    assert list(erasing.messages("RL_REWARDS")) == [1, 3]


def test_who_rated_a_trajectory_within_it_takes_it_along_as_any_second_user(erasing: Erasing) -> None:
    rated = document(1, user_id=FAYE)
    rated["metadata"]["feedback"] = [{"kind": "thumbs_up", "user_id": ERIN}]
    erasing.ingesting.publish(rated, document(2, user_id=FAYE))
    erasing.drain()
    erasing.erase()
    assert erasing.ingesting.stored_sequences() == list(erasing.messages()) == [2]


def test_feedback_that_was_not_drained_yet_is_erased_and_no_gap_is_left(erasing: Erasing) -> None:
    erasing.publish_feedback(FAYE, ERIN, None)
    erasing.erase()
    drain(erasing)
    found = erasing.warehouse.query("SELECT sequence, verdict FROM trajectory_feedback FINAL ORDER BY sequence")
    assert found.rows() == [(1, "accepted"), (2, "erased"), (3, "accepted")]


def test_what_was_reported_of_the_users_tasks_is_erased(erasing: Erasing) -> None:
    redactor = Redactor(RedactionPolicy(KEY, rules_off=RULES_OFF))
    now = datetime.now(UTC)

    def report(number: int, **metadata: Any) -> RewardSignal:
        return RewardSignal(str(number), "task", "main", 1.0, 1.0, 1.0, metadata, now)

    signals = [report(1, user_id=ERIN), report(2, user=FAYE), report(3), report(4, user_id=FAYE, by={"user": ERIN})]
    store = StoredRewardSignals(erasing.warehouse, redactor).store
    asyncio.run(store(signals))
    assert reported(erasing) == ["1", "2", "3", "4"]
    erasing.erase()
    assert reported(erasing) == ["2", "3"]
    erasing.erase(opt_out=True)
    asyncio.run(store(signals))
    assert reported(erasing) == ["2", "3"], "who opted out stays away"


def reported(erasing: Erasing) -> list[str]:
    return sorted(set(erasing.warehouse.query("SELECT id FROM reported_rewards")["id"]))


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
            for seed, (user, mark) in enumerate(((ERIN, "ab"), (FAYE, "cd"), (FAYE, "cd"))):
                erasing.ingesting.publish({**document(seed, user_id=user), "session_id": mark * 12})
            erasing.drain()
            score_all(erasing)
            erins, fayes, _ = (row["trajectory_id"] for row in erasing.ingesting.stored())
            say(erasing, 1, fayes, ERIN, text="ab" * 12)
            say(erasing, 2, erins, FAYE, text="ab" * 12)
            say(erasing, 3, fayes, FAYE, text="cd" * 12)
            drain(erasing)
            erasing.erase()
            left = [path.read_bytes() for path in (tmp_path / "clickhouse").rglob("*.bin") if path.is_file()]
            assert not any(b"ab" * 12 in content for content in left)
            assert sum(b"cd" * 12 in content for content in left) >= 3
