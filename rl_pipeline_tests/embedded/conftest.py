"""A database of the test's own on the shared front, and ways to ask it."""

from collections.abc import Iterator
from urllib.parse import urlencode
from uuid import uuid4

import pytest
import urllib3
from clickhouse_connect.driver.client import Client

from rl_pipeline_tests.embedded.clickhouse_requests import Ask, connected


@pytest.fixture
def database(clickhouse_url: str) -> Iterator[str]:
    """A database with a table `t (id UInt32, text String)`."""
    name = f"test_{uuid4().hex}"
    with connected(clickhouse_url) as one:
        one.command(f"CREATE DATABASE {name}")
        one.command(f"CREATE TABLE {name}.t (id UInt32, text String) ENGINE = MergeTree ORDER BY id")
        yield name
        one.command(f"DROP DATABASE {name} SYNC")


@pytest.fixture
def client(clickhouse_url: str, database: str) -> Iterator[Client]:
    with connected(clickhouse_url, database=database) as one:
        yield one


@pytest.fixture
def ask(clickhouse_url: str, database: str) -> Iterator[Ask]:
    with urllib3.PoolManager(retries=False, maxsize=10) as pool:

        def request(
            body: object = None, *, method: str = "POST", headers: dict[str, str] | None = None, **arguments: object
        ) -> urllib3.BaseHTTPResponse:
            target = f"{clickhouse_url}/?{urlencode({'database': database, **arguments})}"
            return pool.request(method, target, body=body, headers=headers, decode_content=False)

        yield request
