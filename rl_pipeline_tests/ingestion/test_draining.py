"""From the stream into the warehouse: each trajectory once, each sequence accounted for, nothing raw."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl
import pytest

from rl_pipeline.ingestion import draining
from rl_pipeline.ingestion.draining import POINTS
from rl_pipeline.ingestion.judging import user_placeholders
from rl_pipeline.ingestion.ledger import ERASED_REVISION, ledger_watermark
from rl_pipeline.redaction.policy import RedactionPolicy
from rl_pipeline.redaction.redactor import PLACEHOLDER
from rl_pipeline.stores.stream import StoredMessage
from rl_pipeline_tests.ingestion.ingesting import (
    KEY,
    NOW,
    OLD_KEY,
    OTHER_POLICY,
    POLICY,
    SECRET,
    STREAM,
    Ingesting,
    document,
    documents,
)

USER = "user-5f0c9d11"
ERASED_NOW = datetime(2199, 1, 1, tzinfo=UTC)


def erase(ingesting: Ingesting, key: Any = KEY, covers_until: datetime = ERASED_NOW) -> None:
    """Write the tombstone of the user."""
    (user,) = user_placeholders(USER, [key])
    row = {"user": [user], "erased_at": [NOW], "covers_until": [covers_until]}
    ingesting.warehouse.insert("erasures", pl.DataFrame(row))


def test_what_was_published_is_stored_once_with_its_row_in_the_ledger(ingesting: Ingesting) -> None:
    published = documents(5)
    ingesting.publish(*published)
    report = ingesting.drain()
    assert [row["trajectory_id"] for row in ingesting.stored()] == [made["trajectory_id"] for made in published]
    assert ingesting.verdicts() == dict.fromkeys(range(1, 6), "accepted")
    assert (report.first, report.last, report.judged, report.unchanged, report.lost) == (1, 5, 5, 0, 0)
    assert report.verdicts == {"accepted": 5}
    assert report.agents == Counter(made["agent_id"] for made in published)
    assert report.domains == Counter(made["task_context"]["domain"] for made in published)
    assert report.models == {"sample-model": 5}


def test_a_row_has_the_columns_of_its_trajectory_and_nothing_raw(ingesting: Ingesting) -> None:
    made = document(user_id=USER, instructions=f"Log in with {SECRET}.", group_id="group-1")
    ingesting.publish(made, headers={"Publisher": "agent-7"})
    report = ingesting.drain()
    (row,) = ingesting.stored()
    assert (row["stream"], row["sequence"], row["revision"], row["publisher"]) == (STREAM, 1, 1, "agent-7")
    assert row["version"] == 2**40 + 2**40 - 2
    assert row["stream_time"] == ingesting.stream.get(STREAM, 1).time.replace(
        microsecond=row["stream_time"].microsecond
    )
    assert row["user"] == user_placeholders(USER, [KEY])[0]
    assert (row["turns"], row["tools"]) == (
        len(made["turns"]),
        [turn["action"]["tool_name"] for turn in made["turns"]],
    )
    assert (row["group_id"], row["task_id"]) == ("group-1", made["task_context"]["task_id"])
    assert (row["started_at"].isoformat(), row["held"]) == (made["start_timestamp"].replace("Z", "+00:00"), False)
    assert row["expires_at"] == row["stream_time"] + timedelta(days=30)
    assert dict(zip(row["redaction_rules"], row["redaction_counts"], strict=True)) == report.rules
    stored = json.loads(row["document"])
    assert PLACEHOLDER.search(stored["task_context"]["instructions"])
    assert SECRET not in str(row)
    assert USER not in str(row)


def test_the_same_range_again_changes_nothing(ingesting: Ingesting) -> None:
    ingesting.publish(*documents(4), b"{}")
    ingesting.drain()
    before = (ingesting.stored(), [ingesting.ledger(sequence) for sequence in range(1, 6)], ingesting.letters())
    report = ingesting.drain()
    assert (report.judged, report.unchanged, report.verdicts) == (0, 5, {})
    assert before == (
        ingesting.stored(),
        [ingesting.ledger(sequence) for sequence in range(1, 6)],
        ingesting.letters(),
    )


def test_a_half_done_range_is_resumed_and_what_is_done_is_not_even_read(
    ingesting: Ingesting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draining, "_BATCH_MESSAGES", 3)
    ingesting.publish(*documents(12))
    ingesting.drain(1, 5)
    ingesting.drain(9, 9)
    read: list[int] = []
    whole_read = type(ingesting.stream).read

    def noting_read(self: Any, stream: str, first: int, last: int, size: int) -> Iterator[Sequence[StoredMessage]]:
        for batch in whole_read(self, stream, first, last, size):
            read.extend(message.sequence for message in batch)
            yield batch

    monkeypatch.setattr(type(ingesting.stream), "read", noting_read)
    report = ingesting.drain()
    assert (report.judged, report.unchanged) == (6, 6)
    # The ninth, the last that is known, tells whether it is the same stream, and then lies between others of its batch;
    # the first five are a batch and more.
    assert read == [9, 6, 7, 8, 9, 10, 11, 12]
    assert ingesting.stored_sequences() == list(range(1, 13))


def test_a_newer_revision_replaces_rows_and_keeps_what_datasets_hold(ingesting: Ingesting) -> None:
    ingesting.publish(*documents(3))
    ingesting.drain()
    held_until = datetime(2031, 1, 1, tzinfo=UTC)
    ingesting.warehouse.execute(
        "INSERT INTO trajectories SELECT * REPLACE (true AS held, {until:DateTime64(3)} AS expires_at) FROM ("
        "SELECT * FROM trajectories FINAL WHERE sequence = 2)",
        {"until": held_until.replace(tzinfo=None)},
    )
    report = ingesting.drain(policy=OTHER_POLICY)
    assert (report.judged, report.unchanged) == (3, 0)
    rows = ingesting.stored()
    assert [(row["sequence"], row["revision"], row["held"]) for row in rows] == [
        (1, 2, False),
        (2, 2, True),
        (3, 2, False),
    ]
    assert rows[1]["expires_at"] == held_until
    assert rows[0]["expires_at"] == rows[0]["stream_time"] + timedelta(days=30)


def test_what_a_newer_revision_refuses_is_no_longer_stored(ingesting: Ingesting) -> None:
    made = document()
    made["metadata"]["Ada Lovelace"] = "in the name of a field"
    ingesting.publish(made, document(2))
    ingesting.drain()
    assert ingesting.stored_sequences() == [1, 2]
    ingesting.drain(policy=RedactionPolicy(KEY, {"Ada Lovelace": "NAME"}))
    assert ingesting.verdicts() == {1: "refused", 2: "accepted"}
    assert ingesting.stored_sequences() == [2]


def test_of_the_same_trajectory_the_lowest_sequence_is_kept(ingesting: Ingesting) -> None:
    first, second = documents(2)
    ingesting.publish(first, first, second)
    ingesting.drain()
    ingesting.publish(second, first)
    ingesting.drain()
    assert ingesting.stored_sequences() == [1, 3]
    assert ingesting.verdicts() == {1: "accepted", 2: "duplicate", 3: "accepted", 4: "duplicate", 5: "duplicate"}
    assert ingesting.ledger(5)["reason"] == "same_trajectory_id"
    assert ingesting.ledger(5)["trajectory_id"] == first["trajectory_id"]


def test_a_lower_sequence_that_is_ingested_later_takes_over(ingesting: Ingesting) -> None:
    made = document()
    later = made | {"session_id": "another"}
    ingesting.publish(made, later, later)
    ingesting.drain(2, 2)
    assert ingesting.stored_sequences() == [2]
    ingesting.drain(1, 1)
    ingesting.drain()
    (row,) = ingesting.stored()
    assert (row["sequence"], row["session_id"]) == (1, made["session_id"])
    assert ingesting.verdicts() == {1: "accepted", 2: "duplicate", 3: "duplicate"}
    assert ingesting.warehouse.query("SELECT count() AS n FROM trajectories")["n"][0] == 1


def test_a_takeover_that_was_interrupted_is_completed(ingesting: Ingesting) -> None:
    made = document()
    ingesting.publish(made, made)
    ingesting.drain(2, 2)
    for point in POINTS:

        def stop(reached: str, at: str = point) -> None:
            if reached == at:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            ingesting.drain(1, 1, reached=stop)
    ingesting.drain()
    assert ingesting.stored_sequences() == [1]
    assert ingesting.verdicts() == {1: "accepted", 2: "duplicate"}


def test_sequences_that_the_stream_no_longer_has_are_lost_with_their_exact_count(ingesting: Ingesting) -> None:
    ingesting.publish(*documents(10))
    ingesting.drain(1, 2)
    ingesting.stream.request(f"STREAM.PURGE.{STREAM}", {"keep": 5})
    ingesting.stream.erase(STREAM, 8)
    report = ingesting.drain()
    assert (report.lost, report.judged, report.unchanged) == (4, 4, 2)
    lost = {sequence for sequence, verdict in ingesting.verdicts().items() if verdict == "lost"}
    assert lost == {3, 4, 5, 8}
    assert ledger_watermark(ingesting.warehouse, STREAM) == 10
    following = {3: 6, 5: 6, 8: 9}
    for sequence, neighbour in following.items():
        assert ingesting.ledger(sequence)["stream_time"] == ingesting.ledger(neighbour)["stream_time"]
    assert ingesting.drain().lost == 0


def test_a_stream_of_which_nothing_is_left_is_all_lost(ingesting: Ingesting) -> None:
    ingesting.publish(*documents(4))
    ingesting.stream.request(f"STREAM.PURGE.{STREAM}")
    assert ingesting.drain().lost == 4
    assert ingesting.verdicts() == dict.fromkeys(range(1, 5), "lost")
    assert ingesting.ledger(4)["stream_time"] == NOW


def test_lost_sequences_at_the_end_of_a_range_take_the_time_of_what_follows(ingesting: Ingesting) -> None:
    ingesting.publish(*documents(4))
    for sequence in (2, 3):
        ingesting.stream.erase(STREAM, sequence)
    assert ingesting.drain(1, 3).lost == 2
    assert ingesting.ledger(3)["stream_time"] == ingesting.stream.get(STREAM, 4).time.replace(
        microsecond=ingesting.ledger(3)["stream_time"].microsecond
    )


def test_what_is_not_written_yet_is_neither_read_nor_lost(ingesting: Ingesting) -> None:
    ingesting.publish(document())
    report = ingesting.drain(1, 100)
    assert (report.last, report.judged, report.lost) == (1, 1, 0)
    report = ingesting.drain(2, 100)
    assert (report.judged, report.lost, report.unchanged) == (0, 0, 0)


def test_a_newer_revision_does_not_lose_what_has_left_the_stream_since(ingesting: Ingesting) -> None:
    ingesting.publish(*documents(3))
    ingesting.drain()
    ingesting.stream.erase(STREAM, 1)
    report = ingesting.drain(policy=OTHER_POLICY)
    assert (report.judged, report.lost, report.unchanged, report.kept) == (2, 0, 0, 1)
    assert [row["revision"] for row in ingesting.stored()] == [1, 2, 2]


def test_who_opted_out_is_not_stored_and_leaves_no_ids(ingesting: Ingesting) -> None:
    ingesting.publish(document(opt_out=True), document(2))
    ingesting.drain()
    assert ingesting.verdicts() == {1: "opted_out", 2: "accepted"}
    assert ingesting.stored_sequences() == [2]
    row = ingesting.ledger(1)
    assert (row["message_id"], row["trajectory_id"], row["publisher"]) == ("", "", "")


@pytest.mark.parametrize("key", [KEY, OLD_KEY])
def test_who_was_erased_is_not_stored_again_by_any_replay(ingesting: Ingesting, key: Any) -> None:
    erase(ingesting, key)
    ingesting.publish(document(user_id=USER), document(2), json.dumps(document(3, user_id=USER))[:-1].encode())
    for policy in (POLICY, OTHER_POLICY):
        ingesting.drain(policy=policy, previous_keys=[OLD_KEY])
        assert ingesting.verdicts() == {1: "erased", 2: "accepted", 3: "erased"}
        assert ingesting.stored_sequences() == [2]
    assert ingesting.ledger(1)["revision"] == ERASED_REVISION
    assert ingesting.ledger(1)["trajectory_id"] == ""
    assert ingesting.letters() == []


def test_what_came_after_an_erasure_is_stored(ingesting: Ingesting) -> None:
    erase(ingesting, covers_until=datetime(2000, 1, 1, tzinfo=UTC))
    ingesting.publish(document(user_id=USER))
    ingesting.drain()
    assert ingesting.stored_sequences() == [1]


@pytest.mark.parametrize("point", ["after_read", "after_judging", "after_content"])
def test_an_erasure_while_a_batch_is_ingested_is_honoured(ingesting: Ingesting, point: str) -> None:
    ingesting.publish(document(user_id=USER), document(2), document(3, user_id=USER) | {"turns": []})

    def erase_at(reached: str) -> None:
        if reached == point:
            erase(ingesting)

    report = ingesting.drain(reached=erase_at)
    assert ingesting.stored_sequences() == [2]
    assert ingesting.warehouse.query("SELECT count() AS n FROM trajectories")["n"][0] == 1
    assert ingesting.verdicts() == {1: "erased", 2: "accepted", 3: "erased"}
    assert report.verdicts == {"erased": 2, "accepted": 1}
    assert ingesting.letters() == []
    assert ingesting.ledger(1)["message_id"] == ""


def test_the_points_are_passed_in_their_order(ingesting: Ingesting) -> None:
    ingesting.publish(document())
    passed: list[str] = []
    ingesting.drain(reached=passed.append)
    assert passed == list(POINTS)
