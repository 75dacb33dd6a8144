"""What the front reads from a statement: the verb, the format, and where the data of an INSERT begin."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rl_pipeline.embedded.clickhouse_http.errors import EngineError
from rl_pipeline.embedded.clickhouse_http.statement import read_statement


@pytest.mark.parametrize(
    ("sql", "verb", "output_format"),
    [
        ("SELECT 1", "SELECT", None),
        ("select 1 format JSON", "SELECT", "JSON"),
        ("SELECT 1\nFORMAT\nJSONEachRow\n;\n", "SELECT", "JSONEachRow"),
        ("SELECT 1 FORMAT Native SETTINGS max_threads = 1", "SELECT", "Native"),
        ("SELECT 1 SETTINGS max_threads = 1 FORMAT Native", "SELECT", "Native"),
        ("(SELECT 1) UNION ALL (SELECT 2) FORMAT CSV", "SELECT", "CSV"),
        ("WITH 1 AS format SELECT format FROM numbers(3)", "WITH", None),
        ("SELECT 'FORMAT JSON'", "SELECT", None),
        ("SELECT 1 AS `FORMAT JSON`", "SELECT", None),
        ("SELECT 1 -- FORMAT JSON", "SELECT", None),
        ("/* FORMAT CSV */ SELECT 1 FORMAT JSON", "SELECT", "JSON"),
        ("# comment\nSELECT 'it\\'s; not' FORMAT CSV", "SELECT", "CSV"),
        ("SELECT $tag$ ; FORMAT CSV $tag$", "SELECT", None),
        ("SELECT format('{}', 'x') FORMAT TSV", "SELECT", "TSV"),
        ("SHOW TABLES", "SHOW", None),
        ("create table t (a UInt8) engine = Memory", "CREATE", None),
    ],
)
def test_the_verb_and_the_format_are_read(sql: str, verb: str, output_format: str | None) -> None:
    statement = read_statement(sql.encode())
    assert (statement.verb, statement.output_format, statement.insert) == (verb, output_format, None)


@pytest.mark.parametrize(
    ("head", "target", "settings", "data_format"),
    [
        ("INSERT INTO t FORMAT CSV\n", "INSERT INTO t ", "", "CSV"),
        ("INSERT INTO t FORMAT CSV  ; \r\n", "INSERT INTO t ", "", "CSV"),
        ("insert into d.t (a, b) format JSONEachRow ", "insert into d.t (a, b) ", "", "JSONEachRow"),
        ("INSERT INTO t (a) VALUES", "INSERT INTO t (a) ", "", "Values"),
        (
            "INSERT INTO t SETTINGS a = 1, b = 'x' FORMAT Native\n",
            "INSERT INTO t ",
            "SETTINGS a = 1, b = 'x' ",
            "Native",
        ),
        (
            'INSERT INTO TABLE format (`values`, "format") VALUES',
            'INSERT INTO TABLE format (`values`, "format") ',
            "",
            "Values",
        ),
        ("INSERT INTO d.settings FORMAT TSV\n", "INSERT INTO d.settings ", "", "TSV"),
        (
            "/* VALUES */ INSERT INTO FUNCTION null('a UInt8') FORMAT TSV\n",
            "/* VALUES */ INSERT INTO FUNCTION null('a UInt8') ",
            "",
            "TSV",
        ),
    ],
)
@pytest.mark.parametrize("data", [b"", b"(1);(2)", b"'unclosed \xff\x00 SELECT ; ", b"(FORMAT x"])
def test_the_data_of_an_insert_begin_after_its_format(
    head: str, target: str, settings: str, data_format: str, data: bytes
) -> None:
    text = head.encode() + data
    insert = read_statement(text).insert
    assert insert is not None
    assert (insert.target, insert.settings) == (target.encode(), settings.encode())
    assert insert.data_format == data_format.encode()
    assert text[insert.data_offset :] == data


def test_an_insert_from_a_select_or_a_file_has_no_data() -> None:
    for sql in (b"INSERT INTO t SELECT 1", b"INSERT INTO t (a) WITH 1 AS x SELECT x", b"INSERT INTO t FROM INFILE 'x'"):
        assert read_statement(sql).insert is None


@pytest.mark.parametrize(
    ("sql", "code"),
    [
        ("", 62),
        (" -- nothing\n", 62),
        ("SELECT 1; SELECT 2", 62),
        ("SELECT 1; DROP TABLE t", 62),
        ("INSERT INTO t SELECT 1; DROP TABLE t", 62),
        ("INSERT INTO t (a)", 62),
        ("INSERT INTO t FORMAT", 62),
        ("INSERT INTO t SELECT a FROM input('a UInt8') FORMAT CSV 1", 48),
    ],
)
def test_what_would_be_misread_is_refused_with_clickhouses_code(sql: str, code: int) -> None:
    with pytest.raises(EngineError) as raised:
        read_statement(sql.encode())
    assert raised.value.code == code


@given(st.binary(max_size=200), st.sampled_from([b"", b"SELECT ", b"INSERT INTO t FORMAT CSV\n", b"INSERT INTO "]))
def test_any_bytes_are_read_or_refused(content: bytes, head: bytes) -> None:
    try:
        statement = read_statement(head + content)
    except EngineError:
        return
    if head.endswith(b"CSV\n"):
        assert statement.insert is not None
        assert (head + content)[statement.insert.data_offset :] == content
