"""What is stored of rewards is what was written, each once, and nothing of what was erased."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from rl_pipeline.ingestion.feedback_rows import FeedbackRow, write_feedback
from rl_pipeline.ingestion.ledger import ERASED_REVISION, LedgerRow, write_rows
from rl_pipeline.rewards.revisions import FEEDBACK
from rl_pipeline.rewards.signals import SIGNALS
from rl_pipeline.rewards.storing import (
    documents_of,
    feedback_on,
    history_frames,
    read_rewards,
    read_signals,
    remember_configuration,
    unmeasured,
    write_rewards,
    write_scores,
    write_signals,
)
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline_tests.ingestion.stored_rows import NOW as TODAY
from rl_pipeline_tests.ingestion.stored_rows import rows
from rl_pipeline_tests.rewards.stored_frames import CONFIGURATION, STREAM, TIME, rewards, signals, trajectory_id

NOW = datetime(2026, 1, 3, tzinfo=UTC)
LATER = NOW + timedelta(days=1)


def mark_erased(warehouse: ClickHouseWarehouse, sequence: int) -> None:
    write_rows(
        warehouse, STREAM, [LedgerRow(sequence, TIME, "", "", "", 0, "", "erased", "user_erased", ERASED_REVISION)]
    )


def test_signals_are_read_as_they_were_written_with_every_restatement(warehouse: ClickHouseWarehouse) -> None:
    absent = dict.fromkeys(("completion", "tokens", "lint_score", "consensus", "votes", "tests_total"))
    written = signals({"sequence": 1}, {"sequence": 1, "ingest_revision": 2, "turns": 9}, {"sequence": 2, **absent})
    write_signals(warehouse, written, NOW)
    write_signals(warehouse, written, LATER)
    found = read_signals(warehouse, STREAM, 1, 2)
    assert_frame_equal(found.select(*SIGNALS), written)
    assert set(found["measured_at"]) == {NOW}, "the first time stays"
    assert read_signals(warehouse, STREAM, 2, 9)["sequence"].to_list() == [2]


def test_the_content_hash_tells_whether_facts_differ(warehouse: ClickHouseWarehouse) -> None:
    place = {"sequence", "ingest_revision", "stream", "stream_time", "trajectory_id", "is_late", "user"}
    same = [{"ingest_revision": 2}, {"is_late": True}, {"user": "another"}]
    values: dict[pl.DataType, Any] = {pl.String(): "x", pl.Boolean(): True, pl.List(pl.String()): ["x"]}
    values |= {pl.List(pl.Float64()): [7.0], pl.List(pl.UInt8()): [7]}
    other = [{name: values.get(kind, 7)} for name, kind in SIGNALS.items() if name not in place]
    written = signals(*({"sequence": number, **change} for number, change in enumerate([{}, *same, *other])))
    write_signals(warehouse, written, NOW)
    hashes = read_signals(warehouse, STREAM, 0, 99)["content_hash"].to_list()
    assert len(set(hashes[: len(same) + 1])) == 1
    assert len(set(hashes)) == len(other) + 1


def test_what_was_stored_and_not_measured_is_told_in_order_with_what_is_late(warehouse: ClickHouseWarehouse) -> None:
    stored = rows(5, TODAY)
    warehouse.insert("trajectories", stored)
    assert unmeasured(warehouse, STREAM, 4)["sequence"].to_list() == [1, 2, 3, 4]
    measured = signals({"sequence": 1}, {"sequence": 3, "is_late": True}, {"sequence": 4}).drop("trajectory_id")
    write_signals(warehouse, measured.join(stored.select("sequence", "trajectory_id"), on="sequence"), NOW)
    warehouse.insert("trajectories", rows(1, TODAY, first=3, revision=2))
    found = unmeasured(warehouse, STREAM, 5)
    assert found.select("sequence", "ingest_revision", "is_late").rows() == [(2, 1, True), (3, 2, True), (5, 1, False)]
    assert documents_of(warehouse, found["trajectory_id"].to_list())["revision"].to_list() == [1, 2, 1]


def displace(warehouse: ClickHouseWarehouse, by: int, identity: str, revision: int) -> None:
    """A lower sequence brings a trajectory that a higher one had brought."""
    brought = rows(1, TODAY, first=by, revision=revision).with_columns(trajectory_id=pl.lit(identity))
    warehouse.insert("trajectories", brought)


def test_a_measured_trajectory_keeps_its_place_when_a_lower_sequence_brings_it(warehouse: ClickHouseWarehouse) -> None:
    write_signals(warehouse, signals({"sequence": 2}, {"sequence": 8}, {"sequence": 9, "is_late": True}), NOW)
    displace(warehouse, 1, trajectory_id(8), revision=1)
    displace(warehouse, 4, trajectory_id(9), revision=1)
    assert unmeasured(warehouse, STREAM, 9).is_empty(), "what was measured under its revision is not measured again"
    displace(warehouse, 1, trajectory_id(8), revision=2)
    displace(warehouse, 4, trajectory_id(9), revision=2)
    columns = ("trajectory_id", "sequence", "stream_time", "ingest_revision", "is_late")
    assert unmeasured(warehouse, STREAM, 9).select(columns).rows() == [
        (trajectory_id(8), 8, TIME, 2, False),
        (trajectory_id(9), 9, TIME, 2, True),
    ]


def by_term(scores: pl.DataFrame) -> pl.DataFrame:
    return scores.explode("terms", "units").sort("task_type", "sequence", "terms")


def test_the_history_is_the_last_scores_of_each_term_and_the_first_signals_of_each_type(
    warehouse: ClickHouseWarehouse,
) -> None:
    scores = rewards(*({"sequence": number, "task_type": "fix" if number % 2 else "write"} for number in range(1, 21)))
    # One term applies only to the early ones.
    one_term = {"terms": pl.col("terms").list.head(1), "units": pl.lit([7], pl.List(pl.Int32))}
    scores = pl.concat([scores.head(6), scores.tail(14).with_columns(**one_term)])
    write_scores(warehouse, STREAM, "terms", scores)
    write_scores(warehouse, STREAM, "terms", scores)
    write_scores(warehouse, STREAM, "others", scores)
    measured = [{"sequence": n, "turns": n, "task_type": "fix" if n % 2 else "write"} for n in range(1, 21)]
    measured[2]["is_late"] = True
    write_signals(warehouse, signals(*measured, {"sequence": 1, "ingest_revision": 2, "turns": 99}), NOW)
    found = history_frames(warehouse, STREAM, "terms", ["fix"], 18, window=3, baseline=2)
    assert found.scores.select("sequence", "terms", "units").rows() == [
        (1, ["user_feedback"], [2**19]),
        (3, ["user_feedback"], [2**19]),
        (5, ["user_feedback"], [2**19]),
        (13, ["task_completion"], [7]),
        (15, ["task_completion"], [7]),
        (17, ["task_completion"], [7]),
    ]
    assert found.signals.select("task_type", "sequence", "turns").rows() == [("fix", 1, 1), ("fix", 5, 5)]
    every = history_frames(warehouse, STREAM, "terms", ["fix", "write"], 99)
    expected = scores.sort("task_type", "sequence").select("task_type", "sequence", "terms", "units")
    assert_frame_equal(by_term(every.scores), by_term(expected))
    assert history_frames(warehouse, STREAM, "terms", [], 99).scores.is_empty()


def test_the_history_of_many_task_types_is_read_at_once(
    warehouse: ClickHouseWarehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every query sorts all that is stored, and task types are free text."""
    types = [f"type {number}" for number in range(120)]
    write_scores(
        warehouse, STREAM, "terms", rewards(*({"sequence": n, "task_type": name} for n, name in enumerate(types)))
    )
    write_signals(warehouse, signals(*({"sequence": n, "task_type": name} for n, name in enumerate(types))), NOW)
    asked: list[str] = []
    query = warehouse.query

    def counted(sql: str, *rest: Any) -> pl.DataFrame:
        asked.append(sql)
        return query(sql, *rest)

    monkeypatch.setattr(warehouse, "query", counted)
    found = history_frames(warehouse, STREAM, "terms", types[:110], 100)
    assert len(asked) == 2
    for frame in (found.scores, found.signals):
        assert frame.select("task_type", "sequence").rows() == sorted((name, n) for n, name in enumerate(types[:100]))
    few = [history_frames(warehouse, STREAM, "terms", types[start : start + 50], 100) for start in (0, 50)]
    assert_frame_equal(by_term(found.scores), by_term(pl.concat(one.scores for one in few)))
    assert_frame_equal(found.signals, pl.concat(one.signals for one in few).sort("task_type", "sequence"))


