"""ClickHouse's HTTP protocol as the front speaks it, with the unchanged `clickhouse-connect` and with bare HTTP."""

import gzip
import io
import json
import socket
import threading
import zlib
from collections.abc import Callable
from datetime import UTC, datetime
from urllib.parse import urlencode
from uuid import uuid4

import lz4.frame
import polars as pl
import pyarrow as pa
import pytest
import urllib3
from backports import zstd
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import StreamFailureError
from pyarrow import parquet

from rl_pipeline_tests.embedded.clickhouse_requests import Ask, code, connected

COMPRESSIONS = {
    "gzip": (gzip.compress, gzip.decompress),
    "deflate": (zlib.compress, zlib.decompress),
    "lz4": (lz4.frame.compress, lz4.frame.decompress),
    "zstd": (zstd.compress, zstd.decompress),
}


def test_it_answers_pings(clickhouse_url: str, client: Client) -> None:
    assert client.ping()
    for path in ("", "/", "/ping"):
        assert urllib3.request("GET", clickhouse_url + path).data == b"Ok.\n"
    assert urllib3.request("GET", f"{clickhouse_url}/elsewhere").status == 404


def test_native_inserts_and_results_keep_their_types(client: Client) -> None:
    client.command(
        "CREATE TABLE kinds (a UInt64, b Nullable(Float64), c LowCardinality(String), d DateTime64(3, 'UTC'), "
        "e Array(Tuple(UInt8, String)), f Map(String, Int8), g Enum8('x' = 1), h UUID) ENGINE = MergeTree ORDER BY a"
    )
    token = uuid4()
    row = (2**63, None, "low", datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC), [(1, "a;b")], {"k": -1}, "x", token)
    summary = client.insert("kinds", [row], column_names="*")
    assert summary.written_rows == 1
    assert client.query("SELECT * FROM kinds", tz_mode="aware").result_rows == [row]


def test_arrow_goes_in_and_out(client: Client) -> None:
    rows = pl.DataFrame({"id": pl.Series(range(1000), dtype=pl.UInt32), "text": [f"text {i}" for i in range(1000)]})
    client.insert_df_arrow("t", rows)
    sql = "SELECT * FROM t ORDER BY id"
    assert client.query_df_arrow(sql, dataframe_library="polars").equals(rows)
    with client.query_arrow_stream("SELECT number FROM numbers(200000)") as batches:
        columns = [pa.table(batch)["number"] for batch in batches]
    assert len(columns) > 1
    assert [number for column in columns for number in column.to_pylist()] == list(range(200000))


def test_an_empty_arrow_stream_has_its_columns(ask: Ask) -> None:
    answer = ask("SELECT * FROM t FORMAT ArrowStream")
    assert pa.ipc.open_stream(answer.data).schema.names == ["id", "text"]


@pytest.mark.parametrize(
    ("output_format", "content_type", "read"),
    [
        ("JSON", "application/json; charset=UTF-8", lambda data: json.loads(data)["data"] == [{"a": 1}]),
        ("JSONEachRow", "application/x-ndjson; charset=UTF-8", lambda data: data == b'{"a":1}\n'),
        ("CSVWithNames", "text/csv; charset=UTF-8; header=present", lambda data: data == b'"a"\n1\n'),
        ("TabSeparated", "text/tab-separated-values; charset=UTF-8", lambda data: data == b"1\n"),
        (
            "Parquet",
            "application/octet-stream",
            lambda data: parquet.read_table(io.BytesIO(data))["a"].to_pylist() == [1],
        ),
        ("Arrow", "application/octet-stream", lambda data: pa.ipc.open_file(data).read_all()["a"].to_pylist() == [1]),
        ("RowBinary", "application/octet-stream", lambda data: data == b"\x01"),
        ("Values", "text/plain; charset=UTF-8", lambda data: data == b"(1)"),
    ],
)
def test_the_format_is_taken_from_the_query_the_header_or_the_argument(
    ask: Ask, output_format: str, content_type: str, read: Callable[[bytes], bool]
) -> None:
    for answer in (
        ask(f"SELECT 1 AS a FORMAT {output_format}"),
        ask("SELECT 1 AS a", headers={"X-ClickHouse-Format": output_format}),
        ask("SELECT 1 AS a", default_format=output_format),
    ):
        assert answer.headers["X-ClickHouse-Format"] == output_format
        assert answer.headers["Content-Type"] == content_type
        assert read(answer.data)


