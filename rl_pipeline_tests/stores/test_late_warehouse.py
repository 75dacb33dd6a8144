"""A warehouse that is reached when it is first asked."""

import socket

import polars as pl
import pytest

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.late_warehouse import LateWarehouse
from rl_pipeline.stores.warehouse import Warehouse, WarehouseUnavailable


def test_it_is_the_warehouse_once_it_is_asked(clickhouse_url: str) -> None:
    late = LateWarehouse(lambda: ClickHouseWarehouse.connect(clickhouse_url, database="default"), "default")
    assert late.database == "default"
    assert late.query("SELECT 1 AS one")["one"].to_list() == [1]
    assert [frame["one"].to_list() for frame in late.stream("SELECT 1 AS one")] == [[1]]
    late.close()


def test_one_that_is_away_is_tried_once_and_closing_it_is_harmless() -> None:
    tries = []

    def connect() -> Warehouse:
        tries.append(1)
        return ClickHouseWarehouse.connect("http://127.0.0.1:1", database="default")

    late = LateWarehouse(connect, "default")
    assert not tries
    for _ in range(2):
        with pytest.raises(WarehouseUnavailable):
            late.query("SELECT 1")
    assert len(tries) == 1
    late.close()


def test_one_that_goes_away_meanwhile_or_never_answers_is_asked_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        late = LateWarehouse(lambda: ClickHouseWarehouse.connect(url, "default", answer_seconds=1), "default")
        with pytest.raises(WarehouseUnavailable):
            late.query("SELECT 1")
        silent.accept()[0].close()
        with pytest.raises(WarehouseUnavailable):
            late.insert("somewhere", pl.DataFrame({"one": [1]}))
        silent.settimeout(0)
        with pytest.raises(BlockingIOError):
            silent.accept()


def test_one_that_breaks_off_after_it_has_answered_stays_away_for_this_look() -> None:
    answers = iter([True, False, True])

    class Breaking(ClickHouseWarehouse):
        def __init__(self) -> None:
            pass

        def query(self, *_: object) -> pl.DataFrame:
            if not next(answers):
                raise WarehouseUnavailable("it broke off")
            return pl.DataFrame()

    late = LateWarehouse(Breaking, "default")
    late.query("SELECT 1")
    for _ in range(2):
        with pytest.raises(WarehouseUnavailable, match="it broke off"):
            late.query("SELECT 1")
    assert next(answers), "it was not asked again"


def test_one_that_answers_with_an_error_is_away_for_this_look(clickhouse_url: str) -> None:
    late = LateWarehouse(lambda: ClickHouseWarehouse.connect(clickhouse_url, database="default"), "default")
    with pytest.raises(WarehouseUnavailable, match="UNKNOWN_TABLE"):
        late.insert("no_such_table", pl.DataFrame({"one": [1]}))
    with pytest.raises(WarehouseUnavailable, match="UNKNOWN_TABLE"):
        late.query("SELECT 1 AS one")
    late.close()
