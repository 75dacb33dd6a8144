"""What the warehouse port promises, held by every adapter against the real engine."""

import threading
import traceback
from collections.abc import Iterator
from datetime import UTC, date, datetime
from pathlib import Path
from uuid import UUID, uuid4

import polars as pl
import pytest
from clickhouse_connect.driver import httputil
from polars.testing import assert_frame_equal

from rl_pipeline.stores.clickhouse import ClickHouseWarehouse
from rl_pipeline.stores.warehouse import Warehouse, WarehouseError, WarehouseUnavailable
from rl_pipeline_tests.fixtures.clickhouse import ClickHouseFront, own_database, running_front

SECRET = "AKIA-not-for-anybodys-eyes"


@pytest.fixture(scope="module")
def engine_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for the module: a process can have chdb open on one directory only."""
    return tmp_path_factory.mktemp("in_process")


@pytest.fixture(scope="module")
def far_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that the adapter takes for one across the network, to which it speaks with compression."""
    with running_front(tmp_path_factory.mktemp("far"), host="127.0.0.2") as front:
        yield front.url


@pytest.fixture(params=["clickhouse_url", "far_url", "in_process"])
def any_warehouse(request: pytest.FixtureRequest) -> Iterator[Warehouse]:
    database = f"test_{uuid4().hex}"
    if request.param.endswith("url"):
        client = ClickHouseWarehouse.connect(request.getfixturevalue(request.param), database)
    else:
        client = ClickHouseWarehouse.in_process(request.getfixturevalue("engine_directory"), database)
    with own_database(client):
        client.create_database()
        client.execute("CREATE TABLE turns (id UInt8, text String) ENGINE = MergeTree ORDER BY id")
        yield client


def test_inserted_rows_are_read_back_equal(any_warehouse: Warehouse) -> None:
    any_warehouse.execute(
        """CREATE TABLE kinds (
            number UInt64, small Int16, score Float64, flag Bool, text String, kind LowCardinality(String),
            perhaps Nullable(String), day Date, moment DateTime64(3, 'UTC'), tags Array(String),
            digest FixedString(4), token UUID
        ) ENGINE = MergeTree ORDER BY number"""
    )
    rows = pl.DataFrame(
        {
            "number": pl.Series([1, 2**64 - 1], dtype=pl.UInt64),
            "small": pl.Series([-7, 7], dtype=pl.Int16),
            "score": [0.1, float("inf")],
            "flag": [True, False],
            "text": ["naïve 日本 🙂\n\t\\'\"", ""],
            "kind": ["a", "b"],
            "perhaps": [None, "x"],
            "day": [date(2026, 1, 2), date(1970, 1, 1)],
            "moment": pl.Series(
                [datetime(2026, 1, 2, 3, 4, 5, 678000, tzinfo=UTC), datetime(1970, 1, 1, tzinfo=UTC)],
                dtype=pl.Datetime("ms", "UTC"),
            ),
            "tags": [["x", "y"], []],
            "digest": ["abcd", "ef01"],
            "token": [str(UUID(int=1)), str(UUID(int=2**128 - 1))],
        }
    )
    assert any_warehouse.insert("kinds", rows) == 2
    assert_frame_equal(any_warehouse.query("SELECT * FROM kinds ORDER BY number"), rows)


def test_columns_are_matched_by_name_and_the_rest_take_their_defaults(any_warehouse: Warehouse) -> None:
    any_warehouse.execute("CREATE TABLE t (a UInt8, b String, c String DEFAULT 'given') ENGINE = MergeTree ORDER BY a")
    any_warehouse.insert("t", pl.DataFrame({"b": ["text"], "a": [1]}))
    assert any_warehouse.query("SELECT * FROM t").rows() == [(1, "text", "given")]


