"""Feedback in its table: one row per sequence, redacted, exactly once, and nothing of whoever is away."""

import json
from hashlib import sha256
from typing import Any

import pytest

from rl_pipeline.ingestion.dead_letters import list_dead_letters, show_dead_letter
from rl_pipeline.ingestion.draining import Replayed
from rl_pipeline.ingestion.feedback import POINTS, FeedbackReport, drain_feedback, replay_feedback
from rl_pipeline.ingestion.feedback_rows import (
    FeedbackRow,
    feedback_watermark,
    write_feedback,
)
from rl_pipeline.ingestion.ledger import StreamRecreated
from rl_pipeline.ingestion.tombstones import RedactionKeyLost
from rl_pipeline.redaction.placeholders import placeholder
from rl_pipeline.redaction.policy import RedactionPolicy
from rl_pipeline.stores.topology import bootstrap
from rl_pipeline_tests.fixtures.nats import remove_all_streams
from rl_pipeline_tests.ingestion.erasing import ERIN, FAYE, RULES_OFF, Erasing
from rl_pipeline_tests.ingestion.ingesting import KEY, NOW, OLD_KEY, SECRET, Ingesting

STREAM = "RL_FEEDBACK"
SUBJECT = "agent.rl.feedback.v1"
TRAJECTORY = "3f2b8c1e-5d4a-4b6f-9e7d-1a2b3c4d5e6f"
QUICK = RedactionPolicy(KEY, rules_off=RULES_OFF)


class Killed(BaseException):
    """Stands for kill -9: nothing handles it."""


def feedback(number: int, **fields: Any) -> dict[str, Any]:
    given = {"feedback_id": f"feedback-{number}", "trajectory_id": TRAJECTORY, "timestamp": "2026-01-01T12:00:00Z"}
    return {**given, "kind": "thumbs_up", **fields}


def publish(ingesting: Ingesting, *contents: dict[str, Any] | bytes) -> None:
    last = ingesting.stream.state(STREAM).last_sequence
    for number, content in enumerate(contents, start=last + 1):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        ingesting.stream.publish(SUBJECT, data, f"message-{number}")


def drain(ingesting: Ingesting, **options: Any) -> FeedbackReport:
    given = {"stream": STREAM, "policy": QUICK, "clock": lambda: NOW} | options
    return drain_feedback(ingesting.stream, ingesting.warehouse, **given)


def replay(ingesting: Ingesting, *sequences: int, **options: Any) -> Replayed:
    given = {"stream": STREAM, "policy": QUICK, "sequences": sequences} | options
    return replay_feedback(ingesting.stream, ingesting.warehouse, **given)


def refused_before(ingesting: Ingesting, *sequences: int) -> None:
    """As a version left these sequences whose contract did not know their kind yet."""
    messages = [ingesting.stream.get(STREAM, sequence) for sequence in sequences]
    rows = [
        FeedbackRow(message.sequence, message.time, "refused", 1, "enum", sha256(message.data).hexdigest())
        for message in messages
    ]
    write_feedback(ingesting.warehouse, STREAM, rows)


def stored(ingesting: Ingesting) -> list[dict[str, Any]]:
    sql = "SELECT * EXCEPT drained_at FROM trajectory_feedback FINAL ORDER BY sequence"
    return ingesting.warehouse.query(sql).to_dicts()


def verdicts(ingesting: Ingesting) -> list[str]:
    return [row["verdict"] for row in stored(ingesting)]


def test_feedback_is_stored_redacted_with_a_placeholder_for_its_user(ingesting: Ingesting) -> None:
    said = feedback(1, kind="stars", rating=4, text=f"{ERIN} says: use {SECRET}", user_id=ERIN, turn_id=2)
    publish(ingesting, said | {"metadata": {"channel": "webui"}}, feedback(2, kind="abandoned"))
    report = drain(ingesting, policy=RedactionPolicy(KEY))
    first, second = stored(ingesting)
    message = ingesting.stream.get(STREAM, 1)
    assert (first["feedback_id"], first["trajectory_id"], first["kind"]) == ("feedback-1", TRAJECTORY, "stars")
    assert (first["rating"], first["turn_id"], first["channel"]) == (4, 2, "webui")
    assert first["user"] == placeholder(KEY, "USER", ERIN.encode())
    assert SECRET not in first["text"]
    assert "says: use [REDACTED:" in first["text"]
    assert abs((first["stream_time"] - message.time).total_seconds()) < 0.002
    assert first["given_at"].isoformat() == "2026-01-01T12:00:00+00:00"
    assert (second["kind"], second["rating"], second["text"], second["user"]) == ("abandoned", 0, "", "")
    assert report == FeedbackReport(1, 2, 0, {"accepted": 2}, {})


