"""Brings a warehouse's tables to this version, by the numbered files in `migrations/`.

A migration is never edited once it is released: add the next number. Each of its statements ends with a semicolon at a
line's end and can be repeated (IF NOT EXISTS), since two processes may run it at once and either may die in between.

`{on_cluster}` and `{replicated}` in a statement are empty on a single server; with a cluster they become its ON CLUSTER
clause and the prefix of the replicated engines, which keep their path in ZooKeeper by the server's own default.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files

from rl_pipeline.errors import PipelineError
from rl_pipeline.stores.warehouse import Warehouse

_RECORD = """
CREATE TABLE IF NOT EXISTS schema_migrations {on_cluster}
(name String, checksum String, applied_at DateTime64(3, 'UTC') DEFAULT now64(3))
ENGINE = {replicated}ReplacingMergeTree ORDER BY name
SETTINGS fsync_after_insert = 1, fsync_part_directory = 1
"""


class MigrationRefused(PipelineError):
    """The database and this version's migrations contradict each other; nothing was changed."""


@dataclass(frozen=True)
class Migration:
    """One numbered step."""

    name: str
    sql: str

    @property
    def checksum(self) -> str:
        return sha256(self.sql.encode()).hexdigest()

    def statements(self, cluster: str | None) -> list[str]:
        found = re.split(r";[ \t]*(?:\n|$)", self.sql)
        return [_rendered(statement, cluster) for statement in found if statement.strip()]


def migrate(
    warehouse: Warehouse, cluster: str | None = None, migrations: Sequence[Migration] | None = None
) -> list[str]:
    """Create the database if need be, apply what is missing in order, and return the names of what was applied.

    Raises `MigrationRefused` when a file has changed since it was applied, or the database knows a migration that this
    version does not. On several shards, only the one behind the connection remembers; applying again changes nothing.
    """
    known = packaged_migrations() if migrations is None else migrations
    warehouse.create_database(cluster)
    warehouse.execute(_rendered(_RECORD, cluster))
    record = warehouse.query("SELECT name, checksum FROM schema_migrations FINAL")
    applied = dict(zip(record["name"], record["checksum"], strict=True))
    _refuse_contradictions(warehouse.database, known, applied)
    missing = [migration for migration in known if migration.name not in applied]
    for migration in missing:
        for statement in migration.statements(cluster):
            warehouse.execute(statement)
        warehouse.execute(
            "INSERT INTO schema_migrations (name, checksum) VALUES ({name:String}, {checksum:String})",
            parameters={"name": migration.name, "checksum": migration.checksum},
        )
    return [migration.name for migration in missing]


def packaged_migrations() -> list[Migration]:
    """The migrations of this version, in order."""
    found = [
        file for file in files("rl_pipeline.stores").joinpath("migrations").iterdir() if file.name.endswith(".sql")
    ]
    return [Migration(file.name.removesuffix(".sql"), file.read_text()) for file in sorted(found, key=lambda f: f.name)]


def _refuse_contradictions(database: str, known: Sequence[Migration], applied: dict[str, str]) -> None:
    if newer := sorted(applied.keys() - {migration.name for migration in known}):
        raise MigrationRefused(
            f"the database {database} has {newer[-1]}, which this version does not know: upgrade rl-pipeline"
        )
    for migration in known:
        if applied.get(migration.name, migration.checksum) != migration.checksum:
            raise MigrationRefused(
                f"{migration.name} was applied to {database} with another text: restore it and add a new one"
            )


def _rendered(sql: str, cluster: str | None) -> str:
    on_cluster = f"ON CLUSTER `{cluster}`" if cluster else ""
    return sql.replace("{on_cluster}", on_cluster).replace("{replicated}", "Replicated" if cluster else "")
