"""Real stores for tests that ingest."""

from pathlib import Path

import pytest

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.jetstream import JetStream
from rl_pipeline_tests.ingestion.ingesting import Ingesting


@pytest.fixture
def ingesting(stream: JetStream, warehouse: ClickHouseWarehouse, tmp_path: Path) -> Ingesting:
    """An empty stream, an empty warehouse, and no claims."""
    return Ingesting(stream, warehouse, tmp_path / "raw")
