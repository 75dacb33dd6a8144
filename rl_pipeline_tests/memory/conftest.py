"""A store of memories of the test's own."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rl_pipeline.stores.sqlite_memories import SqliteMemories


@pytest.fixture
def memories(tmp_path: Path) -> Iterator[SqliteMemories]:
    with closing(SqliteMemories(tmp_path / "memories.sqlite")) as opened:
        yield opened
