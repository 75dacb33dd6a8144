"""Real stores for tests that ingest."""

from pathlib import Path

import pytest

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.disk import DiskObjects
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.ingestion.erasing import Erasing
from rl_pipeline_tests.ingestion.ingesting import Ingesting


@pytest.fixture
def ingesting(stream: JetStream, warehouse: ClickHouseWarehouse, tmp_path: Path) -> Ingesting:
    """An empty stream, an empty warehouse, and no claims."""
    return Ingesting(stream, warehouse, tmp_path / "raw")


@pytest.fixture
def erasing(ingesting: Ingesting, tmp_path: Path) -> Erasing:
    """The same, and an empty archive."""
    return Erasing(ingesting, DiskObjects(tmp_path / "archive"))
