"""What becomes of stored rows when their sequences are judged again, or when the stream is no longer the same."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import polars as pl
import pytest

from rl_pipeline.ingestion import draining
from rl_pipeline.ingestion.committing import Committer
from rl_pipeline.ingestion.draining import POINTS
from rl_pipeline.ingestion.holding import hold_for_dataset
from rl_pipeline.ingestion.judging import user_placeholders
from rl_pipeline.ingestion.ledger import ERASED_REVISION, StreamRecreated
from rl_pipeline.redaction.policy import RedactionPolicy
from rl_pipeline.stores.topology import bootstrap
from rl_pipeline_tests.ingestion.ingesting import KEY, NOW, OTHER_POLICY, STREAM, Ingesting, document, documents

# Refuses a trajectory that has the name as the name of a field.
NAMES = RedactionPolicy(KEY, {"zanzibar": "NAME"})
USER = "user-5f0c9d11"


def naming(seed: int = 1) -> dict[str, Any]:
    """A trajectory that `NAMES` refuses."""
    made = document(seed)
    made["metadata"]["zanzibar"] = "in the name of a field"
    return made


def erase(ingesting: Ingesting) -> None:
    (user,) = user_placeholders(USER, [KEY])
    row = {"user": [user], "erased_at": [NOW], "covers_until": [datetime(2199, 1, 1, tzinfo=UTC)]}
    ingesting.warehouse.insert("erasures", pl.DataFrame(row))


def stop_at(point: str) -> Callable[[str], None]:
    def stop(reached: str) -> None:
        if reached == point:
            raise KeyboardInterrupt

    return stop


def all_rows(ingesting: Ingesting) -> list[tuple[int, int]]:
    """Also those that FINAL would hide, but the same one twice."""
    sql = "SELECT DISTINCT sequence, revision FROM trajectories ORDER BY sequence"
    return ingesting.warehouse.query(sql).rows()


@pytest.mark.parametrize("batch", [1, 500])
def test_a_duplicate_is_stored_when_newer_rules_refuse_what_it_repeats(
    ingesting: Ingesting, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    monkeypatch.setattr(draining, "_BATCH_MESSAGES", batch)
    ingesting.publish(naming(), document(), document())
    ingesting.drain()
    assert ingesting.verdicts() == {1: "accepted", 2: "duplicate", 3: "duplicate"}
    hold_for_dataset(ingesting.warehouse, "dataset-1", [document()["trajectory_id"]])
    report = ingesting.drain(policy=NAMES)
    assert ingesting.verdicts() == {1: "refused", 2: "accepted", 3: "duplicate"}
    assert all_rows(ingesting) == [(2, 2)]
    assert ingesting.stored()[0]["held"]
    assert (report.judged, report.unchanged) == (3, 0)
    assert report.verdicts == {"refused": 1, "accepted": 1, "duplicate": 1}


@pytest.mark.parametrize("point", POINTS)
def test_a_duplicate_outside_the_range_takes_the_place_of_what_is_refused_whatever_is_killed(
    ingesting: Ingesting, point: str
) -> None:
    ingesting.publish(naming(), document(), document())
    ingesting.drain()
    ingesting.drain(2, 3, policy=NAMES)
    assert ingesting.verdicts() == {1: "accepted", 2: "duplicate", 3: "duplicate"}
    with pytest.raises(KeyboardInterrupt):
        ingesting.drain(1, 1, policy=NAMES, reached=stop_at(point))
    report = ingesting.drain(1, 1, policy=NAMES)
    assert report.judged + report.unchanged == 1
    assert ingesting.verdicts() == {1: "refused", 2: "accepted", 3: "duplicate"}
    assert all_rows(ingesting) == [(2, 2)]


def test_a_duplicate_of_somebody_else_is_stored_when_the_first_is_erased_meanwhile(ingesting: Ingesting) -> None:
    ingesting.publish(document(user_id=USER), document(user_id="another"))
    ingesting.drain(reached=lambda point: erase(ingesting) if point == "after_content" else None)
    assert ingesting.verdicts() == {1: "erased", 2: "accepted"}
    assert all_rows(ingesting) == [(2, 1)]


def test_two_ingests_at_once_store_a_trajectory_once(ingesting: Ingesting, monkeypatch: pytest.MonkeyPatch) -> None:
    ingesting.publish(document(1), document(2), document(1))
    insert = Committer._insert
    ranges = [(3, 3)]

    def insert_after_another(self: Committer, *given: Any) -> None:
        if ranges:
            ingesting.drain(*ranges.pop())
        insert(self, *given)

    monkeypatch.setattr(Committer, "_insert", insert_after_another)
    ingesting.drain(1, 2)
    assert ingesting.verdicts() == {1: "accepted", 2: "accepted", 3: "duplicate"}
    assert all_rows(ingesting) == [(1, 1), (2, 1)]

    ingesting.publish(document(3), document(3))
    ranges.append((4, 4))
    ingesting.drain(5, 5)
    assert ingesting.verdicts() == {1: "accepted", 2: "accepted", 3: "duplicate", 4: "accepted", 5: "duplicate"}
    assert all_rows(ingesting) == [(1, 1), (2, 1), (4, 1)]


def test_what_a_killed_ingest_stored_goes_when_newer_rules_refuse_it(ingesting: Ingesting) -> None:
    ingesting.publish(naming(), document(2))
    with pytest.raises(KeyboardInterrupt):
        ingesting.drain(reached=stop_at("after_content"))
    assert all_rows(ingesting) == [(1, 1), (2, 1)]
    ingesting.drain(policy=NAMES)
    assert ingesting.verdicts() == {1: "refused", 2: "accepted"}
    assert ingesting.stored_sequences() == [2]


def test_an_erasure_while_letters_are_published_is_in_the_ledger(ingesting: Ingesting) -> None:
    ingesting.publish(document(user_id=USER) | {"turns": []}, document(2))
    report = ingesting.drain(reached=lambda point: erase(ingesting) if point == "after_dead_letters" else None)
    assert ingesting.verdicts() == {1: "erased", 2: "accepted"}
    row = ingesting.ledger(1)
    assert (row["revision"], row["message_id"], row["trajectory_id"]) == (ERASED_REVISION, "", "")
    assert report.verdicts == {"erased": 1, "accepted": 1}


def created_again(ingesting: Ingesting, count: int) -> None:
    ingesting.stream.request(f"STREAM.DELETE.{STREAM}")
    bootstrap(ingesting.stream)
    ingesting.publish(*documents(count, seed=99))


@pytest.mark.parametrize(
    ("count", "sign"),
    [(4, "it ends at 4, and 5 is ingested already"), (7, "5 is not the message that was ingested")],
)
def test_a_stream_that_was_created_again_is_not_ingested_into_the_same_ledger(
    ingesting: Ingesting, count: int, sign: str
) -> None:
    ingesting.publish(*documents(5))
    ingesting.drain()
    before = (ingesting.verdicts(), ingesting.stored())
    created_again(ingesting, count)
    for policy in (OTHER_POLICY, NAMES):
        with pytest.raises(StreamRecreated, match=f"{sign}; restore the stream .* CLICKHOUSE_DATABASE"):
            ingesting.drain(policy=policy)
    assert before == (ingesting.verdicts(), ingesting.stored())


def test_another_message_under_a_known_sequence_is_not_judged_in_its_place(ingesting: Ingesting) -> None:
    first, second, *_ = documents(3)
    ingesting.publish(b"{}", first, second)
    ingesting.drain()
    ledger = [ingesting.ledger(sequence) for sequence in (1, 2, 3)]
    created_again(ingesting, 2)
    # The last one is the same as ever, so only those before it can tell.
    ingesting.publish(second)
    with pytest.raises(StreamRecreated, match="1 is not the message that was ingested"):
        ingesting.drain(policy=OTHER_POLICY)
    with pytest.raises(StreamRecreated, match="1 is not the message that was ingested"):
        ingesting.replay([1])
    assert [ingesting.ledger(sequence) for sequence in (1, 2, 3)] == ledger


def test_a_stream_whose_last_ingested_message_is_gone_goes_on(ingesting: Ingesting) -> None:
    ingesting.publish(*documents(2))
    ingesting.drain()
    ingesting.stream.request(f"STREAM.PURGE.{STREAM}")
    ingesting.publish(*documents(1, seed=7))
    assert ingesting.drain().verdicts == {"accepted": 1}
