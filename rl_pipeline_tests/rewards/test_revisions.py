"""Which facts and which feedback each revision of a reward has."""

from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest

from rl_pipeline.rewards.revisions import FEEDBACK, revisions
from rl_pipeline.rewards.term import NEUTRAL, TermOptions
from rl_pipeline.rewards.terms.user_feedback import UserFeedback
from rl_pipeline_tests.rewards.frames import SCHEMA, term_batch
from rl_pipeline_tests.rewards.simulation import NOON

FEEDBACK_COLUMNS = ("feedback_kinds", "feedback_ratings", "feedback_users")


def at(minutes: int) -> datetime:
    return NOON + timedelta(minutes=minutes)


def signals(*rows: dict[str, Any]) -> pl.DataFrame:
    """Signals of trajectory `a` at noon, sequence 10, unless said otherwise."""
    known = [{"trajectory_id": "a", "sequence": 10, "stream_time": NOON, "ingest_revision": 1, **row} for row in rows]
    measured = [row.pop("measured_at", NOON) for row in known]
    return term_batch(*known).with_columns(pl.Series("measured_at", measured, dtype=SCHEMA["stream_time"]))


def feedback(*rows: tuple[str, int, str]) -> pl.DataFrame:
    """Messages (trajectory, minutes after noon, kind) with growing sequences and different users."""
    return pl.DataFrame(
        [
            {
                "trajectory_id": trajectory,
                "sequence": position,
                "stream_time": at(minutes),
                "feedback_id": f"feedback-{position}",
                "kind": kind,
                "rating": 4 if kind == "stars" else 0,
                "user": f"user-{position}",
            }
            for position, (trajectory, minutes, kind) in enumerate(rows, 1)
        ],
        schema=FEEDBACK,
    )


def kinds(rows: pl.DataFrame) -> list[tuple[int, list[str]]]:
    return list(zip(rows["revision"].to_list(), rows["feedback_kinds"].to_list(), strict=True))


def test_a_trajectory_without_feedback_has_one_revision() -> None:
    rows = revisions(
        signals({"feedback_kinds": ["stars"], "feedback_ratings": [3], "feedback_users": ["x"]}), feedback()
    )
    assert rows.select("revision", *FEEDBACK_COLUMNS).rows() == [(0, ["stars"], [3], ["x"])]


def test_the_rows_have_the_columns_of_the_signals_and_the_revision() -> None:
    rows = revisions(signals({}), feedback(("a", 1, "thumbs_up")))
    assert dict(rows.schema) == {**SCHEMA, "revision": pl.UInt32}


def test_feedback_no_later_than_the_trajectory_is_part_of_its_first_revision() -> None:
    rows = revisions(signals({}), feedback(("a", -5, "thumbs_down"), ("a", 0, "thumbs_up")))
    assert kinds(rows) == [(0, ["thumbs_down", "thumbs_up"])]


def test_each_later_feedback_is_a_revision_that_has_all_before_it() -> None:
    own = {"feedback_kinds": ["thumbs_up"], "feedback_ratings": [0], "feedback_users": ["x"]}
    rows = revisions(signals(own), feedback(("a", 2, "stars"), ("a", 1, "correction"), ("a", -1, "comment")))
    assert kinds(rows) == [
        (0, ["thumbs_up", "comment"]),
        (1, ["thumbs_up", "comment", "correction"]),
        (2, ["thumbs_up", "comment", "correction", "stars"]),
    ]
    assert rows["feedback_ratings"].to_list()[-1] == [0, 0, 0, 4]
    assert rows["feedback_users"].to_list()[-1] == ["x", "user-3", "user-2", "user-1"]


def test_feedback_of_one_moment_is_taken_in_the_order_of_its_stream() -> None:
    rows = revisions(signals({}), feedback(("a", 1, "thumbs_up"), ("a", 1, "thumbs_down")))
    assert kinds(rows) == [(0, []), (1, ["thumbs_up"]), (2, ["thumbs_up", "thumbs_down"])]


def test_feedback_that_comes_twice_counts_once() -> None:
    twice = pl.concat(
        [feedback(("a", 1, "thumbs_up")), feedback(("a", 1, "thumbs_up")).with_columns(sequence=pl.lit(9, pl.UInt64))]
    )
    assert kinds(revisions(signals({}), twice)) == [(0, []), (1, ["thumbs_up"])]


def erased(said: pl.DataFrame, *sequences: int) -> pl.DataFrame:
    """The feedback after some of it was erased: that keeps its trajectory and its place, and nothing else."""
    gone = pl.col("sequence").is_in(sequences)
    texts = [pl.when(gone).then(pl.lit("")).otherwise(name).alias(name) for name in ("feedback_id", "kind", "user")]
    return said.with_columns(*texts, pl.when(gone).then(0).otherwise("rating").cast(pl.UInt8).alias("rating"))


