"""A user who is erased is nowhere any more, nobody else misses anything, and no gap is left unexplained."""

import json
import logging
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from rl_pipeline.embedded.nats_server import NatsServer, write_nats_configuration
from rl_pipeline.embedded.ports import free_port
from rl_pipeline.errors import PipelineError
from rl_pipeline.ingestion import draining
from rl_pipeline.ingestion.archive import archived_objects, restore_days
from rl_pipeline.ingestion.archive_files import ArchiveUnreadable
from rl_pipeline.ingestion.erasure import POINTS, ErasureDenied, ErasureReport, InvalidUser
from rl_pipeline.ingestion.holding import hold_for_dataset
from rl_pipeline.ingestion.ledger import ledger_watermark
from rl_pipeline.redaction.placeholders import placeholder
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline.stores.migrate import migrate
from rl_pipeline.stores.topology import bootstrap
from rl_pipeline_tests.fixtures.clickhouse import running_front
from rl_pipeline_tests.ingestion.erasing import ERIN, FAYE, SOME_DIGITS, Erasing
from rl_pipeline_tests.ingestion.ingesting import KEY, OLD_KEY, STREAM, SUBJECT, Ingesting, document
from rl_pipeline_tests.ingestion.stored_rows import rows


class Killed(BaseException):
    """Stands for kill -9: nothing handles it."""


def publish_of_both(erasing: Erasing) -> None:
    """Erin has 1, 3 (in an envelope), 5 (by claim), 7 (cut off), 9 (refused); Faye and nobody have the others."""
    enveloped = {"id": "1", "topic": SUBJECT, "ts": "now", "version": "v1", "source": "bus"}
    cut_off = json.dumps(document(107, user_id=ERIN)).encode()[:-1]
    refused = {**document(109, user_id=ERIN), "turns": []}
    erasing.ingesting.publish(document(101, user_id=ERIN), document(102, user_id=FAYE))
    erasing.ingesting.publish(enveloped | {"payload": document(103, user_id=ERIN)}, document(104))
    erasing.publish_claim(ERIN, 105)
    erasing.publish_claim(FAYE, 106)
    erasing.ingesting.publish(cut_off, json.dumps(document(108, user_id=FAYE)).encode()[:-1])
    erasing.ingesting.publish(refused, document(110, instructions=f"Write to {ERIN}."))
    erasing.publish_feedback(ERIN, FAYE, None)


ERINS = [1, 3, 5, 7, 9]
OTHERS = [2, 4, 6, 8, 10]
OTHERS_STORED = [2, 4, 6, 10]


def assert_erin_is_gone(erasing: Erasing) -> None:
    assert list(erasing.messages()) == OTHERS
    assert list(erasing.messages("RL_FEEDBACK")) == [2, 3]
    assert len(list(erasing.claims.list())) == 1
    assert erasing.ingesting.stored_sequences() == OTHERS_STORED
    assert erasing.archived() == OTHERS_STORED
    assert [letter["sequence"] for letter in erasing.ingesting.letters()] == [8]
    verdicts = erasing.ingesting.verdicts()
    assert [sequence for sequence, verdict in verdicts.items() if verdict == "erased"] == ERINS
    kept = erasing.ingesting.ledger(1)
    assert (kept["message_id"], kept["trajectory_id"], kept["publisher"]) == ("", "", "")
    erasing.assert_no_gap()


def test_everything_of_the_user_is_erased_and_nothing_of_anybody_else(erasing: Erasing) -> None:
    publish_of_both(erasing)
    erasing.drain()
    erasing.archive_now()
    assert erasing.ingesting.stored_sequences() == [1, 2, 3, 4, 5, 6, 10]
    report = erasing.erase()
    assert_erin_is_gone(erasing)
    assert (report.messages, report.claims, report.dead_letters, report.feedback) == (5, 1, 2, 1)
    assert (report.trajectories, report.archived, report.unreadable_claims) == (3, 3, ())
    assert erasing.ingesting.ledger(1)["sha256"] == ""


