"""The warehouse for whoever has work to do that does not wait for it: connects when it is first asked."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from rl_pipeline.stores.warehouse import Warehouse, WarehouseError, WarehouseUnavailable

if TYPE_CHECKING:
    import polars as pl

T = TypeVar("T")


class LateWarehouse:
    """The port over a connection that is opened on demand, for the length of one order or one look.

    Once it did not answer it is not tried again: an order that needs it five times would wait five times, and one look
    sees it either there or away. One that answers with an error counts as away too: whoever goes on after a write that
    was refused would read as if it had been done.
    """

    def __init__(self, connect: Callable[[], Warehouse], database: str) -> None:
        self._connect = connect
        self._database = database
        self._tables: Warehouse | None = None
        self._away = ""

    @property
    def database(self) -> str:
        """See `Warehouse.database`."""
        return self._database

    def create_database(self, cluster: str | None = None) -> None:
        """See `Warehouse.create_database`."""
        self._ask(lambda tables: tables.create_database(cluster))

    def execute(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        """See `Warehouse.execute`."""
        self._ask(lambda tables: tables.execute(sql, parameters, settings))

    def query(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> "pl.DataFrame":
        """See `Warehouse.query`."""
        return self._ask(lambda tables: tables.query(sql, parameters, settings))

    def stream(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> "Iterator[pl.DataFrame]":
        """See `Warehouse.stream`."""
        return self._ask(lambda tables: tables.stream(sql, parameters, settings))

    def insert(self, table: str, rows: "pl.DataFrame") -> int:
        """See `Warehouse.insert`."""
        return self._ask(lambda tables: tables.insert(table, rows))

    def close(self) -> None:
        """See `Warehouse.close`."""
        if self._tables is not None:
            self._tables.close()

    def _ask(self, question: Callable[[Warehouse], T]) -> T:
        if self._away:
            raise WarehouseUnavailable(self._away)
        try:
            if self._tables is None:
                self._tables = self._connect()
            return question(self._tables)
        except (WarehouseUnavailable, WarehouseError) as trouble:
            self._away = str(trouble)
            raise WarehouseUnavailable(self._away) from trouble