def test_erased_feedback_stays_an_event_so_that_what_came_after_keeps_its_number() -> None:
    said = feedback(
        ("a", -1, "stars"), ("a", 1, "thumbs_down"), ("a", 2, "stars"), ("a", 3, "thumbs_up"), ("a", 4, "thumbs_down")
    )
    before = revisions(signals({}), said.head(4))
    after = revisions(signals({}), erased(said, 1, 2, 3))
    assert before["revision"].to_list() == [0, 1, 2, 3]
    assert kinds(after) == [
        (0, [""]),
        (1, ["", ""]),
        (2, ["", "", ""]),
        (3, ["", "", "", "thumbs_up"]),
        (4, ["", "", "", "thumbs_up", "thumbs_down"]),
    ]
    said_of = UserFeedback().score(after, TermOptions())
    assert said_of["score"].to_list() == [0.5, 0.5, 0.5, 1.0, 0.5]
    nothing = f"{NEUTRAL}no feedback"
    opinions = ["1 opinion: thumbs up", "2 opinions, the last: thumbs down"]
    assert said_of["evidence"].to_list() == [nothing] * 3 + opinions


def test_feedback_waits_for_its_trajectory() -> None:
    early = feedback(("b", -1, "thumbs_up"))
    assert kinds(revisions(signals({}), early)) == [(0, [])]
    both = signals({}, {"trajectory_id": "b", "sequence": 11})
    assert revisions(both, early).select("trajectory_id", "feedback_kinds").rows() == [("a", []), ("b", ["thumbs_up"])]


def test_a_restatement_is_a_revision_with_the_new_facts_and_all_feedback() -> None:
    first = {"turns": 5, "status": "success"}
    restated = {**first, "turns": 6, "ingest_revision": 2, "measured_at": at(60)}
    rows = revisions(signals(restated, first), feedback(("a", 30, "thumbs_up"), ("a", 90, "thumbs_down")))
    assert rows.select("revision", "turns", "feedback_kinds").rows() == [
        (0, 5, []),
        (1, 5, ["thumbs_up"]),
        (2, 6, ["thumbs_up"]),
        (3, 6, ["thumbs_up", "thumbs_down"]),
    ]


@pytest.mark.parametrize("change", [{}, {"user": "the same person under another key"}])
def test_facts_that_were_only_read_again_are_no_revision(change: dict[str, object]) -> None:
    again = {"ingest_revision": 2, "measured_at": at(60), **change}
    assert revisions(signals({"tokens": None}, again), feedback())["revision"].to_list() == [0]


@pytest.mark.parametrize(
    "change", [{"tokens": 7}, {"agents": ["a", "b"]}, {"status": "failed"}, {"task_type": "other"}]
)
def test_any_other_fact_is(change: dict[str, object]) -> None:
    rows = revisions(signals({}, {"ingest_revision": 2, "measured_at": at(60), **change}), feedback())
    assert rows["revision"].to_list() == [0, 1]
    assert rows[next(iter(change))].to_list()[1] == next(iter(change.values()))


def test_facts_that_change_and_change_back_are_two_revisions() -> None:
    there = {"turns": 6, "ingest_revision": 2, "measured_at": at(1)}
    back = {"turns": 5, "ingest_revision": 3, "measured_at": at(2)}
    assert revisions(signals({"turns": 5}, there, back), feedback())["turns"].to_list() == [5, 6, 5]


def test_a_late_trajectory_begins_at_revision_one_and_stays_late() -> None:
    restated = {"turns": 6, "ingest_revision": 2, "measured_at": at(60)}
    rows = revisions(signals({"turns": 5, "is_late": True}, restated), feedback(("a", 5, "stars")))
    assert rows.select("revision", "turns", "is_late").rows() == [(1, 5, True), (2, 5, True), (3, 6, True)]


def test_a_revision_keeps_the_place_that_the_trajectory_had_first() -> None:
    moved = {"turns": 6, "ingest_revision": 2, "measured_at": at(60), "sequence": 99, "stream_time": at(59)}
    rows = revisions(signals({"turns": 5}, moved), feedback())
    assert rows.select("sequence", "stream_time").rows() == [(10, NOON), (10, NOON)]


def test_what_happens_later_never_renumbers_what_was() -> None:
    """The rewards of earlier revisions are published; each further event only adds a row for its trajectory."""
    facts = [{"turns": 5}, {"turns": 6, "ingest_revision": 2, "measured_at": at(20)}]
    told = [("a", -1, "stars"), ("a", 10, "thumbs_up"), ("a", 30, "correction")]
    before = revisions(signals(facts[0]), feedback(*told[:2]))
    between = revisions(signals(*facts), feedback(*told[:2]))
    after = revisions(signals(*facts), feedback(*told))
    assert [rows.height for rows in (before, between, after)] == [2, 3, 4]
    assert after.head(2).equals(before)
    assert after.head(3).equals(between)