def test_what_was_not_ingested_yet_is_erased_too_and_never_ingested(erasing: Erasing) -> None:
    publish_of_both(erasing)
    erasing.erase()
    erasing.drain()
    erasing.archive_now()
    assert_erin_is_gone(erasing)


def test_erasing_twice_is_harmless(erasing: Erasing) -> None:
    publish_of_both(erasing)
    erasing.drain()
    erasing.archive_now()
    erasing.erase()
    again = erasing.erase()
    assert_erin_is_gone(erasing)
    assert again == ErasureReport(0, 0, 0, 0, 0, 0, (), (), (), 0, 0, 0)


@pytest.mark.parametrize("point", POINTS)
def test_an_erasure_that_is_killed_anywhere_is_finished_by_the_next(erasing: Erasing, point: str) -> None:
    def die(reached: str) -> None:
        if reached == point:
            raise Killed

    publish_of_both(erasing)
    erasing.drain()
    erasing.archive_now()
    with pytest.raises(Killed):
        erasing.erase(reached=die)
    assert erasing.drain().verdicts == {}, "what is done stays done in between"
    erasing.assert_no_gap()
    erasing.erase()
    assert_erin_is_gone(erasing)


@pytest.mark.parametrize("point", draining.POINTS)
def test_an_ingest_that_is_under_way_meanwhile_leaves_nothing_of_the_user(erasing: Erasing, point: str) -> None:
    def erase_once(reached: str) -> None:
        if reached == point and erasing.warehouse.query("SELECT user FROM erasures").is_empty():
            erasing.erase()

    publish_of_both(erasing)
    erasing.drain(reached=erase_once)
    assert erasing.ingesting.stored_sequences() == OTHERS_STORED
    erasing.archive_now()
    erasing.erase()  # which also finds a letter that was written last
    assert_erin_is_gone(erasing)


def test_every_point_is_told(erasing: Erasing) -> None:
    publish_of_both(erasing)
    erasing.drain()
    erasing.archive_now()
    seen: list[str] = []
    erasing.erase(reached=seen.append)
    assert set(seen) == set(POINTS)


def test_what_was_stored_under_earlier_keys_and_replaced_at_the_edge_is_erased_too(erasing: Erasing) -> None:
    edge = RedactionKey.parse("edge:the key of the agents, long enough")
    erasing.ingesting.publish(document(1, user_id=ERIN), document(2, user_id=FAYE))
    erasing.drain(OLD_KEY)
    at_the_edge = placeholder(edge, "USER", ERIN.encode())
    erasing.ingesting.publish(document(3, user_id=ERIN), document(4, user_id=at_the_edge))
    erasing.drain(first=3, previous_keys=[OLD_KEY])
    report = erasing.erase(keys=[KEY, OLD_KEY, edge])
    assert (report.messages, report.trajectories) == (3, 3)
    assert erasing.ingesting.stored_sequences() == [2]
    erasing.ingesting.publish(document(5, user_id=at_the_edge))
    assert erasing.drain(OLD_KEY).verdicts["accepted"], "it came later"


def test_who_opted_out_stays_away_and_who_was_erased_may_come_back(erasing: Erasing) -> None:
    erasing.erase(ERIN, opt_out=True)
    erasing.erase(FAYE)
    erasing.ingesting.publish(document(1, user_id=ERIN), document(2, user_id=FAYE))
    erasing.drain()
    assert erasing.ingesting.verdicts() == {1: "erased", 2: "accepted"}


