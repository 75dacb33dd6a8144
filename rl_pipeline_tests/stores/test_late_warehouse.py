"""A warehouse that is reached when it is first asked."""

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