def test_headers_say_what_was_done(ask: Ask) -> None:
    answer = ask("INSERT INTO t VALUES (1, 'a'), (2, 'b;')", query_id="mine")
    assert answer.headers["X-ClickHouse-Query-Id"] == "mine"
    assert json.loads(answer.headers["X-ClickHouse-Summary"])["written_rows"] == "2"
    answer = ask("SELECT sum(id) FROM t", wait_end_of_query="1")
    assert json.loads(answer.headers["X-ClickHouse-Summary"])["read_rows"] == "2"
    assert answer.headers["X-ClickHouse-Server-Display-Name"]
    assert answer.headers["X-ClickHouse-Timezone"] == ask("SELECT timezone()").data.decode().strip()


def test_parameters_are_values_whatever_they_contain(clickhouse_url: str, database: str) -> None:
    hostile = "'; DROP TABLE t; --\n\t\\ {id:UInt8} 日本"
    for in_a_form in (False, True):
        with connected(clickhouse_url, database=database, form_encode_query_params=in_a_form) as client:
            found = client.query("SELECT {a:String}, {b:Array(String)}", parameters={"a": hostile, "b": [hostile]})
            assert found.first_row == (hostile, [hostile])
            client.command("INSERT INTO t VALUES (1, {a:String})", parameters={"a": hostile})
    assert {
        text for (text,) in connected(clickhouse_url, database=database).query("SELECT text FROM t").result_rows
    } == {hostile}


@pytest.mark.parametrize(
    ("sql", "arguments", "number", "status"),
    [
        pytest.param("SELECT * FROM missing", {}, 60, 404, id="unknown table"),
        pytest.param("SELEC 1", {}, 62, 400, id="syntax"),
        pytest.param("", {}, 62, 400, id="no query"),
        pytest.param("SELECT 1; SELECT 2", {}, 62, 400, id="two statements"),
        pytest.param("SELECT absent FROM t", {}, 47, 404, id="unknown column"),
        pytest.param("SELECT 1", {"database": "nowhere"}, 81, 404, id="unknown database"),
        pytest.param("SELECT 1", {"no_such_setting": "1"}, 115, 404, id="unknown setting"),
        pytest.param("SELECT 1", {"max_threads = 1, readonly": "1"}, 115, 404, id="a setting's name is not SQL"),
        pytest.param("SELECT 1 FORMAT Nothing", {}, 73, 404, id="unknown format"),
        pytest.param("SELECT {a:UInt8}", {"param_a": "x"}, 457, 500, id="parameter of another type"),
        pytest.param("SELECT {a:UInt8}", {}, 456, 500, id="missing parameter"),
        pytest.param("SELECT throwIf(1)", {}, 395, 500, id="failing function"),
        pytest.param("SELECT toUInt8('x')", {}, 6, 400, id="value that cannot be read"),
        pytest.param("INSERT INTO t FORMAT CSV\nx,y\n", {}, 27, 400, id="data that cannot be read"),
        pytest.param("INSERT INTO t (id, absent) VALUES (1, 2)", {}, 16, 500, id="unknown column of an insert"),
        pytest.param("INSERT INTO t SELECT a, '' FROM input('a UInt8') FORMAT CSV\n1\n", {}, 48, 501, id="input()"),
        pytest.param("SELECT 1", {"user": "somebody"}, 516, 403, id="unknown user"),
        pytest.param("SELECT 1", {"password": "x"}, 516, 403, id="a password"),
        pytest.param("SELECT 1", {"decompress": "1"}, 48, 501, id="ClickHouse's own compression"),
        pytest.param("SELECT 1", {"role": "admin"}, 48, 501, id="role"),
        pytest.param("SELECT 1", {"session_id": "s", "session_timeout": "99999"}, 374, 500, id="session too long"),
    ],
)
def test_errors_have_clickhouses_code_status_and_text(
    ask: Ask, sql: str, arguments: dict[str, str], number: int, status: int
) -> None:
    for wait in ("0", "1"):
        answer = ask(sql, wait_end_of_query=wait, **arguments)
        assert (code(answer), answer.status) == (number, status)
        assert answer.data.startswith(f"Code: {number}. DB::Exception: ".encode())
    assert ask("SELECT 1").data == b"1\n"