def test_parameters_are_values_whatever_they_contain(any_warehouse: Warehouse) -> None:
    hostile = "'; DROP TABLE turns; --\n\t\\ {id:UInt8} 日本"
    any_warehouse.execute("INSERT INTO turns VALUES ({id:UInt8}, {text:String})", {"id": 3, "text": hostile})
    found = any_warehouse.query(
        "SELECT text, {many:Array(String)} AS many FROM turns WHERE text = {text:String}",
        {"text": hostile, "many": [hostile, "b"]},
    )
    assert found.rows() == [(hostile, [hostile, "b"])]


def test_settings_hold_for_their_call_alone(any_warehouse: Warehouse) -> None:
    sql = "SELECT toUInt64(getSetting('max_block_size')) AS size"
    before = any_warehouse.query(sql)["size"][0]
    assert any_warehouse.query(sql, settings={"max_block_size": 77})["size"][0] == 77
    assert any_warehouse.query(sql)["size"][0] == before


def test_a_result_without_rows_has_its_columns(any_warehouse: Warehouse) -> None:
    assert any_warehouse.query("SELECT * FROM turns").schema == {"id": pl.UInt8, "text": pl.String}
    assert list(any_warehouse.stream("SELECT * FROM turns")) == []


def test_a_stream_yields_the_same_rows_as_the_query(any_warehouse: Warehouse) -> None:
    sql = "SELECT number, toString(number) AS text FROM numbers(200000)"
    frames = list(any_warehouse.stream(sql))
    assert len(frames) > 1
    assert_frame_equal(pl.concat(frames), any_warehouse.query(sql))


def test_a_stream_can_be_left_early(any_warehouse: Warehouse) -> None:
    frames = any_warehouse.stream("SELECT number FROM numbers(3000000)")
    assert next(frames).height > 0
    frames.close()  # type: ignore[attr-defined]
    assert any_warehouse.query("SELECT 1 AS one").rows() == [(1,)]


def test_a_failure_underway_is_raised_with_its_code(any_warehouse: Warehouse) -> None:
    sql = "SELECT throwIf(number = 900000) FROM numbers(1000000)"
    for ask in (lambda: any_warehouse.query(sql), lambda: list(any_warehouse.stream(sql))):
        with pytest.raises(WarehouseError) as raised:
            ask()
        assert raised.value.code == 395
    assert any_warehouse.query("SELECT 1 AS one").rows() == [(1,)]


@pytest.mark.parametrize(
    ("sql", "code", "told"),
    [
        pytest.param("SELECT * FROM missing", 60, "missing", id="unknown table"),
        pytest.param("SELECT absent FROM turns", 47, "absent", id="unknown column"),
        pytest.param("SELEC 1", 62, "position", id="syntax"),
        pytest.param("SELECT nofunction(1)", 46, "nofunction", id="unknown function"),
        pytest.param(f"SELECT toUInt8('{SECRET}')", 6, "CANNOT_PARSE_TEXT", id="a value that cannot be read"),
        pytest.param(f"SELECT ('{SECRET}' '{SECRET}')", 62, "position", id="syntax beside a value"),
    ],
)
def test_a_refusal_has_clickhouses_code_and_names_but_no_values(
    any_warehouse: Warehouse, sql: str, code: int, told: str
) -> None:
    for ask in (any_warehouse.query, any_warehouse.execute):
        with pytest.raises(WarehouseError) as raised:
            ask(sql)
        assert raised.value.code == code
        assert told in str(raised.value)
        assert SECRET not in everything_printed(raised.value)
        assert "\n" not in str(raised.value)


def test_a_parameter_that_does_not_fit_is_not_quoted(any_warehouse: Warehouse) -> None:
    with pytest.raises(WarehouseError) as raised:
        any_warehouse.query("SELECT {id:UInt8}", {"id": SECRET})
    assert raised.value.code == 457
    assert SECRET not in everything_printed(raised.value)