def test_rewards_are_read_as_they_were_written(warehouse: ClickHouseWarehouse) -> None:
    written = rewards({"sequence": 1}, {"sequence": 1, "revision": 1}, {"sequence": 2})
    write_rewards(warehouse, STREAM, written, NOW)
    write_rewards(warehouse, STREAM, written, NOW)
    write_rewards(warehouse, STREAM, rewards({"sequence": 1, "configuration": "another"}), NOW)
    found = read_rewards(warehouse, STREAM, CONFIGURATION, 1, 2)
    assert_frame_equal(found.select(written.columns), written)
    assert set(found["scored_at"]) == {NOW}
    assert set(found["published_sequence"]) == {0}


def test_what_was_erased_meanwhile_is_taken_back(warehouse: ClickHouseWarehouse) -> None:
    mark_erased(warehouse, 1)
    write_signals(warehouse, signals({"sequence": 1}, {"sequence": 2}), NOW)
    write_scores(warehouse, STREAM, "terms", rewards({"sequence": 1}, {"sequence": 2}))
    write_rewards(warehouse, STREAM, rewards({"sequence": 1}, {"sequence": 2}), NOW)
    for table in ("trajectory_signals", "reward_scores", "rewards"):
        assert warehouse.query(f"SELECT sequence FROM {table}")["sequence"].to_list() == [2]


