"""The warehouse as a Dagster resource."""

from collections.abc import Iterator
from contextlib import closing, contextmanager

import dagster as dg
from pydantic import Field

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
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
        client = ClickHouseWarehouse.connect(self.url, database=self.database, user=self.user, password=self.password)
        with closing(client):
            yield client