def test_rows_that_outlived_their_messages_are_erased_with_their_ledger_and_their_archive(erasing: Erasing) -> None:
    user = placeholder(KEY, "USER", ERIN.encode())
    now = datetime.now(UTC)
    # Hot and archived, and archived only; 4 brought trajectory 1 a second time.
    hot = rows(1, now - timedelta(days=2), user=user)
    cold = rows(1, now - timedelta(days=20), user=user, first=2)
    for stored in (hot, cold, rows(1, now - timedelta(days=20), first=3)):
        erasing.warehouse.insert("trajectories", stored)
    erasing.archive_now()
    erasing.warehouse.execute("ALTER TABLE trajectories DELETE WHERE sequence = 2", settings={"mutations_sync": 2})
    ledger = pl.concat([hot, cold, hot.with_columns(sequence=pl.lit(4, pl.Int64)), rows(1, now, first=5)])
    ledger = ledger.select("stream", "sequence", "stream_time", "trajectory_id").with_columns(
        verdict=pl.lit("accepted"), revision=pl.lit(1)
    )
    erasing.warehouse.insert("trajectory_ledger", ledger)
    erasing.ingesting.publish(*[document(seed) for seed in range(6)])
    erasing.stream.request(f"STREAM.PURGE.{STREAM}", {"seq": 6})
    report = erasing.erase()
    assert (report.messages, report.trajectories, report.archived) == (0, 1, 2)
    assert erasing.ingesting.verdicts() == {1: "erased", 2: "erased", 4: "erased", 5: "accepted"}
    assert erasing.archived() == [3]


def test_a_day_of_which_everything_was_erased_stays_in_the_archive_as_an_empty_one(erasing: Erasing) -> None:
    erasing.ingesting.publish(document(1, user_id=ERIN))
    erasing.drain()
    erasing.archive_now()
    erasing.erase()
    erasing.erase()
    today = datetime.now(UTC)
    days = (today - timedelta(days=1)).date(), today.date()
    assert sum(restore_days(erasing.warehouse, erasing.archive, *days, keys=[KEY], now=today).restored.values()) == 0


def test_the_user_is_found_wherever_a_message_may_name_them(erasing: Erasing) -> None:
    (in_metadata, by_number, escaped) = (document(seed) for seed in (1, 2, 3))
    in_metadata["metadata"]["user_id"] = "777"
    by_number["task_context"]["user_id"] = 777
    hidden = json.dumps({**escaped, "task_context": {"user_id": "777"}}).replace("777", "\\u0037\\u00377").encode()
    mentioned = document(4, instructions="Call 777.")
    mentioned["turns"][0]["action"]["tool_args"] = {"user_id": "777"}
    twice = b'{"task_context": {"user_id": "777", "user_id": "other"}}'
    erasing.ingesting.publish(in_metadata, by_number, hidden, mentioned, twice, b"[]", b"\xff\xfe", b'"777"')
    erasing.drain()
    report = erasing.erase("777")
    assert list(erasing.messages()) == [4, 6, 7, 8]
    assert report.messages == 4
    assert erasing.ingesting.stored_sequences() == [4]


def test_what_was_refused_for_its_shape_is_erased_with_its_letter(erasing: Erasing) -> None:
    def shapes(made: dict[str, Any]) -> list[Any]:
        text = json.dumps(made)
        return [[made], {"data": made}, {"wrapped": text}, {"event": {"payload": made}}, text, json.dumps([text])]

    by_number = {**document(3), "metadata": {"user_id": 777}}
    contents = [*shapes(document(1, user_id=ERIN)), *shapes(document(2, user_id=FAYE)), [by_number]]
    erasing.ingesting.publish(*[json.dumps(content).encode() for content in contents])
    erasing.drain()
    assert set(erasing.ingesting.verdicts().values()) == {"refused"}
    report = erasing.erase()
    assert (report.messages, report.dead_letters) == (6, 6)
    assert list(erasing.messages()) == [letter["sequence"] for letter in erasing.ingesting.letters()]
    assert list(erasing.messages()) == list(range(7, 14))
    assert not any(FAYE in letter["excerpt"] for letter in erasing.ingesting.letters())
    assert erasing.erase("777").messages == 1


def test_feedback_of_another_shape_is_erased_too(erasing: Erasing) -> None:
    erasing.stream.publish("agent.rl.feedback.v1", json.dumps([{"user_id": ERIN}]).encode(), "1")
    erasing.stream.publish("agent.rl.feedback.v1", json.dumps([{"user_id": FAYE}]).encode(), "2")
    assert erasing.erase().feedback == 1
    assert list(erasing.messages("RL_FEEDBACK")) == [2]