@pytest.mark.parametrize(
    ("rows", "code", "told"),
    [
        pytest.param({"id": [1], "text": [SECRET], "txet": [SECRET]}, 16, "txet", id="unknown column"),
        pytest.param({"id": [1, 300], "text": [SECRET, SECRET]}, 321, "turns.id", id="number too large"),
        pytest.param({"id": [1, -1], "text": [SECRET, SECRET]}, 321, "turns.id", id="negative number"),
        pytest.param({"id": [1.5], "text": [SECRET]}, 321, "turns.id", id="fraction"),
        pytest.param({"id": [1, 2], "text": [SECRET, None]}, 349, "column text", id="null"),
        pytest.param({"id": [SECRET], "text": [SECRET]}, 6, "column id", id="text that is no number"),
    ],
)
def test_rows_that_do_not_fit_are_refused_by_column_without_quoting_them(
    any_warehouse: Warehouse, rows: dict[str, list[object]], code: int, told: str
) -> None:
    with pytest.raises(WarehouseError) as raised:
        any_warehouse.insert("turns", pl.DataFrame(rows))
    assert raised.value.code == code
    assert told in str(raised.value)
    assert SECRET not in everything_printed(raised.value)
    assert any_warehouse.query("SELECT count() AS n FROM turns")["n"][0] == 0


def test_a_violated_constraint_refuses_every_row_and_quotes_none(any_warehouse: Warehouse) -> None:
    any_warehouse.execute(
        "CREATE TABLE checked (id UInt32, text String, CONSTRAINT short CHECK length(text) < 20) "
        "ENGINE = MergeTree ORDER BY id"
    )
    rows = pl.DataFrame({"id": range(3), "text": ["ok", "ok", SECRET]})
    with pytest.raises(WarehouseError, match="constraint short") as raised:
        any_warehouse.insert("checked", rows)
    assert raised.value.code == 469
    assert SECRET not in everything_printed(raised.value)
    assert any_warehouse.query("SELECT count() AS n FROM checked")["n"][0] == 0


def test_an_insert_larger_than_clickhouses_blocks_is_still_all_or_nothing(any_warehouse: Warehouse) -> None:
    last = 1_200_000
    any_warehouse.execute(
        f"CREATE TABLE large (id UInt32, CONSTRAINT below CHECK id < {last}) ENGINE = MergeTree ORDER BY id"
    )
    with pytest.raises(WarehouseError):
        any_warehouse.insert("large", pl.DataFrame({"id": range(last + 1)}))
    assert any_warehouse.query("SELECT count() AS n FROM large")["n"][0] == 0
    assert any_warehouse.insert("large", pl.DataFrame({"id": range(last)})) == last
    parts = any_warehouse.query(
        "SELECT count() AS parts, sum(rows) AS rows FROM system.parts "
        "WHERE database = currentDatabase() AND table = 'large' AND active"
    )
    assert parts.rows() == [(1, last)]


def test_rows_inserted_deleted_and_inserted_again_are_there(any_warehouse: Warehouse) -> None:
    any_warehouse.execute(
        "CREATE TABLE again (id UInt8) ENGINE = MergeTree ORDER BY id "
        "SETTINGS non_replicated_deduplication_window = 100"
    )
    rows = pl.DataFrame({"id": [1, 2]})
    any_warehouse.insert("again", rows)
    any_warehouse.execute("ALTER TABLE again DELETE WHERE 1", settings={"mutations_sync": 2})
    any_warehouse.insert("again", rows)
    assert any_warehouse.query("SELECT count() AS n FROM again")["n"][0] == 2


def test_no_rows_are_no_insert(any_warehouse: Warehouse) -> None:
    assert any_warehouse.insert("turns", pl.DataFrame(schema={"id": pl.UInt8, "text": pl.String})) == 0


def test_an_insert_into_a_table_that_is_not_there_says_so(any_warehouse: Warehouse) -> None:
    with pytest.raises(WarehouseError, match="missing") as raised:
        any_warehouse.insert("missing", pl.DataFrame({"id": [1]}))
    assert raised.value.code == 60