def test_the_same_feedback_again_is_a_duplicate_within_a_batch_and_later(ingesting: Ingesting) -> None:
    publish(ingesting, feedback(1), feedback(1, kind="thumbs_down"), feedback(2))
    drain(ingesting)
    publish(ingesting, feedback(2), feedback(3))
    assert drain(ingesting).verdicts == {"duplicate": 1, "accepted": 1}
    assert verdicts(ingesting) == ["accepted", "duplicate", "accepted", "duplicate", "accepted"]


def test_what_is_invalid_is_refused_with_a_dead_letter_that_shows_no_secret(ingesting: Ingesting) -> None:
    publish(ingesting, feedback(1, kind="stars"), feedback(2, text=SECRET, rating=9), b"{", feedback(3))
    report = drain(ingesting, policy=RedactionPolicy(KEY))
    assert verdicts(ingesting) == ["refused", "refused", "refused", "accepted"]
    assert report.reasons["rating_of_stars"] == 1
    letter = show_dead_letter(ingesting.stream, STREAM, 2)
    assert (letter.subject, letter.revision, letter.sequence) == (SUBJECT, 1, 2)
    assert "feedback-2" in letter.excerpt
    assert SECRET not in letter.excerpt
    drain(ingesting)
    assert [letter["sequence"] for letter in ingesting.letters()] == [1, 2, 3]


def test_nothing_is_kept_of_who_was_erased_or_opted_out(ingesting: Ingesting, erasing: Erasing) -> None:
    erasing.erase(ERIN, opt_out=True)
    invalid = feedback(2, user_id=ERIN) | {"kind": "nonsense"}
    opted_out = feedback(3, text="mine") | {"metadata": {"opt_out": True}}
    publish(ingesting, feedback(1, user_id=ERIN, text="mine"), invalid, opted_out, feedback(4, user_id=FAYE))
    drain(ingesting)
    assert verdicts(ingesting) == ["erased", "erased", "opted_out", "accepted"]
    for row in stored(ingesting)[:3]:
        assert [row[name] for name in ("feedback_id", "trajectory_id", "user", "text", "sha256")] == [""] * 5
    assert ingesting.letters() == []


def test_whom_an_earlier_key_recognizes_stays_away_too(ingesting: Ingesting, erasing: Erasing) -> None:
    erasing.erase(ERIN, opt_out=True, keys=[OLD_KEY])
    publish(ingesting, feedback(1, user_id=ERIN))
    drain(ingesting, previous_keys=[OLD_KEY])
    assert verdicts(ingesting) == ["erased"]


@pytest.mark.parametrize("point", POINTS)
def test_a_drain_that_is_killed_anywhere_is_finished_by_the_next(ingesting: Ingesting, point: str) -> None:
    def die(reached: str) -> None:
        if reached == point:
            raise Killed

    publish(ingesting, feedback(1), b"{", feedback(1), feedback(2))
    with pytest.raises(Killed):
        drain(ingesting, reached=die)
    drain(ingesting)
    before = stored(ingesting)
    assert verdicts(ingesting) == ["accepted", "refused", "duplicate", "accepted"]
    assert len(ingesting.letters()) == 1
    ingesting.warehouse.execute(
        "ALTER TABLE trajectory_feedback DELETE WHERE sequence > 1", settings={"mutations_sync": 2}
    )
    drain(ingesting)
    assert stored(ingesting) == before
    assert drain(ingesting).verdicts == {}


def test_what_retention_took_is_reported_and_has_its_rows(ingesting: Ingesting) -> None:
    publish(ingesting, *map(feedback, range(8)))
    ingesting.stream.request(f"STREAM.PURGE.{STREAM}", {"seq": 4})
    ingesting.stream.erase(STREAM, 6)
    report = drain(ingesting)
    assert (report.lost, report.verdicts) == (4, {"accepted": 4})
    assert verdicts(ingesting) == ["lost"] * 3 + ["accepted"] * 2 + ["lost"] + ["accepted"] * 2
    publish(ingesting, feedback(9))
    ingesting.stream.request(f"STREAM.PURGE.{STREAM}", {})
    report = drain(ingesting)
    assert (report.lost, report.verdicts, feedback_watermark(ingesting.warehouse, STREAM)) == (1, {}, 9)


def test_a_stream_that_was_created_again_is_refused(ingesting: Ingesting) -> None:
    publish(ingesting, feedback(1), feedback(2))
    drain(ingesting)
    configuration = ingesting.stream.request(f"STREAM.INFO.{STREAM}")["config"]
    ingesting.stream.request(f"STREAM.DELETE.{STREAM}")
    ingesting.stream.request(f"STREAM.CREATE.{STREAM}", configuration)
    publish(ingesting, feedback(3))
    with pytest.raises(StreamRecreated, match="ends at 1"):
        drain(ingesting)
    publish(ingesting, feedback(4), feedback(5))
    with pytest.raises(StreamRecreated, match="2 is not the message"):
        drain(ingesting)
    remove_all_streams(ingesting.stream)