def test_the_configuration_that_was_chosen_last_is_in_force(warehouse: ClickHouseWarehouse) -> None:
    for chosen in ("one", "one", "two", "one"):
        remember_configuration(warehouse, chosen, f"scores of {chosen}", "{}", NOW)
    found = warehouse.query("SELECT * FROM reward_configurations FINAL ORDER BY current_since DESC")
    assert found["hash"].to_list() == ["one", "two"]
    assert set(found["first_used_at"]) == {NOW}
    assert found["scores_hash"].to_list() == ["scores of one", "scores of two"]


def test_feedback_is_found_by_the_sequences_of_its_trajectories(warehouse: ClickHouseWarehouse) -> None:
    for number, verdict, about in ((1, "accepted", 1), (2, "duplicate", 1), (3, "accepted", 2), (4, "accepted", 1)):
        row = FeedbackRow(number, TIME, verdict, 1, trajectory_id=trajectory_id(about), kind="stars", rating=number)
        write_feedback(warehouse, "RL_FEEDBACK", [replace(row, feedback_id=f"f-{number}")])
    write_signals(warehouse, signals({"sequence": 1}, {"sequence": 2}, {"sequence": 9}), NOW)
    found = feedback_on(warehouse, STREAM, 1, 1)
    assert found.select("sequence", "feedback_id", "rating").rows() == [(1, "f-1", 1), (4, "f-4", 4)]
    assert found.select(*FEEDBACK).schema == pl.Schema(FEEDBACK)
    assert feedback_on(warehouse, STREAM, 1, 9)["sequence"].to_list() == [1, 3, 4]
    assert feedback_on(warehouse, STREAM, 9, 9).is_empty()


def test_erased_feedback_is_found_where_its_trajectory_is_known(warehouse: ClickHouseWarehouse) -> None:
    heard = TIME + timedelta(minutes=5)
    known = FeedbackRow(1, TIME, "erased", ERASED_REVISION, trajectory_id=trajectory_id(1), heard_at=heard)
    said = FeedbackRow(3, TIME, "accepted", 1, feedback_id="f", trajectory_id=trajectory_id(1), kind="thumbs_up")
    write_feedback(warehouse, "RL_FEEDBACK", [known, FeedbackRow(2, TIME, "erased", ERASED_REVISION), said])
    write_signals(warehouse, signals({"sequence": 1}), NOW)
    expected = [(1, heard, ""), (3, TIME, "thumbs_up")]
    assert feedback_on(warehouse, STREAM, 1, 1).select("sequence", "stream_time", "kind").rows() == expected