def test_the_second_user_of_a_trajectory_takes_it_along(erasing: Erasing) -> None:
    of_both = document(1, user_id=FAYE)
    of_both["metadata"]["user_id"] = ERIN
    erasing.ingesting.publish(of_both, document(2, user_id=FAYE))
    erasing.drain()
    erasing.erase(opt_out=True)
    assert erasing.ingesting.stored_sequences() == list(erasing.messages()) == [2]
    erasing.ingesting.publish(of_both)
    erasing.drain()
    assert erasing.ingesting.verdicts() == {1: "erased", 2: "accepted", 3: "erased"}


def test_what_another_user_published_of_an_erased_trajectory_is_stored_by_the_next_ingest(erasing: Erasing) -> None:
    erasing.ingesting.publish(document(1, user_id=ERIN), document(1, user_id=FAYE), document(2, user_id=FAYE))
    erasing.ingesting.publish(document(2, user_id=FAYE), document(1, user_id=ERIN))
    erasing.drain()
    assert erasing.ingesting.stored_sequences() == [1, 3]
    assert erasing.erase().orphans == 1
    assert ledger_watermark(erasing.warehouse, STREAM) == 1, "so the sensor sees that something waits"
    erasing.drain()
    assert erasing.ingesting.verdicts() == {1: "erased", 2: "accepted", 3: "accepted", 4: "duplicate", 5: "erased"}
    assert erasing.ingesting.stored_sequences() == [2, 3]
    assert erasing.erase().orphans == 0


def test_a_duplicate_that_is_ingested_while_what_it_repeats_is_erased_is_stored(erasing: Erasing) -> None:
    erasing.ingesting.publish(document(1, user_id=ERIN), document(1, user_id=FAYE))
    erasing.drain(last=1)

    def erase_once(reached: str) -> None:
        if reached == "after_content" and erasing.warehouse.query("SELECT user FROM erasures").is_empty():
            erasing.erase()

    erasing.drain(reached=erase_once)
    assert erasing.ingesting.verdicts() == {1: "erased", 2: "accepted"}
    assert erasing.ingesting.stored_sequences() == [2]


def test_a_user_named_like_nothing_takes_nobody_with_them(erasing: Erasing) -> None:
    erasing.ingesting.publish(document(1), document(2, user_id=FAYE), b"{}", b"null")
    assert erasing.erase("None").messages == erasing.erase("null.").messages == 0
    for nobody in ("", " ", "\n"):
        with pytest.raises(InvalidUser, match="name the user"):
            erasing.erase(nobody)
    assert list(erasing.messages()) == [1, 2, 3, 4]


def test_a_damaged_claim_is_reported_and_stops_nothing(erasing: Erasing) -> None:
    erasing.publish_claim(FAYE, 1)
    erasing.ingesting.publish(document(2, user_id=ERIN))
    (claim,) = erasing.claims.list()
    (erasing.claims.root / claim.key).write_bytes(b"damaged")
    report = erasing.erase()
    assert (report.unreadable_claims, report.messages) == ((1,), 1)


def test_a_claim_that_was_damaged_after_it_was_ingested_goes_all_the_same(erasing: Erasing) -> None:
    erasing.publish_claim(ERIN, 1)
    erasing.drain()
    (claim,) = erasing.claims.list()
    (erasing.claims.root / claim.key).write_bytes(b"damaged")
    report = erasing.erase()
    assert (report.unreadable_claims, report.messages, report.claims) == ((), 1, 1)
    assert list(erasing.claims.list()) == []


def test_datasets_and_checkpoints_with_data_of_the_user_are_listed_and_left_alone(
    erasing: Erasing, caplog: pytest.LogCaptureFixture
) -> None:
    erasing.ingesting.publish(document(1, user_id=ERIN), document(2, user_id=ERIN), document(3, user_id=FAYE))
    erasing.drain()
    one, two, three = (row["trajectory_id"] for row in erasing.ingesting.stored())
    for dataset, held in {"both": [one, three], "erins": [two], "fayes": [three]}.items():
        hold_for_dataset(erasing.warehouse, dataset, held)
    learnt = {"checkpoint_id": ["a", "a", "b", "c"], "dataset_id": ["both", "erins", "erins", "fayes"]}
    erasing.warehouse.insert("checkpoint_datasets", pl.DataFrame(learnt))
    with caplog.at_level(logging.DEBUG):
        report = erasing.erase()
    assert (report.datasets, report.checkpoints) == (("both", "erins"), ("a", "b"))
    assert erasing.warehouse.query("SELECT * FROM dataset_trajectories FINAL").height == 4
    assert "'both', 'erins'" in caplog.text
    assert ERIN not in caplog.text + repr(report)


