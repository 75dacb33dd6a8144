"""As much of ClickHouse's grammar as the HTTP protocol needs: verb, output format, and where INSERT data begin.

Everything else about a statement is the engine's business. Works on bytes, because INSERT data follow the statement in
the same body and need not be text.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from rl_pipeline.embedded.clickhouse_http.errors import EngineError

_TOKEN = re.compile(
    rb"""
      (?P<space>   \s+ | --[^\n]* | \#[!\s][^\n]* | /\*.*?\*/ )
    | (?P<quoted>  '(?:[^'\\]|\\.)*' | `(?:[^`\\]|\\.)*` | "(?:[^"\\]|\\.)*" | \$(?P<tag>\w*)\$.*?\$(?P=tag)\$ )
    | (?P<word>    \w+ )
    | (?P<open>    [(\[{] )
    | (?P<close>   [)\]}] )
    | (?P<other>   . )
    """,
    re.VERBOSE | re.DOTALL,
)
_END_OF_FORMAT_CLAUSE = re.compile(rb"[ \t\f]*;?[ \t\f]*\r?\n?")

_NAME_FOLLOWS = {b"INTO", b"TABLE", b"FUNCTION", b"."}
_SOURCE_FOLLOWS = {b"SELECT", b"WITH", b"FROM", b"WATCH"}
_READING = {"SELECT", "WITH", "SHOW", "DESCRIBE", "DESC", "EXISTS", "EXPLAIN", "CHECK"}


@dataclass(frozen=True, slots=True)
class Insert:
    """An INSERT whose data follow it."""

    target: bytes
    """INSERT INTO, the table and its columns."""
    settings: bytes
    """Its SETTINGS clause, or nothing."""
    data_format: bytes
    data_offset: int
    """Where the data begin in the bytes that were read."""


@dataclass(frozen=True, slots=True)
class Statement:
    """One SQL statement."""

    sql: bytes
    verb: str
    """The first keyword in capitals; SELECT for a parenthesised query."""
    output_format: str | None = None
    """The format its own FORMAT clause names."""
    insert: Insert | None = None
    """Set where it is an INSERT whose data follow it."""
    has_totals: bool = False

    @property
    def only_reads(self) -> bool:
        return self.verb in _READING

    @property
    def is_select(self) -> bool:
        return self.verb in {"SELECT", "WITH"}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: bytes
    start: int
    end: int
    depth: int

    @property
    def word(self) -> bytes:
        """The keyword this may be; names in quotes are never keywords."""
        return self.text.upper() if self.kind == "word" else self.text if self.kind == "other" else b""


def read_statement(text: bytes) -> Statement:
    """Read the statement that `text` begins with; raises `EngineError` for more than one statement."""
    tokens = _tokens(text)
    first = next(tokens, None)
    if first is None:
        raise EngineError.named("SYNTAX_ERROR", "Syntax error: Empty query")
    verb = "SELECT" if first.kind == "open" else first.word.decode(errors="replace")
    if verb == "INSERT":
        return _read_insert(text, tokens)
    return _read_query(text, verb, list(tokens))


def _tokens(text: bytes) -> Iterator[_Token]:
    depth = 0
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or "quoted"
        if kind == "space":
            continue
        if kind == "close":
            depth -= 1
        yield _Token("quoted" if kind == "tag" else kind, match.group(), match.start(), match.end(), depth)
        if kind == "open":
            depth += 1


def _read_insert(text: bytes, tokens: Iterator[_Token]) -> Statement:
    previous = b"INSERT"
    settings_at: int | None = None
    for token in tokens:
        keyword = token.word if token.depth == 0 and previous not in _NAME_FOLLOWS else b""
        if keyword == b"SETTINGS":
            settings_at = token.start
        elif keyword in {b"FORMAT", b"VALUES"}:
            data_format, offset = _data(text, token, tokens)
            target_end = token.start if settings_at is None else settings_at
            insert = Insert(text[:target_end], text[target_end : token.start], data_format, offset)
            return Statement(text[: token.start], "INSERT", insert=insert)
        elif keyword in _SOURCE_FOLLOWS:
            return _insert_from_source(text, list(tokens))
        previous = token.word
    raise EngineError.named("SYNTAX_ERROR", "Syntax error: INSERT needs VALUES, FORMAT or SELECT")


def _data(text: bytes, clause: _Token, tokens: Iterator[_Token]) -> tuple[bytes, int]:
    """The format of an INSERT's data, and where they begin."""
    if clause.word == b"VALUES":
        return b"Values", clause.end
    name = next(tokens, None)
    if name is None or name.kind != "word":
        raise EngineError.named("SYNTAX_ERROR", "Syntax error: the FORMAT clause of INSERT names no format")
    end = _END_OF_FORMAT_CLAUSE.match(text, name.end)
    return name.text, end.end() if end else name.end


def _insert_from_source(text: bytes, tokens: list[_Token]) -> Statement:
    if any(here.word == b"INPUT" and after.text == b"(" for here, after in pairwise(tokens)):
        # chdb accepts it and inserts nothing: an error is better than rows that vanish.
        raise EngineError.named("NOT_IMPLEMENTED", "INSERT ... SELECT ... FROM input() is not supported here")
    _refuse_a_second_statement(tokens)
    return Statement(text, "INSERT")


def _read_query(text: bytes, verb: str, tokens: list[_Token]) -> Statement:
    _refuse_a_second_statement(tokens)
    totals = any(token.word == b"TOTALS" for token in tokens)
    return Statement(text, verb, output_format=_output_format(tokens), has_totals=totals)


def _refuse_a_second_statement(tokens: list[_Token]) -> None:
    end = next((number for number, token in enumerate(tokens) if token.text == b";"), len(tokens))
    if any(token.text != b";" for token in tokens[end:]):
        raise EngineError.named("SYNTAX_ERROR", "Syntax error (Multi-statements are not allowed)")


def _output_format(tokens: list[_Token]) -> str | None:
    """The name in the last FORMAT clause, which only SETTINGS or the end may follow (an alias may be called format)."""
    outer = [token for token in tokens if token.depth == 0 and token.text != b";"]
    for number in range(len(outer) - 2, -1, -1):
        clause, name, rest = outer[number], outer[number + 1], outer[number + 2 :]
        if clause.word == b"FORMAT" and name.kind == "word" and (not rest or rest[0].word == b"SETTINGS"):
            return name.text.decode()
    return None