def test_bytes_that_are_not_text_are_an_error_that_names_the_column(any_warehouse: Warehouse) -> None:
    with pytest.raises(WarehouseError, match="packed"):
        any_warehouse.query("SELECT 'fine' AS fine, unhex('fffe') AS packed")


def test_uuid_and_json_arrive_as_text(any_warehouse: Warehouse) -> None:
    found = any_warehouse.query(
        "SELECT toUUID('61f0c404-5cb3-11e7-907b-a6006ad3dba0') AS token, NULL::Nullable(UUID) AS none, "
        """'{"a":1}'::JSON AS document"""
    )
    assert found.rows() == [("61f0c404-5cb3-11e7-907b-a6006ad3dba0", None, '{"a":1}')]


def test_creating_the_database_again_changes_nothing(any_warehouse: Warehouse) -> None:
    any_warehouse.insert("turns", pl.DataFrame({"id": [1], "text": ["kept"]}))
    any_warehouse.create_database()
    assert any_warehouse.query("SELECT text FROM turns").rows() == [("kept",)]


def test_threads_share_one_warehouse(any_warehouse: Warehouse) -> None:
    failures: list[Exception] = []

    def write(number: int) -> None:
        try:
            for _ in range(5):
                any_warehouse.insert("turns", pl.DataFrame({"id": [number], "text": [f"by {number}"]}))
                any_warehouse.query("SELECT count() AS n FROM turns")
        except WarehouseError as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    counts = any_warehouse.query("SELECT id, count() AS n FROM turns GROUP BY id ORDER BY id")
    assert counts["n"].to_list() == [5] * 6


def test_closing_leaves_nothing_behind(clickhouse_url: str) -> None:
    before = len(httputil.all_managers)
    for _ in range(3):
        client = ClickHouseWarehouse.connect(clickhouse_url, "any")
        client.close()
        client.close()
    assert len(httputil.all_managers) == before


def test_a_server_that_is_not_there_is_told_in_one_line() -> None:
    with pytest.raises(
        WarehouseUnavailable, match=r"^ClickHouse does not answer at http://127.0.0.1:1: start it"
    ) as raised:
        ClickHouseWarehouse.connect("http://127.0.0.1:1", "any", password=SECRET)
    assert SECRET not in everything_printed(raised.value)


def test_a_server_that_goes_away_is_told_and_one_that_returns_is_used(tmp_path: Path) -> None:
    with running_front(tmp_path) as front:
        client = ClickHouseWarehouse.connect(front.url, "kept")
        client.create_database()
        client.execute("CREATE TABLE t (id UInt8) ENGINE = MergeTree ORDER BY id")
        client.insert("t", pl.DataFrame({"id": [1]}))
        front.stop()
        for ask in (lambda: client.query("SELECT 1"), lambda: client.insert("t", pl.DataFrame({"id": [1]}))):
            with pytest.raises(WarehouseUnavailable):
                ask()
        returned = ClickHouseFront(tmp_path, front.port)
        try:
            assert client.query("SELECT id FROM t").rows() == [(1,)]
        finally:
            client.close()
            returned.release()


def test_a_wrong_password_is_refused_without_repeating_it(clickhouse_url: str) -> None:
    with pytest.raises(WarehouseError, match="check the user and the password") as raised:
        ClickHouseWarehouse.connect(clickhouse_url, "any", user="somebody", password=SECRET)
    assert raised.value.code == 516
    assert SECRET not in everything_printed(raised.value)


def test_an_address_that_is_not_http_is_refused() -> None:
    with pytest.raises(WarehouseUnavailable, match="CLICKHOUSE_URL"):
        ClickHouseWarehouse.connect("nats://127.0.0.1:4222", "any")


def everything_printed(error: BaseException | None) -> str:
    """The error as logs would show it, and even what it only drags along."""
    text = ""
    while error is not None:
        text += "".join(traceback.format_exception(error))
        error = error.__cause__ or error.__context__
    return text
