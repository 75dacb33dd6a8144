"""One migrated database for the tests of a module: emptying tables takes milliseconds, making them takes seconds."""

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.migrate import migrate
from rl_pipeline_tests.fixtures.clickhouse import own_database


@contextmanager
def migrated_database(clickhouse_url: str) -> Iterator[ClickHouseWarehouse]:
    """A database with all tables, dropped at the end."""
    with own_database(ClickHouseWarehouse.connect(clickhouse_url, f"test_{uuid4().hex}")) as client:
        migrate(client)
        yield client


def emptied(warehouse: ClickHouseWarehouse) -> ClickHouseWarehouse:
    """The database with its tables, but without a row."""
    filled = warehouse.query(
        "SELECT name FROM system.tables WHERE database = {database:String} AND total_rows > 0",
        {"database": warehouse.database},
    )["name"]
    for table in filled:
        if not table.startswith("schema"):
            warehouse.execute(f"TRUNCATE TABLE {table}")
    return warehouse
