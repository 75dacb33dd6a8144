"""Stores that are away for a while: waited for, and then told; nothing is lost by it."""

from typing import Any

import pytest

from rl_pipeline.stores.objects import Objects, ObjectsUnavailable
from rl_pipeline.stores.stream import StreamUnavailable
from rl_pipeline.stores.warehouse import WarehouseUnavailable
from rl_pipeline_tests.ingestion.ingesting import (
    Ingesting,
    document,
    documents,
    reference_to,
)


class Failing:
    """A store of which a method fails the first times it is called."""

    def __init__(self, store: Any, method: str, error: Exception, times: int) -> None:
        self._store, self._method, self._error, self.left = store, method, error, times

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name != self._method:
            return found

        def attempt(*arguments: Any, **options: Any) -> Any:
            if self.left:
                self.left -= 1
                raise self._error
            return found(*arguments, **options)

        return attempt


@pytest.mark.parametrize(
    ("store", "method"),
    [
        ("warehouse", "query"),
        ("warehouse", "insert"),
        ("stream", "read"),
        ("stream", "publish_many"),
        ("stream", "state"),
    ],
)
def test_trouble_with_a_store_is_waited_out_three_times(ingesting: Ingesting, store: str, method: str) -> None:
    ingesting.publish(*documents(2), b"{}")
    error = (WarehouseUnavailable if store == "warehouse" else StreamUnavailable)("gone for a moment")
    failing = Failing(getattr(ingesting, store), method, error, 3)
    waited: list[float] = []
    troubled = Ingesting(**{**vars(ingesting), store: failing})
    # The range is given: asking for the stream's end is no part of the drain.
    report = troubled.drain(1, 3, sleep=waited.append)
    assert waited == [1.0, 2.0, 4.0]
    assert (report.verdicts, report.lost) == ({"accepted": 2, "refused": 1}, 0)
    assert ingesting.stored_sequences() == [1, 2]
    assert len(ingesting.letters()) == 1


def test_trouble_that_stays_is_raised_and_loses_nothing(ingesting: Ingesting) -> None:
    ingesting.publish(*documents(2))
    failing: Any = Failing(ingesting.stream, "read", StreamUnavailable("gone"), 4)
    with pytest.raises(StreamUnavailable):
        Ingesting(failing, ingesting.warehouse, ingesting.raw).drain(1, 2, sleep=lambda _: None)
    assert ingesting.verdicts() == {}
    assert ingesting.drain().verdicts == {"accepted": 2}


def test_a_store_of_claims_that_is_away_is_waited_for(ingesting: Ingesting) -> None:
    message, stored = reference_to(document(), "claims/one.json")
    ingesting.address.open().put("claims/one.json", stored)
    ingesting.publish(message)
    opened: list[int] = []

    def open_objects() -> Objects:
        opened.append(1)
        if len(opened) < 3:
            raise ObjectsUnavailable("gone for a moment")
        return ingesting.address.open()

    waited: list[float] = []
    report = ingesting.drain(open_raw_objects=open_objects, sleep=waited.append)
    assert report.verdicts == {"accepted": 1}
    assert waited == [1.0]