@pytest.mark.parametrize("point", POINTS)
def test_an_erasure_meanwhile_leaves_nothing_of_the_user(ingesting: Ingesting, erasing: Erasing, point: str) -> None:
    def erase_once(reached: str) -> None:
        if reached == point and ingesting.warehouse.query("SELECT user FROM erasures").is_empty():
            erasing.erase()

    publish(ingesting, feedback(1, user_id=ERIN, text="mine"), feedback(2, user_id=FAYE))
    drain(ingesting, reached=erase_once)
    assert verdicts(ingesting) == ["erased", "accepted"]
    everything = ingesting.warehouse.query("SELECT text, feedback_id, user FROM trajectory_feedback WHERE sequence = 1")
    assert set(everything.rows()) <= {("", "", ""), ("", "erased-1", "")}, "not even in rows that are no longer read"


def test_what_a_newer_contract_accepts_is_stored_once_by_a_replay(ingesting: Ingesting) -> None:
    publish(ingesting, feedback(1, kind="stars", rating=4, text="fine", user_id=ERIN), b"{", feedback(3), feedback(4))
    refused_before(ingesting, 1, 3)
    drain(ingesting)
    assert verdicts(ingesting) == ["refused", "refused", "refused", "accepted"]
    replayed = replay(ingesting, 1, 2, 4)
    assert (replayed.report.verdicts, replayed.gone) == ({"accepted": 1, "refused": 1}, ())
    assert (replayed.report.judged, replayed.report.unchanged) == (2, 1)
    assert verdicts(ingesting) == ["accepted", "refused", "refused", "accepted"]
    first = stored(ingesting)[0]
    assert (first["feedback_id"], first["rating"], first["text"], first["reason"]) == ("feedback-1", 4, "fine", "")
    assert first["user"] == placeholder(KEY, "USER", ERIN.encode())
    # It counts from now on: rewards were computed without it.
    assert [row["heard_at"] > row["stream_time"] for row in stored(ingesting)] == [True, False, False, False]
    before = stored(ingesting)
    assert replay(ingesting, 1, 2, 4).report.verdicts == {"refused": 1}
    assert stored(ingesting) == before
    assert [letter["sequence"] for letter in ingesting.letters()] == [2]


def test_a_replay_stores_no_feedback_that_another_sequence_has_brought(ingesting: Ingesting) -> None:
    publish(ingesting, feedback(1), feedback(1, kind="abandoned"), feedback(2), feedback(2))
    refused_before(ingesting, 1, 3, 4)
    drain(ingesting)
    assert replay(ingesting, 4, 3, 1).report.verdicts == {"duplicate": 2, "accepted": 1}
    assert verdicts(ingesting) == ["duplicate", "accepted", "accepted", "duplicate"]


def test_a_replay_says_what_the_stream_no_longer_has_and_leaves_it_as_it_was(ingesting: Ingesting) -> None:
    publish(ingesting, feedback(1), b"{")
    refused_before(ingesting, 1)
    drain(ingesting)
    before = stored(ingesting)
    ingesting.stream.erase(STREAM, 1)
    replayed = replay(ingesting, 1, 2)
    assert (replayed.gone, replayed.report.verdicts) == ((1,), {"refused": 1})
    assert stored(ingesting) == before


def test_a_replay_keeps_nothing_of_who_was_erased_since(ingesting: Ingesting, erasing: Erasing) -> None:
    erasing.erase(ERIN, opt_out=True, keys=[OLD_KEY])
    publish(ingesting, feedback(1, user_id=ERIN, text="mine"), feedback(2, user_id=FAYE))
    refused_before(ingesting, 1, 2)
    with pytest.raises(RedactionKeyLost):
        replay(ingesting, 1, 2)
    replay(ingesting, 1, 2, previous_keys=[OLD_KEY])
    assert verdicts(ingesting) == ["erased", "accepted"]
    assert stored(ingesting)[0]["text"] == ""


def test_a_replay_from_a_stream_that_was_created_again_is_refused(ingesting: Ingesting) -> None:
    publish(ingesting, feedback(1))
    refused_before(ingesting, 1)
    remove_all_streams(ingesting.stream)
    bootstrap(ingesting.stream)
    publish(ingesting, feedback(2))
    with pytest.raises(StreamRecreated, match="1 is not the message"):
        replay(ingesting, 1)
    assert verdicts(ingesting) == ["refused"]


def test_refused_feedback_is_listed_by_reason_and_range_the_newest_first(ingesting: Ingesting) -> None:
    def listed(**options: Any) -> list[int]:
        return list_dead_letters(ingesting.warehouse, STREAM, ledger="trajectory_feedback", **options)[
            "sequence"
        ].to_list()

    publish(ingesting, feedback(1, kind="stars"), feedback(2), b"nonsense", feedback(4, kind="stars"))
    drain(ingesting)
    assert listed() == [4, 3, 1]
    assert listed(reason="not_json") == [3]
    assert listed(first=2, last=3) == [3]
    assert listed(limit=1) == [4]
