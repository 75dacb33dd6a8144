"""Ways to ask the front: the unchanged `clickhouse-connect`, and bare HTTP."""

from collections.abc import Callable

import clickhouse_connect
import urllib3
from clickhouse_connect.driver.client import Client

Ask = Callable[..., urllib3.BaseHTTPResponse]
"""`ask(body, method=…, headers=…, **arguments)`: a bare request in the test's database."""


def connected(url: str, **options: object) -> Client:
    host, _, port = url.removeprefix("http://").partition(":")
    return clickhouse_connect.get_client(host=host, port=int(port), **options)


def code(answer: urllib3.BaseHTTPResponse) -> int | None:
    """ClickHouse's error code, if the answer is an error."""
    found = answer.headers.get("X-ClickHouse-Exception-Code")
    return int(found) if found else None
