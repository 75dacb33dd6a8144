"""Nobody who was erased comes back because a redaction key was forgotten."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rl_pipeline.ingestion.archive import restore_days
from rl_pipeline.ingestion.tombstones import RedactionKeyLost, key_name
from rl_pipeline.redaction.placeholders import placeholder
from rl_pipeline.redaction.policy import RedactionKey
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline_tests.ingestion.erasing import ERIN, FAYE, Erasing
from rl_pipeline_tests.ingestion.ingesting import KEY, OLD_KEY, Ingesting, document

EDGE_KEY = RedactionKey.parse("v1:the key of the agents, of the same version")
SAME_VERSION = RedactionKey.parse("v0:another secret that took the version over")


@pytest.fixture
def erasing(ingesting: Ingesting, tmp_path: Path) -> Erasing:
    return Erasing(ingesting, DiskObjects(tmp_path / "archive"))


def restore(erasing: Erasing, **options: Any) -> None:
    today = datetime.now(UTC)
    restore_days(erasing.warehouse, erasing.archive, today.date(), today.date(), keys=[KEY], now=today)


ENTRIES: list[Callable[..., Any]] = [
    lambda erasing: erasing.drain(),
    lambda erasing: erasing.ingesting.replay([1]),
    restore,
]


@pytest.mark.parametrize("enter", ENTRIES, ids=["drain", "replay", "restore"])
def test_without_the_key_of_a_tombstone_nothing_is_ingested(erasing: Erasing, enter: Callable[..., Any]) -> None:
    erasing.erase(opt_out=True, keys=[OLD_KEY])
    erasing.ingesting.publish(document(1, user_id=ERIN))
    with pytest.raises(RedactionKeyLost, match=r"the redaction key v0, .* into REDACTION_PREVIOUS_KEYS$"):
        enter(erasing)
    assert erasing.ingesting.verdicts() == {}


def test_with_the_earlier_key_the_user_stays_away(erasing: Erasing) -> None:
    erasing.erase(opt_out=True, keys=[OLD_KEY])
    erasing.ingesting.publish(document(1, user_id=ERIN))
    with pytest.raises(RedactionKeyLost):
        erasing.drain(previous_keys=[SAME_VERSION])
    erasing.drain(previous_keys=[OLD_KEY])
    assert erasing.ingesting.verdicts() == {1: "erased"}


def test_one_of_the_keys_of_a_tombstone_is_enough_and_that_of_the_edge_is_not(erasing: Erasing) -> None:
    erasing.erase(opt_out=True, keys=[KEY, OLD_KEY, EDGE_KEY])
    at_the_edge = placeholder(EDGE_KEY, "USER", ERIN.encode())
    erasing.ingesting.publish(document(1, user_id=ERIN), document(2, user_id=at_the_edge))
    newer = RedactionKey.parse("v2:the key that comes after the others, long")
    with pytest.raises(RedactionKeyLost, match="the redaction key v1, "):
        erasing.drain(newer)
    erasing.drain()
    assert erasing.ingesting.verdicts() == {1: "erased", 2: "erased"}


def test_rows_under_a_key_that_is_not_given_are_not_passed_over_by_an_erasure(erasing: Erasing) -> None:
    erasing.ingesting.publish(document(1, user_id=ERIN))
    erasing.drain(OLD_KEY)
    with pytest.raises(RedactionKeyLost, match=r"rows are stored under the redaction key v0, .*PREVIOUS_KEYS"):
        erasing.erase(keys=[KEY])
    assert erasing.warehouse.query("SELECT user FROM erasures").is_empty()
    # Archived only.
    erasing.archive_now()
    erasing.warehouse.execute("TRUNCATE TABLE trajectories")
    with pytest.raises(RedactionKeyLost):
        erasing.erase(keys=[KEY])
    assert erasing.erase(keys=[KEY, OLD_KEY]).archived == 1


def test_a_key_that_is_lost_for_good_can_be_given_up(erasing: Erasing) -> None:
    erasing.ingesting.publish(document(1, user_id=ERIN), document(2))
    erasing.drain(OLD_KEY)
    erasing.erase(FAYE, opt_out=True, keys=[OLD_KEY])
    for statement in (
        "ALTER TABLE erasures UPDATE keys = [] WHERE has(keys, {name:String})",
        "ALTER TABLE ingest_revisions UPDATE key = '' WHERE key = {name:String}",
    ):
        erasing.warehouse.execute(statement, {"name": key_name(OLD_KEY)}, {"mutations_sync": 2})
    erasing.erase()
    erasing.drain()
    assert erasing.ingesting.verdicts() == {1: "erased", 2: "accepted"}


def test_the_name_of_a_key_tells_secrets_apart_and_shows_none() -> None:
    names = {key_name(key) for key in (KEY, OLD_KEY, SAME_VERSION, EDGE_KEY)}
    assert len(names) == 4
    assert key_name(OLD_KEY).startswith("v0/")
    assert OLD_KEY.secret.decode()[:8] not in key_name(OLD_KEY)