def test_get_reads_and_does_not_write(ask: Ask) -> None:
    assert ask(method="GET", query="SELECT 1").data == b"1\n"
    refused = ask(method="GET", query="INSERT INTO t VALUES (1, 'x')")
    assert (code(refused), refused.status) == (164, 500)


def test_a_web_page_is_not_served(ask: Ask) -> None:
    for headers in ({"Origin": "https://example.com"}, {"Sec-Fetch-Site": "cross-site"}):
        assert (code(answer := ask("SELECT 1", headers=headers)), answer.status) == (497, 403)


def test_an_insert_that_fails_in_its_last_block_is_an_error(ask: Ask) -> None:
    ask("CREATE TABLE c (a UInt8, CONSTRAINT small CHECK a < 3) ENGINE = MergeTree ORDER BY a")
    assert code(ask("INSERT INTO c FORMAT CSV\n1\n2\n3\n")) == 469
    assert ask("SELECT count() FROM c").data == b"0\n"


def test_insert_data_may_be_in_the_body_beside_the_query(ask: Ask) -> None:
    ask(b'{"id": 1, "text": "a"}\n', query="INSERT INTO t SETTINGS max_insert_threads = 1 FORMAT JSONEachRow")
    ask("(2, 'b')", query="INSERT INTO t VALUES")
    ask(iter([b"INSERT IN", b"TO t FORM", b"AT CSV\n3,", b"c\n"]), headers={"Transfer-Encoding": "chunked"})
    assert ask("SELECT * FROM t ORDER BY id").data == b"1\ta\n2\tb\n3\tc\n"


def test_an_upload_that_breaks_off_inserts_nothing(clickhouse_url: str, ask: Ask, database: str) -> None:
    arguments = {"database": database, "query": "INSERT INTO t FORMAT CSV"}
    for part in (b"Content-Length: 100\r\n\r\n1,a\n", b"Transfer-Encoding: chunked\r\n\r\n4\r\n1,a\n\r\n"):
        assert by_hand(clickhouse_url, arguments, part).startswith(b"HTTP/1.1 500 ")
    assert ask("SELECT count() FROM t").data == b"0\n"


@pytest.mark.parametrize("encoding", COMPRESSIONS)
def test_bodies_are_compressed_each_way(ask: Ask, encoding: str) -> None:
    compress, decompress = COMPRESSIONS[encoding]
    rows = b"".join(b"%d,%s\n" % (number, b"text" * 100) for number in range(2000))
    answer = ask(compress(rows), query="INSERT INTO t FORMAT CSV", headers={"Content-Encoding": encoding})
    assert answer.status == 200
    asked = {"headers": {"Accept-Encoding": f"br, {encoding}"}, "enable_http_compression": "1"}
    for wait in ("0", "1"):
        answer = ask("SELECT id, text FROM t ORDER BY id FORMAT TSV", wait_end_of_query=wait, **asked)
        assert answer.headers["Content-Encoding"] == encoding
        assert decompress(answer.data) == rows.replace(b",", b"\t")
    assert "Content-Encoding" not in ask("SELECT 1", headers={"Accept-Encoding": encoding}).headers


@pytest.mark.parametrize("encoding", COMPRESSIONS)
def test_a_compressed_body_that_is_cut_inserts_nothing(ask: Ask, encoding: str) -> None:
    whole = COMPRESSIONS[encoding][0](b"1,a\n" * 1000)
    for body in (whole[:-5], b"not compressed at all"):
        answer = ask(body, query="INSERT INTO t FORMAT CSV", headers={"Content-Encoding": encoding})
        assert code(answer) == 33
    assert ask("SELECT count() FROM t").data == b"0\n"
    assert code(ask(b"", query="INSERT INTO t FORMAT CSV", headers={"Content-Encoding": "rot13"})) == 89


