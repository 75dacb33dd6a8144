"""What a request leaves behind: everything in its session, nothing without one."""

import threading

import pytest
from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import DatabaseError
from clickhouse_connect.driver.external import ExternalData

from rl_pipeline_tests.embedded.clickhouse_requests import Ask, code, connected


@pytest.mark.parametrize("session", [True, False])
def test_settings_hold_for_one_request(clickhouse_url: str, database: str, session: bool) -> None:
    with connected(clickhouse_url, database=database, autogenerate_session_id=session) as client:
        sql = "SELECT toUInt64(getSetting('max_block_size'))"
        before = client.query(sql).first_row[0]
        assert client.query(sql, settings={"max_block_size": 77}).first_row[0] == 77
        assert client.query(sql).first_row[0] == before


def test_a_sessions_own_settings_and_database_stay_and_a_requests_do_not(client: Client, database: str) -> None:
    sql = "SELECT toUInt64(getSetting('max_block_size')), currentDatabase()"
    client.database = None
    client.command("SET max_block_size = 99")
    client.command(f"USE {database}")
    assert client.query(sql).first_row == (99, database)
    client.database = "system"
    assert client.query(sql, settings={"max_block_size": 5}).first_row == (5, "system")
    client.database = None
    assert client.query(sql).first_row == (99, database)


def test_without_a_session_nothing_is_left_for_the_next_request(ask: Ask) -> None:
    block_size = "SELECT getSetting('max_block_size')"
    before = ask(block_size).data
    for sql in ("SET max_block_size = 5", "CREATE TEMPORARY TABLE mine (a Int32)", "USE system"):
        assert ask(sql).status == 200
    assert ask(block_size).data == before
    assert code(ask("SELECT * FROM mine")) == 60
    assert ask("SELECT count() FROM t").data == b"0\n"
    assert ask("SELECT currentDatabase()", database="").data == b"default\n"


def test_temporary_tables_belong_to_their_session(clickhouse_url: str, client: Client) -> None:
    client.command("CREATE TEMPORARY TABLE mine (a Int32)")
    client.insert("mine", [[1], [2]], column_names=["a"], column_type_names=["Int32"])
    assert client.query("SELECT sum(a) FROM mine").first_row == (3,)
    with connected(clickhouse_url) as other, pytest.raises(DatabaseError) as raised:
        other.query("SELECT * FROM mine")
    assert raised.value.code == 60


def test_sessions_are_kept_checked_closed_and_used_by_one_at_a_time(ask: Ask) -> None:
    assert code(ask("SELECT 1", session_id="unknown", session_check="1")) == 372
    ask("CREATE TEMPORARY TABLE mine (a Int32)", session_id="s")
    assert ask("SELECT count() FROM mine", session_id="s", session_check="1").data == b"0\n"
    slow = threading.Thread(target=ask, args=("SELECT sleep(1), 'by s'",), kwargs={"session_id": "s"})
    slow.start()
    while ask("SELECT count() FROM system.processes WHERE query LIKE '%\\'by s\\''").data != b"1\n":
        pass
    assert code(ask("SELECT 1", session_id="s")) == 373
    slow.join()
    ask("SELECT 1", session_id="s", close_session="1")
    assert code(ask("SELECT 1", session_id="s", session_check="1")) == 372


def test_external_data_is_a_table_for_one_query(client: Client) -> None:
    for columns in (
        {"structure": ["id UInt8", "pair Tuple(UInt8, String)"]},
        {"types": ["UInt8", "Tuple(UInt8, String)"]},
    ):
        data = ExternalData(file_name="ext.tsv", data=b"1\t(1,'x')\n2\t(2,'y')\n", fmt="TSV", **columns)
        names = "id, pair" if "structure" in columns else "_1, _2"
        found = client.query(f"SELECT {names} FROM ext ORDER BY 1", external_data=data)
        assert found.result_rows == [(1, (1, "x")), (2, (2, "y"))]
        with pytest.raises(DatabaseError) as raised:
            client.query("SELECT * FROM ext")
        assert raised.value.code == 60
