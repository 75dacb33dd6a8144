"""The port to the warehouse: a ClickHouse database, on a server, on a cluster, or embedded."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from rl_pipeline.errors import PipelineError

if TYPE_CHECKING:
    import polars as pl


class WarehouseUnavailable(PipelineError):
    """Nothing answers at the warehouse's address, or it broke off: what was asked may or may not have been done."""


class WarehouseError(PipelineError):
    """ClickHouse answered, and refused. The text names the error and the columns; never a value of a row."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code
        """ClickHouse's error code, as in `system.errors`; None for what was refused before it was sent."""


class Warehouse(Protocol):
    """A database of ClickHouse. Safe from several threads; one object per process.

    Every method raises `WarehouseUnavailable` when there is no answer, `WarehouseError` when the answer is a refusal.
    What is written is visible to every later call of every client. Only reads are tried again by themselves, so nothing
    is done twice; whoever repeats a write makes it safe by the table's key (`ReplacingMergeTree`, read with `FINAL`).
    """

    @property
    def database(self) -> str:
        """The database in which unqualified tables are looked up. It need not exist yet."""

    def create_database(self, cluster: str | None = None) -> None:
        """Create the database, on every node of the cluster where one is named. Does nothing where it exists."""

    def execute(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> None:
        """Run one statement for its effect. `{name:Type}` in it stands for the parameter of that name."""

    def query(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> "pl.DataFrame":
        """Run a SELECT without a FORMAT clause; the result comes whole, through Arrow.

        No rows give a frame without rows but with the columns. String, FixedString and LowCardinality(String) arrive as
        String, UUID as its usual text, DateTime64 as Datetime with its zone. Enum and DateTime arrive as their numbers,
        which is how ClickHouse puts them into Arrow: cast them in the query, or prefer LowCardinality(String) and
        DateTime64. A String that is not UTF-8 is an error that names its column.
        """

    def stream(
        self, sql: str, parameters: Mapping[str, Any] | None = None, settings: Mapping[str, Any] | None = None
    ) -> "Iterator[pl.DataFrame]":
        """As `query`, in frames of at least one row, in bounded memory. No rows give no frame.

        Close the iterator (or read it to its end) before the next call from the same thread. A failure after the first
        frame is raised where it happens: what came before it is part of a result that was never completed.
        """

    def insert(self, table: str, rows: "pl.DataFrame") -> int:
        """Add rows and return how many; columns are matched by name, and those left out take their defaults.

        All or nothing: after an error or the death of either side, the table has every row of the call or none, as long
        as they belong to one partition of the table. On return, every row is stored and visible. The rows are one block
        in the server's memory: split what is larger than some hundred MB.

        Refused, by the column's name: a column that the table does not have, a null where it takes none, a number that
        its type cannot hold. No rows return 0 without a request.
        """

    def close(self) -> None:
        """Release the connections. Closing twice is allowed; any other call after it is not."""