@pytest.mark.parametrize("compress", ["lz4", "zstd", "gzip", False])
def test_the_client_compresses_as_it_likes(clickhouse_url: str, database: str, compress: str | bool) -> None:
    with connected(clickhouse_url, database=database, compress=compress) as client:
        rows = [(number, "text " * 50) for number in range(5000)]
        client.insert("t", rows, column_names=["id", "text"])
        assert client.query("SELECT * FROM t ORDER BY id").result_rows == rows


def test_a_result_that_fails_underway_is_not_taken_for_whole(client: Client, ask: Ask) -> None:
    sql = "SELECT throwIf(number = 900000), number FROM numbers(1000000)"
    with client.query_row_block_stream(sql) as blocks, pytest.raises(StreamFailureError) as raised:
        for _ in blocks:
            pass
    assert raised.value.code == 395
    with pytest.raises(urllib3.exceptions.ProtocolError):
        ask(f"{sql} FORMAT CSV")
    assert code(ask(f"{sql} FORMAT CSV", wait_end_of_query="1")) == 395


def test_totals_and_extremes_are_not_lost(ask: Ask) -> None:
    sql = "SELECT number % 2 AS k, count() FROM numbers(10) GROUP BY k WITH TOTALS ORDER BY k"
    assert ask(sql).data == b"0\t5\n1\t5\n\n0\t10\n"
    assert ask("SELECT number FROM numbers(3)", extremes="1").data == b"0\n1\n2\n\n0\n2\n"


def test_results_that_are_read_at_once_do_not_mix(ask: Ask) -> None:
    wrong: list[str] = []

    def read(letter: str) -> None:
        for wait in ("0", "1") * 4:
            found = ask(f"SELECT repeat('{letter}', 999) FROM numbers(20000)", wait_end_of_query=wait).data
            if found != (letter.encode() * 999 + b"\n") * 20000:
                wrong.append(letter)

    threads = [threading.Thread(target=read, args=(letter,)) for letter in "abcdef"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: -5\r\n\r\n",
        b"Content-Length: many\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\n-1\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n\r\n",
    ],
)
def test_a_body_without_a_readable_length_is_refused_and_the_connection_closed(
    clickhouse_url: str, database: str, head: bytes
) -> None:
    answer = by_hand(clickhouse_url, {"database": database, "query": "INSERT INTO t FORMAT CSV"}, head)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"X-ClickHouse-Exception-Code: 36\r\n" in answer


def test_an_argument_that_is_not_text_is_refused(clickhouse_url: str) -> None:
    for target in ("query=SELECT%20%FF", "query=SELECT%201&param_a=%FF", "query=SELECT%201&max_threads=%FF"):
        answer = urllib3.request("POST", f"{clickhouse_url}/?{target}")
        assert (code(answer), answer.status) == (36, 400)


def test_a_query_id_cannot_write_headers(ask: Ask) -> None:
    answer = ask("SELECT 1", query_id="x\r\nSet-Cookie: a=b")
    assert (code(answer), answer.status) == (36, 400)
    assert "Set-Cookie" not in answer.headers


def test_a_slow_query_does_not_hold_up_the_others(clickhouse_url: str, ask: Ask) -> None:
    slow = [threading.Thread(target=ask, args=("SELECT sleep(3)",)) for _ in range(8)]
    for thread in slow:
        thread.start()
    assert urllib3.request("GET", f"{clickhouse_url}/ping").status == 200
    assert ask("SELECT 1").data == b"1\n"
    assert all(thread.is_alive() for thread in slow)
    for thread in slow:
        thread.join()


def by_hand(url: str, arguments: dict[str, str], rest: bytes) -> bytes:
    """The answer to a request that no HTTP library would send: the line, then `rest`, then the end of what is sent."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(f"POST /?{urlencode(arguments)} HTTP/1.1\r\nHost: x\r\n".encode() + rest)
        connection.shutdown(socket.SHUT_WR)
        return connection.makefile("rb").read()
