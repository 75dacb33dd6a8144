"""The servers that benchmarks run against, each in a process of its own."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running_front(directory: Path) -> Iterator[str]:
    """The ClickHouse front on a directory; yields its address."""
    command = [sys.executable, "-m", "rl_pipeline.embedded.clickhouse_http", "--data", str(directory), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().removeprefix("READY ").strip()
        finally:
            process.terminate()
