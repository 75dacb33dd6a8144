"""The warehouse as a Dagster resource."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import dagster as dg
from pydantic import Field

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.late_warehouse import LateWarehouse
from rl_pipeline.stores.warehouse import Warehouse


class WarehouseResource(dg.ConfigurableResource[Warehouse]):
    """Opens the ClickHouse adapter, on a server, a cluster or the embedded engine alike."""

    url: str = Field(description="ClickHouse's HTTP interface.")
    database: str = Field(description="The database that holds the pipeline's tables.")
    user: str = Field("default", description="The user.")
    password: str = Field("", description="The user's password.")

    @contextmanager
    def open(self) -> Iterator[Warehouse]:
        """A client for the length of the block; raises `WarehouseUnavailable` when there is no server."""
        with closing(self._connect()) as client:
            yield client

    @contextmanager
    def open_late(self, answer_seconds: int) -> Iterator[Warehouse]:
        """A client that connects when it is first asked, for whoever has work to do without it too.

        Once it did not answer for so long, or answered with an error, every question raises `WarehouseUnavailable`.
        """
        with closing(LateWarehouse(lambda: self._connect(answer_seconds), self.database)) as client:
            yield client

    def _connect(self, answer_seconds: int = 300) -> Warehouse:
        return ClickHouseWarehouse.connect(
            self.url, database=self.database, user=self.user, password=self.password, answer_seconds=answer_seconds
        )