def test_a_broken_archive_object_is_named_and_the_erasure_goes_on_once_it_is_mended(erasing: Erasing) -> None:
    publish_of_both(erasing)
    erasing.drain()
    erasing.archive_now()
    ((_, key),) = archived_objects(erasing.archive)
    whole = erasing.archive.get(key)
    erasing.archive.put(key, whole[:-20])
    with pytest.raises(ArchiveUnreadable, match="put a copy of it back"):
        erasing.erase()
    assert len(list(archived_objects(erasing.archive))) == 1
    erasing.archive.put(key, whole)
    erasing.erase()
    assert_erin_is_gone(erasing)


@pytest.fixture
def lesser_account(stream: JetStream, tmp_path: Path) -> Iterator[JetStream]:
    """Somebody who may do everything but erase, on a server with streams of its own."""
    port, monitoring_port = free_port(), free_port()
    configuration = write_nats_configuration(tmp_path / "nats", port, monitoring_port, "accounts", sync_always=False)
    with configuration.open("a") as text:
        text.write(
            "authorization { users: [ {user: admin, password: admin}, {user: lesser, password: lesser, permissions: {"
            ' publish: {deny: ["$JS.API.STREAM.MSG.DELETE.>"]} }} ] }\n'
        )
    server = NatsServer(configuration, port, monitoring_port, "accounts", tmp_path / "nats" / "log")
    server.start()
    try:
        with JetStream.connect(server.url, user="admin", password="admin") as admin:
            bootstrap(admin)
        with JetStream.connect(server.url, user="lesser", password="lesser") as lesser:
            yield lesser
    finally:
        server.stop()


def test_an_account_that_may_not_erase_is_told_so_before_anything_is_changed(
    erasing: Erasing, lesser_account: JetStream
) -> None:
    publish_of_both(erasing)
    erasing.drain()
    lesser_account.publish(SUBJECT, json.dumps(document(1, user_id=ERIN)).encode(), "1")
    with pytest.raises(ErasureDenied, match=r"may not erase messages of RL_TRAJECTORIES.*those of the admin") as denied:
        erasing.erase(messages=lesser_account)
    assert isinstance(denied.value, PipelineError)
    assert lesser_account.state(STREAM).messages == 1
    assert erasing.warehouse.query("SELECT * FROM erasures").is_empty()
    assert "erased" not in erasing.ingesting.verdicts().values()


def test_no_file_of_the_warehouse_has_the_rows_any_more(stream: JetStream, tmp_path: Path) -> None:
    marks = {ERIN: f"first-{SOME_DIGITS}", FAYE: f"second-{SOME_DIGITS}"}
    with running_front(tmp_path / "clickhouse") as front:
        warehouse = ClickHouseWarehouse.connect(front.url, "erasure")
        with closing(warehouse):
            migrate(warehouse)
            warehouse.execute("ALTER TABLE trajectories MODIFY COLUMN session_id String CODEC(NONE)")
            erasing = Erasing(Ingesting(stream, warehouse, tmp_path / "raw"), DiskObjects(tmp_path / "archive"))
            for seed, (user, mark) in enumerate(marks.items()):
                erasing.ingesting.publish({**document(seed, user_id=user), "session_id": mark})
            erasing.drain()
            assert files_with(tmp_path / "clickhouse", marks[ERIN])
            erasing.erase()
            assert not files_with(tmp_path / "clickhouse", marks[ERIN])
            assert files_with(tmp_path / "clickhouse", marks[FAYE])


def files_with(directory: Path, text: str) -> list[Path]:
    return [path for path in directory.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]
