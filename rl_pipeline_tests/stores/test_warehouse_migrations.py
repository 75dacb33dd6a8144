"""The tables' numbered migrations: applied once, in order, whoever runs them and from whichever state."""

import threading
from datetime import UTC, datetime

import polars as pl
import pytest

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.migrate import Migration, MigrationRefused, migrate, packaged_migrations
from rl_pipeline.stores.warehouse import Warehouse, WarehouseError

FIRST = Migration("0001_first", "CREATE TABLE IF NOT EXISTS first (id UInt8) ENGINE = MergeTree ORDER BY id;\n")
SECOND = Migration(
    "0002_second",
    "-- Two statements.\n"
    "CREATE TABLE IF NOT EXISTS second (id UInt8) ENGINE = MergeTree ORDER BY id;\n"
    "ALTER TABLE first ADD COLUMN IF NOT EXISTS text String DEFAULT 'a;b';\n",
)


def tables(warehouse: Warehouse) -> set[str]:
    return set(warehouse.query("SELECT name FROM system.tables WHERE database = currentDatabase()")["name"])


def test_migrations_create_the_database_and_are_applied_once(empty_warehouse: ClickHouseWarehouse) -> None:
    names = [migration.name for migration in packaged_migrations()]
    assert migrate(empty_warehouse) == names
    assert tables(empty_warehouse) >= {"schema_migrations", "stream_observations", "trajectory_ledger", "trajectories"}
    assert migrate(empty_warehouse) == []
    assert empty_warehouse.query("SELECT name FROM schema_migrations FINAL ORDER BY name")["name"].to_list() == names


def test_the_packaged_migrations_are_numbered_without_a_gap() -> None:
    numbers = [int(migration.name.partition("_")[0]) for migration in packaged_migrations()]
    assert numbers == list(range(1, len(numbers) + 1))


def test_an_older_database_is_upgraded_and_keeps_its_rows(empty_warehouse: ClickHouseWarehouse) -> None:
    assert migrate(empty_warehouse, migrations=[FIRST]) == ["0001_first"]
    empty_warehouse.insert("first", pl.DataFrame({"id": [1, 2]}))
    assert migrate(empty_warehouse, migrations=[FIRST, SECOND]) == ["0002_second"]
    assert empty_warehouse.query("SELECT * FROM first ORDER BY id").rows() == [(1, "a;b"), (2, "a;b")]


@pytest.mark.parametrize("applied", range(len(packaged_migrations()) + 1))
def test_every_released_state_is_upgraded_and_keeps_its_rows(
    empty_warehouse: ClickHouseWarehouse, applied: int
) -> None:
    older = packaged_migrations()[:applied]
    migrate(empty_warehouse, migrations=older)
    before = tables(empty_warehouse)
    if "trajectory_ledger" in before:
        empty_warehouse.insert("trajectory_ledger", ledger_row(verdict="accepted"))
    assert migrate(empty_warehouse) == [migration.name for migration in packaged_migrations()[applied:]]
    if "trajectory_ledger" in before:
        assert empty_warehouse.query("SELECT count() AS n FROM trajectory_ledger FINAL")["n"][0] == 1


def test_a_migration_that_died_halfway_is_completed(empty_warehouse: ClickHouseWarehouse) -> None:
    migrate(empty_warehouse, migrations=[FIRST])
    empty_warehouse.execute(SECOND.statements(cluster=None)[0])
    assert migrate(empty_warehouse, migrations=[FIRST, SECOND]) == ["0002_second"]
    assert tables(empty_warehouse) == {"schema_migrations", "first", "second"}


def test_a_failed_migration_is_not_recorded(empty_warehouse: ClickHouseWarehouse) -> None:
    broken = Migration("0002_broken", "ALTER TABLE missing ADD COLUMN a UInt8;\n")
    with pytest.raises(WarehouseError) as raised:
        migrate(empty_warehouse, migrations=[FIRST, broken])
    assert raised.value.code == 60
    assert empty_warehouse.query("SELECT name FROM schema_migrations FINAL")["name"].to_list() == ["0001_first"]


def test_a_changed_migration_is_refused(empty_warehouse: ClickHouseWarehouse) -> None:
    migrate(empty_warehouse, migrations=[FIRST])
    changed = Migration(FIRST.name, FIRST.sql.replace("UInt8", "UInt16"))
    with pytest.raises(MigrationRefused, match=r"0001_first was applied to .* with another text"):
        migrate(empty_warehouse, migrations=[changed, SECOND])
    assert "second" not in tables(empty_warehouse)


def test_a_database_newer_than_the_code_is_refused(empty_warehouse: ClickHouseWarehouse) -> None:
    migrate(empty_warehouse, migrations=[FIRST, SECOND])
    with pytest.raises(MigrationRefused, match="has 0002_second, which this version does not know: upgrade"):
        migrate(empty_warehouse, migrations=[FIRST])


def test_several_at_once_end_as_one(clickhouse_url: str, empty_warehouse: ClickHouseWarehouse) -> None:
    start = threading.Barrier(4)
    failures: list[Exception] = []

    def run() -> None:
        client = ClickHouseWarehouse.connect(clickhouse_url, empty_warehouse.database)
        start.wait()
        try:
            migrate(client)
        except (WarehouseError, MigrationRefused) as error:
            failures.append(error)
        finally:
            client.close()

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert migrate(empty_warehouse) == []
    recorded = empty_warehouse.query("SELECT count() AS n FROM schema_migrations FINAL")["n"][0]
    assert recorded == len(packaged_migrations())


def test_on_a_cluster_every_statement_names_it_and_every_engine_is_replicated(warehouse: ClickHouseWarehouse) -> None:
    for migration in packaged_migrations():
        for alone, clustered in zip(migration.statements(None), migration.statements("main"), strict=True):
            # The engine itself parses both; it has no cluster to run the second on.
            assert "ON CLUSTER" not in alone
            assert "Replicated" not in alone
            assert "ON CLUSTER `main`" in clustered
            assert clustered.count("ENGINE = ") == clustered.count("ENGINE = Replicated")
            for statement in (alone, clustered):
                assert warehouse.query(f"EXPLAIN AST {statement}").height > 0


def test_the_ledger_keeps_one_row_per_sequence_and_the_newest_revision(warehouse: ClickHouseWarehouse) -> None:
    for revision, verdict in ((1, "refused"), (2, "accepted"), (1, "refused")):
        warehouse.insert("trajectory_ledger", ledger_row(verdict=verdict, revision=revision))
    found = warehouse.query("SELECT stream, sequence, verdict, revision FROM trajectory_ledger FINAL")
    assert found.rows() == [("RL_TRAJECTORIES", 7, "accepted", 2)]


def test_the_ledger_refuses_a_verdict_it_does_not_know(warehouse: ClickHouseWarehouse) -> None:
    with pytest.raises(WarehouseError, match="verdict_is_known"):
        warehouse.insert("trajectory_ledger", ledger_row(verdict="maybe"))


def ledger_row(*, verdict: str, revision: int = 1) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "stream": ["RL_TRAJECTORIES"],
            "sequence": [7],
            "stream_time": [datetime(2026, 1, 2, tzinfo=UTC)],
            "message_id": ["m-7"],
            "trajectory_id": ["t-7"],
            "size": [1024],
            "sha256": ["0" * 64],
            "verdict": [verdict],
            "revision": [revision],
        }
    )
